"""Modes of clipping each record's gradient. All give the same sum; they differ in time and memory.

Flat and linear clipping sum in float64: in float32, clipped gradients had norms of up to (1 + 4e-7) C. In both modes, a
record whose gradient is not finite counts as zeros: whether a record breaks the network is private.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
from opacus.grad_sample.linear import compute_linear_norm_sample
from torch import Tensor, nn

from lightning_modules.networks import ImageClassifier
from lightning_modules.setting_checks import check_choice, check_number, check_whole_number
from lightning_modules.teachers.losses import PriorCrossEntropy
from privacy.mechanisms.discrete_gaussian import FINEST, lattice_spacing, round_to_lattice

Mode: TypeAlias = Literal["flat", "ghost", "linear"]
Forward: TypeAlias = Callable[[Tensor], Tensor]
Counts: TypeAlias = Sequence[int] | None
"""Numbers of records of each person, which are adjacent; None if each record counts by itself."""

FLAT_BYTES = 2**28
"""Memory limit of a physical batch's per-sample gradients, if the mode of clipping is chosen by size."""
GHOST_MARGIN = 1e-3
"""Relative margin below the clipping norm where float32 rounds norms and sums."""
GHOST_RECORDS = 128
"""Most records summed in float32; further sums are in float64. Adding n equal records one by one rounds to within n²
2^-24 of one of them, which is `GHOST_MARGIN` here. One of 4,096 moved the sum by 1.1e-3 C too much on one processor.
"""
MARGIN = 1e-9
"""Relative margin below the clipping norm for rounding in float64."""
LINEAR_MARGIN = 1e-6
"""Relative margin of `linear_sums`, whose sums a matrix product rounds.

In float64, u = 2^-53. The relative error of a norm over F features is at most F u. A sum of B products, first within
`_ROWS` and then over these pieces, is off by at most (`_ROWS` + B / `_ROWS`) u times the sum of their norms, B C: a
record therefore moves the rounded sum by at most C (1 - 1e-6) (1 + F u) + 2 (`_ROWS` + B / `_ROWS`) u B C
(Higham, *Accuracy and Stability of Numerical Algorithms*, Eq. 3.5), which is below C for batches of up to half a
million and features of up to a million, whatever the order in which a matrix product sums.
"""

#: Number of rows at a time: a piece with some thousand float64 features stays in the processor's cache.
_ROWS = 128
#: Amount of numbers converted at a time: converting while summing takes torch six times as long.
_PIECE = 2**21


@dataclass(frozen=True, kw_only=True)
class Clipping:
    """Settings for bounding the gradient of each record; a plain string is read as the `mode`.

    Attributes:
        max_grad_norm: C, the clipping norm of one record's gradient.
        mode: `flat` keeps per-sample gradients, `ghost` computes only their norms, `linear` is for networks that train
            only a linear head. `auto` is `linear` if that fits, else `flat` up to 256 MiB, else `ghost`; a resumed
            training keeps its mode. Before the first step the mode is tried on public images (see `ClippingTrial`): if
            it does not bound each record, `ghost` falls back to `flat`, and others are refused.
        physical_batch_size: Number of gradients held at once, except in `linear` mode; those of one person
            (`unit: person`) are always held together. Does not change the result.
        bounding: `clip` a record's gradient at C, or `normalize` it to C·g/(‖g‖ + γ) (automatic clipping, Bu et al.
            2022), which needs flat clipping. Either way a record moves the sum by at most C.
        stability: γ of `bounding: normalize`, above 0, in the units of gradients and not of C.
        granularity: Spacing, in units of C (for example 1e-3), of a lattice for discrete Gaussian noise, to which
            clipped gradients are rounded towards zero (Canonne, Kamath and Steinke 2020). Costs slightly more, since it
            is composed only by RDP, and needs flat clipping. None adds floating-point noise.
    """

    max_grad_norm: float = 0.1
    mode: Literal["auto", "flat", "ghost", "linear"] = "auto"
    physical_batch_size: int = 256
    bounding: Literal["clip", "normalize"] = "clip"
    stability: float = 0.01
    granularity: float | None = None

    def __post_init__(self) -> None:
        check_choice("clipping.mode", self.mode, ("auto", *MODES))
        check_choice("clipping.bounding", self.bounding, ("clip", "normalize"))
        check_number("clipping.max_grad_norm", self.max_grad_norm, above=0)
        check_number("clipping.stability", self.stability, above=0)
        check_whole_number("clipping.physical_batch_size", self.physical_batch_size, least=1)
        if self.granularity is not None and not FINEST <= self.granularity <= 1:
            raise ValueError(
                f"clipping.granularity must lie between {FINEST:g} and 1, or be null, got {self.granularity}"
            )
        if self.needs_flat and self.mode not in ("auto", "flat"):
            raise ValueError(f"{self.needs_flat} needs clipping.mode=flat (or auto), got {self.mode}")

    @property
    def needs_flat(self) -> str | None:
        """The setting that needs flat clipping; None if none does."""
        if self.bounding != "clip":
            return f"clipping.bounding={self.bounding}"
        return None if self.granularity is None else f"clipping.granularity={self.granularity}"

    @property
    def lattice(self) -> float | None:
        """Spacing of the lattice, a power of two; None without one."""
        return None if self.granularity is None else lattice_spacing(self.granularity, norm_bound=self.max_grad_norm)

    def mode_for(self, network: nn.Module, *, by_person: bool = False, linear: bool = True) -> Mode:
        """Clipping mode for a network; `auto` prefers `flat` to `ghost`, since its sums are more exact.

        Raises:
            ValueError: `linear` for a network that it does not fit, or `ghost` for persons.
        """
        if by_person and self.mode == "ghost":
            raise ValueError(
                "clipping.mode=ghost holds no gradients to take a person's mean of: with unit=person take auto"
            )
        head = linear_head(network) if linear else None
        if self.mode == "linear" and head is None:
            raise ValueError(
                "clipping.mode=linear needs a network that trains a linear head alone, by cross-entropy, got "
                f"{type(network).__name__}: take auto"
            )
        if self.mode != "auto":
            return self.mode
        if head is not None and not self.needs_flat:
            return "linear"
        trained = sum(p.numel() * p.element_size() for p in network.parameters() if p.requires_grad)
        return "flat" if by_person or self.needs_flat or trained * self.physical_batch_size <= FLAT_BYTES else "ghost"


class RecordClipping(ABC):
    """One mode of clipping, for one network.

    Args:
        network: The network to train.
        clipping: Settings, whose `mode` is not read.
        criterion: The loss.
    """

    #: Assumptions of this mode, besides those of all modes.
    assumptions: ClassVar[tuple[str, ...]] = ()
    _hooks: Any = None

    def __init__(self, network: nn.Module, clipping: Clipping, criterion: PriorCrossEntropy) -> None:
        for module in network.modules():
            if "inplace" in vars(module):
                vars(module)["inplace"] = False  # the outputs of Opacus's hooks must not be modified in place
        self.parameters: list[Any] = [parameter for parameter in network.parameters() if parameter.requires_grad]
        self.clipping = clipping
        self.criterion = criterion
        self._prepare(network)

    @abstractmethod
    def _prepare(self, network: nn.Module) -> None:
        """Prepares the network for this mode."""

    @abstractmethod
    def sums(self, inputs: Tensor, labels: Tensor, forward: Forward, counts: Counts = None) -> list[Tensor]:
        """Sums of the clipped gradients of a physical batch, which is not empty.

        Args:
            inputs: (B, ...).
            labels: (B,).
            forward: Logits of inputs.
            counts: Number of records of each person, which are adjacent and in no other batch: the mean of a person's
                gradients is clipped. None clips each record by itself.

        Returns:
            One sum per trained parameter, on the CPU: float64, or int64 on a lattice.
        """

    def release(self) -> None:
        """Undoes the changes to the network."""
        if self._hooks is not None:
            self._hooks.cleanup()


class FlatClipping(RecordClipping):
    """Stores per-sample gradients."""

    def _prepare(self, network: nn.Module) -> None:
        # A sum: torch's mean skips labels equal to its `ignore_index`, so that it depends on other records.
        self._hooks = GradSampleModule(network, loss_reduction="sum")
        self._losses = copy.copy(self.criterion)
        self._losses.reduction = "sum"

    def sums(self, inputs: Tensor, labels: Tensor, forward: Forward, counts: Counts = None) -> list[Tensor]:
        for parameter in self.parameters:
            parameter.grad_sample = None
        self._losses(forward(inputs), labels).backward()
        if any(not isinstance(parameter.grad_sample, Tensor) for parameter in self.parameters):
            raise ValueError("a trained weight has no gradient of each record")
        for parameter in self.parameters:
            if counts is not None:
                of_persons = parameter.grad_sample.split(counts)
                parameter.grad_sample = torch.stack([each.mean(dim=0) for each in of_persons])
        each, settings = [parameter.grad_sample for parameter in self.parameters], self.clipping
        stability = None if settings.bounding == "clip" else settings.stability
        return flat_sums(each, norm=settings.max_grad_norm, stability=stability, lattice=settings.lattice)


class GhostClipping(RecordClipping):
    """Computes the norms of per-sample gradients without storing the gradients (Li et al. 2022)."""

    assumptions = ("no record has a gradient that is not finite, which ghost clipping cannot leave out",)

    def _prepare(self, network: nn.Module) -> None:
        limit = self.clipping.max_grad_norm * (1 - GHOST_MARGIN)
        self._hooks = GradSampleModuleFastGradientClipping(
            network, loss_reduction="mean", max_grad_norm=limit, use_ghost_clipping=True
        )
        # In float32 cancellation between the tokens of an image loses digits, and would clip it above C.
        exact = {nn.Linear: lambda layer, inputs, grads: compute_linear_norm_sample(layer, inputs, grads.double())}
        self._hooks.NORM_SAMPLERS = {**self._hooks.NORM_SAMPLERS, **exact}
        self._losses = copy.copy(self.criterion)
        self._losses.reduction = "none"

    def sums(self, inputs: Tensor, labels: Tensor, forward: Forward, counts: Counts = None) -> list[Tensor]:
        """One pass for the norms and one for the clipped sum, like Opacus's `DPLossFastGradientClipping`."""
        assert counts is None  # `mode_for` refuses it
        pieces = zip(inputs.split(GHOST_RECORDS), labels.split(GHOST_RECORDS), strict=True)
        parts = [self._sums_of_some(some, theirs, forward) for some, theirs in pieces]
        return [torch.stack(of_one).sum(dim=0).cpu() for of_one in zip(*parts, strict=True)]

    def _sums_of_some(self, inputs: Tensor, labels: Tensor, forward: Forward) -> list[Tensor]:
        losses = self._losses(forward(inputs), labels)
        losses.mean().backward(retain_graph=True)
        for parameter in self.parameters:
            parameter.grad = None
        factors = self._hooks.get_clipping_coef()
        self._hooks.disable_hooks()
        (factors.to(losses) * losses).sum().backward()
        self._hooks.enable_hooks()
        found = [parameter.grad.double() for parameter in self.parameters]
        for parameter in self.parameters:
            parameter.grad = None
        return found


class LinearClipping(RecordClipping):
    """Two matrix products in float64, without a graph; see `linear_sums`."""

    def _prepare(self, network: nn.Module) -> None:
        head = linear_head(network)
        assert head is not None
        self._head = head

    def sums(self, inputs: Tensor, labels: Tensor, forward: Forward, counts: Counts = None) -> list[Tensor]:
        """`inputs` are the head's, (B, F); `forward` is not called."""
        norm, prior = self.clipping.max_grad_norm, self.criterion.log_prior
        sums = linear_sums(inputs, labels, self._head, norm=norm, log_prior=prior, counts=counts)
        return [total.cpu() for total in sums]


MODES: dict[Mode, type[RecordClipping]] = {"flat": FlatClipping, "ghost": GhostClipping, "linear": LinearClipping}


def pieces_of(inputs: Tensor, labels: Tensor, counts: Counts, *, size: int) -> Iterator[tuple[Tensor, Tensor, Counts]]:
    """Splits a batch into pieces of at most `size` records, with their `counts`; never divides a person."""
    if counts is None:
        yield from zip(inputs.split(size), labels.split(size), repeat(None), strict=False)
        return
    pieces: list[list[int]] = [[]]
    sizes = [0]
    for count in counts:
        if pieces[-1] and sizes[-1] + count > size:
            pieces.append([])
            sizes.append(0)
        pieces[-1].append(count)
        sizes[-1] += count
    yield from zip(inputs.split(sizes), labels.split(sizes), pieces, strict=True)


def flat_sums(
    gradients: Sequence[Tensor], *, norm: float, stability: float | None = None, lattice: float | None = None
) -> list[Tensor]:
    """Sums of the records' gradients, each clipped or normalised to `norm` less `MARGIN`.

    Args:
        gradients: (B, ...) for each parameter.
        norm: C.
        stability: γ of C·g/(‖g‖ + γ), the automatic clipping of Bu et al. 2022; None clips at C.
        lattice: Spacing of a lattice to which clipped gradients are rounded towards zero.

    Returns:
        A sum for each parameter, on the CPU: float64, or int64 multiples of `lattice`.
    """
    norms = torch.stack([_norms(rows.flatten(1)).square() for rows in gradients]).sum(dim=0).sqrt()
    finite, limit = torch.isfinite(norms), norm * (1 - MARGIN)
    factors = (limit / norms.clamp_min(1e-300)).clamp(max=1.0) if stability is None else limit / (norms + stability)
    # Rounding to the lattice is only tested on the CPU.
    kind, device = (torch.float64, norms.device) if lattice is None else (torch.int64, torch.device("cpu"))
    sums = []
    for rows in gradients:
        total = torch.zeros(rows.shape[1:].numel(), dtype=kind, device=device)
        for piece, factor, usable in zip(
            rows.flatten(1).split(_ROWS), factors.split(_ROWS), finite.split(_ROWS), strict=True
        ):
            # 0 times a non-finite value is not 0.
            exact = torch.where(usable.unsqueeze(1), piece.double(), 0.0).to(device)
            factor = torch.where(usable, factor, 0.0).to(device)
            if lattice is None:
                total += factor @ exact
            else:
                # Towards zero, so that no norm grows; to integers, whose sum does not depend on their order.
                clipped = factor.unsqueeze(1) * exact
                total += round_to_lattice(clipped, norm_bound=norm, granularity=lattice).sum(dim=0)
        sums.append(total.view(rows.shape[1:]).cpu())
    return sums


def _norms(rows: Tensor) -> Tensor:
    pieces = rows.split(max(1, _PIECE // rows.shape[1]))
    return torch.cat([torch.linalg.vector_norm(piece.double(), dim=1) for piece in pieces])


def linear_head(network: nn.Module) -> nn.Linear | None:
    """Linear head, if nothing else of the network is trained and its input is a fixed function of each image."""
    if not isinstance(network, ImageClassifier) or type(network).forward is not ImageClassifier.forward:
        return None
    head = network.head
    # A subclass, or one with a parametrization, may compute something else.
    if type(head) is not nn.Linear or any(True for _ in head.children()):
        return None
    trained = {id(parameter) for parameter in network.parameters() if parameter.requires_grad}
    return head if trained == {id(parameter) for parameter in head.parameters()} else None


@torch.no_grad()
def linear_sums(
    features: Tensor,
    labels: Tensor,
    head: nn.Linear,
    *,
    norm: float,
    log_prior: Tensor | None = None,
    counts: Counts = None,
) -> list[Tensor]:
    """Sums of the records' gradients of the cross-entropy, each clipped to `norm` less `LINEAR_MARGIN`.

    For the cross-entropy of softmax(W x + b), the gradient of record i is (p − y)ᵢ ⊗ xᵢ, and (p − y)ᵢ for the bias, so
    its norm is ‖p − y‖ √(‖x‖² + 1). Clipping is a weight on (p − y)ᵢ, and the clipped sum one matrix product. The mean
    gradient of a person's records is computed and clipped separately.

    Args:
        features: (B, F), the head's inputs; B may be 0.
        labels: (B,) int64.
        head: The layer, F → c.
        norm: C.
        log_prior: (c,), added to the logits; see `class_prior` of `Teacher`.
        counts: See `RecordClipping.sums`.

    Returns:
        One sum for each parameter of `head`: (c, F), and (c,) where it has a bias; float64.
    """
    weight = head.weight.double()
    across = weight.T.contiguous()
    bias = weight.new_zeros(len(weight)) if head.bias is None else head.bias.double()
    moved = bias if log_prior is None else bias + log_prior.to(bias)
    limit = norm * (1 - LINEAR_MARGIN)
    total, total_bias = torch.zeros_like(weight), torch.zeros_like(bias)
    # Reused: allocating memory for each piece costs more than computing it.
    buffer = weight.new_empty(min(_ROWS, len(features)), weight.shape[1])
    for rows, targets, within in pieces_of(features, labels, counts, size=_ROWS):
        inputs = buffer[: len(rows)].copy_(rows) if len(rows) <= len(buffer) else rows.double()
        errors = torch.softmax(torch.addmm(moved, inputs, across), dim=1)
        errors[torch.arange(len(targets), device=targets.device), targets] -= 1
        if within is not None and max(within, default=0) > 1:
            part, part_bias = _sum_of_clipped_means(errors, inputs, within, limit=limit, bias=head.bias is not None)
            total += part
            total_bias += part_bias
            continue
        squares = torch.linalg.vector_norm(inputs, dim=1).square() + (head.bias is not None)
        # Scaled: squares of small errors underflow, and a long input may amplify them.
        scale = errors.abs().amax(dim=1).clamp_min(1e-300)
        norms = (errors / scale.unsqueeze(1)).norm(dim=1) * scale * squares.sqrt()
        usable = torch.isfinite(norms)
        factors = torch.where(usable, (limit / norms.clamp_min(1e-300)).clamp(max=1.0), 0.0)
        weighted = torch.where(usable.unsqueeze(1), errors * factors.unsqueeze(1), 0.0)
        if not usable.all():
            inputs = torch.where(usable.unsqueeze(1), inputs, 0.0)  # 0 times a non-finite value is not 0
        total.addmm_(weighted.T, inputs)
        total_bias += weighted.sum(dim=0)
    return [total] if head.bias is None else [total, total_bias]


def _sum_of_clipped_means(
    errors: Tensor, inputs: Tensor, counts: Sequence[int], *, limit: float, bias: bool
) -> tuple[Tensor, Tensor]:
    """Sums of the clipped means of each person's (p − y) ⊗ x, and of those of the bias."""
    total, total_bias = errors.new_zeros(errors.shape[1], inputs.shape[1]), errors.new_zeros(errors.shape[1])
    for error, rows in zip(errors.split(counts), inputs.split(counts), strict=True):
        # Clips exactly what is added: with weights on each (p − y), rounding could exceed a mean near 0.
        mean, of_bias = (error / len(rows)).T @ rows, error.mean(dim=0) * bias
        norm = math.hypot(torch.linalg.vector_norm(mean), torch.linalg.vector_norm(of_bias))
        if math.isfinite(norm):
            factor = min(1.0, limit / max(norm, 1e-300))
            total.add_(mean, alpha=factor)
            total_bias.add_(of_bias, alpha=factor)
    return total, total_bias
