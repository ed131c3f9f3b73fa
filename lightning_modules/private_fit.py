"""A fit on private data: what is checked before the session opens, its length, and the statement that it ends with."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning import Trainer
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import nn

from datamodules.pictures import PictureDataModule, pictures_below, require_outside
from datamodules.records import Partition, require_classes, require_partition, same_data
from datamodules.wrapped import SyntheticSteps
from lightning_modules.images.pool import innermost
from lightning_modules.runtime.publication import publish
from lightning_modules.runtime.runs import callbacks_of, datamodule_of, is_dev_run
from privacy.checks import round_up
from privacy.guarantee import NOISE_CHANGED, Guarantee, about_place
from privacy.identity import CheckpointError, Training, UnnamedTraining
from privacy.ledger_place import LedgerPlace
from privacy.processes import Processes
from privacy.session import PrivacySession
from privacy.shared_ledger import SharedLedger


def require_public(trainer: Trainer, partitions: Sequence[Partition | None]) -> None:
    """Refuses images for validation or test that may be the teacher's private ones, or of other classes.

    Raises:
        PartitionError: They may.
    """
    data = datamodule_of(trainer)
    require_classes(partitions, data)
    require_partition(partitions, data)


def require_public_fit(trainer: Trainer, partitions: Sequence[Partition | None]) -> None:
    """Refuses a fit that looks at images which may be private, see `require_public`, or is not planned by its epochs.

    Raises:
        ValueError: The validation data may be private, and a student selected by it would leak it uncharged.
    """
    if trainer.max_steps not in (None, -1) and not is_dev_run(trainer):
        raise ValueError(
            f"trainer.max_steps must be left out, got {trainer.max_steps}: what is charged beforehand is all "
            "epochs. Set trainer.max_epochs and data.steps_per_epoch"
        )
    data = datamodule_of(trainer)
    if data is None and not trainer.limit_val_batches:
        return
    if not isinstance(data, SyntheticSteps):
        raise ValueError(
            "data.class_path must be SyntheticSteps in a student's fit, which looks at public records only, got "
            f"{type(data).__name__}"
        )
    judged_on = innermost(data)
    if isinstance(judged_on, PictureDataModule):  # pictures in a folder inside the private one have another name
        others = [one for one in partitions if one and not same_data(one, judged_on.partition)]
        test = judged_on.folder / "test"
        if others:  # links followed
            shown = [test, *pictures_below(test if test.is_dir() else judged_on.folder)]
            require_outside(others, shown, named="data.dataset.root")
    require_public(trainer, partitions)


def open_session(
    session: PrivacySession,
    trainer: Trainer,
    *,
    private_data: str,
    ledger: LedgerPlace | Path | None,
    training: Training | UnnamedTraining | None,
    num_records: int | None,
    processes: Processes,
) -> None:
    """Opens a module's session when a fit begins, see `PrivacySession.open`.

    Raises:
        CheckpointError: A user's class did not pass a checkpoint's state to `load`.
    """
    if trainer.ckpt_path and not session.loaded:
        raise CheckpointError(
            f"on_load_checkpoint of {type(trainer.lightning_module).__name__} must call that of its base class, or "
            f"what the run of {trainer.ckpt_path} was charged does not count"
        )
    data = datamodule_of(trainer)
    session.assumptions = getattr(data, "assumptions", ())
    if session.is_open:  # the same module in a second fit
        session.require_open_for(training)
        return
    judged_on_own = getattr(data, "private_data", None) == private_data  # the size of other data says nothing here
    session.open(
        private_data=private_data,
        ledger=ledger,
        num_records=num_records or (getattr(data, "num_records", None) if judged_on_own else None),
        training=training,
        processes=processes,
    )
    say_ledger(session)


def meaning(shape: tuple[int, int, int], data: Any) -> str:
    """Describes inputs and outputs, since a teacher with other sizes or another class order raises no error."""
    found = getattr(data, "class_names", None)
    names = ", ".join(f"{label} = {name}" for label, name in enumerate(found[:20])) if found else "unknown"
    more = ", ..." if found and len(found) > 20 else ""
    return f"Images of {' x '.join(map(str, shape))} (channels, height, width) in [-1, 1]; outputs: {names}{more}"


def say_ledger(session: SharedLedger) -> None:
    """Tells the owner which ledger counts, and what it does not count."""
    ledger = session.ledger
    if ledger.path is not None:
        rank_zero_info(f"Privacy ledger of {ledger.private_data}: {ledger.path}")
    for text in about_place(ledger, replaced=session.ledger_was_replaced):
        rank_zero_warn(text)


def require_first_step(trainer: Trainer, session: PrivacySession, *, calls: int, steps_done: int) -> None:
    """Refuses a budget in which the calls of the next step do not fit; ends a resumed fit with nothing left to do.

    Raises:
        BudgetExceeded: With the figures and what could be changed.
    """
    if not session.require_calls(calls, steps_done=steps_done):
        rank_zero_info(
            f"Nothing left to do: the checkpoint is of a run that had used its target up, at step {steps_done}."
        )
        trainer.should_stop = True


def stop_before(trainer: Trainer, session: PrivacySession, *, calls: int) -> None:
    """Ends a fit before a step that the target does not allow; the session would refuse it anyway."""
    if not trainer.should_stop and session.is_used_up(calls):
        rank_zero_info(f"Stopped: one more step would exceed target_epsilon={session.budget.target_epsilon:g}.")
        trainer.should_stop = True


def warn_of_changed_noise(session: PrivacySession) -> None:
    """Says what the guarantee of a run with several noises assumes."""
    if session.noise_changed:
        rank_zero_warn(NOISE_CHANGED)


def write_statement(
    trainer: Trainer, guarantee: Guarantee, networks: Mapping[str, nn.Module], *, ledger: Path | None = None
) -> None:
    """Writes a guarantee with the networks that it covers, and explains its figures in words; for process 0."""
    where = ""
    if not is_dev_run(trainer):  # such a run has no folder, but what it released is charged
        where = f"\nThe whole statement: {publish(trainer, guarantee, networks)}"
        if ledger is not None:
            where += f"\nKeep {ledger}: it counts what every run has asked about these private data"
    claim = ""
    if guarantee.claimed_source and math.isfinite(guarantee.claimed_epsilon):
        claim = (
            f"\nPublished epsilon = {round_up(guarantee.claimed_epsilon)} at delta = {guarantee.delta:g} "
            f"({guarantee.claimed_source}): the figure that the paper's tables are indexed by, a claim that bounds "
            "no record."
        )
    rank_zero_info(f"\n{guarantee.headline()}{claim}{where}")


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
    """Section `name` of a checkpoint, which includes a session's `state`; None in a file without it.

    Raises:
        CheckpointError: A fit would resume from a file without the charges of its run.
    """
    state: Mapping[str, Any] | None = checkpoint.get(name)
    if state is None and trainer is not None and trainer.state.fn == "fit":
        raise CheckpointError("the checkpoint does not say what its run was charged: give one of a fit of this method")
    return state
