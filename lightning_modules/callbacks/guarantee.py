"""Writes the guarantee of a run, and states it in words."""

from __future__ import annotations

import math

from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info

from lightning_modules.callbacks.data_free import data_free
from lightning_modules.runtime.publication import clear, public_folder, publish
from lightning_modules.runtime.runs import is_dev_run
from privacy.formatting import round_up

__all__ = ["GuaranteeWriter"]


class GuaranteeWriter(Callback):
    """Settles the ledger, writes `guarantee.json` and `guarantee.md`, and explains the figures in words."""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Removes an earlier fit's statements."""
        if trainer.is_global_zero and not is_dev_run(trainer):
            clear(trainer, resumed=data_free(pl_module).run.resumed if trainer.ckpt_path else None)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """After the last step."""
        self._write(trainer, pl_module)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Releases before an error or an interruption stay released."""
        module = data_free(pl_module)
        if module.annotator.is_open and module.annotator.account.counts(scope="run"):
            self._write(trainer, pl_module)

    def _write(self, trainer: Trainer, pl_module: LightningModule) -> None:
        module = data_free(pl_module)
        module.annotator.close()
        if not trainer.is_global_zero:
            return
        guarantee = module.guarantee()
        where = ""
        if not is_dev_run(trainer):  # such a run has no folder; what it released is charged all the same
            folder = public_folder(trainer)
            where = f"\nThe whole statement: {guarantee.write(folder)[1]}"
            ledger = module.annotator.budget.ledger or module.teacher.ledger
            if ledger is not None:
                where += f"\nKeep {ledger}: it counts what every run has asked about these private data"
            publish(folder, guarantee, module.published_networks())
        claim = ""
        if guarantee.claimed_source and math.isfinite(guarantee.claimed_epsilon):
            claim = (
                f"\nPublished epsilon = {round_up(guarantee.claimed_epsilon)} at delta = {guarantee.delta:g} "
                f"({guarantee.claimed_source}): the figure that the paper's tables are indexed by, a claim that bounds "
                "no record."
            )
        rank_zero_info(f"\n{guarantee.headline()}{claim}{where}")
