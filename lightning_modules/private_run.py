"""A run whose releases are charged: its ledger, plan, figures and guarantee."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning import Trainer
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from datamodules.partition import Partition
from lightning_modules.runtime.runs import callbacks_of, datamodule_of
from privacy.annotators import Annotator
from privacy.guarantee import NOISE_CHANGED, Guarantee, about_place
from privacy.identity import CheckpointError, Training, UnnamedTraining
from privacy.ledger import Ledger
from privacy.ledger_place import LedgerPlace
from privacy.neighbours import Unit
from privacy.plan import Charge, Plan
from privacy.processes import ALONE, Processes


class PrivateRun:
    """A module's use of its annotator besides queries: `open`, `require_calls` and `fix_plan`, in this order.

    The guarantee covers the plan, which is fixed before the first release and never shrinks: resuming with fewer calls,
    other noise or another target may depend on what the first releases showed.

    Attributes:
        plan: All calls that the run plans to make to the annotator.
        uncharged_queries: Descriptions of unaccounted accesses to private data, for the guarantee.
        partitions: Partitions of the teachers' private records; a student's test data are checked against them.
    """

    def __init__(self, annotator: Annotator) -> None:
        self.annotator = annotator
        self.plan = Plan()
        self.uncharged_queries: list[str] = []
        self.partitions: list[Partition | None] = []
        self._of_data: tuple[str, ...] = ()
        self._loaded = False
        self._account_state: Mapping[str, Any] | None = None

    @property
    def resumed(self) -> str | None:
        """Identity of the resumed checkpoint's run, if any."""
        return None if self._account_state is None else self._account_state["run"]

    def note(self, query: str) -> None:
        """Notes an unaccounted query, before it is made."""
        if query not in self.uncharged_queries:
            self.uncharged_queries.append(query)

    def keep_partitions(self, partitions: Sequence[Partition | None]) -> None:
        """Remembers which records are private, in checkpoints as well."""
        self.partitions += [one for one in partitions if one not in self.partitions]

    def open(
        self,
        trainer: Trainer,
        *,
        private_data: str,
        ledger: LedgerPlace | Path | None,
        training: Training | UnnamedTraining | None,
        num_records: int | None = None,
        processes: Processes = ALONE,
    ) -> None:
        """Opens the ledger when a fit begins and restores a checkpoint's state; see `Annotator.open`.

        Raises:
            CheckpointError: A user's class did not pass a checkpoint's state to `load`.
        """
        if trainer.ckpt_path and not self._loaded:
            raise CheckpointError(
                f"on_load_checkpoint of {type(trainer.lightning_module).__name__} must call that of its base class, or "
                f"what the run of {trainer.ckpt_path} was charged does not count"
            )
        data = datamodule_of(trainer)
        self._of_data = getattr(data, "assumptions", ())
        if self.annotator.is_open:
            # The same object in a second module, or a second fit.
            self.annotator.require_open_for(training, state=self._account_state)
            return
        judged_on_own = getattr(data, "private_data", None) == private_data  # the size of other data says nothing here
        self.annotator.open(
            private_data=private_data,
            ledger=ledger,
            num_records=num_records or (getattr(data, "num_records", None) if judged_on_own else None),
            state=self._account_state,
            training=training,
            processes=processes,
        )
        account = self.annotator.account
        say_ledger(account.ledger, about_place(account.ledger, replaced=account.ledger_was_replaced))

    def require_calls(self, calls: int, *, steps_done: int) -> bool:
        """Refuses a budget in which the calls of the next step do not fit.

        Returns:
            Whether there is anything left to do; False in a run that is resumed after it has used up its target.

        Raises:
            BudgetExceeded: With the figures and what could be changed.
        """
        if not calls:
            return True
        account, target = self.annotator.account, self.annotator.budget.target_epsilon
        kept = target is None or account.epsilon_after(self.annotator.charge, 0) <= target
        if self.is_used_up(calls) and kept and 0 < steps_done == self.annotator.calls_made():
            rank_zero_info(
                f"Nothing left to do: the checkpoint is of a run that had used its target up, at step {steps_done}."
            )
            return False
        self.annotator.require_affordable(calls)
        return True

    def is_used_up(self, calls: int) -> bool:
        """Whether the target does not allow this many further calls."""
        return self.annotator.budget.target_epsilon is not None and self.annotator.affordable(limit=calls) < calls

    def stop_before(self, trainer: Trainer, *, calls: int) -> None:
        """Ends a fit before a step that the target does not allow; the annotator would refuse it anyway."""
        annotator = self.annotator
        if not trainer.should_stop and self.is_used_up(calls):
            rank_zero_info(f"Stopped: one more step would exceed target_epsilon={annotator.budget.target_epsilon:g}.")
            trainer.should_stop = True

    def fix_plan(self, ahead: Callable[[], int | None]) -> None:
        """Fixes the plan and writes it into the ledger, given the calls yet to make; see `Annotator.fix_plan`."""

        def wanted() -> int | None:
            calls = ahead()
            return None if calls is None else self.annotator.calls_made() + calls

        self.plan = self.annotator.fix_plan(self.plan, wanted)
        if self.annotator.noise_changed(self.plan):
            rank_zero_warn(NOISE_CHANGED)

    def epsilons(self, counts: Mapping[Charge, int] | None = None) -> dict[str, float]:
        """Returns ε by their names in logs: of the releases so far, and of the plan, which the guarantee states.

        And the published one of the releases so far, unless it is infinite, which is no claim. `counts` replace both.
        """
        account = self.annotator.account
        planned = self.annotator.covering(self.plan.covered) if counts is None else counts
        published = account.epsilon_published(counts=counts)
        claim = {"privacy/epsilon_published": published} if math.isfinite(published) else {}
        name, stated = epsilon_metric(account.neighbours(counts=planned)[0]), account.epsilon(counts=planned)
        return {name: account.epsilon(counts=counts), f"{name}_planned": account.stated(stated), **claim}

    def guarantee(self, *, artefacts: Sequence[str], assumptions: Sequence[str]) -> Guarantee:
        """Current guarantee for these artefacts."""
        return self.annotator.guarantee(
            artefacts=artefacts,
            planned=self.plan.covered,
            uncharged_queries=self.uncharged_queries,
            assumptions=list(dict.fromkeys([*assumptions, *self._of_data])),
        )

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {
            "uncharged_queries": list(self.uncharged_queries),
            "partitions": list(self.partitions),
            "annotator": self.annotator.account.state() if self.annotator.is_open else self._account_state,
            **self.plan.to_dict(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state`; the charges are merged with the ledger's by `open`."""
        self._loaded = True
        self._account_state = state["annotator"]
        self.plan = Plan.from_dict(state)
        # What was accessed once cannot be taken back by resuming without it.
        for query in state["uncharged_queries"]:
            self.note(query)
        self.keep_partitions(state["partitions"])


def say_ledger(ledger: Ledger, notes: Sequence[str]) -> None:
    """Tells the owner which ledger counts, and what it does not count."""
    if ledger.path is not None:
        rank_zero_info(f"Privacy ledger of {ledger.private_data}: {ledger.path}")
    for text in notes:
        rank_zero_warn(text)


def epsilon_metric(unit: Unit) -> str:
    """Name of ε in logs, which tells person-level from record-level figures."""
    return "privacy/epsilon_person" if unit is Unit.PERSON else "privacy/epsilon"


def steps_ahead(trainer: Trainer, length: float) -> int | None:
    """Number of steps left in a fit with epochs of `length` steps; None if its end is unknown.

    Finished epochs count as finished, whatever their length was.

    Raises:
        ValueError: The end is unknown and `EarlyStopping` chooses it by results, so ε of the steps taken does not hold.
    """
    if trainer.max_epochs in (None, -1) or not math.isfinite(length):
        if any(isinstance(callback, EarlyStopping) for callback in callbacks_of(trainer)):
            raise ValueError(
                "trainer.max_epochs must be set with EarlyStopping: all its steps are then charged, however early it "
                "stops"
            )
        return None
    loop: Any = trainer.fit_loop
    epochs, steps = loop.epoch_progress.current, int(length)
    # Not `completed`: a step is not repeated if the fit was interrupted after it.
    steps_of_epoch = loop.epoch_loop.batch_progress.current.processed if epochs.ready > epochs.processed else 0
    return max(0, (int(trainer.max_epochs or 0) - int(epochs.processed)) * steps - min(steps, int(steps_of_epoch)))


def steps_planned(trainer: Trainer, *, length: int = 1) -> float:
    """Number of steps of a whole fit with epochs of `length` steps, before loaders are made; infinite without an end.

    1 where `trainer.max_steps` ends the fit; a budget that may end it is not looked at.
    """
    if trainer.max_steps not in (None, -1):
        return 1
    limit = trainer.limit_train_batches
    length = max(1, min(length, limit) if isinstance(limit, int) else int(length * limit))
    return length * (math.inf if trainer.max_epochs in (None, -1) else int(trainer.max_epochs or 0))


def steps_of_run(trainer: Trainer, *, done: int) -> int | None:
    """Total number of steps of a run of which `done` are made; None if its end is unknown."""
    ahead = steps_ahead(trainer, trainer.num_training_batches)
    return None if ahead is None else done + ahead


def state_of_run(checkpoint: Mapping[str, Any], name: str, trainer: Trainer | None) -> Mapping[str, Any] | None:
    """Section `name` of a checkpoint, which includes `PrivateRun.state`; None in a file without it.

    Raises:
        CheckpointError: A fit would resume from a file without the charges of its run.
    """
    state: Mapping[str, Any] | None = checkpoint.get(name)
    if state is None and trainer is not None and trainer.state.fn == "fit":
        raise CheckpointError("the checkpoint does not say what its run was charged: give one of a fit of this method")
    return state
