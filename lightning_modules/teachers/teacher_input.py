"""Conversion between the images and outputs of this project and those of an external teacher."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from torch.nn import functional as F

TeacherOutputs = Literal["logits", "probabilities"]

#: ITU-R BT.601, by which PIL and torchvision convert colours to grey.
_LUMA = (0.299, 0.587, 0.114)
#: Below this a float32 softmax gives no information.
_LEAST_PROBABILITY = 1e-7


@dataclass(frozen=True, kw_only=True)
class TeacherInput:
    """Input of a teacher that does not take images in [-1, 1] of the data's own size and channels.

    Attributes:
        range: Lowest and highest pixel value, such as [0, 1] or [0, 255].
        mean: Mean by which its pixels were normalised, on a scale of [0, 1]: one number, or one per channel.
        std: Standard deviation, likewise.
        size: Side in pixels, or height and width; images are resized bilinearly.
        channels: 1 converts colours to grey (by luma), 3 repeats grey.
    """

    range: list[float] | None = None
    mean: float | list[float] | None = None
    std: float | list[float] | None = None
    size: int | list[int] | None = None
    channels: int | None = None

    def __post_init__(self) -> None:
        mean, std = _listed(self.mean), _listed(self.std)
        if self.range is not None and (mean or std):
            raise ValueError("teacher.input takes either range, or mean and std, got both")
        ends = [-math.inf, *(self.range or [0, 1]), math.inf]
        if len(ends) != 4 or not ends[0] < ends[1] < ends[2] < ends[3]:
            raise ValueError(f"teacher.input.range must be a lowest and a highest value, got {self.range}")
        if len(mean) != len(std) or not all(map(math.isfinite, [*mean, *std])) or min(std, default=1) <= 0:
            raise ValueError(
                "teacher.input.mean and std must be finite and equally many (one, or one for each channel), std above "
                f"0, got {self.mean} and {self.std}"
            )
        sides = self.size if isinstance(self.size, list) else [1 if self.size is None else self.size]
        if len(sides) not in (1, 2) or any(type(one) is not int or one < 1 for one in sides):
            raise ValueError(f"teacher.input.size must be a side of 1 or more, or height and width, got {self.size}")
        if self.channels not in (None, 1, 3):
            raise ValueError(f"teacher.input.channels must be 1 or 3, got {self.channels}")

    def shape(self, image_shape: tuple[int, int, int]) -> tuple[int, int, int]:
        """Shape (C, H, W) of the teacher's input for images (C, H, W) of the run.

        Raises:
            ValueError: The run's channels cannot be converted, or the normalisation is for another number of them.
        """
        channels, height, width = image_shape
        if self.channels not in (None, channels) and channels not in (1, 3):
            raise ValueError(f"teacher.input.channels={self.channels} needs images of 1 or 3 channels, got {channels}")
        channels = self.channels or channels
        if len(_listed(self.mean)) not in (0, 1, channels):
            raise ValueError(f"teacher.input.mean must be one number or one for each channel, got {self.mean}")
        if isinstance(self.size, list):
            return channels, self.size[0], self.size[-1]
        return channels, self.size or height, self.size or width

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Converts images (N, C, H, W) in [-1, 1] to the teacher's input, with its graph."""
        channels, height, width = self.shape((images.shape[1], images.shape[2], images.shape[3]))
        if channels != images.shape[1]:
            luma = images.new_tensor(_LUMA).view(1, 3, 1, 1)
            images = images.expand(-1, 3, -1, -1) if channels == 3 else (images * luma).sum(dim=1, keepdim=True)
        if (height, width) != tuple(images.shape[2:]):
            # With antialiasing, as in torchvision: a smaller image would show aliasing.
            images = F.interpolate(images, size=(height, width), mode="bilinear", align_corners=False, antialias=True)
        if self.range is not None:
            low, high = self.range
            images = low + (images + 1) * ((high - low) / 2)
        elif self.mean is not None and self.std is not None:
            mean, std = (images.new_tensor(_listed(values)).view(1, -1, 1, 1) for values in (self.mean, self.std))
            images = ((images + 1) / 2 - mean) / std
        return images


class AdaptedTeacher(nn.Module):
    """Wraps a teacher to map this project's images to logits; gradients and hooks reach the inner network.

    Args:
        network: The teacher as it was trained.
        takes: Its input.
        outputs: Its kind of outputs.
    """

    def __init__(self, network: nn.Module, *, takes: TeacherInput, outputs: TeacherOutputs) -> None:
        super().__init__()
        self.network = network
        self.takes = takes
        self.outputs: TeacherOutputs = outputs

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits (N, c) of images (N, C, H, W) in [-1, 1]; log-probabilities are logits too."""
        outputs: torch.Tensor = self.network(self.takes(images))
        return outputs.clamp_min(_LEAST_PROBABILITY).log() if self.outputs == "probabilities" else outputs


def _listed(given: float | list[float] | None) -> list[float]:
    return [] if given is None else given if isinstance(given, list) else [given]
