"""Uncharged checks of a teacher, each listed on the page of every student."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from lightning import Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from datamodules.shares import whole
from lightning_modules.evaluation import measured_on
from lightning_modules.priors import ImagePrior
from lightning_modules.private_run import PrivateRun
from lightning_modules.runtime.publication import private_folder
from lightning_modules.runtime.runs import datamodule_of, is_dev_run
from lightning_modules.teachers.private_model import PrivateModel
from lightning_modules.teachers.trial import trial_images
from privacy.files import write_atomically

__all__ = [
    "ACCURACY_ACCESS",
    "CHECKS",
    "TRIAL_ACCESS",
    "TeacherChecks",
    "keep_teacher_accuracy",
    "show_accuracy",
    "try_foreign",
]

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


@dataclass(frozen=True, kw_only=True)
class TeacherChecks:
    """Unaccounted queries to the teacher; a guarantee names those made, but not their results.

    Attributes:
        trial: Try a teacher that was not trained here on procedural images when it is loaded: outputs that are not
            logits are refused, and an input range that looks different from the stated one gives a warning.
        accuracy: Measure its accuracy on the public test split and show it. It goes into `private/`, and must neither
            be published nor be used to choose anything.
    """

    trial: bool = True
    accuracy: bool = False


#: As they are by default.
CHECKS = TeacherChecks()


def try_foreign(
    teacher: PrivateModel, run: PrivateRun, *, image_shape: tuple[int, int, int], prior: ImagePrior | None, named: str
) -> None:
    """Tries a teacher that was not trained here on procedural images, and warns of what its owner should know.

    Args:
        teacher: It.
        run: Notes that it was done.
        image_shape: (C, H, W) of the run's images.
        prior: The run's, where it has one.
        named: The setting that says what the teacher takes, for messages.

    Raises:
        TeacherError: Its outputs are not what was stated.
    """
    if not teacher.is_foreign:
        return
    run.note(TRIAL_ACCESS)
    for warning in teacher.tried_on(trial_images(image_shape, prior), named=named):
        rank_zero_warn(warning)


def show_accuracy(teacher: PrivateModel, run: PrivateRun, trainer: Trainer, device: torch.device) -> None:
    """Measures the teacher on the public test split, by the first process, and shows it; nothing of it is logged.

    Raises:
        ValueError: The fit has no data module.
    """
    run.note(ACCURACY_ACCESS)
    data = datamodule_of(trainer)
    if data is None:
        raise ValueError(
            "teacher.checks.accuracy is measured on the test split of a data module: fit with datamodule=..., or leave "
            "it out"
        )
    if not trainer.is_global_zero:
        return
    data.setup("test")
    found = measured_on(teacher.logits, whole(data.test_dataloader()), device)
    rank_zero_info(
        f"The teacher's own accuracy on the test split of {data.name}: {100 * found['accuracy']:.2f} %. NOT CHARGED: "
        "this is a query to the private teacher that no noise covers. Do not publish it, and choose nothing by it."
    )
    if not is_dev_run(trainer):
        keep_teacher_accuracy(trainer, found)


def keep_teacher_accuracy(trainer: Trainer, found: Mapping[str, float]) -> None:
    """Writes what an unaccounted query found where nothing is published from."""
    content = json.dumps({f"teacher_{name}": value for name, value in found.items()}, indent=2)
    write_atomically(private_folder(trainer) / "uncharged_queries.json", content + "\n")
