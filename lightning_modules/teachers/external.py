"""A teacher from elsewhere: its images and outputs, converted to those of this project, and an uncharged trial of it.

The trial asks, on procedural images: does it give the stated outputs, and more than one class? The guarantee of every
student lists it.
"""

from __future__ import annotations

import copy
import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_modules.networks.network import logits_of
from lightning_modules.priors import DeadLeavesPrior, ImagePrior, StrokePrior
from lightning_modules.teachers.files import TeacherError
from lightning_modules.training.randomness import stream

TeacherOutputs = Literal["logits", "probabilities"]

#: ITU-R BT.601, by which PIL and torchvision convert colours to grey.
_LUMA = (0.299, 0.587, 0.114)
#: Below this a float32 softmax gives no information.
_LEAST_PROBABILITY = 1e-7

TRIAL_ACCESS = (
    "when the teacher was loaded, the form of its outputs for procedural images was looked at without noise (whether "
    "they are logits, and of more than one class): a refusal or a warning was shown to the owner on the console alone. "
    "What is stated of its inputs and outputs is how it was trained, and was not chosen by these messages"
)
"""For the guarantee if a teacher is tried: the same words whatever was found."""

_IMAGES = 64
#: Tolerance of the outputs' sums, for a softmax in half precision.
_TOLERANCE = 2e-3


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

    def __call__(self, images: Tensor) -> Tensor:
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


def giving_logits(network: nn.Module, *, probabilities: bool) -> nn.Module:
    """Returns a network of the same class and weights that gives `logits_of` its outputs, by a hook of its own."""
    copied = copy.copy(network)
    copied._forward_hooks = OrderedDict(network._forward_hooks)
    copied.register_forward_hook(lambda _, __, outputs: logits_of(outputs, probabilities=probabilities))
    return copied


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

    def forward(self, images: Tensor) -> Tensor:
        """Logits (N, c) of images (N, C, H, W) in [-1, 1]; log-probabilities are logits too."""
        outputs: Tensor = self.network(self.takes(images))
        return outputs.clamp_min(_LEAST_PROBABILITY).log() if self.outputs == "probabilities" else outputs


def _listed(given: float | list[float] | None) -> list[float]:
    return [] if given is None else given if isinstance(given, list) else [given]


def try_external(
    teacher: nn.Module, *, image_shape: tuple[int, int, int], whose: str, named: str, from_file: bool
) -> None:
    """Tries an external teacher on procedural images, and warns its owner about problems.

    This is a non-private access: its results must not be published, stored, or used for a choice. In messages `whose`
    is the teacher and `named` its setting.

    Raises:
        TeacherError: Its outputs are not what was stated.
    """
    if not isinstance(teacher, AdaptedTeacher):
        if from_file:
            rank_zero_warn(
                f"{named}.input is not stated: {whose} is given pixels in [-1, 1]. State what it was trained "
                f"with, for example {named}.input.range: [0, 1], or input.mean and input.std for torchvision's"
            )
        teacher = AdaptedTeacher(teacher, takes=TeacherInput(), outputs="logits")
    network, takes, outputs = teacher.network, teacher.takes, teacher.outputs
    draw, device = stream(0, 0, 0, "trial"), next((one.device for one in network.parameters()), torch.device("cpu"))
    priors: tuple[ImagePrior, ...] = (StrokePrior(), DeadLeavesPrior())
    drawn = [one.sample(_IMAGES // 2, image_shape=image_shape, generator=draw, device=device) for one in priors]
    images = torch.cat(drawn)  # the same ones each time
    with torch.no_grad():
        raw = network(takes(images)).float()
    count = f"{len(images)} procedural images"
    finite = raw[torch.isfinite(raw).all(dim=1)]
    sums_to_one = ((finite.sum(dim=1) - 1).abs() < _TOLERANCE).all()
    if raw.shape[1] == 2 and not finite[:, 0].any():  # of one output z, (0, z)
        sums_to_one = (finite <= 1).all()
    found: TeacherOutputs = "probabilities" if bool((finite >= -1e-6).all() and sums_to_one) else "logits"
    if len(finite) and found != outputs:
        stated = f"{named}.outputs states {outputs}. State {named}.outputs: {found}"
        raise TeacherError(f"{whose} gives {found} for {count}, and {stated}")
    if (raw - raw[0]).abs().max() <= 1e-6 * raw.abs().max():
        rank_zero_warn(f"{whose} gives the same outputs for {count}: check its weights, and state {named}.input")
    elif len(raw.argmax(dim=1).unique()) == 1:
        rank_zero_warn(f"{whose} gives one class for all of {count}: state {named}.input if it takes other pixels")
