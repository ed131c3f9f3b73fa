"""How a method holds its private teacher, which is read when a fit begins and is part of no state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from lightning import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info
from torch import nn

from lightning_modules.evaluation import require_monitored
from lightning_modules.images.base import ImageSource
from lightning_modules.private_fit import (
    meaning,
    open_session,
    require_first_step,
    require_public_fit,
    steps_of_run,
    warn_of_changed_noise,
    write_statement,
)
from lightning_modules.runtime.processes import check_strategy
from lightning_modules.runtime.publication import clear, public_folder
from lightning_modules.runtime.runs import datamodule_of, is_dev_run
from lightning_modules.teachers.config import TeacherConfig
from lightning_modules.teachers.private_teacher import PrivateModel
from lightning_modules.teachers.trial import try_external
from privacy.guarantee import Guarantee
from privacy.identity import Training
from privacy.plan import Charge
from privacy.processes import Processes, by_all
from privacy.session import PrivacySession


class LearnsFromTeacher(LightningModule, ABC):
    """Mixin for a module with a private teacher, or an ensemble of them.

    The teacher is a path, read when a fit begins. It is not a submodule: no `state_dict`, checkpoint or logger has it,
    and `test` and `load_from_checkpoint` work without it.
    """

    num_classes: int
    image_shape: tuple[int, int, int]
    teacher_config: TeacherConfig
    images: ImageSource
    session: PrivacySession
    steps_done: int
    published_artefacts: tuple[str, ...]
    _teacher: PrivateModel | None = None
    begun = False
    """Whether a fit has fixed its plan, so that its networks are those of the run and not of a refused checkpoint."""

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

    @property
    @abstractmethod
    def processes(self) -> Processes:
        """Processes of this run."""

    @property
    @abstractmethod
    def next_calls(self) -> int:
        """Number of calls of the mechanism that the next step makes."""

    @abstractmethod
    def calls_ahead(self, steps: int | None) -> int | None:
        """Number of affordable calls still to come in a run of `steps` steps in total; None if its end is unknown."""

    @abstractmethod
    def logged_names(self) -> set[str]:
        """Names of what a fit logs besides privacy, which callbacks may monitor."""

    @abstractmethod
    def assumptions(self) -> list[str]:
        """Assumptions of this run's guarantee besides the session's."""

    @abstractmethod
    def published_networks(self) -> dict[str, nn.Module]:
        """Networks that a guarantee of this run covers, by name."""

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

    # --- the session ---

    def on_fit_start(self) -> None:
        """Opens the session, and refuses a budget that allows no step.

        Raises:
            ValueError: The validation data may be private, or a callback monitors what is not logged.
            BudgetExceeded: Not one step fits.
        """
        session, teacher, data = self.session, self.teacher, datamodule_of(self.trainer)
        require_public_fit(self.trainer, session.partitions)
        rank_zero_info(meaning(self.image_shape, data))
        clear(self.trainer, resumed=session.resumed if self.trainer.ckpt_path else None)
        open_session(
            session,
            self.trainer,
            private_data=teacher.private_data,
            ledger=teacher.ledger_place(data),
            training=teacher.training,
            num_records=teacher.num_records,
            processes=self.processes,
        )
        require_monitored(self.trainer, self.logged_names() | {*self.spent({session.cost: 1})})
        by_all(
            self.processes,
            lambda: require_first_step(self.trainer, session, calls=self.next_calls, steps_done=self.steps_done),
        )

    def on_train_start(self) -> None:
        """Fixes the plan, before the first query: the guarantee covers it. That of an earlier fit is withdrawn.

        Raises:
            TeacherError: The student has received a weight of the teacher since the teacher was loaded.
        """
        by_all(self.processes, lambda: self.require_unlike(self.teacher))
        self.session.fix_plan(lambda: self.calls_ahead(steps_of_run(self.trainer, done=self.steps_done)))
        warn_of_changed_noise(self.session)
        if self.trainer.is_global_zero and not is_dev_run(self.trainer):
            # Images beside it will be of more than it covers.
            for page in public_folder(self.trainer).glob("guarantee.*"):
                page.unlink()
        self.begun = True

    def on_fit_end(self) -> None:
        """Settles the ledger, writes the guarantee with what it covers, and explains the figures in words."""
        self.session.close()
        self.begun = False
        ledger = self.session.ledger.path
        if self.trainer.is_global_zero:
            write_statement(self.trainer, self.guarantee(), self.published_networks(), ledger=ledger)

    def on_exception(self, exception: BaseException) -> None:
        """Writes the guarantee of what was released before an error; a refused fit has published nothing."""
        if self.begun and self.session.account.counts(scope="run"):
            self.on_fit_end()

    def spent(self, counts: Mapping[Charge, int] | None = None) -> dict[str, float]:
        """Figures of privacy by their names in logs; see `PrivacySession.epsilons`."""
        return {**self.session.epsilons(counts), "privacy/queries": float(self.session.account.queries())}

    def guarantee(self) -> Guarantee:
        """Current guarantee for this run's artefacts."""
        of_teacher = () if self._teacher is None else self._teacher.assumptions
        assumptions = [*self.assumptions(), *of_teacher]
        return self.session.guarantee(artefacts=self.published_artefacts, assumptions=assumptions)
