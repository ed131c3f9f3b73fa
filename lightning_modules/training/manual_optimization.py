"""Manual optimization of networks that take turns, in one process or in several."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed
from lightning import LightningModule
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from lightning_modules.training.run import datamodule_of, processes_of, steps_planned
from privacy.processes import Processes

#: Most steps of a schedule that are tried, also if the end of the fit is unknown; they take half a second.
_MOST_STEPS = 200_000
#: Where an entry of `optimized_groups` is set, if not under its own name.
_SET_IN = {"generator": "images", "vae": "vae_phase"}


class OptimizedGroup(NamedTuple):
    """Parameters with an optimizer of their own, `adam` unless one is given."""

    parameters: Iterable[nn.Parameter]
    optimizer: OptimizerCallable | None = None
    lr_scheduler: LRSchedulerCallable | None = None

    def schedule(self, optimizer: torch.optim.Optimizer, *, steps: float) -> Any:
        """Builds the schedule for its number of steps in this fit; None without one.

        Raises:
            ValueError: It follows the length of the fit, which is unknown.
        """
        schedule = self.lr_scheduler and self.lr_scheduler(optimizer)
        if isinstance(schedule, CosineSchedule):
            if not 0 < steps < math.inf:
                raise ValueError("CosineSchedule follows the length of the fit: set trainer.max_epochs")
            schedule.T_max = int(steps)
        return schedule

    def try_out(self, setting: str = "model", *, steps: float = 0, automatic: bool = False) -> None:
        """Tries optimizer and schedule on dummy weights: what fails in a later step would waste what is charged.

        Args:
            setting: Where both are set.
            steps: Number of steps of the schedule in this fit, infinite if unknown.
            automatic: Whether Lightning takes the steps: with a closure, and with the metric that a schedule monitors.

        Raises:
            ValueError: One of them fails, or a weight to train is not finite.
        """
        weights = list(self.parameters)
        if not all(bool(torch.isfinite(weight).all()) for weight in weights):
            raise ValueError(f"{setting}: the weights to train must be finite before the first step")
        device = weights[0].device if weights else torch.device("cpu")
        tried = "optimizer fails on dummy weights"
        try:
            with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
                dummies = [nn.Parameter(torch.ones(2, 2, device=device)) for _ in weights]
                for dummy in dummies:
                    dummy.grad = torch.ones_like(dummy)
                given = dummies if isinstance(self.parameters, Sequence) else iter(dummies)
                optimizer: Any = (self.optimizer or adam)(given)
                closure = [lambda: dummies[0].detach().square().sum()] if automatic else []
                optimizer.step(*closure)
                if not all(bool(torch.isfinite(dummy).all()) for dummy in dummies):
                    raise ValueError("they are infinite after a step")
                tried = "lr_scheduler fails on dummy weights"
                schedule = self.schedule(optimizer, steps=min(steps, _MOST_STEPS))
                # As the schedule has wrapped it, or torch would warn that the schedule is stepped first.
                optimizer.step(*closure)
                metric = [0.0] if automatic and hasattr(schedule, "monitor") else []
                for step in range(int(min(steps, _MOST_STEPS)) if schedule else 0):
                    tried = f"lr_scheduler fails at step {step + 1}, before the end of the fit"
                    schedule.step(*metric)
        except Exception as error:
            raise ValueError(f"{setting}.{tried}: {' '.join(str(error).split())}") from error


class CosineSchedule(CosineAnnealingLR):
    """Cosine annealing of the learning rate to zero at the end of the fit, however long it is.

    A fit that is resumed with more epochs has the rate of its new length from there on.

    Args:
        optimizer: The optimizer.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.lengthened = False
        super().__init__(optimizer, T_max=1)  # until `OptimizedGroup.schedule` sets it

    def get_lr(self) -> list[float | torch.Tensor]:
        """Returns the next rates; torch's recursion would stay at the zero that a shorter fit ended with."""
        return self._get_closed_form_lr() if self.lengthened else super().get_lr()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the schedule of a fit that may have been of another length."""
        length = self.T_max
        super().load_state_dict(state_dict)
        self.lengthen(length)

    def lengthen(self, steps: float) -> None:
        """Sets the length of the whole fit, of which steps may have been made."""
        self.lengthened |= self.T_max != steps
        self.T_max = int(steps)


def adam(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Adam with learning rate 1e-3."""
    return torch.optim.Adam(parameters, lr=1e-3, fused=True)


class ManualOptimization(LightningModule, ABC):
    """Base that trains several networks, each with its own optimizer and schedule."""

    _schedules: Mapping[str, Any] = {}
    _last_step = -1

    @abstractmethod
    def optimized_groups(self) -> dict[str, OptimizedGroup]:
        """Returns the parameters that are trained, by name."""

    @property
    def processes(self) -> Processes:
        """Processes of this run: each makes an equal share of a batch, and the first charges for all."""
        return processes_of(self._trainer)

    def schedule_steps(self, name: str, steps: float) -> float:
        """Number of steps that the schedule of an entry of `optimized_groups` makes in a fit of `steps` steps."""
        return steps

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Returns an optimizer for each entry of `optimized_groups`, and the configured schedules; first tries them."""
        planned = steps_planned(self.trainer, length=getattr(datamodule_of(self.trainer), "steps_per_epoch", 1))
        # A fit may end before a phase begins.
        steps = {name: max(1, self.schedule_steps(name, planned)) for name in self.optimized_groups()}
        for name, one in self.optimized_groups().items():
            one.try_out(f"model.{_SET_IN.get(name, name)}", steps=steps[name])
        self._last_step = -1  # of an earlier fit
        groups = self.optimized_groups()
        optimizers = {name: (one.optimizer or adam)(one.parameters) for name, one in groups.items()}
        schedules = {name: one.schedule(optimizers[name], steps=steps[name]) for name, one in groups.items()}
        self._schedules = {name: schedule for name, schedule in schedules.items() if schedule}
        return list(optimizers.values()), list(self._schedules.values())

    def optimizer(self, name: str) -> LightningOptimizer:
        """Returns Lightning's optimizer of an entry of `optimized_groups`."""
        optimizers: Any = self.optimizers()  # a single one comes without a list
        position = list(self.optimized_groups()).index(name)
        optimizer: LightningOptimizer = optimizers[position] if isinstance(optimizers, list) else optimizers
        return optimizer

    def descend(self, name: str, loss: torch.Tensor, *, scheduled: bool = True) -> None:
        """Takes a step of an optimizer and its schedule on a loss, with gradients averaged over processes."""
        optimizer = self.optimizer(name)
        optimizer.zero_grad()
        if self.trainer.world_size == 1:
            self.manual_backward(loss)
        else:
            # Student and generator take turns, for which DDP would have to look for unused parameters at each step.
            with self.trainer.strategy.block_backward_sync():  # type: ignore[attr-defined]
                self.manual_backward(loss)
            average_gradients(p for group in optimizer.param_groups for p in group["params"])
        step = self.trainer.fit_loop.total_batch_idx
        if step != self._last_step:
            optimizer.step()
        else:  # Lightning would count every optimizer's step, and name checkpoints and log by their sum
            self.trainer.strategy.optimizer_step(optimizer.optimizer, lambda: None)
        self._last_step = step
        if scheduled and name in self._schedules:
            self._schedules[name].step()

    def gather_rows(self, own: torch.Tensor) -> torch.Tensor:
        """Returns the rows of all processes in rank order, on the CPU; `own` are those of this process."""
        return joined(self.processes.gather(own.detach().cpu()))

    @property
    def is_logged(self) -> bool:
        """Whether figures of this step are logged: every `log_every_n_steps`, and the last step of an epoch.

        Composing ε and collecting figures takes as long as a small student's step, and synchronises a GPU.
        """
        due: bool = self.trainer._logger_connector.should_update_logs  # as Lightning's own callbacks ask
        return due or self.trainer.is_last_batch

    def log_in_step(self, name: str, value: torch.Tensor | float) -> None:
        """Logs a figure if figures of this step are logged."""
        if self.is_logged:
            self.log(name, value)

    def on_validation_start(self) -> None:
        """Gives all processes the BatchNorm statistics of process 0, which are the ones saved."""
        for buffer in self.buffers() if self.processes.size > 1 else ():
            torch.distributed.broadcast(buffer, src=0)

    on_train_end = on_validation_start


@torch.no_grad()
def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Replaces each gradient by its mean over all processes, in one message; the order of parameters must agree.

    A gradient that no process has stays None.
    """
    listed = list(parameters)
    there = torch.tensor([one.grad is not None for one in listed], device=listed[0].device, dtype=listed[0].dtype)
    parts = [(torch.zeros_like(one) if one.grad is None else one.grad).flatten() for one in listed]
    message = torch.cat([*parts, there])
    torch.distributed.all_reduce(message)
    *means, there = (message / torch.distributed.get_world_size()).split([*map(len, parts), len(listed)])
    for parameter, mean, share in zip(listed, means, there.tolist(), strict=True):
        if share:
            parameter.grad = torch.empty_like(parameter).copy_(mean.view_as(parameter))


def joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Concatenate tensors on the CPU along their first dimension, keeping their dtype.

    Autocast would choose another dtype, and in bfloat16 refuses images in float16.
    """
    with torch.autocast("cpu", enabled=False):
        return torch.cat(list(parts))
