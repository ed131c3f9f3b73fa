"""The uncharged check of a teacher, which is listed on the page of every student.

An external teacher is tried on procedural images: does it give logits, and are its inputs as in its training? The
bounds of `_Response.is_better_than` were set by small classifiers of digits, MNIST, CIFAR-10 and PneumoniaMNIST, each
trained with pixels in [-1, 1], in [0, 1], in [0, 255] and normalised as for ImageNet: none of those given their own
range causes a warning.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from lightning_modules.priors import DeadLeavesPrior, ImagePrior, StrokePrior
from lightning_modules.private_run import PrivateRun
from lightning_modules.runtime.randomness import stream
from lightning_modules.teachers.files import TeacherError
from lightning_modules.teachers.private_teacher import PrivateModel
from lightning_modules.teachers.teacher_input import AdaptedTeacher, TeacherInput, TeacherOutputs

TRIAL_ACCESS = (
    "when the teacher was loaded, the form of its outputs for procedural images was looked at without noise (whether "
    "they are logits, of more than one class, and surer or more diverse with other pixels than were stated): a refusal "
    "or a warning was shown to the owner on the console alone. What is stated of its "
    "inputs and outputs is how it was trained, and was not chosen by these messages"
)
"""For the guarantee, where a teacher is tried. The same words whatever was found."""

_IMAGES = 64
#: Of large images fewer, which take as long.
_LARGE, _FEWER = 96 * 96, 16
#: Of the outputs' sums, for a softmax in half precision.
_TOLERANCE = 2e-3
#: A network with far too large inputs is certain of everything.
_TOO_SURE = 0.98
_IMAGENET_MEAN, _IMAGENET_STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def trial_images(image_shape: tuple[int, int, int], prior: ImagePrior | None) -> Tensor:
    """Public images (N, C, H, W), the same ones each time: half of a run's prior (or strokes), half dead leaves."""
    draw = stream(0, 0, 0, "trial")
    device = torch.device("cpu")
    priors: list[ImagePrior] = [prior or StrokePrior(), DeadLeavesPrior()]
    parts = [one.sample(_IMAGES // 2, image_shape=image_shape, generator=draw, device=device) for one in priors]
    # In turn, so that every few of them are of both.
    return torch.stack(parts, dim=1).flatten(0, 1)


def try_foreign(
    teacher: PrivateModel, run: PrivateRun, *, image_shape: tuple[int, int, int], prior: ImagePrior | None, named: str
) -> None:
    """Tries a teacher that was not trained here on procedural images, and warns of what its owner should know.

    A non-private access, which `run` notes: nothing of it may be published, stored or chosen by. Messages call the
    teacher's setting `named`.

    Raises:
        TeacherError: Its outputs are not what was stated.
    """
    if not teacher.is_foreign:
        return
    run.note(TRIAL_ACCESS)
    whole = teacher._network_of(0)
    if not isinstance(whole, AdaptedTeacher):
        whole = AdaptedTeacher(whole, takes=TeacherInput(), outputs="logits")
    network, takes, outputs = whole.network, whole.takes, whole.outputs
    images = trial_images(image_shape, prior)
    _, height, width = takes.shape(image_shape)
    if height * width > _LARGE:
        images = images[:_FEWER]
    images = images.to(next((parameter.device for parameter in network.parameters()), images.device))
    stated = _Response.of(network, takes(images), outputs)
    whose, count = teacher.name(), f"{len(images)} procedural images"
    _require_stated(stated.raw, outputs, whose=whose, named=f"{named}.outputs", count=count)
    if (stated.raw - stated.raw[0]).abs().max() <= 1e-6 * stated.raw.abs().max():
        rank_zero_warn(f"{whose} gives the same outputs for {count}: check its weights, and state {named}.input")
        return
    tried = [(_Response.of(network, other(images), outputs), other) for other in _plausible(takes, image_shape)]
    better = min(
        ((response, other) for response, other in tried if response.is_better_than(stated)),
        key=lambda one: (one[0].distance, -one[0].diversity),
        default=None,
    )
    if better is not None:
        rank_zero_warn(
            f"{whose} may have been trained with another range of pixels: with {_words(better[1], named)} its "
            f"decisions on {count} are more diverse, or surer, than with {_words(takes, named)}. Nothing was changed; "
            "ignore this if it was trained so"
        )
    if stated.classes == 1:
        rank_zero_warn(f"{whose} gives one class for all of {count}: state {named}.input if it takes other pixels")


@dataclass(frozen=True)
class _Response:
    """What a network made of images, in figures."""

    raw: Tensor
    confidence: float
    #: Entropy of the mean prediction, and how much of it an image decides, both of the most that c classes can have.
    diversity: float
    information: float
    classes: int
    #: How far the first BatchNorm's input is from what it remembers; 0 where there is none.
    distance: float

    @classmethod
    @torch.no_grad()
    def of(cls, network: nn.Module, given: Tensor, outputs: TeacherOutputs) -> _Response:
        distances: list[float] = []
        handles = [
            layer.register_forward_pre_hook(lambda layer, inputs: distances.append(_distance(layer, inputs[0])))
            for layer in network.modules()
            if isinstance(layer, _BatchNorm) and layer.running_mean is not None
        ]
        try:
            raw = network(given).float()
        finally:
            for handle in handles:
                handle.remove()
        probabilities = raw.clamp_min(0) if outputs == "probabilities" else raw.softmax(dim=1)
        most = math.log(max(2, raw.shape[1]))
        diversity = _entropy(probabilities.mean(dim=0))
        return cls(
            raw=raw,
            confidence=float(probabilities.max(dim=1).values.mean()),
            diversity=float(diversity) / most,
            information=float(diversity - _entropy(probabilities).mean()) / most,
            classes=len(raw.argmax(dim=1).unique()),
            distance=distances[0] if distances else 0.0,
        )

    def is_better_than(self, stated: _Response) -> bool:
        """Whether these are clearly more what a trained classifier gives."""
        if self.confidence > _TOO_SURE or self.classes == 1 or not math.isfinite(self.information):
            return False
        gained = self.diversity - stated.diversity
        surer = self.information >= max(2 * stated.information, 0.15) and gained >= -0.03
        if surer or self.information < stated.information / 2:
            return surer
        nearer = self.distance / stated.distance if stated.distance else 1.0
        return gained >= 0.13 or (nearer <= 0.6 and gained >= 0.03) or (nearer <= 0.35 and gained >= -0.02)


def _distance(layer: Any, inputs: Tensor) -> float:
    axes = [axis for axis in range(inputs.dim()) if axis != 1]
    variance, mean = torch.var_mean(inputs.float(), dim=axes)
    kept = layer.running_var.float().clamp_min(1e-12)
    offset = ((mean - layer.running_mean).square() / kept).mean().sqrt()
    return float(offset + (variance.clamp_min(1e-12) / kept).log().abs().mean())


def _entropy(probabilities: Tensor) -> Tensor:
    return -(probabilities * probabilities.clamp_min(1e-12).log()).sum(dim=-1)


def _require_stated(raw: Tensor, stated: TeacherOutputs, *, whose: str, named: str, count: str) -> None:
    finite = raw[torch.isfinite(raw).all(dim=1)]
    if not len(finite):
        return
    sums_to_one = ((finite.sum(dim=1) - 1).abs() < _TOLERANCE).all()
    found: TeacherOutputs = "logits"
    if bool((finite >= -1e-6).all() and sums_to_one):
        found = "probabilities"
    elif bool((finite <= 1e-6).all() and (finite.logsumexp(dim=1).abs() < _TOLERANCE).all()):
        found = "log_probabilities"
    # Log-probabilities are logits as well.
    if found != stated and not (found == "log_probabilities" and stated == "logits"):
        raise TeacherError(f"{whose} gives {found} for {count}, and {named} states {stated}. State {named}: {found}")


def _plausible(stated: TeacherInput, image_shape: tuple[int, int, int]) -> list[TeacherInput]:
    mean, std = _IMAGENET_MEAN, _IMAGENET_STD
    if stated.shape(image_shape)[0] != 3:
        mean, std = [round(sum(mean) / 3, 3)], [round(sum(std) / 3, 3)]
    plain = replace(stated, range=None, mean=None, std=None)
    ranges = [replace(plain, range=[0.0, 1.0]), replace(plain, range=[0.0, 255.0]), replace(plain, mean=mean, std=std)]
    return [one for one in [plain] * (stated.range != [-1.0, 1.0]) + ranges if one != stated]


def _words(takes: TeacherInput, named: str) -> str:
    if takes.range is not None:
        return f"{named}.input.range: {[int(one) if one == int(one) else one for one in takes.range]}"
    if takes.mean is not None:
        return f"{named}.input.mean: {takes.mean} and std: {takes.std}"
    return "pixels in [-1, 1]"
