"""Where a method's teacher comes from: a file, read when a fit begins, or a network of a script."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from lightning_modules.networks.stacked import NetworkStack
from lightning_modules.teachers.private_ensemble import PrivateEnsemble
from lightning_modules.teachers.private_model import PrivateModel, TeacherError
from lightning_modules.teachers.private_teacher import PrivateTeacher
from lightning_modules.teachers.teacher_input import OURS, TeacherInput, TeacherOutputs

__all__ = ["TeacherSource"]


class TeacherSource:
    """A teacher that is yet to be loaded.

    A network of a script is wrapped at once: as an attribute it would become part of a `state_dict`, and of every
    pickle of the method.

    Args:
        teacher: A checkpoint's path, a network, or an `nn.ModuleList` of an ensemble's networks.
        network: Builds the architecture where the file holds nothing but weights.
        private_data: Public name of the teacher's training data where its file does not say.
        num_classes: c that the run expects.
        image_shape: (C, H, W) that the run expects.
        inputs: What the teacher takes, where it is not images as they are here.
        outputs: What it gives.
    """

    def __init__(
        self,
        teacher: str | nn.Module,
        *,
        network: Callable[..., nn.Module] | None,
        private_data: str | None,
        num_classes: int,
        image_shape: tuple[int, int, int],
        inputs: TeacherInput = OURS,
        outputs: TeacherOutputs = "logits",
    ) -> None:
        self.inputs = inputs
        self.outputs: TeacherOutputs = outputs
        self.network = network
        self.private_data = private_data
        self.num_classes = num_classes
        self.image_shape = image_shape
        self._given = self._wrapped(teacher) if isinstance(teacher, nn.Module) else teacher

    def _wrapped(self, teacher: nn.Module) -> PrivateModel:
        name = self.private_data or "training data of a teacher given in a script"
        if isinstance(teacher, nn.ModuleList):
            return PrivateEnsemble(
                NetworkStack(list(teacher)),
                num_classes=self.num_classes,
                private_data=name,
                inputs=self.inputs,
                outputs=self.outputs,
            )
        return PrivateTeacher(teacher, private_data=name, inputs=self.inputs, outputs=self.outputs)

    def load_teacher(self) -> PrivateTeacher:
        """The one teacher.

        Raises:
            TeacherError: The file is missing, or holds no teacher of use.
        """
        if not isinstance(self._given, PrivateModel):
            return self.read_teacher(self._given, network=self.network, inputs=self.inputs, outputs=self.outputs)
        if not isinstance(self._given, PrivateTeacher):
            raise TeacherError("one teacher was asked for, and an nn.ModuleList of several was given")
        self._given.require_usable(num_classes=self.num_classes, image_shape=self.image_shape)
        return self._given

    def load_ensemble(self) -> PrivateEnsemble:
        """The teacher where it is many.

        Raises:
            TeacherError: The file is missing, or holds no ensemble of use.
        """
        if not isinstance(self._given, PrivateModel):
            return PrivateEnsemble.load(
                self._given,
                num_classes=self.num_classes,
                image_shape=self.image_shape,
                network=self.network,
                private_data=self.private_data,
                inputs=self.inputs,
                outputs=self.outputs,
            )
        if not isinstance(self._given, PrivateEnsemble):
            raise TeacherError("teacher must be the file of an ensemble, or an nn.ModuleList of networks in a script")
        self._given.require_usable(num_classes=self.num_classes, image_shape=self.image_shape)
        return self._given

    def read_teacher(
        self,
        path: str,
        *,
        network: Callable[..., nn.Module] | None,
        inputs: TeacherInput = OURS,
        outputs: TeacherOutputs = "logits",
    ) -> PrivateTeacher:
        """A private classifier of the same private data from a file of its own.

        Raises:
            TeacherError: The file is missing, or holds no teacher of use.
        """
        return PrivateTeacher.load(
            path,
            num_classes=self.num_classes,
            image_shape=self.image_shape,
            network=network,
            private_data=self.private_data,
            inputs=inputs,
            outputs=outputs,
        )
