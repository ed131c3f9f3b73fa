"""The uncharged trial of an external teacher, which the guarantee of every student lists.

It is tried on procedural images: does it give the stated outputs, and more than one class?
"""

from __future__ import annotations

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from lightning_modules.priors import DeadLeavesPrior, ImagePrior, StrokePrior
from lightning_modules.runtime.randomness import stream
from lightning_modules.teachers.files import TeacherError
from lightning_modules.teachers.private_teacher import PrivateModel
from lightning_modules.teachers.teacher_input import AdaptedTeacher, TeacherInput, TeacherOutputs
from privacy.session import PrivacySession

TRIAL_ACCESS = (
    "when the teacher was loaded, the form of its outputs for procedural images was looked at without noise (whether "
    "they are logits, and of more than one class): a refusal or a warning was shown to the owner on the console alone. "
    "What is stated of its inputs and outputs is how it was trained, and was not chosen by these messages"
)
"""For the guarantee if a teacher is tried: the same words whatever was found."""

_IMAGES = 64
#: Fewer images if they are large.
_LARGE, _FEWER = 96 * 96, 16
#: Tolerance of the outputs' sums, for a softmax in half precision.
_TOLERANCE = 2e-3


def trial_images(image_shape: tuple[int, int, int], prior: ImagePrior | None) -> Tensor:
    """Public images (N, C, H, W), the same ones each time: half of a run's prior (or strokes), half dead leaves."""
    draw = stream(0, 0, 0, "trial")
    device = torch.device("cpu")
    priors: list[ImagePrior] = [prior or StrokePrior(), DeadLeavesPrior()]
    parts = [one.sample(_IMAGES // 2, image_shape=image_shape, generator=draw, device=device) for one in priors]
    # Alternating, so that any few of them include both.
    return torch.stack(parts, dim=1).flatten(0, 1)


def try_external(
    teacher: PrivateModel,
    session: PrivacySession,
    *,
    image_shape: tuple[int, int, int],
    prior: ImagePrior | None,
    named: str,
) -> None:
    """Tries an external teacher on procedural images, and warns its owner about problems.

    This is a non-private access, which `session` notes: its results must not be published, stored, or used for a
    choice. Messages call the teacher's setting `named`.

    Raises:
        TeacherError: Its outputs are not what was stated.
    """
    if not teacher.is_external:
        return
    session.note(TRIAL_ACCESS)
    whole = teacher._network_of(0)
    if not isinstance(whole, AdaptedTeacher):
        if teacher.path is not None:
            rank_zero_warn(
                f"{named}.input is not stated: {teacher.name()} is given pixels in [-1, 1]. State what it was trained "
                f"with, for example {named}.input.range: [0, 1]"
            )
        whole = AdaptedTeacher(whole, takes=TeacherInput(), outputs="logits")
    network, takes, outputs = whole.network, whole.takes, whole.outputs
    images = trial_images(image_shape, prior)
    _, height, width = takes.shape(image_shape)
    if height * width > _LARGE:
        images = images[:_FEWER]
    images = images.to(next((parameter.device for parameter in network.parameters()), images.device))
    with torch.no_grad():
        raw = network(takes(images)).float()
    whose, count = teacher.name(), f"{len(images)} procedural images"
    finite = raw[torch.isfinite(raw).all(dim=1)]
    sums_to_one = ((finite.sum(dim=1) - 1).abs() < _TOLERANCE).all()
    found: TeacherOutputs = "probabilities" if bool((finite >= -1e-6).all() and sums_to_one) else "logits"
    if len(finite) and found != outputs:
        stated = f"{named}.outputs states {outputs}. State {named}.outputs: {found}"
        raise TeacherError(f"{whose} gives {found} for {count}, and {stated}")
    if (raw - raw[0]).abs().max() <= 1e-6 * raw.abs().max():
        rank_zero_warn(f"{whose} gives the same outputs for {count}: check its weights, and state {named}.input")
    elif len(raw.argmax(dim=1).unique()) == 1:
        rank_zero_warn(f"{whose} gives one class for all of {count}: state {named}.input if it takes other pixels")
