"""A trained classifier that must never be written anywhere, loaded when a fit begins and not before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from jsonargparse import ArgumentParser
from torch import nn

from lightning_modules.networks import build_network
from lightning_modules.networks.batchnorm import folded
from lightning_modules.networks.memory import same_module
from lightning_modules.networks.named_code import require_known_code
from lightning_modules.runtime.paths import find_config
from lightning_modules.teachers.files import is_onnx, read_file
from lightning_modules.teachers.onnx_network import OnnxNetwork
from lightning_modules.teachers.private_model import (
    PrivateModel,
    TeacherError,
    has_finite_weights,
    training_of,
    weights_digest,
)
from lightning_modules.teachers.teacher_input import OURS, TeacherInput, TeacherOutputs, adapted
from lightning_modules.teachers.weights import fitted_weights, weights_in
from privacy.identity import LEDGERS, Training, UnnamedTraining, ledger_file
from privacy.ledger import ledgers_of

__all__ = ["PrivateTeacher", "TeacherError", "architecture", "has_finite_weights"]


class PrivateTeacher(PrivateModel):
    """One private classifier, see `PrivateModel`.

    Args:
        network: The classifier, (N, C, H, W) → (N, c) logits.
        private_data: Public name of what it was trained on.
        training: See `PrivateModel`; None takes its weights for its identity.
        num_records: Number of records it was trained on, where known.
        path: The file it came from.
        inputs: What the classifier takes, where it is not images as they are here.
        outputs: What it gives.
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        private_data: str,
        training: Training | UnnamedTraining | None = None,
        num_records: int | None = None,
        path: Path | None = None,
        inputs: TeacherInput = OURS,
        outputs: TeacherOutputs = "logits",
    ) -> None:
        super().__init__(
            private_data=private_data,
            training=training or UnnamedTraining(weights_digest(network.state_dict()), kind="network of a script"),
            num_records=num_records,
            path=path,
            outputs=outputs,
        )
        network = adapted(network, inputs=inputs, outputs=outputs)
        network.eval().requires_grad_(False).to(memory_format=torch.channels_last)
        # In a function: an attribute could be reached, and a copy could register it.
        self._held: Callable[[], nn.Module] = lambda: network
        #: Computes the logits.
        self._asked = self._held

    @property
    def num_teachers(self) -> int:
        """1."""
        return 1

    def _network_of(self, teacher: int) -> nn.Module:
        return self._held()

    def logits(self, images: torch.Tensor) -> torch.Tensor:
        """Logits in float32 whatever the precision of the run, shape (N, c), on the device of `images`.

        Whatever is computed from them is private until an annotator has released it.
        """
        return self._respond(self._ready(images.device), images)

    def shares_extractor(self, extractor: nn.Module | None) -> bool:
        """Whether `logits_of_extracted` takes what `extractor`, a fixed and public one, gives of images."""
        own = getattr(self._held(), "feature_extractor", None)
        if extractor is None or own is None or not hasattr(self._held(), "forward_extracted"):
            return False
        return same_module(own, extractor)

    def shares_features(self, other: PrivateTeacher) -> bool:
        """Whether another teacher's `features` are its own as well."""
        extractor: Any = getattr(other._held(), "feature_extractor", None)
        return self.shares_extractor(extractor)

    @torch.no_grad()
    def features(self, images: torch.Tensor) -> torch.Tensor:
        """Features of images (N, C, H, W) by its own fixed extractor, for teachers that share it; see `logits`."""
        extract: Any = self._ready(images.device).feature_extractor
        with torch.autocast(images.device.type, enabled=False):
            extracted: torch.Tensor = extract(images.detach().float())
        return extracted

    def logits_of_extracted(self, features: torch.Tensor) -> torch.Tensor:
        """As `logits`, of images' features, shape (N, ...), by an extractor that `shares_extractor` knows."""
        after: Any = self._ready(features.device).forward_extracted
        return self._respond(after, features)

    @staticmethod
    def _respond(network: Callable[[torch.Tensor], torch.Tensor], inputs: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode(), torch.autocast(inputs.device.type, enabled=False):
            outputs = network(inputs.detach().float())
        # A copy outside of the mode: autograd takes no inference tensor, not even as a constant.
        return outputs.float().clone()

    def _ready(self, device: torch.device) -> nn.Module:
        """The network in evaluation mode, on a device: its modules are visited only when something must change."""
        network = self._asked()
        weight = next(network.parameters(), None)
        if weight is None or weight.device != device:
            network.to(device)
        return network.eval() if any(module.training for module in network.modules()) else network

    def each(self, images: torch.Tensor) -> torch.Tensor:
        """The same as those of one teacher, (N, C, H, W) → (1, N, c)."""
        return self.logits(images).unsqueeze(0)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        num_classes: int,
        image_shape: tuple[int, int, int],
        network: Callable[..., nn.Module] | None = None,
        private_data: str | None = None,
        inputs: TeacherInput = OURS,
        outputs: TeacherOutputs = "logits",
    ) -> PrivateTeacher:
        """Reads a checkpoint of `Teacher`, weights of any classifier (see `files`, `weights`), or a graph in ONNX.

        Args:
            path: The file; read without unpickling code.
            num_classes: c that the run expects.
            image_shape: (C, H, W) that the run expects.
            network: Builds the architecture. A checkpoint of `Teacher` knows its own.
            private_data: Public name of the private data; a checkpoint of `Teacher` knows it.
            inputs: What the classifier takes, where it is not images as they are here.
            outputs: What it gives.

        Raises:
            TeacherError: Missing file, one that cannot be read without running code, other architecture or class count,
                weights that are not finite.
        """
        file = Path(path)
        if not file.is_file():
            raise TeacherError(_missing(file))
        shape = _shape_of(inputs, image_shape)
        if is_onnx(file):
            graph = OnnxNetwork(file)
            built: nn.Module = graph
            content: Any = {}
            training: Training | UnnamedTraining = UnnamedTraining(
                graph.digest, kind="graph in ONNX", folder=file.parent
            )
        else:
            content = read_file(file)
            built, weights = _read_network(content, file, network, num_classes=num_classes, image_shape=shape)
            training = training_of(content, weights, file)
        records = _stated(content, "num_records")
        named = private_data or _stated(content, "private_data")
        own_name = f"training data of {file.name}"
        known = {} if named else _known_ledgers(training, file)
        # The one under the file's present name comes first, whatever names it had.
        kept = min(known, key=lambda path: (known[path] != own_name, path), default=None)
        teacher = cls(
            built,
            private_data=named or (own_name if kept is None else known[kept]),
            training=training,
            num_records=None if records is None else int(records),
            path=file,
            inputs=inputs,
            outputs=outputs,
        )
        teacher.assumptions = (*_of_its_training(content), *teacher.assumptions)
        if not named:
            teacher.known_ledger = kept
            teacher.assumptions = (_UNNAMED, *teacher.assumptions)
        teacher.require_usable(num_classes=num_classes, image_shape=image_shape)
        # A network from a file has no other owner who could change it later.
        asked = folded(teacher._held()).to(memory_format=torch.channels_last)
        teacher._asked = lambda: asked
        return teacher


def _of_its_training(content: Any) -> tuple[str, ...]:
    """Assumptions of a DP-SGD teacher's guarantee, and so of all that is computed from it."""
    state = content.get("dp_sgd") if isinstance(content, dict) else None
    return tuple(str(text) for text in state.get("assumptions", ())) if isinstance(state, dict) else ()


def _shape_of(inputs: TeacherInput, image_shape: tuple[int, int, int]) -> tuple[int, int, int]:
    try:
        return inputs.shape(image_shape)
    except ValueError as error:
        raise TeacherError(str(error)) from error


def _read_network(
    content: Any,
    file: Path,
    network: Callable[..., nn.Module] | None,
    *,
    num_classes: int,
    image_shape: tuple[int, int, int],
) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """A network with the weights of a file, and these weights under its names."""
    held = weights_in(content, file)
    built = architecture(
        network, content, file, whose=f"teacher {file}", num_classes=num_classes, image_shape=image_shape
    )
    weights = fitted_weights(held, built, file=file)
    try:
        built.load_state_dict(weights)
    except RuntimeError as error:
        listed = " ".join(str(error).split())  # torch lists weights in lines of their own
        raise TeacherError(
            f"the weights in teacher {file} do not fit the architecture {type(built).__name__} with "
            f"num_classes={num_classes} and image_shape={image_shape}: {listed}. Set model.teacher.network to the "
            "class that the teacher was trained with, and its arguments, or take the data set that it was trained on"
        ) from error
    return built, weights


def _known_ledgers(training: Training | UnnamedTraining, file: Path) -> dict[Path, str]:
    """Ledgers that know a file by its weights, under whatever name it had: where its own would lie."""
    if not isinstance(training, UnnamedTraining):
        return {}
    # Of any name: it is the folder that counts.
    return ledgers_of(training, [ledger_file("x", beside=file).parent])


_UNNAMED = (
    "UNNAMED DATA: the teacher's file does not say what it was trained on. Its ledger is known by the file's folder "
    "and weights: it holds no use of the teacher from another folder, before it was moved, nor of other teachers of "
    f"the same data. Set private_data and {LEDGERS} (one folder for all ledgers) to count what follows under one name; "
    "what these weights were charged in the folder before is counted under any name"
)


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
            name="model.teacher.network",
        )
    except TeacherError:
        raise
    except (ValueError, TypeError) as error:
        hint = ""
        if "images of" in str(error):
            hint = (
                ". Where it was made for images of another size or other channels than the data's, state "
                "model.teacher.input.size and channels; where it is the data that are not as they should be, set "
                "theirs (of ImageFolder --data.dataset.channels 1 for grey pictures, and size)"
            )
        raise TeacherError(f"the architecture of {whose} cannot be built: {error}{hint}") from error


def _missing(file: Path) -> str:
    text = f"teacher checkpoint {file} does not exist."
    stem = file.stem
    name = f"dp_teacher_{stem[:-3]}.yaml" if stem.endswith("_dp") else f"teacher_{stem}.yaml"
    for recipe in (f"sweeps/{name}", f"sweeps/methods/{name}"):
        if Path(find_config(recipe)).is_file():
            return f"{text} Make it with:  LightningCLI fit --config {recipe}"
    return (
        f"{text} Train one with `LightningCLI fit --config sweeps/teacher_<dataset>.yaml`, or set "
        f"--model.teacher to your own file"
    )


def _factory(spec: Any, file: Path) -> Callable[..., nn.Module]:
    if not isinstance(spec, dict):
        raise TeacherError(
            f"{file} does not say which architecture it holds: set model.teacher.network, for example to "
            "lightning_modules.networks.ResNet34, torchvision.models.resnet18 or path/to/my.py:Net"
        )
    try:
        require_known_code(spec)
    except ValueError as error:
        raise TeacherError(
            f"the architecture in {file} is not built: {error}. Set model.teacher.network, with the arguments that it "
            "was trained with"
        ) from error
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--network", type=Callable[..., nn.Module])
    factory: Callable[..., nn.Module] = parser.instantiate_classes(parser.parse_object({"network": spec})).network
    return factory


def _stated(content: Any, name: str) -> Any:
    # A plain file of weights might have a weight of that name.
    value = content.get(name) if isinstance(content, dict) else None
    return None if isinstance(value, torch.Tensor) else value
