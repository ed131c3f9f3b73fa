"""Networks that one method trains in turns, in one process or in several."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from lightning import LightningModule
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import nn

from lightning_modules.losses.functional import joined
from lightning_modules.runtime.processes import average_gradients, broadcast_tensors, processes_of
from privacy.processes import Processes

if TYPE_CHECKING:
    _Module = LightningModule
else:
    _Module = object


class Trained(NamedTuple):
    """Something that a method trains, by `adam` where no optimizer is given."""

    parameters: Iterable[nn.Parameter]
    optimizer: OptimizerCallable | None = None
    lr_scheduler: LRSchedulerCallable | None = None


def adam(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Adam with rate 1e-3."""
    return torch.optim.Adam(parameters, lr=1e-3, fused=True)


class ManualOptimization(_Module):
    """Manual optimization of several networks, each by an optimizer and a schedule of its own; mixed into a module."""

    _schedules: Mapping[str, Any] = {}

    def trained(self) -> dict[str, Trained]:
        """What is trained, by name."""
        raise NotImplementedError

    @property
    def processes(self) -> Processes:
        """Those of this run: each makes an equal share of every batch, and the first asks the annotator for all."""
        return processes_of(self._trainer)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """An optimizer for each of `trained`, and the configured schedules."""
        trained = self.trained()
        made = {name: (one.optimizer or adam)(one.parameters) for name, one in trained.items()}
        self._schedules = {name: one.lr_scheduler(made[name]) for name, one in trained.items() if one.lr_scheduler}
        return list(made.values()), list(self._schedules.values())

    def optimizer(self, name: str) -> LightningOptimizer:
        """Lightning's optimizer of one of `trained`."""
        made: Any = self.optimizers()
        found: LightningOptimizer = made[list(self.trained()).index(name)] if isinstance(made, list) else made
        return found

    def descend(self, name: str, loss: torch.Tensor, *, scheduled: bool = True) -> None:
        """One step of an optimizer and its schedule on a loss, averaged over processes."""
        optimizer = self.optimizer(name)
        optimizer.zero_grad()
        if self.processes.size == 1:
            self.manual_backward(loss)
        else:
            # Student and generator take turns, for which DDP would have to look for unused parameters at each step.
            with self.trainer.strategy.block_backward_sync():  # type: ignore[attr-defined]
                self.manual_backward(loss)
            average_gradients((p for group in optimizer.param_groups for p in group["params"]), self.processes)
        optimizer.step()
        if scheduled and name in self._schedules:
            self._schedules[name].step()

    def gather_rows(self, own: torch.Tensor) -> torch.Tensor:
        """Rows of all processes, in their order, on the CPU; `own` are this one's."""
        return joined(self.processes.gather(own.detach().cpu()))

    @property
    def is_logged(self) -> bool:
        """Whether figures of this step are logged: every `log_every_n_steps`, and the last step of an epoch.

        Composing ε and taking figures in costs as much as a small student's step, and on a GPU waits for the device.
        """
        due: bool = self.trainer._logger_connector.should_update_logs  # as Lightning's own callbacks ask
        return due or self.trainer.is_last_batch

    def log_in_step(self, name: str, value: torch.Tensor | float) -> None:
        """Logs one figure of this step, if it is one that is logged."""
        if self.is_logged:
            self.log(name, value)

    def on_validation_start(self) -> None:
        """BatchNorm's statistics are those of process 0 in all, as in what is saved."""
        broadcast_tensors(self.buffers(), self.processes)

    on_train_end = on_validation_start
