"""Concurrent training of networks, each on batches of its own shard, without any influence on each other."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from datamodules import ShardedRecords
from datamodules.mapped import one_thread
from lightning_modules.teachers.ensemble_networks import in_threads
from lightning_modules.training.randomness import key, random_states, stream

_BLOCK = 100
"""Number of steps that are drawn at a time."""


@dataclass(eq=False, repr=False)
class JointTraining:
    """Networks in training, each by itself on its own shard; on a CPU in single-core threads.

    There are as many threads as torch would use. Each network takes the same sequence of operations whatever the other
    networks, their number, and the number of threads: results are equal to the last bit.

    Args:
        networks: The initialised networks, trained in place; may be empty.
        records: Records of all shards, on the networks' device.
        teachers: Numbers of the networks, which name their shards and seed their draws.
        batch_size: B.
        make_optimizer: Called with the parameters of each network.
        seed: The run's seed.
        shift: Largest number of pixels by which each image is moved.
        label_smoothing: Between 0 and 1.
        random: Whether the networks draw while they are trained. They then take turns, since torch has one generator
            for all threads.

    Attributes:
        steps_done: Number of steps that each network has made.
    """

    networks: Sequence[nn.Module]
    _: KW_ONLY
    records: ShardedRecords
    teachers: range
    batch_size: int
    make_optimizer: Callable[[Iterable[Tensor]], torch.optim.Optimizer]
    seed: int = 0
    shift: int = 0
    label_smoothing: float = 0.0
    random: bool = False
    steps_done: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.optimizers = [self.make_optimizer(network.train().parameters()) for network in self.networks]
        self._rates = [[group["lr"] for group in optimizer.param_groups] for optimizer in self.optimizers]
        self._planned: tuple[int, Tensor, Tensor] | None = None

    def step(self, factor: float) -> Tensor:
        """One step of each network, at `factor` times the initial rates of its optimizer.

        Returns:
            Detached cross-entropy of each network, (m,).
        """
        losses = self.backward(*self.batch(self.steps_done)) if self.networks else torch.zeros(0)
        for optimizer, rates in zip(self.optimizers, self._rates, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor
        in_threads(lambda optimizer: optimizer.step(), self.optimizers, device=losses.device)
        self.steps_done += 1
        return losses

    def backward(self, images: Tensor, labels: Tensor) -> Tensor:
        """Computes the gradients of each network's own loss; images (m, B, C, H, W), labels (m, B).

        Raises:
            ValueError: Networks draw from a shared generator, so that one's records would shift the others' draws.
        """
        start = random_states(images.device)

        def one(index: int) -> Tensor:
            self.optimizers[index].zero_grad()
            logits = self.networks[index](images[index])
            loss = F.cross_entropy(logits, labels[index], label_smoothing=self.label_smoothing)
            loss.backward()
            return loss.detach()

        cudnn = torch.backends.cudnn
        # Of cuDNN only kernels that add in a fixed order and are chosen by shapes: others would change the last bits of
        # teachers whose records did not change.
        with cudnn.flags(enabled=cudnn.enabled, deterministic=True, allow_tf32=cudnn.allow_tf32):
            if not self.random:
                losses = in_threads(one, range(len(self.networks)), device=images.device)
            else:
                losses = []
                with one_thread(), torch.random.fork_rng(devices=[images.device] if images.is_cuda else []):
                    for index, teacher in enumerate(self.teachers):
                        torch.manual_seed(key(self.seed, self.steps_done, teacher, "dropout"))
                        losses.append(one(index))
        if random_states(images.device) != start:
            raise ValueError(
                "model.network: it draws random numbers by NumPy, by Python, or by torch for some images only: let it "
                "draw by torch for every image, so that each teacher has draws of its own"
            )
        return torch.stack(losses)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Images (m, B, C, H, W) and labels (m, B) of one step, row j from network j's shard."""
        if self._planned is None or self._planned[0] != step // _BLOCK:
            self._planned = (step // _BLOCK, *self._plan(step // _BLOCK * _BLOCK))
        chosen, moves = (drawn[step % _BLOCK] for drawn in self._planned[1:])
        drawn = self.records.records.__getitems__(chosen.flatten())
        images, labels = drawn[0].to(chosen.device).float(), drawn[1].to(chosen.device)
        if self.shift:
            images = shifted(images, moves.flatten(0, 1))
        return images.unflatten(0, chosen.shape), labels.unflatten(0, chosen.shape)

    def _plan(self, start: int) -> tuple[Tensor, Tensor]:
        """Positions (steps, m, B) of the records of a block, and shifts (steps, m, B, 2) of their images."""
        size, rows, moves = self.batch_size, [], []
        for teacher in self.teachers:
            positions = self.records.positions(teacher)
            within = shuffled_passes(
                len(positions), first=start * size, count=_BLOCK * size, seed=self.seed, teacher=teacher
            )
            rows.append((positions.start + within).view(_BLOCK, size))
            draw = stream(self.seed, start, teacher, "shift")
            moves.append(torch.randint(-self.shift, self.shift + 1, (_BLOCK, size, 2), generator=draw))
        device = next(self.networks[0].parameters()).device
        return torch.stack(rows, dim=1).to(device), torch.stack(moves, dim=1).to(device)

    def copies(self) -> list[nn.Module]:
        """Copies of the networks on the CPU."""
        return [copy.deepcopy(network).cpu() for network in self.networks]


def shuffled_passes(size: int, *, first: int, count: int, seed: int, teacher: int) -> Tensor:
    """Part (count,), int64, of a teacher's endless sequence of records: one shuffled pass over its shard after another.

    It depends only on (seed, teacher) and the shard's own size, and any part can be computed without those before it.
    """
    passes = range(first // size, (first + count - 1) // size + 1)
    orders = [torch.randperm(size, generator=stream(seed, number, teacher, "shard order")) for number in passes]
    start = first - passes.start * size
    return torch.cat(orders)[start : start + count]


def shifted(images: Tensor, moves: Tensor) -> Tensor:
    """Shifts images (N, C, H, W) by whole pixels, padding with black (-1).

    `moves` are (N, 2) int64: rows down and columns to the right, negative for up and left.
    """
    rows, columns = (
        torch.arange(size, device=images.device) - moves[:, axis, None] for axis, size in enumerate(images.shape[2:])
    )
    height, width = images.shape[2:]
    inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None, :]
    number = torch.arange(len(images), device=images.device)[:, None, None]
    # (N, H, W, C): indices on both sides of the channels put them last.
    moved = images[number, :, rows.clamp(0, height - 1)[:, :, None], columns.clamp(0, width - 1)[:, None, :]]
    return torch.where(inside[:, None], moved.permute(0, 3, 1, 2), -1.0)
