"""Networks trained at the same time, each on batches of its own, without any influence on each other."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_modules.networks.stacked import in_threads, one_thread, vectorised_call
from lightning_modules.runtime.randomness import key
from privacy.processes import ALONE, Processes, everywhere

__all__ = ["ELEMENTWISE", "JointOptimizer", "JointTraining", "SeparateTraining", "StackedTraining", "draws_at_random"]

MakeOptimizer = Callable[[Iterable[Tensor]], torch.optim.Optimizer]

ELEMENTWISE: tuple[type[torch.optim.Optimizer], ...] = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.Adamax,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.RMSprop,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
    torch.optim.Rprop,
)
"""Optimizers that update each number from that number's own gradients: on stacked weights they couple no networks."""


def draws_at_random(network: nn.Module, *, image_shape: tuple[int, int, int]) -> bool:
    """Whether the network draws random numbers while it is trained (dropout); a copy is tried on blank images."""
    copied = copy.deepcopy(network).train()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        before = torch.get_rng_state()
        copied(torch.zeros(2, *image_shape))
        return not torch.equal(before, torch.get_rng_state())


class JointOptimizer(torch.optim.Optimizer):
    """Stands for the optimizers of all networks in training, for Lightning to step, save and restore.

    Args:
        processes: Those of the run: each has the optimizers of its own networks, and a saved state has those of all.
    """

    def __init__(self, processes: Processes = ALONE) -> None:
        self.parts: list[torch.optim.Optimizer] = []
        self.pool: ThreadPoolExecutor | None = None
        self.processes = processes
        self._of_all: list[dict[str, Any]] | None = None
        # PyTorch insists on a parameter.
        super().__init__([nn.Parameter(torch.zeros(()))], {"lr": 0.0})

    def take_over(self, training: JointTraining | None) -> None:
        """Steps the networks of `training` from now on; with None there are none left."""
        self.parts = [] if training is None else training.optimizers
        self.pool = None if training is None else training.pool
        for part in self.parts:
            for group in part.param_groups:
                group.setdefault("initial_lr", group["lr"])

    def set_rate(self, factor: float) -> None:
        """Sets every learning rate to `factor` times what its optimizer was made with."""
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = group["initial_lr"] * factor
        for group in self.param_groups:
            group["lr"] = self.parts[0].param_groups[0]["lr"] if self.parts else 0.0

    def zero_grad(self, set_to_none: bool = True) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none=set_to_none)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of each."""
        result = None if closure is None else closure()
        with one_thread():
            in_threads(lambda part: part.step(), self.parts, pool=self.pool)
        return result

    def consolidate_state_dict(self) -> None:
        """Called by Lightning in every process before process 0 saves."""
        own = [part.state_dict() for part in self.parts]
        self._of_all = [state for states in self.processes.gather(own) for state in states]

    def state_dict(self) -> dict[str, Any]:
        states, self._of_all = self._of_all, None
        return {"parts": [part.state_dict() for part in self.parts] if states is None else states}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Inverse of `state_dict`, with the same networks in training.

        Raises:
            ValueError: Another number of optimizers.
        """
        states = state_dict["parts"]
        counts = self.processes.gather(len(self.parts))
        if len(states) != sum(counts):
            raise everywhere(
                ValueError(
                    f"state_dict must hold {sum(counts)} optimizer(s), got {len(states)}: resume with the settings "
                    "(vectorised, teachers_at_once) and on the kind and number of devices that the run began with"
                )
            )
        states = states[sum(counts[: self.processes.rank]) :][: len(self.parts)]
        for part, state in zip(self.parts, states, strict=True):
            part.load_state_dict(state)


class JointTraining(ABC):
    """m networks in training.

    Attributes:
        optimizers: what steps them.
        pool: threads that steps and gradients of single networks are spread over.
    """

    optimizers: list[torch.optim.Optimizer]
    pool: ThreadPoolExecutor | None = None

    @abstractmethod
    def backward(self, images: Tensor, labels: Tensor, *, step: int) -> Tensor:
        """Adds the gradients of each network's own loss to its own weights.

        Args:
            images: (m, B, C, H, W), row j for network j.
            labels: (m, B).
            step: Number of the step, by which dropout is drawn.

        Returns:
            Cross-entropy of each network, (m,), detached.
        """

    @abstractmethod
    def networks(self) -> list[nn.Module]:
        """The networks as they stand, on the CPU: copies."""

    def close(self) -> None:
        """Ends the threads."""
        if self.pool is not None:
            self.pool.shutdown(wait=True)
            self.pool = None


class SeparateTraining(JointTraining):
    """Each network by itself, in threads of one core each.

    What is computed for one is the very same sequence of operations whatever the others are, how many there are and how
    many threads: results are equal to the last bit.

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
        make_optimizer: MakeOptimizer,
        label_smoothing: float = 0.0,
        workers: int | None = None,
        seed: int = 0,
        first: int = 0,
        random: bool = False,
    ) -> None:
        self._networks = [network.train() for network in networks]
        self.optimizers = [make_optimizer(network.parameters()) for network in self._networks]
        self.label_smoothing = label_smoothing
        self.seed = seed
        self.first = first
        self.random = random
        device = next(self._networks[0].parameters()).device
        count = min(workers or torch.get_num_threads(), len(self._networks))
        if count > 1 and device.type == "cpu":
            with one_thread():
                self.pool = ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,))

    def backward(self, images: Tensor, labels: Tensor, *, step: int) -> Tensor:
        def one(index: int) -> Tensor:
            logits = self._networks[index](images[index])
            loss = F.cross_entropy(logits, labels[index], label_smoothing=self.label_smoothing)
            loss.backward()
            return loss.detach()

        with one_thread():
            if not self.random:
                return torch.stack(in_threads(one, range(len(self._networks)), pool=self.pool))
            losses = []
            with torch.random.fork_rng(devices=[]):
                for index in range(len(self._networks)):
                    torch.manual_seed(key(self.seed, step, self.first + index, "dropout"))
                    losses.append(one(index))
            return torch.stack(losses)

    def networks(self) -> list[nn.Module]:
        return [copy.deepcopy(network).cpu() for network in self._networks]


@contextmanager
def _fixed_order() -> Iterator[None]:
    """Keeps cuDNN to kernels that add in a fixed order, chosen by shapes alone.

    Others would give new bits to the teachers whose records did not change.
    """
    cudnn: Any = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark
    cudnn.deterministic, cudnn.benchmark = True, False
    try:
        yield
    finally:
        cudnn.deterministic, cudnn.benchmark = before


class StackedTraining(JointTraining):
    """All networks in one call of `vmap`: weights, BatchNorm's statistics and gradients are stacked, (m, ...) each.

    Row j of everything depends on row j alone. What is computed may differ in its last bits with m, never with the
    other rows' values.

    Args:
        networks: The networks, already initialised.
        make_optimizer: Called once with all stacked weights; of a kind that is in `ELEMENTWISE`.
        label_smoothing: Between 0 and 1.
        device: Where they are trained.
        seed: Of dropout.
        first: Number of the first network, for the draws.
        random: Whether the networks draw while they are trained.

    Raises:
        ValueError: An optimizer that would couple the networks, or a network whose forward pass `vmap` cannot follow.
    """

    def __init__(
        self,
        networks: Sequence[nn.Module],
        *,
        make_optimizer: MakeOptimizer,
        label_smoothing: float = 0.0,
        device: torch.device | None = None,
        seed: int = 0,
        first: int = 0,
        random: bool = False,
    ) -> None:
        self._template = copy.deepcopy(networks[0]).train()
        parameters = [dict(network.named_parameters()) for network in networks]
        buffers = [dict(network.named_buffers()) for network in networks]
        self.parameters = {
            name: torch.stack([own[name].detach() for own in parameters])
            .to(device)
            .requires_grad_(parameters[0][name].requires_grad)
            for name in parameters[0]
        }
        self.buffers = {name: torch.stack([own[name] for own in buffers]).to(device) for name in buffers[0]}
        self.count = len(networks)
        optimizer = make_optimizer([values for values in self.parameters.values() if values.requires_grad])
        if type(optimizer) not in ELEMENTWISE:
            raise ValueError(
                f"model.optimizer: {type(optimizer).__name__} is not known to treat every weight by itself, and on "
                f"stacked weights would couple the teachers. Take one of {', '.join(k.__name__ for k in ELEMENTWISE)}, "
                "or set model.vectorised to false"
            )
        self.optimizers = [optimizer]
        self.label_smoothing = label_smoothing
        self.seed = seed
        self.first = first
        self.random = random
        self._call = vectorised_call(self._template, randomness="different" if random else "error", shared_images=False)

    def backward(self, images: Tensor, labels: Tensor, *, step: int) -> Tensor:
        devices = [images.device] if images.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices, enabled=self.random), _fixed_order():
            if self.random:
                torch.manual_seed(key(self.seed, step, self.first, "dropout"))
            logits = self._call(self.parameters, self.buffers, images)
            losses = F.cross_entropy(
                logits.flatten(0, 1), labels.flatten(), reduction="none", label_smoothing=self.label_smoothing
            )
            losses = losses.view(self.count, -1).mean(dim=1)
            # A teacher's weights have a part in its own term alone.
            losses.sum().backward()
        return losses.detach()

    def networks(self) -> list[nn.Module]:
        rows = []
        for index in range(self.count):
            network = copy.deepcopy(self._template)
            state = {name: values[index].detach() for name, values in {**self.parameters, **self.buffers}.items()}
            network.load_state_dict(state, strict=False)
            rows.append(network)
        return rows
