"""Ways to clip each record's gradient. All give the same sum; they differ in time and memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Literal, TypeAlias, get_args

import torch
from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_modules.teachers.class_prior import adjusted
from lightning_modules.teachers.dp_optimizers import (
    GHOST_MARGIN,
    ExactNoise,
    FlatOptimizer,
    GhostOptimizer,
    SumOptimizer,
)
from lightning_modules.teachers.linear_head import clipped_sums, linear_head

__all__ = [
    "CLIPPINGS",
    "FLAT_BYTES",
    "WAYS",
    "Clipping",
    "FlatClipping",
    "GhostClipping",
    "LinearClipping",
    "RecordClipping",
    "chosen_way",
]

Way: TypeAlias = Literal["flat", "ghost", "linear"]
Clipping: TypeAlias = Literal["auto", "flat", "ghost", "linear"]
CLIPPINGS = get_args(Clipping)

FLAT_BYTES = 2**28
"""Most that per-sample gradients of a physical batch may take, where the way of clipping is chosen by size."""


def chosen_way(clipping: Clipping, network: nn.Module, *, physical_batch_size: int, flat_for: str | None = None) -> Way:
    """The way of clipping that a setting selects for a network.

    `auto` is `linear` where nothing but a linear head is trained; else `flat`, whose sums are the most exact, unless
    per-sample gradients would take more than `FLAT_BYTES`; else `ghost`.

    Args:
        clipping: The setting.
        network: What is trained.
        physical_batch_size: Gradients that flat clipping would hold at once.
        flat_for: The setting, as name=value, that needs flat clipping; None where none does.

    Raises:
        ValueError: Another way than flat where flat is needed, or `linear` for a network that it does not fit.
    """
    if clipping not in CLIPPINGS:
        raise ValueError(f"clipping must be {', '.join(CLIPPINGS[:-1])} or {CLIPPINGS[-1]}, got {clipping!r}")
    if flat_for is not None and clipping not in ("auto", "flat"):
        raise ValueError(
            f"{flat_for} needs clipping=flat (or auto), got {clipping}: no other way holds the gradient of a record "
            "as one, so that each view would be clipped by itself and nothing could be rounded"
        )
    head = linear_head(network)
    if clipping == "linear" and head is None:
        raise ValueError(
            "clipping=linear needs an ImageClassifier of which the linear head alone is trained, for example "
            f"{{class_path: LinearOnFeatures}}, got {type(network).__name__}: take auto"
        )
    if clipping != "auto":
        return clipping
    if flat_for is not None:
        return "flat"
    if head is not None:
        return "linear"
    trained = sum(p.numel() * p.element_size() for p in network.parameters() if p.requires_grad)
    return "flat" if trained * physical_batch_size <= FLAT_BYTES else "ghost"


class RecordClipping(ABC):
    """One way to clip, for one network.

    Args:
        network: What is trained.
        max_grad_norm: C.
        label_smoothing: Of the cross-entropy.
        log_prior: (c,), added to the logits; see `class_prior` of `Teacher`.
    """

    optimizer: ClassVar[type[ExactNoise]]
    #: What a guarantee must assume beyond what holds for every way.
    assumptions: ClassVar[tuple[str, ...]] = ()
    _hooks: Any = None

    def __init__(
        self,
        network: nn.Module,
        *,
        max_grad_norm: float,
        label_smoothing: float = 0.0,
        log_prior: Tensor | None = None,
    ) -> None:
        for module in network.modules():
            if "inplace" in vars(module):
                vars(module)["inplace"] = False  # what Opacus's hooks return must not be written to
        self.trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
        self.max_grad_norm = max_grad_norm
        self.label_smoothing = label_smoothing
        self.log_prior = log_prior
        self._prepare(network)

    @abstractmethod
    def _prepare(self, network: nn.Module) -> None:
        """Prepares the network for this way of clipping."""

    @abstractmethod
    def add(
        self,
        inputs: Tensor,
        labels: Tensor,
        *,
        forward: Callable[[Tensor], Tensor],
        optimizer: ExactNoise,
        views: int = 1,
    ) -> None:
        """Leaves a physical batch's gradients where `optimizer.step` takes them.

        Args:
            inputs: (B K, ...), the views of a record in a row.
            labels: (B K,).
            forward: Logits of inputs.
            optimizer: One of `self.optimizer`.
            views: K.
        """

    def add_nothing(self, optimizer: ExactNoise) -> None:
        """Leaves the gradients of a batch without records: its step is only noise."""
        for parameter in self.trained:
            parameter.grad = torch.zeros_like(parameter)

    def release(self) -> None:
        """Undoes what was done to the network."""
        if self._hooks is not None:
            self._hooks.cleanup()


class FlatClipping(RecordClipping):
    """Stores per-sample gradients."""

    optimizer = FlatOptimizer

    def _prepare(self, network: nn.Module) -> None:
        self._hooks = GradSampleModule(network, loss_reduction="mean")

    def add(
        self,
        inputs: Tensor,
        labels: Tensor,
        *,
        forward: Callable[[Tensor], Tensor],
        optimizer: ExactNoise,
        views: int = 1,
    ) -> None:
        """The mean of a record's views is what is clipped: a record counts once however many there are."""
        F.cross_entropy(
            adjusted(forward(inputs), self.log_prior), labels, label_smoothing=self.label_smoothing
        ).backward()
        if views > 1:
            self._one_gradient_per_record(len(inputs) // views, views)

    def _one_gradient_per_record(self, records: int, views: int) -> None:
        """Before anything is clipped."""
        for parameter in self.trained:
            each: Tensor = parameter.grad_sample  # type: ignore[attr-defined]
            parameter.grad_sample = each.unflatten(0, (records, views)).mean(dim=1)  # type: ignore[attr-defined]

    def add_nothing(self, optimizer: ExactNoise) -> None:
        """See `RecordClipping.add_nothing`."""
        super().add_nothing(optimizer)
        for parameter in self.trained:
            parameter.grad_sample = parameter.new_zeros(0, *parameter.shape)  # type: ignore[attr-defined]


class GhostClipping(RecordClipping):
    """Computes the norms of per-sample gradients without keeping those (Li et al. 2022), in float32."""

    optimizer = GhostOptimizer
    assumptions = ("no record has a gradient that is not finite, which ghost clipping cannot leave out",)

    def _prepare(self, network: nn.Module) -> None:
        self._hooks = GradSampleModuleFastGradientClipping(
            network,
            loss_reduction="mean",
            max_grad_norm=self.max_grad_norm * (1 - GHOST_MARGIN),
            use_ghost_clipping=True,
        )

    def add(
        self,
        inputs: Tensor,
        labels: Tensor,
        *,
        forward: Callable[[Tensor], Tensor],
        optimizer: ExactNoise,
        views: int = 1,
    ) -> None:
        """One pass for the norms and one for the clipped sum; `views` is 1."""
        criterion = nn.CrossEntropyLoss(label_smoothing=self.label_smoothing)
        loss = DPLossFastGradientClipping(self._hooks, optimizer, criterion, loss_reduction="mean")
        loss(adjusted(forward(inputs), self.log_prior), labels).backward()


class LinearClipping(RecordClipping):
    """Two matrix products, in float64: see `clipped_sums`. No graph is built."""

    optimizer = SumOptimizer

    def _prepare(self, network: nn.Module) -> None:
        head = linear_head(network)
        assert head is not None
        # In a tuple: nothing here is a module's, and a checkpoint names its weights as before.
        self._head = (head,)

    def add(
        self,
        inputs: Tensor,
        labels: Tensor,
        *,
        forward: Callable[[Tensor], Tensor],
        optimizer: ExactNoise,
        views: int = 1,
    ) -> None:
        """`inputs` are the head's, (B, F); `forward` is not called, and `views` is 1."""
        assert isinstance(optimizer, SumOptimizer)
        optimizer.sums = clipped_sums(
            inputs,
            labels,
            self._head[0],
            norm=self.max_grad_norm,
            label_smoothing=self.label_smoothing,
            log_prior=self.log_prior,
        )

    def add_nothing(self, optimizer: ExactNoise) -> None:
        """See `RecordClipping.add_nothing`."""
        assert isinstance(optimizer, SumOptimizer)
        optimizer.sums = [torch.zeros_like(parameter, dtype=torch.float64) for parameter in self.trained]


WAYS: dict[Way, type[RecordClipping]] = {"flat": FlatClipping, "ghost": GhostClipping, "linear": LinearClipping}
