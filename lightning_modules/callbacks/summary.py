"""What is trained, in one line."""

from __future__ import annotations

from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelSummary
from lightning.pytorch.utilities import rank_zero_info
from lightning.pytorch.utilities.model_summary.model_summary import get_human_readable_count

__all__ = ["NetworksLine"]


class NetworksLine(ModelSummary):
    """Names the networks and how many parameters each has, in place of a table of metrics and zeros."""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Says it."""
        if not trainer.is_global_zero:
            return
        counts = {
            name: (type(module).__name__, sum(one.numel() for one in module.parameters()))
            for name, module in pl_module.named_children()
        }
        said = [
            f"{name} {kind} ({get_human_readable_count(count).strip()} parameters)"
            for name, (kind, count) in counts.items()
            if count
        ]
        rank_zero_info(f"{type(pl_module).__name__}: {', '.join(said) or 'no parameters'}")

    @staticmethod
    def summarize(*args: Any, **kwargs: Any) -> None:
        """Nothing: the line has said it."""
