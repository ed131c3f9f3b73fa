"""A trained classifier that must never be written anywhere, loaded when a fit begins and not before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch
from jsonargparse import ArgumentParser
from torch import nn

from lightning_modules.components import build_network, check_network
from lightning_modules.paths import find_config
from privacy.annotators import Annotator
from privacy.pipelines import Bound, released
from privacy.releases import release_from_dict

__all__ = ["PrivateTeacher", "TeacherError", "architecture", "has_finite_weights"]


class TeacherError(ValueError):
    """A teacher that is missing, of another architecture, or unusable."""


class PrivateTeacher:
    """Holds the network outside of every `nn.Module`, so that no `state_dict`, checkpoint or logger can reach it.

    Args:
        network: The classifier, (N, C, H, W) → (N, c) logits.
        private_data: Public name of what it was trained on.
        num_records: Number of records it was trained on, where known.
        path: The file it came from, beside which the ledger lies.
        bound: Its own record-level guarantee where it was trained with differential privacy; None where nothing bounds
            it.
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        private_data: str,
        num_records: int | None = None,
        path: Path | None = None,
        bound: Bound | None = None,
    ) -> None:
        self._network = network.eval().requires_grad_(False)
        self.private_data = private_data
        self.num_records = num_records
        self.path = path
        self.bound = bound

    @torch.no_grad()
    def logits(self, images: torch.Tensor) -> torch.Tensor:
        """Logits in float32 whatever the precision of the run, shape (N, c), on the device of `images`.

        Whatever is computed from them is private until an annotator has released it.
        """
        self._network.to(images.device).eval()
        with torch.autocast(images.device.type, enabled=False):
            outputs: torch.Tensor = self._network(images.detach().float())
        return outputs.float()

    def unprotected(self, door: Annotator, *, reason: str) -> nn.Module:
        """The network itself, for a gradient with respect to images; its own weights take none.

        Args:
            door: Charged first, once in a run, with a release that nothing bounds.
            reason: What is done with it, in words.

        Raises:
            BudgetExceeded: The target allows no such thing.
        """
        door.reveal(reason)
        return self._network.eval()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a private teacher is never written, copied or sent to another process")

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        num_classes: int,
        image_shape: tuple[int, int, int],
        network: Callable[..., nn.Module] | None = None,
        private_data: str | None = None,
    ) -> PrivateTeacher:
        """Reads a checkpoint of `Teacher`, or a plain file of weights (`torch.save(model.state_dict())`).

        Args:
            path: The file; read without unpickling code.
            num_classes: c that the run expects.
            image_shape: (C, H, W) that the run expects.
            network: Builds the architecture. A checkpoint of `Teacher` knows its own.
            private_data: Public name of the private data; a checkpoint of `Teacher` knows it.

        Raises:
            TeacherError: Missing file, other architecture or class count, weights that are not finite.
        """
        file = Path(path)
        if not file.is_file():
            raise TeacherError(_missing(file))
        try:
            content = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:
            raise TeacherError(
                f"teacher {file} cannot be read as plain weights ({type(error).__name__}: {error}). Give a "
                f"checkpoint of "
                "`LightningCLI fit` with a Teacher, or a file written by torch.save(model.state_dict(), ...)"
            ) from error
        weights = _weights(content, file)
        built = architecture(
            network, content, file, whose=f"teacher {file}", num_classes=num_classes, image_shape=image_shape
        )
        try:
            built.load_state_dict(weights)
        except RuntimeError as error:
            raise TeacherError(
                f"the weights in teacher {file} do not fit the architecture {type(built).__name__} with "
                f"num_classes={num_classes} "
                f"and image_shape={image_shape}: {error}. Set model.teacher_network to the class that the "
                f"teacher was trained with, "
                "or take the data set that it was trained on"
            ) from error
        records = content.get("num_records")
        teacher = cls(
            built,
            private_data=private_data or content.get("private_data") or f"training data of {file.name}",
            num_records=None if records is None else int(records),
            bound=_bound(content),
            path=file,
        )
        teacher.require_usable(num_classes=num_classes, image_shape=image_shape)
        return teacher

    def require_usable(self, *, num_classes: int, image_shape: tuple[int, int, int]) -> None:
        """Refuses, before anything is charged, a network that could answer nothing of use.

        Raises:
            TeacherError: Weights that are not finite, or not (N, c) finite logits for blank images.
        """
        name = "the teacher" if self.path is None else f"teacher {self.path}"
        if not has_finite_weights(self._network):
            raise TeacherError(f"{name} holds weights that are not finite; it was refused before anything was charged")
        try:
            check_network(self._network, num_classes=num_classes, image_shape=image_shape, name="model.teacher")
        except ValueError as error:
            raise TeacherError(f"{name} is of no use here: {error}") from error


def architecture(
    network: Callable[..., nn.Module] | None,
    content: Any,
    file: Path,
    *,
    whose: str,
    num_classes: int,
    image_shape: tuple[int, int, int],
) -> nn.Module:
    """The network that a checkpoint's weights belong to, freshly initialised.

    Args:
        network: Builds it; None takes what the checkpoint says.
        content: The checkpoint.
        file: Where it lies, for messages.
        whose: Of whom, for messages.
        num_classes: c that the run expects.
        image_shape: (C, H, W) that the run expects.

    Raises:
        TeacherError: The checkpoint does not say, or it cannot be built.
    """
    spec = content.get("hyper_parameters", {}).get("network") if isinstance(content, dict) else None
    try:
        return build_network(
            network or _factory(spec, file),
            num_classes=num_classes,
            image_shape=image_shape,
            name="model.teacher_network",
        )
    except TeacherError:
        raise
    except (ValueError, TypeError) as error:
        raise TeacherError(f"the architecture of {whose} cannot be built: {error}") from error


def has_finite_weights(network: nn.Module) -> bool:
    """Whether every weight and buffer is finite."""
    values = (value for value in network.state_dict().values() if value.is_floating_point())
    return all(bool(torch.isfinite(value).all()) for value in values)


def _missing(file: Path) -> str:
    text = f"teacher checkpoint {file} does not exist."
    stem = file.stem
    recipe = f"sweeps/dp_teacher_{stem[:-3]}.yaml" if stem.endswith("_dp") else f"sweeps/teacher_{stem}.yaml"
    if Path(find_config(recipe)).is_file():
        return f"{text} Make it with:  LightningCLI fit --config {recipe}"
    return (
        f"{text} Train one with `LightningCLI fit --config sweeps/teacher_<dataset>.yaml`, or set "
        f"--model.teacher to your own file"
    )


def _factory(spec: Any, file: Path) -> Callable[..., nn.Module]:
    if not isinstance(spec, dict):
        raise TeacherError(
            f"{file} does not say which architecture it holds: set model.teacher_network, for example "
            "{class_path: lightning_modules.components.ResNet34}"
        )
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--network", type=Callable[..., nn.Module])
    factory: Callable[..., nn.Module] = parser.instantiate_classes(parser.parse_object({"network": spec})).network
    return factory


def _bound(content: Any) -> Bound | None:
    """What a DP-SGD teacher's training released, as its checkpoint tells."""
    releases = content.get("releases") if isinstance(content, dict) else None
    if not releases:
        return None
    return released({release_from_dict(release): int(count) for release, count in releases})


def _weights(content: Any, file: Path) -> dict[str, torch.Tensor]:
    if isinstance(content, dict) and "ensemble" in content:
        raise TeacherError(
            f"{file} holds an ensemble, and one teacher was asked for: set model.annotator.release to ensemble for "
            "DPDFD, or take MeanAnswerAnnotator for Distillation or VoteAnnotator for DGD"
        )
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        prefix = "network."
        inside = {key[len(prefix) :]: value for key, value in content["state_dict"].items() if key.startswith(prefix)}
        weights = inside or content["state_dict"]
    else:
        weights = content
    if (
        not isinstance(weights, dict)
        or not weights
        or not all(isinstance(value, torch.Tensor) for value in weights.values())
    ):
        raise TeacherError(f"{file} holds no weights: expected a state_dict or a checkpoint with one")
    return weights
