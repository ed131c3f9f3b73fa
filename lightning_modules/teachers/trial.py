"""Tries an external teacher on procedural images: does it give logits, and are its inputs as in its training?

What is measured is private, see `TeacherChecks`. The bounds of `_is_better` were set by small classifiers of digits,
MNIST, CIFAR-10 and PneumoniaMNIST, each trained with pixels in [-1, 1], in [0, 1], in [0, 255] and normalised as for
ImageNet: none of those given their own range causes a warning.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from lightning_modules.priors import DeadLeavesPrior, ImagePrior, StrokePrior
from lightning_modules.runtime.randomness import stream
from lightning_modules.teachers.teacher_input import OURS, TeacherInput, TeacherOutputs

__all__ = ["trial_images", "try_teacher"]

_IMAGES = 64
#: Of large images fewer, which take as long.
_LARGE, _FEWER = 96 * 96, 16
#: Of the outputs' sums, for a softmax in half precision.
_TOLERANCE = 2e-3
#: A network with far too large inputs is certain of everything.
_TOO_SURE = 0.98

_IMAGENET_MEAN = [0.485, 0.456, 0.406]
_IMAGENET_STD = [0.229, 0.224, 0.225]


def trial_images(image_shape: tuple[int, int, int], prior: ImagePrior | None) -> torch.Tensor:
    """Public images (N, C, H, W), the same ones each time: half of a run's prior (or strokes), half dead leaves."""
    draw = stream(0, 0, 0, "trial")
    device = torch.device("cpu")
    priors: list[ImagePrior] = [prior or StrokePrior(), DeadLeavesPrior()]
    parts = [one.sample(_IMAGES // 2, image_shape=image_shape, generator=draw, device=device) for one in priors]
    # In turn, so that every few of them are of both.
    return torch.stack(parts, dim=1).flatten(0, 1)


def try_teacher(
    network: nn.Module,
    images: torch.Tensor,
    *,
    inputs: TeacherInput,
    outputs: TeacherOutputs,
    whose: str,
    named: str,
) -> list[str]:
    """Warnings about a teacher, each naming what to set.

    Args:
        network: As it was trained, in evaluation mode.
        images: Public ones, (N, C, H, W) in [-1, 1].
        inputs: The stated form of its inputs.
        outputs: The stated form of its outputs.
        whose: For messages.
        named: The setting of `inputs`, for messages.

    Raises:
        ValueError: Its outputs are not what was stated.
    """
    _, height, width = inputs.shape((images.shape[1], images.shape[2], images.shape[3]))
    if height * width > _LARGE:
        images = images[: 2 * (_FEWER // 2)]
    device = next((parameter.device for parameter in network.parameters()), images.device)
    images = images.to(device)
    as_stated = _response(network, inputs(images), kind=outputs)
    _require_stated(as_stated.raw, outputs, whose=whose, named=named)
    spread = (as_stated.raw - as_stated.raw[0]).abs().max()
    if spread <= 1e-6 * as_stated.raw.abs().max():
        return [
            f"{whose} gives the same outputs for {len(images)} procedural images: its students can learn nothing. Its "
            "weights may be untrained or of another network, or its input far from what it was trained with: state "
            f"{named} (range, or mean and std)"
        ]
    better = _better_input(network, images, inputs, as_stated, kind=outputs)
    if better is not None:
        found = [
            f"{whose} seems to have been trained with another range of pixels than it is given: with "
            f"{_words(better, named)} its decisions on {len(images)} procedural images are more diverse, or "
            f"surer, than with {_words(inputs, named)}. State what it was trained with; this is a guess, and nothing "
            "was changed"
        ]
    else:
        found = []
    if as_stated.classes == 1:
        found.append(
            f"{whose} gives one class for all of {len(images)} procedural images. Where it was trained with "
            f"pixels that are not in [-1, 1], state {named} (range, or mean and std), and its size and channels where "
            "they are not the data's"
        )
    return found


@dataclass(frozen=True)
class _Response:
    """What a network made of images, in figures."""

    raw: torch.Tensor
    confidence: float
    #: Entropy of the mean prediction, and how much of it an image decides, both of the most that c classes can have.
    diversity: float
    information: float
    classes: int
    #: How far the first BatchNorm's input is from what it remembers; None where there is none.
    distance: float | None


@torch.no_grad()
def _response(network: nn.Module, given: torch.Tensor, *, kind: TeacherOutputs) -> _Response:
    caught: list[tuple[Any, torch.Tensor]] = []
    handles = [
        layer.register_forward_pre_hook(lambda layer, inputs: caught.append((layer, inputs[0])))
        for layer in network.modules()
        if isinstance(layer, _BatchNorm) and layer.running_mean is not None
    ]
    try:
        raw = network(given).float()
    finally:
        for handle in handles:
            handle.remove()
    if kind == "probabilities":
        probabilities = raw.clamp_min(0)
        probabilities = probabilities / probabilities.sum(dim=1, keepdim=True).clamp_min(1e-12)
    else:
        probabilities = raw.softmax(dim=1)
    most = math.log(max(2, raw.shape[1]))
    diversity = _entropy(probabilities.mean(dim=0))
    return _Response(
        raw=raw,
        confidence=float(probabilities.max(dim=1).values.mean()),
        diversity=float(diversity) / most,
        information=float(diversity - _entropy(probabilities).mean()) / most,
        classes=len(raw.argmax(dim=1).unique()),
        distance=_distance(*caught[0]) if caught else None,
    )


def _entropy(probabilities: torch.Tensor) -> torch.Tensor:
    return -(probabilities * probabilities.clamp_min(1e-12).log()).sum(dim=-1)


def _distance(layer: Any, inputs: torch.Tensor) -> float:
    axes = [axis for axis in range(inputs.dim()) if axis != 1]
    variance, mean = torch.var_mean(inputs.float(), dim=axes)
    kept = layer.running_var.float().clamp_min(1e-12)
    offset = ((mean - layer.running_mean).square() / kept).mean().sqrt()
    return float(offset + (variance.clamp_min(1e-12) / kept).log().abs().mean())


def _require_stated(raw: torch.Tensor, stated: TeacherOutputs, *, whose: str, named: str) -> None:
    setting = f"{named.rpartition('.')[0]}.outputs"
    finite = raw[torch.isfinite(raw).all(dim=1)]
    if not len(finite):
        return
    sums = finite.sum(dim=1)
    probabilities = bool((finite >= -1e-6).all()) and bool(((sums - 1).abs() < _TOLERANCE).all())
    logarithms = bool((finite <= 1e-6).all()) and bool((finite.logsumexp(dim=1).abs() < _TOLERANCE).all())
    if stated != "probabilities" and probabilities:
        raise ValueError(
            f"{whose} gives probabilities, not {stated}: for {len(finite)} procedural images none is below 0 and each "
            "row sums to 1. A softmax of these would be nearly flat, and its students of little use. State "
            f"{setting}: probabilities, or take the softmax out of the network"
        )
    if stated == "probabilities" and not probabilities:
        raise ValueError(
            f"{whose} gives no probabilities, as {setting} states: for {len(finite)} procedural images some are below "
            f"0, or rows do not sum to 1. State {setting}: {'log_probabilities' if logarithms else 'logits'}"
        )
    if stated == "log_probabilities" and not logarithms:
        raise ValueError(
            f"{whose} gives no log-probabilities, as {setting} states: for {len(finite)} procedural images their "
            f"exponentials do not sum to 1. State {setting}: logits"
        )


def _better_input(
    network: nn.Module, images: torch.Tensor, inputs: TeacherInput, as_stated: _Response, *, kind: TeacherOutputs
) -> TeacherInput | None:
    """A plausible range that fits a network clearly better than the stated one; None without one."""
    found: list[tuple[_Response, TeacherInput]] = []
    for other in _plausible(inputs, channels=inputs.shape((images.shape[1], images.shape[2], images.shape[3]))[0]):
        response = _response(network, other(images), kind=kind)
        if _is_better(response, as_stated):
            found.append((response, other))
    if not found:
        return None
    return min(found, key=lambda one: (one[0].distance or 0.0, -one[0].diversity))[1]


def _is_better(other: _Response, stated: _Response) -> bool:
    if other.confidence > _TOO_SURE or other.classes == 1 or not math.isfinite(other.information):
        return False
    surer = (
        other.information >= 2 * stated.information
        and other.information >= 0.15
        and other.diversity >= stated.diversity - 0.03
    )
    if surer:
        return True
    if other.information < stated.information / 2:
        return False
    gained = other.diversity - stated.diversity
    if gained >= 0.13:
        return True
    if other.distance is None or stated.distance is None:
        return False
    nearer = other.distance / stated.distance
    return (nearer <= 0.6 and gained >= 0.03) or (nearer <= 0.35 and gained >= -0.02)


def _plausible(stated: TeacherInput, *, channels: int) -> list[TeacherInput]:
    mean, std = _IMAGENET_MEAN, _IMAGENET_STD
    if channels != 3:
        mean, std = [round(sum(mean) / 3, 3)], [round(sum(std) / 3, 3)]
    plain = replace(stated, range=None, mean=None, std=None)
    ranges = [
        plain,
        replace(plain, range=[0.0, 1.0]),
        replace(plain, range=[0.0, 255.0]),
        replace(plain, mean=mean, std=std),
    ]
    return [one for one in ranges if one != stated and not (one == plain and stated.range == [-1.0, 1.0])]


def _words(inputs: TeacherInput, named: str) -> str:
    if inputs.range is not None:
        return f"{named}.range: {[int(one) if one == int(one) else one for one in inputs.range]}"
    if inputs.mean is not None:
        return f"{named}.mean: {inputs.mean} and std: {inputs.std}"
    return "pixels in [-1, 1]" if inputs == OURS else f"no range, mean or std in {named} (pixels in [-1, 1])"
