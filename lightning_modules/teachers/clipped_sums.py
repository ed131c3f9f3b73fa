"""Sums of clipped gradients in float64: of gradients that are held, and of a linear head without ever holding one.

In float32 a clipped gradient was measured at up to 1 + 4e-7 clipping norms. A record whose gradient is not finite
counts as zeros: whether a record breaks the network is private.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lightning_modules.networks import ImageClassifier
from privacy.mechanisms.discrete_gaussian import round_to_lattice

__all__ = ["LINEAR_MARGIN", "MARGIN", "flat_sums", "linear_head", "linear_sums"]

MARGIN = 1e-9
"""Share of the clipping norm that a record's gradient stays below it, for the rounding of float64."""
LINEAR_MARGIN = 1e-6
"""The same for `linear_sums`, whose sums a matrix product rounds.

For everything that float64 rounds, u = 2^-53. A norm over F features is off by F u at most, relatively. A sum of B
products, first within `_ROWS` and then over these pieces, is off by (`_ROWS` + B / `_ROWS`) u times the sum of their
norms, B C: a record therefore moves the rounded sum by at most C (1 - 1e-6) (1 + F u) + 2 (`_ROWS` + B / `_ROWS`) u B C
(Higham, *Accuracy and Stability of Numerical Algorithms*, Eq. 3.5), which is below C for batches of up to half a
million and features of up to a million, whatever the order in which a matrix product sums.
"""

#: Few enough that a piece of some thousand features in float64 stays in the processor's cache.
_ROWS = 128
#: Numbers that are converted at a time: torch takes six times as long to convert while it sums.
_PIECE = 2**21


def flat_sums(
    gradients: Sequence[Tensor], *, norm: float, stability: float | None = None, lattice: float | None = None
) -> list[Tensor]:
    """Sums of the records' gradients, each clipped or normalised to `norm` less `MARGIN`.

    Args:
        gradients: (B, ...) for each parameter.
        norm: C.
        stability: γ of C·g/(‖g‖ + γ), the automatic clipping of Bu et al. 2022; None clips at C.
        lattice: Distance of the lattice that clipped gradients are rounded to, towards zero.

    Returns:
        A sum for each parameter, on the CPU: float64, or int64 multiples of `lattice`.
    """
    norms = torch.stack([_norms(rows.flatten(1)).square() for rows in gradients]).sum(dim=0).sqrt()
    finite, limit = torch.isfinite(norms), norm * (1 - MARGIN)
    factors = (limit / norms.clamp_min(1e-300)).clamp(max=1.0) if stability is None else limit / (norms + stability)
    sums = []
    for rows in gradients:
        total = torch.zeros(rows.shape[1:].numel(), dtype=torch.float64 if lattice is None else torch.int64)
        for piece, factor, usable in zip(
            rows.flatten(1).split(_ROWS), factors.split(_ROWS), finite.split(_ROWS), strict=True
        ):
            # 0 times what is not finite is not 0.
            exact = torch.where(usable.unsqueeze(1), piece.double(), 0.0).cpu()
            factor = torch.where(usable, factor, 0.0).cpu()
            if lattice is None:
                total += factor @ exact
            else:
                # Towards zero, so that no norm grows; whole numbers, whose sum does not depend on their order.
                clipped = factor.unsqueeze(1) * exact
                total += round_to_lattice(clipped, norm_bound=norm, granularity=lattice).sum(dim=0)
        sums.append(total.view(rows.shape[1:]))
    return sums


def _norms(rows: Tensor) -> Tensor:
    pieces = rows.split(max(1, _PIECE // rows.shape[1]))
    return torch.cat([torch.linalg.vector_norm(piece.double(), dim=1) for piece in pieces])


def linear_head(network: nn.Module) -> nn.Linear | None:
    """The head where nothing else of the network is trained, so that its input is a fixed function of each image.

    Args:
        network: Any network. An `ImageClassifier` says what its head is given, and its `forward` must be that class's.
    """
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
    label_smoothing: float = 0.0,
    log_prior: Tensor | None = None,
) -> list[Tensor]:
    """Sums of the records' gradients of the cross-entropy, each clipped to `norm` less `LINEAR_MARGIN`.

    Of the cross-entropy of softmax(W x + b), the gradient of record i is (p − y)ᵢ ⊗ xᵢ, and (p − y)ᵢ of the bias, so
    that its norm is ‖p − y‖ √(‖x‖² + 1). Clipping is a weight on (p − y)ᵢ, and the clipped sum one matrix product.

    Args:
        features: (B, F), the head's inputs; B may be 0.
        labels: (B,) int64.
        head: The layer, F → c.
        norm: C.
        label_smoothing: Between 0 and 1.
        log_prior: (c,), added to the logits; see `class_prior` of `Teacher`.

    Returns:
        One sum for each parameter of `head`: (c, F), and (c,) where it has a bias; float64.
    """
    weight = head.weight.double()
    across = weight.T.contiguous()
    bias = weight.new_zeros(len(weight)) if head.bias is None else head.bias.double()
    moved = bias if log_prior is None else bias + log_prior.to(bias)
    limit = norm * (1 - LINEAR_MARGIN)
    total, total_bias = torch.zeros_like(weight), torch.zeros_like(bias)
    # Reused: allocating memory for each piece costs more than the computation in it.
    held = weight.new_empty(min(_ROWS, len(features)), weight.shape[1])
    for rows, targets in zip(features.split(_ROWS), labels.split(_ROWS), strict=True):
        if len(rows) == 0:
            continue
        inputs = held[: len(rows)].copy_(rows)
        errors = torch.softmax(torch.addmm(moved, inputs, across), dim=1)
        errors -= label_smoothing / len(weight)
        errors[torch.arange(len(targets), device=targets.device), targets] -= 1 - label_smoothing
        squares = torch.linalg.vector_norm(inputs, dim=1).square() + (head.bias is not None)
        # Scaled: squares of small errors underflow, and a long input could make much of them.
        scale = errors.abs().amax(dim=1).clamp_min(1e-300)
        norms = (errors / scale.unsqueeze(1)).norm(dim=1) * scale * squares.sqrt()
        usable = torch.isfinite(norms)
        factors = torch.where(usable, (limit / norms.clamp_min(1e-300)).clamp(max=1.0), 0.0)
        weighted = torch.where(usable.unsqueeze(1), errors * factors.unsqueeze(1), 0.0)
        if not usable.all():
            inputs = torch.where(usable.unsqueeze(1), inputs, 0.0)  # 0 times what is not finite is not 0
        total.addmm_(weighted.T, inputs)
        total_bias += weighted.sum(dim=0)
    return [total] if head.bias is None else [total, total_bias]
