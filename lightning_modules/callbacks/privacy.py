"""Privacy of a run, from opening the ledger to the guarantee, and the default callbacks of data-free methods."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info

from datamodules.partition import Partition, require_classes, require_partition, same_data
from datamodules.pictures import PictureDataModule, pictures_below, require_outside
from datamodules.synthetic_steps import SyntheticSteps
from lightning_modules.callbacks.data_free import data_free
from lightning_modules.callbacks.figures import Curves, SyntheticImages
from lightning_modules.evaluation import require_monitored
from lightning_modules.images.pool import innermost
from lightning_modules.private_run import steps_of_run
from lightning_modules.runtime.predictions import prediction_callbacks
from lightning_modules.runtime.publication import clear, public_folder, publish
from lightning_modules.runtime.runs import callbacks_of, datamodule_of, is_dev_run
from privacy.formatting import round_up
from privacy.plan import Charge
from privacy.processes import by_all

if TYPE_CHECKING:  # it adds the callbacks
    from lightning_modules.base import DataFreeDistillation


def default_callbacks(trainer: Trainer) -> list[Callback]:
    """Return the default callbacks of data-free methods that `trainer` lacks."""
    present = {type(callback) for callback in callbacks_of(trainer)}
    kinds: list[type[Callback]] = [Curves, SyntheticImages, PrivacyCourse]
    return [*(kind() for kind in kinds if kind not in present), *prediction_callbacks(trainer)]


class PrivacyCourse(Callback):
    """Opens the ledger, fixes the plan, ends the fit before a step that is not affordable, and writes the guarantee."""

    #: Whether a fit has begun, so that its networks are those of the run and not of a refused checkpoint.
    _begun = False

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Removes an earlier fit's statements, opens the ledger, and refuses a budget that allows no step.

        Raises:
            ValueError: The validation data may be private, and a student selected by it would leak it uncharged; or a
                callback monitors what is not logged.
        """
        module = data_free(pl_module)
        if trainer.max_steps not in (None, -1) and not is_dev_run(trainer):
            raise ValueError(
                f"trainer.max_steps must be left out, got {trainer.max_steps}: what is charged beforehand is all "
                "epochs. Set trainer.max_epochs and data.steps_per_epoch"
            )
        _require_public(trainer, module.run.partitions)
        self.on_test_start(trainer, pl_module)
        if trainer.is_global_zero and not is_dev_run(trainer):
            clear(trainer, resumed=module.run.resumed if trainer.ckpt_path else None)
        teacher, run = module.teacher, module.run
        rank_zero_info(_meaning(module.image_shape, datamodule_of(trainer)))
        run.open(
            trainer,
            private_data=teacher.private_data,
            ledger=teacher.ledger_place(datamodule_of(trainer)),
            training=teacher.training,
            num_records=teacher.num_records,
            processes=module.processes,
        )
        require_monitored(trainer, module.logged_names() | {*_spent(module, {run.annotator.charge: 1})})
        if not by_all(module.processes, lambda: run.require_calls(module.next_calls, steps_done=module.steps_done)):
            trainer.should_stop = True

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Fixes the plan, before the first query: the guarantee covers it. That of an earlier fit is withdrawn.

        Raises:
            TeacherError: The student has received a weight of the teacher since the teacher was loaded.
        """
        module = data_free(pl_module)
        by_all(module.processes, lambda: module.require_unlike(module.teacher))
        module.run.fix_plan(lambda: module.calls_ahead(steps_of_run(trainer, done=module.steps_done)))
        if trainer.is_global_zero and not is_dev_run(trainer):
            for page in public_folder(trainer).glob("guarantee.*"):  # images beside it will be of more than it covers
                page.unlink()
        self._begun = True

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Logs what was spent, and ends the fit before a step that the annotator would refuse."""
        module = data_free(pl_module)
        if module.is_logged:
            _log_spent(module)
        module.run.stop_before(trainer, calls=module.next_calls)

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Raises `PartitionError` if public records may be the teacher's private ones, or classes differ."""
        partitions, data = data_free(pl_module).run.partitions, datamodule_of(trainer)
        require_classes(partitions, data)
        require_partition(partitions, data)

    on_validation_start = on_predict_start = on_test_start

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Logs both ε with each validation accuracy, whatever `log_every_n_steps` leaves out."""
        module = data_free(pl_module)
        if module.annotator.is_open and not trainer.sanity_checking:
            _log_spent(module, on_epoch=True)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Settles the ledger, writes `guarantee.json` and `guarantee.md`, and explains the figures in words."""
        self._write(trainer, pl_module)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Writes the guarantee of what was released before an error; a refused fit has published nothing."""
        if self._begun and data_free(pl_module).annotator.account.counts(scope="run"):
            self._write(trainer, pl_module)

    def _write(self, trainer: Trainer, pl_module: LightningModule) -> None:
        module, self._begun = data_free(pl_module), False
        module.annotator.close()
        if not trainer.is_global_zero:
            return
        guarantee = module.guarantee()
        where = ""
        if not is_dev_run(trainer):  # such a run has no folder, but what it released is charged
            where = f"\nThe whole statement: {publish(trainer, guarantee, module.published_networks())}"
            ledger = module.annotator.account.ledger.path
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


def _require_public(trainer: Trainer, partitions: Sequence[Partition | None]) -> None:
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


def _log_spent(module: DataFreeDistillation, *, on_epoch: bool = False) -> None:
    """Both ε figures and the number of queries, to every logger and the progress bar."""
    module.log_dict(_spent(module), prog_bar=True, on_step=not on_epoch, on_epoch=on_epoch)


def _spent(module: DataFreeDistillation, counts: Mapping[Charge, int] | None = None) -> dict[str, float]:
    return {**module.run.epsilons(counts), "privacy/queries": float(module.annotator.account.queries())}


def _meaning(shape: tuple[int, int, int], data: Any) -> str:
    """Describes inputs and outputs, since a teacher with other sizes or another class order raises no error."""
    found = getattr(data, "class_names", None)
    names = ", ".join(f"{label} = {name}" for label, name in enumerate(found[:20])) if found else "unknown"
    more = ", ..." if found and len(found) > 20 else ""
    return f"Images of {' x '.join(map(str, shape))} (channels, height, width) in [-1, 1]; outputs: {names}{more}"
