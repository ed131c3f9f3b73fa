"""Uncharged checks of a teacher, each listed on the page of every student.

An external teacher is tried on procedural images: does it give logits, and different ones?
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import torch
from lightning import Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor

from datamodules.images import whole
from lightning_modules.evaluation import measured_on
from lightning_modules.priors import DeadLeavesPrior, ImagePrior, StrokePrior
from lightning_modules.private_run import PrivateRun
from lightning_modules.runtime.publication import private_folder
from lightning_modules.runtime.randomness import stream
from lightning_modules.runtime.runs import datamodule_of, is_dev_run
from lightning_modules.teachers.files import TeacherError
from lightning_modules.teachers.private_teacher import PrivateModel
from lightning_modules.teachers.teacher_input import AdaptedTeacher, TeacherInput, TeacherOutputs
from privacy.files import write_atomically

ACCURACY_ACCESS = (
    "the teacher's accuracy on the test split was measured without noise and stands in private/uncharged_queries.json: "
    "it must neither be published nor be used to choose anything"
)
"""For the guarantee, where that accuracy is measured."""

TRIAL_ACCESS = (
    "when the teacher was loaded, the form of its outputs for procedural images was looked at without noise (whether "
    "they are logits, and of more than one class): a refusal or a warning was shown to the owner on the console, and "
    "stands in no file of the run. What is stated of its inputs and outputs is how it was trained, and was not chosen "
    "by these messages"
)
"""For the guarantee, where a teacher is tried. The same words whatever was found."""

_IMAGES = 64
#: Of the outputs' sums, for a softmax in half precision.
_TOLERANCE = 2e-3


@dataclass(frozen=True, kw_only=True)
class TeacherChecks:
    """Unaccounted queries to the teacher; a guarantee names those made, but not their results.

    Attributes:
        trial: Try a teacher that was not trained here on procedural images when it is loaded: outputs that are not
            logits are refused, and the same outputs, or one class, for all gives a warning.
        accuracy: Measure its accuracy on the public test split and show it. It goes into `private/`, and must neither
            be published nor be used to choose anything.
    """

    trial: bool = True
    accuracy: bool = False


def show_accuracy(teacher: PrivateModel, run: PrivateRun, trainer: Trainer, device: torch.device) -> None:
    """Measures the teacher on the public test split, by the first process, and shows it; nothing of it is logged.

    Raises:
        ValueError: The fit has no data module.
    """
    run.note(ACCURACY_ACCESS)
    data = datamodule_of(trainer)
    if data is None:
        raise ValueError("teacher.checks.accuracy is measured on the test split of a data module: fit with one")
    if not trainer.is_global_zero:
        return
    data.setup("test")
    accuracy = measured_on(teacher.logits, whole(data.test_dataloader()), device)["accuracy"]
    rank_zero_info(
        f"The teacher's own accuracy on the test split of {data.name}: {100 * accuracy:.2f} %. NOT CHARGED: "
        "this is a query to the private teacher that no noise covers. Do not publish it, and choose nothing by it."
    )
    if not is_dev_run(trainer):
        content = json.dumps({"teacher_accuracy": accuracy}, indent=2)
        write_atomically(private_folder(trainer) / "uncharged_queries.json", content + "\n")


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
    images = images.to(next((parameter.device for parameter in network.parameters()), images.device))
    with torch.no_grad():
        given = network(takes(images)).float()
    whose, count = teacher.name(), f"{len(images)} procedural images"
    _require_stated(given, outputs, whose=whose, named=f"{named}.outputs", count=count)
    if (given - given[0]).abs().max() <= 1e-6 * given.abs().max():
        rank_zero_warn(
            f"{whose} gives the same outputs for {count}: its students can learn nothing. Check its weights, and state "
            f"{named}.input (range, or mean and std)"
        )
    elif len(given.argmax(dim=1).unique()) == 1:
        rank_zero_warn(
            f"{whose} gives one class for all of {count}: state {named}.input where it was trained with other pixels "
            "than in [-1, 1], or another size"
        )


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
