"""Networks trained at the same time, each on batches of its own shard, without any influence on each other."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from datamodules import ShardedRecords
from lightning_modules.networks.stacked import in_threads, one_thread
from lightning_modules.runtime.randomness import key, stream
from lightning_modules.teachers.augmentation import shifted

__all__ = ["JointTraining", "ShardBatches", "shuffled_passes"]

_BLOCK = 100
"""Steps that are drawn at a time."""


class JointTraining:
    """Networks in training, each by itself, in threads of one core each on a CPU.

    What is computed for one is the same sequence of operations whatever the others are, how many there are and how many
    threads: results are equal to the last bit.

    Args:
        networks: The networks, already initialised; they are trained in place.
        make_optimizer: Called with the parameters of each.
        label_smoothing: Between 0 and 1.
        workers: Threads; None as many as torch would use.
        seed: Of dropout.
        first: Number of the first network, for its draws.
        random: Whether the networks draw while they are trained. They then take turns: torch has one generator for all
            threads.
    """

    def __init__(
        self,
        networks: Sequence[nn.Module],
        *,
        make_optimizer: Callable[[Iterable[Tensor]], torch.optim.Optimizer],
        label_smoothing: float = 0.0,
        workers: int | None = None,
        seed: int = 0,
        first: int = 0,
        random: bool = False,
    ) -> None:
        self._networks = [network.train() for network in networks]
        self.optimizers = [make_optimizer(network.parameters()) for network in self._networks]
        self._rates = [[group["lr"] for group in optimizer.param_groups] for optimizer in self.optimizers]
        self.label_smoothing = label_smoothing
        self.seed = seed
        self.first = first
        self.random = random
        self._pool: ThreadPoolExecutor | None = None
        count = min(workers or torch.get_num_threads(), len(self._networks))
        if count > 1 and next(self._networks[0].parameters()).device.type == "cpu":
            with one_thread():
                self._pool = ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,))

    def backward(self, images: Tensor, labels: Tensor, *, step: int) -> Tensor:
        """Gives each network's weights the gradients of its own loss.

        Args:
            images: (m, B, C, H, W), row j for network j.
            labels: (m, B).
            step: Number of the step, by which dropout is drawn.

        Returns:
            Cross-entropy of each network, (m,), detached.
        """

        def one(index: int) -> Tensor:
            self.optimizers[index].zero_grad()
            logits = self._networks[index](images[index])
            loss = F.cross_entropy(logits, labels[index], label_smoothing=self.label_smoothing)
            loss.backward()
            return loss.detach()

        with one_thread(), _fixed_order():
            if not self.random:
                return torch.stack(in_threads(one, range(len(self._networks)), pool=self._pool))
            losses = []
            with torch.random.fork_rng(devices=[images.device] if images.device.type == "cuda" else []):
                for index in range(len(self._networks)):
                    torch.manual_seed(key(self.seed, step, self.first + index, "dropout"))
                    losses.append(one(index))
            return torch.stack(losses)

    def descend(self, factor: float) -> None:
        """One step of each optimizer, at `factor` times the rates that it was made with."""

        def one(index: int) -> None:
            optimizer = self.optimizers[index]
            for group, rate in zip(optimizer.param_groups, self._rates[index], strict=True):
                group["lr"] = rate * factor
            optimizer.step()

        with one_thread():
            in_threads(one, range(len(self._networks)), pool=self._pool)

    def networks(self) -> list[nn.Module]:
        """The networks as they stand, on the CPU: copies."""
        return [copy.deepcopy(network).cpu() for network in self._networks]

    def optimizer_states(self) -> list[dict[str, Any]]:
        """States of the networks' optimizers."""
        return [optimizer.state_dict() for optimizer in self.optimizers]

    def load(self, networks: Sequence[Mapping[str, Any]], optimizers: Sequence[Mapping[str, Any]]) -> None:
        """Resumes from these states of the same networks and of their optimizers."""
        for own, state in zip(self._networks, networks, strict=True):
            own.load_state_dict(state)
        for optimizer, state in zip(self.optimizers, optimizers, strict=True):
            optimizer.load_state_dict(dict(state))

    def close(self) -> None:
        """Ends the threads."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)
            self._pool = None


@contextmanager
def _fixed_order() -> Iterator[None]:
    """Keeps cuDNN to kernels that add in a fixed order, chosen only by shapes.

    Others would give new bits to the teachers whose records did not change.
    """
    cudnn: Any = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark
    cudnn.deterministic, cudnn.benchmark = True, False
    try:
        yield
    finally:
        cudnn.deterministic, cudnn.benchmark = before


def shuffled_passes(size: int, *, first: int, count: int, seed: int, teacher: int) -> Tensor:
    """Part of a teacher's endless sequence of records: one shuffled pass over its shard after another.

    It depends only on (seed, teacher) and the shard's own size, and any part can be had without those before it.

    Args:
        size: Records in the shard.
        first: Place in the sequence at which the part begins.
        count: Length of the part.
        seed: The run's seed.
        teacher: Number of the teacher.

    Returns:
        (count,) int64 in [0, size).
    """
    passes = range(first // size, (first + count - 1) // size + 1)
    drawn = [torch.randperm(size, generator=stream(seed, number, teacher, "shard order")) for number in passes]
    start = first - passes.start * size
    return torch.cat(drawn)[start : start + count]


class ShardBatches:
    """Batches of m teachers at each of their steps.

    Args:
        records: Of all shards.
        teachers: Numbers of the teachers.
        batch_size: B.
        seed: The run's seed.
        shift: Pixels by which each image is moved at most.
        device: Where the records are.
    """

    def __init__(
        self,
        records: ShardedRecords,
        *,
        teachers: range,
        batch_size: int,
        seed: int,
        shift: int,
        device: torch.device,
    ) -> None:
        self._records = records
        self._teachers = teachers
        self._batch_size = batch_size
        self._seed = seed
        self._shift = shift
        self._device = device
        self._planned: tuple[int, Tensor, Tensor] | None = None

    def at(self, step: int) -> tuple[Tensor, Tensor]:
        """Images (m, B, C, H, W) and labels (m, B) of one step, row j from the shard of teacher j of `teachers`."""
        if self._planned is None or self._planned[0] != step // _BLOCK:
            self._planned = (step // _BLOCK, *self._plan(step // _BLOCK * _BLOCK))
        chosen, moves = (drawn[step % _BLOCK] for drawn in self._planned[1:])
        images, labels = self._records.records.__getitems__(chosen.flatten())
        if self._shift:
            images = shifted(images, moves.flatten(0, 1))
        return images.unflatten(0, chosen.shape), labels.unflatten(0, chosen.shape)

    def _plan(self, start: int) -> tuple[Tensor, Tensor]:
        """Positions (steps, m, B) of the records of a block, and (steps, m, B, 2) how far their images are moved."""
        size, rows, moves = self._batch_size, [], []
        for teacher in self._teachers:
            positions = self._records.positions(teacher)
            within = shuffled_passes(
                len(positions), first=start * size, count=_BLOCK * size, seed=self._seed, teacher=teacher
            )
            rows.append((positions.start + within).view(_BLOCK, size))
            draw = stream(self._seed, start, teacher, "shift")
            moves.append(torch.randint(-self._shift, self._shift + 1, (_BLOCK, size, 2), generator=draw))
        return torch.stack(rows, dim=1).to(self._device), torch.stack(moves, dim=1).to(self._device)
