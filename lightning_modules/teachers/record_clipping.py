"""Modes of clipping each record's gradient. All give the same sum; they differ in time and memory."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
from torch import Tensor, nn

from lightning_modules.runtime.hyperparameters import settings_of
from lightning_modules.setting_checks import check_choice, check_number, check_whole_number
from lightning_modules.teachers.augmentation import Views
from lightning_modules.teachers.class_prior import PriorCrossEntropy
from lightning_modules.teachers.clipped_sums import flat_sums, linear_head, linear_sums
from privacy.mechanisms.discrete_gaussian import lattice_spacing

__all__ = [
    "FLAT_BYTES",
    "GHOST_MARGIN",
    "MODES",
    "Clipping",
    "FlatClipping",
    "GhostClipping",
    "LinearClipping",
    "Mode",
    "RecordClipping",
]

Mode: TypeAlias = Literal["flat", "ghost", "linear"]

FLAT_BYTES = 2**28
"""Most that per-sample gradients of a physical batch may take, where the mode of clipping is chosen by size."""
GHOST_MARGIN = 1e-4
"""Share of the clipping norm that a record's gradient stays below it, where its norm is computed in float32."""


@dataclass(frozen=True, kw_only=True)
class Clipping:
    """How the gradient of each record is bounded; a string stands for its `mode`.

    Attributes:
        max_grad_norm: C, the clipping norm of one record's gradient.
        mode: `flat` keeps per-sample gradients, `ghost` computes their norms only, `linear` is for networks of which
            only a linear head is trained. `auto` is `linear` where that fits, else `flat` up to 256 MiB, else `ghost`;
            a resumed training continues as it began. Before the first step it is tried on public images (see
            `ClippingTrial`): where it does not bound each record, `ghost` falls back to `flat`, which is refused.
        physical_batch_size: Gradients that are held at once, one for each view of a record, except by `linear`. Does
            not change the result.
        bounding: `clip` a record's gradient at C, or `normalize` it, C·g/(‖g‖ + γ) (automatic clipping, Bu et al.
            2022). A record moves the sum by C at most either way. Needs flat clipping.
        stability: γ of `bounding: normalize`, above 0. In the units of gradients, not of C.
        granularity: Distance, in units of C (for example 1e-3), of the lattice that clipped gradients are rounded to,
            towards zero, and that discrete Gaussian noise lies on (Canonne, Kamath and Steinke 2020). Costs slightly
            more, since it is composed only by RDP, and needs flat clipping. None takes floating-point noise.
        views: See `Views`. Need flat clipping; features are not computed once.
    """

    max_grad_norm: float = 0.1
    mode: Literal["auto", "flat", "ghost", "linear"] = "auto"
    physical_batch_size: int = 256
    bounding: Literal["clip", "normalize"] = "clip"
    stability: float = 0.01
    granularity: float | None = None
    views: Views = Views()

    def __post_init__(self) -> None:
        # In a checkpoint of a script they are plain values.
        object.__setattr__(self, "views", settings_of(Views, self.views, name="clipping.views"))
        check_choice("clipping.mode", self.mode, ("auto", *MODES))
        check_choice("clipping.bounding", self.bounding, ("clip", "normalize"))
        check_number("clipping.max_grad_norm", self.max_grad_norm, above=0)
        check_number("clipping.stability", self.stability, above=0)
        check_whole_number("clipping.physical_batch_size", self.physical_batch_size, least=1)
        if self.granularity is not None and not 0 < self.granularity <= 1:
            raise ValueError(f"clipping.granularity must lie in (0, 1], or be null, got {self.granularity}")
        if self.needs_flat and self.mode not in ("auto", "flat"):
            raise ValueError(
                f"{self.needs_flat} needs clipping.mode=flat (or auto), got {self.mode}: no other mode holds the "
                "gradient of a record as one, so that each view would be clipped by itself and nothing could be rounded"
            )

    @property
    def needs_flat(self) -> str | None:
        """The setting that needs flat clipping; None where none does."""
        if self.views.count:
            return f"clipping.views.count={self.views.count}"
        if self.bounding != "clip":
            return f"clipping.bounding={self.bounding}"
        return None if self.granularity is None else f"clipping.granularity={self.granularity}"

    @property
    def lattice(self) -> float | None:
        """Distance of the lattice, a power of two; None without one."""
        return None if self.granularity is None else lattice_spacing(self.granularity, norm_bound=self.max_grad_norm)

    def mode_for(self, network: nn.Module) -> Mode:
        """The mode for a network: of `auto`, `flat` before `ghost`, since its sums are the most exact.

        Raises:
            ValueError: `linear` for a network that it does not fit.
        """
        head = linear_head(network)
        if self.mode == "linear" and head is None:
            raise ValueError(
                "clipping.mode=linear needs an ImageClassifier of which the linear head alone is trained, for example "
                f"LinearOnFeatures, got {type(network).__name__}: take auto"
            )
        if self.mode != "auto":
            return self.mode
        if head is not None and not self.needs_flat:
            return "linear"
        trained = sum(p.numel() * p.element_size() for p in network.parameters() if p.requires_grad)
        return "flat" if self.needs_flat or trained * self.physical_batch_size <= FLAT_BYTES else "ghost"


class RecordClipping(ABC):
    """One mode of clipping, for one network.

    Args:
        network: What is trained.
        clipping: Its settings, whose `mode` is not read.
        criterion: The loss.
    """

    #: What a guarantee must assume beyond what holds for every mode.
    assumptions: ClassVar[tuple[str, ...]] = ()
    _hooks: Any = None

    def __init__(self, network: nn.Module, clipping: Clipping, criterion: PriorCrossEntropy) -> None:
        for module in network.modules():
            if "inplace" in vars(module):
                vars(module)["inplace"] = False  # what Opacus's hooks return must not be written to
        self.trained: list[Any] = [parameter for parameter in network.parameters() if parameter.requires_grad]
        self.clipping = clipping
        self.criterion = criterion
        self._prepare(network)

    @abstractmethod
    def _prepare(self, network: nn.Module) -> None:
        """Prepares the network for this mode."""

    @abstractmethod
    def sums(self, inputs: Tensor, labels: Tensor, forward: Callable[[Tensor], Tensor]) -> list[Tensor]:
        """Sums of the clipped gradients of a physical batch, which is not empty.

        Args:
            inputs: (B K, ...), the views of a record in a row.
            labels: (B K,).
            forward: Logits of inputs.

        Returns:
            One for each trained parameter, on the CPU: float64, or int64 on a lattice.
        """

    def release(self) -> None:
        """Undoes what was done to the network."""
        if self._hooks is not None:
            self._hooks.cleanup()


class FlatClipping(RecordClipping):
    """Stores per-sample gradients."""

    def _prepare(self, network: nn.Module) -> None:
        self._hooks = GradSampleModule(network, loss_reduction="mean")

    def sums(self, inputs: Tensor, labels: Tensor, forward: Callable[[Tensor], Tensor]) -> list[Tensor]:
        """The mean of a record's views is what is clipped: a record counts once however many there are."""
        for parameter in self.trained:
            parameter.grad_sample = None
        self.criterion(forward(inputs), labels).backward()
        if any(not isinstance(parameter.grad_sample, Tensor) for parameter in self.trained):
            raise ValueError("a trained weight has no gradient of each record")
        for parameter in self.trained:
            parameter.grad_sample = self._by_record(parameter.grad_sample)
        each, settings = [parameter.grad_sample for parameter in self.trained], self.clipping
        stability = None if settings.bounding == "clip" else settings.stability
        return flat_sums(each, norm=settings.max_grad_norm, stability=stability, lattice=settings.lattice)

    def _by_record(self, each: Tensor) -> Tensor:
        count = self.clipping.views.count
        return each.unflatten(0, (-1, count)).mean(dim=1) if count > 1 else each


class GhostClipping(RecordClipping):
    """Computes the norms of per-sample gradients without keeping those (Li et al. 2022), in float32."""

    assumptions = ("no record has a gradient that is not finite, which ghost clipping cannot leave out",)

    def _prepare(self, network: nn.Module) -> None:
        limit = self.clipping.max_grad_norm * (1 - GHOST_MARGIN)
        self._hooks = GradSampleModuleFastGradientClipping(
            network, loss_reduction="mean", max_grad_norm=limit, use_ghost_clipping=True
        )
        self._losses = copy.copy(self.criterion)
        self._losses.reduction = "none"

    def sums(self, inputs: Tensor, labels: Tensor, forward: Callable[[Tensor], Tensor]) -> list[Tensor]:
        """One pass for the norms and one for the clipped sum, as Opacus's `DPLossFastGradientClipping` has them."""
        losses = self._losses(forward(inputs), labels)
        losses.mean().backward(retain_graph=True)
        for parameter in self.trained:
            parameter.grad = None
        factors = self._hooks.get_clipping_coef()
        self._hooks.disable_hooks()
        (factors.to(losses) * losses).sum().backward()
        self._hooks.enable_hooks()
        return [parameter.grad.double().cpu() for parameter in self.trained]


class LinearClipping(RecordClipping):
    """Two matrix products, in float64: see `linear_sums`. No graph is built."""

    def _prepare(self, network: nn.Module) -> None:
        head = linear_head(network)
        assert head is not None
        self._head = head

    def sums(self, inputs: Tensor, labels: Tensor, forward: Callable[[Tensor], Tensor]) -> list[Tensor]:
        """`inputs` are the head's, (B, F); `forward` is not called."""
        loss, norm = self.criterion, self.clipping.max_grad_norm
        smoothing, prior = loss.label_smoothing, loss.log_prior
        found = linear_sums(inputs, labels, self._head, norm=norm, label_smoothing=smoothing, log_prior=prior)
        return [total.cpu() for total in found]


MODES: dict[Mode, type[RecordClipping]] = {"flat": FlatClipping, "ghost": GhostClipping, "linear": LinearClipping}
