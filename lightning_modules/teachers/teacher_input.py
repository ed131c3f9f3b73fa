"""Converts between this project's images and outputs and those of an external teacher."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import nn
from torch.nn import functional as F

from lightning_modules.setting_checks import check_choice

__all__ = ["OURS", "AdaptedTeacher", "TeacherInput", "TeacherOutputs", "adapted", "as_logits", "check_outputs"]

TeacherOutputs = Literal["logits", "probabilities", "log_probabilities"]

#: ITU-R BT.601, by which PIL and torchvision make grey of colours.
_LUMA = (0.299, 0.587, 0.114)
#: Below this a float32 softmax gives no information.
_LEAST_PROBABILITY = 1e-7


@dataclass(frozen=True, kw_only=True)
class TeacherInput:
    """What a teacher takes, where it is not images in [-1, 1] of the data's own size and channels.

    Attributes:
        range: Lowest and highest value of a pixel, such as [0, 1] or [0, 255].
        mean: That its pixels were normalised by, on a scale of [0, 1]: one number, or one for each of its channels.
        std: Likewise, the standard deviation.
        size: Side in pixels, or height and width: images are resized bilinearly.
        channels: 1 makes grey of colours (by luma), 3 repeats grey.
    """

    range: list[float] | None = None
    mean: list[float] | None = None
    std: list[float] | None = None
    size: int | list[int] | None = None
    channels: int | None = None

    def __post_init__(self) -> None:
        if self.range is not None and (self.mean is not None or self.std is not None):
            raise ValueError("teacher.input takes either range, or mean and std, got both")
        if (self.mean is None) != (self.std is None):
            raise ValueError(f"teacher.input.mean and std belong together, got {self.mean} and {self.std}")
        if self.range is not None and (
            len(self.range) != 2 or not all(map(math.isfinite, self.range)) or self.range[0] >= self.range[1]
        ):
            raise ValueError(
                f"teacher.input.range must be a lowest and a highest value, such as [0, 1], got {self.range}"
            )
        for name in ("mean", "std"):
            values = getattr(self, name)
            if values is not None and (not values or not all(map(math.isfinite, values))):
                raise ValueError(
                    f"teacher.input.{name} must be one finite number or one for each channel, got {values}"
                )
        if self.std is not None and min(self.std) <= 0:
            raise ValueError(f"teacher.input.std must be above 0, got {self.std}")
        if self.mean is not None and self.std is not None and len(self.mean) != len(self.std):
            raise ValueError(f"teacher.input.mean and std must be equally many, got {self.mean} and {self.std}")
        sides = self.size if isinstance(self.size, list) else [self.size]
        if self.size is not None and (
            len(sides) not in (1, 2) or any(type(one) is not int or one < 1 for one in sides)
        ):
            raise ValueError(
                f"teacher.input.size must be a side of 1 or more pixels, or height and width, got {self.size}"
            )
        if self.channels not in (None, 1, 3):
            raise ValueError(f"teacher.input.channels must be 1 or 3, got {self.channels}")

    def shape(self, image_shape: tuple[int, int, int]) -> tuple[int, int, int]:
        """(C, H, W) of what the teacher is given, for images (C, H, W) of the run.

        Raises:
            ValueError: Channels that cannot be made of the run's, or normalisation for another number of them.
        """
        channels, height, width = image_shape
        if self.channels not in (None, channels) and channels not in (1, 3):
            raise ValueError(
                f"teacher.input.channels={self.channels} can be made of images with 1 or 3 channels, and these have "
                f"{channels}"
            )
        channels = self.channels or channels
        for name in ("mean", "std"):
            values = getattr(self, name)
            if values is not None and len(values) not in (1, channels):
                raise ValueError(
                    f"teacher.input.{name} must be one number or one for each of {channels} channels, got {values}"
                )
        if isinstance(self.size, list):
            return channels, self.size[0], self.size[-1]
        return (channels, self.size, self.size) if self.size is not None else (channels, height, width)

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """What the teacher is given of images (N, C, H, W) in [-1, 1], with its graph."""
        channels, height, width = self.shape((images.shape[1], images.shape[2], images.shape[3]))
        if channels != images.shape[1]:
            images = images.expand(-1, 3, -1, -1) if channels == 3 else _grey(images)
        if (height, width) != tuple(images.shape[2:]):
            # As torchvision's own resizing does: without it a smaller image shows aliasing.
            images = F.interpolate(images, size=(height, width), mode="bilinear", align_corners=False, antialias=True)
        if self.range is not None:
            low, high = self.range
            images = low + (images + 1) * ((high - low) / 2)
        elif self.mean is not None and self.std is not None:
            mean, std = (images.new_tensor(values).view(1, -1, 1, 1) for values in (self.mean, self.std))
            images = ((images + 1) / 2 - mean) / std
        return images


#: Images as they are.
OURS = TeacherInput()


class AdaptedTeacher(nn.Module):
    """A teacher that takes this project's images and gives logits; gradients and hooks reach the network inside.

    Args:
        network: The teacher as it was trained.
        inputs: What it takes.
        outputs: What it gives.
    """

    def __init__(self, network: nn.Module, *, inputs: TeacherInput, outputs: TeacherOutputs) -> None:
        super().__init__()
        self.network = network
        self.stated: TeacherInput = inputs
        self.outputs: TeacherOutputs = outputs

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits (N, c) of images (N, C, H, W) in [-1, 1]."""
        return as_logits(self.network(self.stated(images)), self.outputs)


def as_logits(outputs: torch.Tensor, kind: TeacherOutputs) -> torch.Tensor:
    """Logits of a teacher's outputs (..., c): of probabilities their logarithm; log-probabilities are logits."""
    return outputs.clamp_min(_LEAST_PROBABILITY).log() if kind == "probabilities" else outputs


def adapted(network: nn.Module, *, inputs: TeacherInput, outputs: TeacherOutputs) -> nn.Module:
    """The network itself where it takes and gives what this project does, else an `AdaptedTeacher` of it."""
    if inputs == OURS and outputs != "probabilities":
        return network
    return AdaptedTeacher(network, inputs=inputs, outputs=outputs)


def check_outputs(outputs: Any, *, name: str) -> TeacherOutputs:
    """A setting of what a teacher gives.

    Raises:
        ValueError: It is none of these.
    """
    check_choice(name, outputs, get_args(TeacherOutputs))
    return outputs  # type: ignore[no-any-return]


def _grey(images: torch.Tensor) -> torch.Tensor:
    luma = images.new_tensor(_LUMA).view(1, 3, 1, 1)
    return (images * luma).sum(dim=1, keepdim=True)
