"""What a checkpoint of a pretraining says of its encoder, and of the images that it was made of."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lightning_modules.networks.foreign import named_object
from lightning_modules.networks.named_code import require_known_code
from lightning_modules.priors import ImagePrior

__all__ = [
    "PROVENANCE",
    "SECTION",
    "Pretraining",
    "build_encoder",
    "check_encoder",
    "described_factory",
    "described_prior",
    "provenance_of",
    "read_pretraining",
]

PROVENANCE = "procedural images only"
"""What a pretraining declares whose images and first weights are all this package's own."""

SECTION = "pretraining"
"""Where a checkpoint says it."""

_OURS = "lightning_modules."


@dataclass(frozen=True, kw_only=True)
class Pretraining:
    """What a classifier takes over.

    Attributes:
        encoder: `class` and `settings`, see `described_factory`.
        sha256: Of the file, in hexadecimal digits.
        declared: Whether the file declares `PROVENANCE`.
        weights: The encoder's, by name.
        vouched_by: Who says that no private record had a part in a file that does not declare it.
    """

    encoder: Mapping[str, Any]
    sha256: str
    declared: bool
    weights: Mapping[str, Tensor] = field(repr=False)
    vouched_by: str | None = None

    @property
    def assumption(self) -> str:
        """What a guarantee of anything that is computed with the encoder rests on."""
        file = f"the file with SHA-256 {self.sha256}"
        if self.declared:
            return f"the encoder was pretrained on procedural images only, as {file} declares"
        return f"no private record had a part in the encoder of {file}, as {self.vouched_by or 'somebody'} vouches"


def read_pretraining(file: Path, *, vouched_by: str | None = None) -> Pretraining:
    """What a checkpoint of `ProceduralPretraining` holds of its encoder. No code is unpickled.

    Args:
        file: The checkpoint; or what `torch.save` has written of `state_dict`, with names that begin with `encoder.`,
            and `pretraining`, with `encoder` as `described_factory` has it.
        vouched_by: Who says that no private record had a part in a file that does not declare it.

    Raises:
        ValueError: No such file, one of something else, or one that declares nothing while nobody vouches for it.
    """
    if not file.is_file():
        raise ValueError(
            f"checkpoint {file} does not exist. Make one with:  LightningCLI fit --config "
            "sweeps/methods/pretrain_procedural.yaml"
        )
    # Read once: what is hashed is what is loaded.
    held = file.read_bytes()
    try:
        content = torch.load(io.BytesIO(held), map_location="cpu", weights_only=True)
    except Exception as error:
        raise ValueError(
            f"checkpoint {file} cannot be read ({type(error).__name__}): it is cut short, damaged or of another kind"
        ) from error
    found = content.get(SECTION) if isinstance(content, dict) else None
    if not isinstance(found, Mapping) or "state_dict" not in content:
        raise ValueError(
            f"checkpoint {file} is of no ProceduralPretraining: what its weights were computed from is not known, and "
            "features of private records would be released without a bound. Make one with:  LightningCLI fit --config "
            "sweeps/methods/pretrain_procedural.yaml"
        )
    if found.get("provenance") != PROVENANCE and vouched_by is None:
        raise ValueError(
            f"checkpoint {file} does not declare {PROVENANCE!r}, got {found.get('provenance')!r}: classes of another "
            "package drew its images or built its encoder. Where somebody knows that no private record had a part in "
            "it, say who: vouched_by. A guarantee will then say so"
        )
    spec = found.get("encoder")
    if not isinstance(spec, Mapping) or "class" not in spec:
        raise ValueError(
            f"checkpoint {file} does not say of which class its encoder is: a script gave it as a function. Give "
            "ProceduralPretraining a class, with plain settings"
        )
    prefix = "encoder."
    return Pretraining(
        encoder={"class": str(spec["class"]), "settings": dict(spec.get("settings") or {})},
        sha256=hashlib.sha256(held).hexdigest(),
        declared=found.get("provenance") == PROVENANCE,
        weights={
            name.removeprefix(prefix): value for name, value in content["state_dict"].items() if name.startswith(prefix)
        },
        vouched_by=vouched_by,
    )


def provenance_of(prior: ImagePrior, encoder: nn.Module) -> str | None:
    """`PROVENANCE` where classes of this package drew the images and the first weights; None where others did.

    A prior or a network of anyone's may read files: it knows where they come from, and nothing here does.
    """
    classes = [*_classes_of(prior), type(encoder)]
    return PROVENANCE if all(one.__module__.startswith(_OURS) for one in classes) else None


def _classes_of(prior: ImagePrior) -> list[type]:
    inner = [one for value in vars(prior).values() for one in (value if isinstance(value, (list, tuple)) else [value])]
    nested = [one for part in inner if isinstance(part, ImagePrior) for one in _classes_of(part)]
    return [type(prior), *nested]


def described_prior(value: Any) -> Any:
    """A prior's class and settings as plain values, those of a mixture's parts too."""
    if isinstance(value, ImagePrior):
        name = f"{type(value).__module__}.{type(value).__qualname__}"
        return {"class": name, **{key: described_prior(item) for key, item in vars(value).items()}}
    if isinstance(value, (list, tuple)):
        return [described_prior(item) for item in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else repr(value)


def described_factory(factory: Any) -> dict[str, Any] | None:
    """Class and settings of what builds an encoder; None where it is no class with plain settings.

    Args:
        factory: A class, a `partial` of one with keywords alone, or `class_path` and `init_args` as a configuration has
            them.
    """
    if isinstance(factory, Mapping):
        return {"class": str(factory["class_path"]), "settings": dict(factory.get("init_args") or {})}
    keywords: dict[str, Any] = {}
    if isinstance(factory, partial) and not factory.args:
        factory, keywords = factory.func, dict(factory.keywords)
    if not isinstance(factory, type) or not _plain(keywords):
        return None
    return {"class": f"{factory.__module__}.{factory.__qualname__}", "settings": described_prior(keywords)}


def _plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _plain(item) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return all(map(_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))


def build_encoder(spec: Mapping[str, Any], *, image_shape: tuple[int, int, int]) -> nn.Module:
    """An encoder with fresh weights, by its description.

    Args:
        spec: `class` and `settings`, see `described_factory`.
        image_shape: (C, H, W).

    Raises:
        ValueError: It is of another package, or cannot be built for such images.
    """
    name = str(spec["class"])
    require_known_code(spec)
    settings = {**spec["settings"], "image_shape": image_shape}
    try:
        encoder: nn.Module = named_object(name)(**settings)
    except TypeError as error:
        raise ValueError(f"encoder {name} cannot be built with {settings}: {error}") from error
    check_encoder(encoder, image_shape=image_shape)
    return encoder


def check_encoder(encoder: nn.Module, *, image_shape: tuple[int, int, int]) -> tuple[int, int, int]:
    """Checks by a dry run in eval mode that an encoder gives maps. Its mode is restored.

    Returns:
        (C, h, w) of the maps of one image.

    Raises:
        ValueError: It fails on such images, or gives anything but finite maps (N, C, h, w).
    """
    name = type(encoder).__name__
    if not isinstance(encoder, nn.Module):
        raise ValueError(f"encoder must build a torch.nn.Module, got {name}")
    modes = {module: module.training for module in encoder.modules()}
    encoder.eval()
    try:
        with torch.no_grad():
            maps = encoder(torch.zeros(2, *image_shape))
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        raise ValueError(
            f"encoder: {name} cannot take images of shape {image_shape} (channels, height, width): {error}"
        ) from error
    finally:
        for module, training in modes.items():
            module.training = training
    if not isinstance(maps, torch.Tensor) or maps.dim() != 4 or len(maps) != 2:
        found = tuple(maps.shape) if isinstance(maps, torch.Tensor) else type(maps).__name__
        raise ValueError(
            f"encoder: {name} must give maps of features (2, channels, height, width) for two images, such as "
            f"ResNetEncoder does, got {found}"
        )
    if not bool(torch.isfinite(maps).all()):
        raise ValueError(f"encoder: {name} gives maps that are not finite for blank images")
    return (maps.shape[1], maps.shape[2], maps.shape[3])
