"""Base classes of fits on private data: they open the session, hold the teacher, and end with a statement.

`PrivateFit` has the hooks of every such fit; `LearnsFromTeacher` those of a student, which asks a private teacher.
`PrivacyCallback` logs what a student's fit has spent, and ends it before a step that its budget does not allow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import nn

from lightning_modules.images import ImageSource
from lightning_modules.teachers.config import TeacherConfig
from lightning_modules.teachers.private_teacher import PrivateModel
from lightning_modules.training.evaluation import (
    meaning,
    require_monitored,
    require_public,
    require_public_fit,
    validation_names,
)
from lightning_modules.training.manual_optimization import CosineSchedule, ManualOptimization
from lightning_modules.training.randomness import Draws
from lightning_modules.training.run import (
    check_strategy,
    clear,
    datamodule_of,
    is_dev_run,
    processes_of,
    run_folder,
    steps_of_run,
    take_back_unfinished_step,
    write_statement,
)
from privacy.guarantee import Guarantee
from privacy.identity import CheckpointError, Training, UnnamedTraining
from privacy.ledger_place import LedgerPlace
from privacy.plan import Charge
from privacy.processes import SharedLedger, by_all
from privacy.session import PrivacySession
from privacy.statement import NOISE_CHANGED, about_place, epsilons, guarantee_of, noise_changed


class PrivateFit(LightningModule):
    """Hooks of a fit whose releases are charged to one session.

    A subclass opens the session in its `on_fit_start`.

    Attributes:
        section: Name of its state in a checkpoint.
        session: The only way to private data: budget, ledger, plan and guarantee of the run.
        covered_artefacts: Names of artefacts computed from released values, which may be published.
    """

    section: ClassVar[str]
    session: PrivacySession
    covered_artefacts: tuple[str, ...]
    steps_done = 0
    begun = False
    """Whether a fit has fixed its plan, so that its networks are those of the run and not of a refused checkpoint."""

    # --- what a run may spend, and what its guarantee covers ---

    @property
    def next_calls(self) -> int:
        """Number of calls of the mechanism that the next step makes."""
        return 1

    def calls_ahead(self, steps: int | None) -> int | None:
        """Number of affordable calls still to come in a run of `steps` steps in total; None if its end is unknown."""
        if steps is None:
            return None if self.session.budget.target_epsilon is None else self.session.affordable(limit=10**9)
        return self.session.affordable(limit=max(0, steps - self.steps_done))

    def assumptions(self) -> list[str]:
        """Assumptions of this run's guarantee besides the session's."""
        return []

    def covered_networks(self) -> dict[str, nn.Module]:
        """Networks that a guarantee of this run covers, by name."""
        raise NotImplementedError(f"{type(self).__name__} has no covered networks")

    def logged_names(self) -> set[str]:
        """Names of what a fit logs besides privacy, which callbacks may monitor; a method that logs more adds it."""
        raise NotImplementedError(f"{type(self).__name__} has no logged names")

    def spent(self, counts: Mapping[Charge, int] | None = None) -> dict[str, float]:
        """Figures of privacy by their names in logs; see `privacy.statement.epsilons`."""
        return {**epsilons(self.session, counts), "privacy/queries": float(self.session.account.queries())}

    @property
    def uncharged_queries(self) -> list[str]:
        """Uncharged queries, in words for the guarantee."""
        return self.session.uncharged_queries

    def guarantee(self) -> Guarantee:
        """Current guarantee for this run's artefacts."""
        return guarantee_of(self.session, artefacts=self.covered_artefacts, assumptions=self.assumptions())

    # --- hooks ---

    def open_session(
        self,
        *,
        private_data: str,
        ledger: LedgerPlace | Path | None,
        training: Training | UnnamedTraining | None,
        num_records: int | None = None,
        assumptions: Sequence[str] = (),
    ) -> None:
        """Opens the session when a fit begins, see `PrivacySession.open`; refuses a budget that allows no step.

        `assumptions` are those of the teacher, which the guarantee adds to the module's and the data's.

        Raises:
            CheckpointError: A user's class did not pass a checkpoint's state to `load`.
            BudgetExceeded: Not one step fits.
            ValueError: A callback monitors what is not logged.
        """
        session, trainer, processes = self.session, self.trainer, processes_of(self._trainer)
        if trainer.ckpt_path and not session.loaded:
            raise CheckpointError(
                f"on_load_checkpoint of {type(self).__name__} must call that of its base class, or what the run of "
                f"{trainer.ckpt_path} was charged does not count"
            )
        clear(trainer, resumed=session.resumed if trainer.ckpt_path else None)
        data = datamodule_of(trainer)
        session.assumptions = (*assumptions, *getattr(data, "assumptions", ()))
        if session.is_open:  # the same module in a second fit
            session.require_open_for(training)
        else:
            judged_on_own = getattr(data, "private_data", None) == private_data  # the size of other data says nothing
            session.open(
                private_data=private_data,
                ledger=ledger,
                num_records=num_records or (getattr(data, "num_records", None) if judged_on_own else None),
                training=training,
                processes=processes,
            )
            say_ledger(session)
        require_monitored(trainer, self.logged_names() | {*self.spent({session.cost: 1})})
        by_all(processes, self._require_first_step)

    def _require_first_step(self) -> None:
        """Refuses a budget without room for the next step; ends a resumed fit with nothing left to do."""
        session, calls = self.session, self.next_calls
        target, account = session.budget.target_epsilon, session.account
        kept = target is None or account.epsilon_after(session.cost, 0) <= target
        if kept and session.is_used_up(calls) and 0 < self.steps_done == session.calls_made():
            rank_zero_info(
                "Nothing left to do: the checkpoint is of a run that had used its target up, at step "
                f"{self.steps_done}."
            )
            self.trainer.should_stop = True
        elif calls:
            account.require(session.cost, calls=calls)

    def on_train_start(self) -> None:
        """Fixes the plan, before the first query: the guarantee covers it. That of an earlier fit is withdrawn."""
        self.session.fix_plan(lambda: self.calls_ahead(steps_of_run(self.trainer, done=self.steps_done)))
        if noise_changed(self.session.account, self.session.plan):
            rank_zero_warn(NOISE_CHANGED)
        if self.trainer.is_global_zero and not is_dev_run(self.trainer):
            # Images beside it will be of more than it covers.
            for page in (run_folder(self.trainer) / "public").glob("guarantee.*"):
                page.unlink()
        self.begun = True

    def end_in_time(self) -> None:
        """Ends a fit before a step that the target does not allow; the session would refuse it anyway."""
        if not self.trainer.should_stop and self.session.is_used_up(self.next_calls):
            target = self.session.budget.target_epsilon
            rank_zero_info(f"Stopped: one more step would exceed target_epsilon={target:g}.")
            self.trainer.should_stop = True

    def on_fit_end(self) -> None:
        """Settles the ledger, writes the guarantee with what it covers, and explains the figures in words."""
        self.session.close()
        self.begun = False
        if self.trainer.is_global_zero:
            ledger = self.session.ledger.path
            write_statement(self.trainer, self.guarantee(), self.covered_networks(), ledger=ledger)

    def on_exception(self, exception: BaseException) -> None:
        """Writes the guarantee of what was released before an error; a refused fit has published nothing."""
        if self.begun and self.session.account.counts(scope="run"):
            self.on_fit_end()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds the counter of steps, and this run's plan and charges."""
        super().on_save_checkpoint(checkpoint)
        checkpoint[self.section] = {"steps_done": self.steps_done, **self.session.state()}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Inverse of `on_save_checkpoint`; the charges are merged with the ledger when the fit begins.

        Raises:
            CheckpointError: A fit would resume from a file without the charges of its run.
        """
        super().on_load_checkpoint(checkpoint)
        if state := checkpoint.get(self.section):
            self.steps_done = int(state["steps_done"])
            self.session.load(state)
        elif self._trainer is not None and self._trainer.state.fn == "fit":
            raise CheckpointError(
                "the checkpoint does not say what its run was charged: give one of a fit of this method"
            )


class LearnsFromTeacher(PrivateFit, ManualOptimization):
    """Base of a module with a private teacher, or an ensemble of them.

    The teacher is a path, read when a fit begins. It is not a submodule: no `state_dict`, checkpoint or logger has it,
    and `test` and `load_from_checkpoint` work without it.
    """

    section = "distillation"
    num_classes: int
    image_shape: tuple[int, int, int]
    teacher_config: TeacherConfig
    images: ImageSource
    student: nn.Module
    draw_seed: int | None = None
    _teacher: PrivateModel | None = None
    _objects_given: Sequence[str] = ()
    _steps_before_batch = -1

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

    def calls_of(self, steps: int) -> int:
        """Number of calls of the mechanism that a run of `steps` steps makes unless a budget ends it."""
        return steps

    def assumptions(self) -> list[str]:
        return self.images.assumptions()

    def covered_networks(self) -> dict[str, nn.Module]:
        generator = self.images.generator
        return {"student": self.student, **({} if generator is None else {"generator": generator})}

    def logged_names(self) -> set[str]:
        return validation_names(self.trainer) | {f"train/{name}_loss" for name in self.optimized_groups()}

    @property
    def draws(self) -> Draws:
        """The draws of this process; a run's seed is fixed when its first fit begins."""
        assert self.draw_seed is not None
        return Draws(self.draw_seed, self.global_rank, self.device)

    def setup(self, stage: str) -> None:
        """Loads the teacher, or the ensemble, for a fit, before any other work.

        Raises:
            ProcessesError: The strategy is not supported, or its processes cannot share the batch equally.
            TeacherError: The file is missing or unusable.
        """
        if stage != "fit":
            return
        if isinstance(self._trainer, Trainer):
            check_strategy(self._trainer, self)
        by_all(self.processes, self.prepare_fit)

    def prepare_fit(self) -> None:
        """Does what may fail on one rank and must then fail on all of them."""
        if self._teacher is None:
            teacher = self.read_teacher()
            self.admit(teacher, self.teacher_config, named="model.teacher")
            self._teacher = teacher

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

    def unprotected_teacher(self, reason: str, *, teacher: int = 0) -> nn.Module:
        """A network of the teacher itself; see `PrivateModel.unprotected`."""
        return self.teacher.unprotected(self.session, reason=reason, teacher=teacher).to(self.device)

    def require_unlike(self, teacher: PrivateModel) -> None:
        """See `PrivateModel.require_unlike`; the guarantee names common frozen weights.

        If only the teacher's training by DP-SGD bounds its responses, that bound covers its weights as well.
        """
        by_dp_sgd = isinstance(teacher.training, Training) and teacher.training.releases
        if by_dp_sgd and not self.session.cost.release.bounded:
            return
        if common := teacher.require_unlike(self.covered_networks()):
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
            teacher.try_external(self.session, image_shape=self.image_shape, named=named)
        self.session.keep_partitions(teacher.partitions)

    def on_fit_start(self) -> None:
        """Opens the session, and refuses a budget that allows no step.

        Raises:
            ValueError: The validation data may be private, or a callback monitors what is not logged.
            BudgetExceeded: Not one step fits.
        """
        teacher, data = self.teacher, datamodule_of(self.trainer)
        require_public_fit(self.trainer, self.session.partitions)
        rank_zero_info(meaning(self.image_shape, getattr(data, "class_names", None)))
        self.open_session(
            private_data=teacher.private_data,
            ledger=teacher.ledger_place(data),
            training=teacher.training,
            num_records=teacher.num_records,
            assumptions=teacher.assumptions,
        )
        if self.draw_seed is None:  # once per run
            self.draw_seed = self.processes.broadcast(torch.initial_seed())

    def on_train_start(self) -> None:
        """See `PrivateFit.on_train_start`; also warns of a fit that ends before the student's first step.

        Raises:
            TeacherError: The student has received a weight of the teacher since the teacher was loaded.
        """
        by_all(self.processes, lambda: self.require_unlike(self.teacher))
        super().on_train_start()
        steps = steps_of_run(self.trainer, done=self.steps_done)
        for name, schedule in self._schedules.items():
            if steps and isinstance(schedule, CosineSchedule):  # epochs before may have had another length
                schedule.lengthen(max(1, self.schedule_steps(name, steps)))
        if steps and self.schedule_steps("student", steps) <= 0:
            rank_zero_warn(
                f"this run has {steps} steps, none of them the student's, which will learn nothing: raise "
                "trainer.max_epochs or data.steps_per_epoch"
            )

    def on_train_batch_start(self, batch: int, batch_idx: int) -> None:
        """Remembers where the step starts, to detect an interrupted one."""
        self._steps_before_batch = self.steps_done

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds the counters, the seed of the draws, and this run's plan and charges."""
        super().on_save_checkpoint(checkpoint)
        checkpoint[self.section] |= {"draw_seed": self.draw_seed, "objects": self._objects_given}
        if self.steps_done == self._steps_before_batch:
            take_back_unfinished_step(checkpoint)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        self.draw_seed = checkpoint.get(self.section, {}).get("draw_seed")


def say_ledger(session: SharedLedger) -> None:
    """Tells the owner which ledger counts, and what it does not count."""
    ledger = session.ledger
    if ledger.path is not None:
        rank_zero_info(f"Privacy ledger of {ledger.private_data}: {ledger.path}")
    for text in about_place(ledger, replaced=session.ledger_was_replaced):
        rank_zero_warn(text)


class PrivacyCallback(Callback):
    """Logs both ε and the number of queries to every logger and the progress bar, and ends the fit in time.

    What no class may do without is checked here, since a class may override a hook of its base: a plan before the first
    step, and public images for validation, test and prediction.
    """

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Refuses a step without a plan.

        Raises:
            RuntimeError: A derived class has overridden `on_train_start`.
        """
        if not pl_module.begun:
            raise RuntimeError(
                f"on_train_start of {type(pl_module).__name__} must call that of its base class, which fixes the plan "
                "that the guarantee covers"
            )

    def on_test_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Raises `PartitionError` if public records may be the teacher's private ones, or classes differ."""
        require_public(trainer, pl_module.session.partitions)

    on_validation_start = on_predict_start = on_test_start

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Logs what was spent, and ends the fit before a step that the session would refuse."""
        if pl_module.is_logged:
            pl_module.log_dict(pl_module.spent(), prog_bar=True, on_step=True, on_epoch=False)
        pl_module.end_in_time()

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Logs both ε with each validation accuracy, whatever `log_every_n_steps` leaves out."""
        if pl_module.session.is_open and not trainer.sanity_checking:
            pl_module.log_dict(pl_module.spent(), prog_bar=True, on_step=False, on_epoch=True, sync_dist=True)


class ForwardExceptions(Callback):
    """Calls the module's `on_exception(exception)`: Lightning itself calls that hook only for callbacks and data."""

    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        pl_module.on_exception(exception)
