"""DP-SGD on a linear head over fixed features: every record is clipped without its gradient ever being held.

Of the cross-entropy of softmax(W x + b), the gradient of record i is (p − y)ᵢ ⊗ xᵢ, and (p − y)ᵢ of the bias, so that
its norm is ‖p − y‖ √(‖x‖² + 1). Clipping is a weight on (p − y)ᵢ, and the clipped sum one matrix product.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lightning_modules.networks import ImageClassifier

__all__ = ["LINEAR_MARGIN", "clipped_sums", "linear_head"]

LINEAR_MARGIN = 1e-6
"""Share of the clipping norm that a record's gradient stays below it.

For everything that float64 rounds, u = 2^-53. A norm over F features is off by F u at most, relatively. A sum of B
products, first within `_ROWS` and then over these pieces, is off by (`_ROWS` + B / `_ROWS`) u times the sum of their
norms, B C: a record therefore moves the rounded sum by at most C (1 - 1e-6) (1 + F u) + 2 (`_ROWS` + B / `_ROWS`) u B C
(Higham, *Accuracy and Stability of Numerical Algorithms*, Eq. 3.5), which is below C for batches of up to half a
million and features of up to a million, whatever the order in which a matrix product sums.
"""

#: Few enough that a piece of some thousand features in float64 stays in the processor's cache.
_ROWS = 128


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
def clipped_sums(
    features: Tensor,
    labels: Tensor,
    head: nn.Linear,
    *,
    norm: float,
    label_smoothing: float = 0.0,
    log_prior: Tensor | None = None,
) -> list[Tensor]:
    """Sums of the records' gradients of the cross-entropy, each clipped to `norm` less `LINEAR_MARGIN`.

    A record whose gradient is not finite counts as zeros: whether a record breaks the network is private.

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
