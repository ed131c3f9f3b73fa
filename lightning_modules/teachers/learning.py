"""How a method holds its private teacher, which is read when a fit begins and is part of no state."""

from __future__ import annotations

from lightning import Trainer
from torch import nn

from lightning_modules.images.base import ImageSource
from lightning_modules.runtime.processes import check_strategy
from lightning_modules.runtime.runs import MixinBase
from lightning_modules.teachers.config import TeacherConfig
from lightning_modules.teachers.private_teacher import PrivateModel
from lightning_modules.teachers.trial import try_external
from privacy.identity import Training
from privacy.processes import Processes, by_all
from privacy.session import PrivacySession


class LearnsFromTeacher(MixinBase):
    """Mixin for a module with a private teacher, or an ensemble of them.

    The teacher is a path, read when a fit begins. It is not a submodule: no `state_dict`, checkpoint or logger has it,
    and `test` and `load_from_checkpoint` work without it.
    """

    num_classes: int
    image_shape: tuple[int, int, int]
    teacher_config: TeacherConfig
    images: ImageSource
    session: PrivacySession
    processes: Processes
    _teacher: PrivateModel | None = None

    @property
    def teacher(self) -> PrivateModel:
        """The private teacher, or the ensemble, while a fit runs.

        Raises:
            RuntimeError: No fit is running.
        """
        if self._teacher is None:
            raise RuntimeError("the teacher is loaded when a fit begins; nothing else needs it")
        return self._teacher

    @property
    def of_ensemble(self) -> bool:
        """Whether the mechanism takes the responses of many teachers, from a file of `TeacherEnsemble`."""
        return False

    @property
    def needs_gradients_of_teacher(self) -> str | None:
        """What needs the teacher's gradients or BatchNorm statistics, in words; None if nothing does."""
        return None

    def setup(self, stage: str) -> None:
        """Loads the teacher, or the ensemble, for a fit, before any other work.

        Raises:
            ProcessesError: The strategy is not supported, or its processes cannot share the batch equally.
            TeacherError: The file is missing or unusable.
        """
        if stage != "fit":
            return
        if isinstance(self._trainer, Trainer):
            check_strategy(self._trainer, averages_itself=True)
        by_all(self.processes, self.prepare_fit)

    def prepare_fit(self) -> None:
        """Does what may fail on one rank and must then fail on all of them."""
        if self._teacher is None:
            teacher = self.read_teacher()
            self.admit(teacher, self.teacher_config, named="model.teacher")
            self._teacher = teacher

    def published_networks(self) -> dict[str, nn.Module]:
        """Networks that a guarantee of this run covers, by name."""
        raise NotImplementedError

    def read_teacher(self) -> PrivateModel:
        """Loads the teacher for a fit, running it on blank images only.

        Raises:
            TeacherError: The file is missing or unusable.
        """
        config = self.teacher_config
        load = config.load_ensemble if self.of_ensemble else config.load
        teacher: PrivateModel = load(num_classes=self.num_classes, image_shape=self.image_shape)
        if self.needs_gradients_of_teacher is not None:
            teacher.require_gradients(reason=self.needs_gradients_of_teacher)
        return teacher

    def require_unlike(self, teacher: PrivateModel) -> None:
        """See `PrivateModel.require_unlike`; the guarantee names common frozen weights.

        If only the teacher's training by DP-SGD bounds its responses, that bound covers its weights as well.
        """
        by_dp_sgd = isinstance(teacher.training, Training) and teacher.training.releases
        if by_dp_sgd and not self.session.cost.release.bounded:
            return
        if common := teacher.require_unlike(self.published_networks()):
            self.session.note(
                f"{len(common)} frozen weights of a teacher, {common[0]} first, are published as they are"
            )

    def admit(self, teacher: PrivateModel, config: TeacherConfig, *, named: str) -> None:
        """Tries an external teacher, see `TeacherConfig`, and notes which records are private.

        Raises:
            TeacherError: Its outputs are not as stated, or what is published begins with one of its weights.
        """
        self.require_unlike(teacher)
        if config.trial:
            try_external(teacher, self.session, image_shape=self.image_shape, prior=self.images.prior, named=named)
        self.session.keep_partitions(teacher.partitions)
