"""Fits in several processes: communication, averaging, and checks of strategies and launchers."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed
from lightning import Trainer
from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder, StochasticWeightAveraging
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy, Strategy
from torch import nn

from lightning_modules.training.run import callbacks_of
from privacy.processes import ALONE, Processes, ProcessesError, everywhere


class TrainerProcesses:
    """A trainer's processes from the view of one of them; see `privacy.processes`.

    Args:
        trainer: The trainer, within an entry point, when its processes are connected.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.rank = trainer.global_rank
        self.size = trainer.world_size
        self._strategy: Strategy = trainer.strategy

    def broadcast(self, value: Any) -> Any:
        return self._strategy.broadcast(value)

    def gather(self, value: Any) -> list[Any]:
        """Results of all ranks, in order of rank. Tensors are on the CPU."""
        found: list[Any] = [None] * self.size
        torch.distributed.all_gather_object(found, value)
        return found


def processes_of(trainer: Trainer | None) -> Processes:
    """Returns the processes of a trainer; a single one without a trainer."""
    return TrainerProcesses(trainer) if isinstance(trainer, Trainer) and trainer.world_size > 1 else ALONE


def check_strategy(trainer: Trainer, *, averages_itself: bool = False) -> None:
    """Refuses strategies that are not known to be correct here; with `averages_itself` callbacks too.

    Callbacks must not train before the fit begins, on private records without a charge. All ranks decide alike.

    Raises:
        ProcessesError: The strategy is refused, or torchrun has started other processes than the trainer is for, each
            of which would make the whole run, in one folder and one ledger; the error says what to set.
        ValueError: There is a `BatchSizeFinder` or `LearningRateFinder`, which the `Tuner` adds as well, or a
            `StochasticWeightAveraging`.
    """
    for callback in callbacks_of(trainer) if averages_itself else ():
        if isinstance(callback, (BatchSizeFinder, LearningRateFinder)):
            raise ValueError(f"{type(callback).__name__} trains before the fit, without a charge: leave it out")
        if isinstance(callback, StochasticWeightAveraging):
            raise ValueError(f"{type(callback).__name__} adds an epoch of queries that no plan has: leave it out")
    strategy = trainer.strategy
    # Exactly DDP: DeepSpeed's and XLA's strategies are subclasses of it.
    ddp = isinstance(strategy, DDPStrategy) and type(strategy) is DDPStrategy and strategy._start_method == "popen"
    if not ddp and not isinstance(strategy, SingleDeviceStrategy):
        raise everywhere(
            ProcessesError(
                f"trainer.strategy {type(strategy).__name__} is not supported: docs/processes.md has the reasons. Set "
                "--trainer.strategy ddp (a process per device, on one machine or on several), or --trainer.devices 1 "
                "--trainer.strategy auto"
            )
        )
    started, here = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    if torch.distributed.is_torchelastic_launched() and trainer.world_size != started:
        raise everywhere(
            ProcessesError(
                f"torchrun has started {started} processes, and this trainer is for {trainer.world_size}: set "
                f"--trainer.strategy ddp --trainer.devices {here} --trainer.num_nodes {started // here}"
            )
        )


def share_of(rows: int, processes: Processes) -> slice:
    """This rank's share of the rows; the last rank's may be smaller."""
    most = -(-rows // processes.size)
    return slice(min(rows, processes.rank * most), min(rows, (processes.rank + 1) * most))


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
