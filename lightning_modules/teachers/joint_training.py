"""Networks trained at the same time, each on batches of its own, without any influence on each other."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_modules.networks.stacked import in_threads, one_thread
from lightning_modules.runtime.randomness import key

__all__ = ["JointTraining"]


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
