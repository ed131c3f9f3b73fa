"""A method's teacher: its settings, and how it is read when a fit begins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from lightning_modules.networks.stacked import NetworkStack
from lightning_modules.runtime.hyperparameters import settings_of
from lightning_modules.teachers.checks import CHECKS, TeacherChecks
from lightning_modules.teachers.private_ensemble import PrivateEnsemble
from lightning_modules.teachers.private_model import PrivateModel, TeacherError
from lightning_modules.teachers.private_teacher import PrivateTeacher
from lightning_modules.teachers.teacher_input import OURS, TeacherInput, TeacherOutputs, check_outputs

__all__ = ["TeacherConfig", "TeacherSource"]


@dataclass(frozen=True, kw_only=True)
class TeacherConfig:
    """The private teacher, or the ensemble of them; a string stands for its `path`.

    Attributes:
        path: Its checkpoint, or a network in a script; of an ensemble the file of a `TeacherEnsemble`, or an
            `nn.ModuleList` in a script.
        network: Builds it, or one teacher of an ensemble, where the file holds nothing but weights.
        private_data: Public name of its training data, where the file does not say.
        input: What it takes, where it is not images in [-1, 1] of the data's size and channels.
        outputs: What it gives: `logits`, `probabilities` (their logarithm is taken) or `log_probabilities`.
        checks: Uncharged checks of the teacher; see `TeacherChecks`.
    """

    path: str | nn.Module
    network: Callable[..., nn.Module] | None = None
    private_data: str | None = None
    input: TeacherInput = OURS
    outputs: TeacherOutputs = "logits"
    checks: TeacherChecks = CHECKS

    def __post_init__(self) -> None:
        # In a checkpoint of a script they are plain values.
        object.__setattr__(self, "input", settings_of(TeacherInput, self.input, name="teacher.input"))
        object.__setattr__(self, "checks", settings_of(TeacherChecks, self.checks, name="teacher.checks"))
        check_outputs(self.outputs, name="teacher.outputs")


class TeacherSource:
    """A teacher that is yet to be loaded.

    A network of a script is wrapped at once: as an attribute it would become part of a `state_dict`, and of every
    pickle of the method.

    Args:
        config: Which teacher.
        num_classes: c that the run expects.
        image_shape: (C, H, W) that the run expects.

    Attributes:
        checks: Uncharged checks of the teacher; see `TeacherChecks`.
        private_data: Public name of its training data, where it was given.
    """

    def __init__(self, config: TeacherConfig, *, num_classes: int, image_shape: tuple[int, int, int]) -> None:
        self.checks = config.checks
        self.private_data = config.private_data
        self._shape: dict[str, Any] = {"num_classes": num_classes, "image_shape": image_shape}
        self._form: dict[str, Any] = {"inputs": config.input, "outputs": config.outputs}
        self._network = config.network
        self._given = self._wrapped(config.path) if isinstance(config.path, nn.Module) else config.path

    def _wrapped(self, teacher: nn.Module) -> PrivateModel:
        name = self.private_data or "training data of a teacher given in a script"
        if isinstance(teacher, nn.ModuleList):
            stack, num_classes = NetworkStack(list(teacher)), self._shape["num_classes"]
            return PrivateEnsemble(stack, num_classes=num_classes, private_data=name, **self._form)
        return PrivateTeacher(teacher, private_data=name, **self._form)

    def load(self, *, ensemble: bool) -> PrivateModel:
        """The teacher, or the ensemble where a method is for one.

        Raises:
            TeacherError: The file is missing, or holds nothing usable.
        """
        kind: type[PrivateTeacher | PrivateEnsemble] = PrivateEnsemble if ensemble else PrivateTeacher
        if not isinstance(self._given, PrivateModel):
            return kind.load(
                self._given, network=self._network, private_data=self.private_data, **self._shape, **self._form
            )
        if not isinstance(self._given, kind):
            raise TeacherError(
                "teacher must be the file of an ensemble, or an nn.ModuleList of networks in a script"
                if ensemble
                else "one teacher was asked for, and an nn.ModuleList of several was given"
            )
        self._given.require_usable(**self._shape)
        return self._given
