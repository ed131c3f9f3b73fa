"""Losses of teachers: cross-entropy with public class frequencies, and the inner product."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

#: Tolerance of the frequencies' sum, since they are written with few digits.
_ROUNDING = 1e-2


def log_prior_of(class_prior: Sequence[float], *, num_classes: int) -> Tensor:
    """Logarithms of the classes' frequencies, (c,), float32, given above 0 with a sum of 1 within 1 %.

    Raises:
        ValueError: They are not.

    >>> log_prior_of([0.5, 0.5], num_classes=2)
    tensor([-0.6931, -0.6931])
    """
    try:
        shares = [float(share) for share in class_prior]
    except (TypeError, ValueError):
        shares = []
    usable = len(shares) == num_classes and all(share > 0 for share in shares)
    if not usable or not abs(sum(shares) - 1) <= _ROUNDING:
        raise ValueError(f"class_prior must be {num_classes} numbers above 0 that add up to 1, got {class_prior}")
    # In float64: the smallest frequencies underflow in float32, and a logit of minus infinity has no finite loss.
    return torch.tensor(shares, dtype=torch.float64).log().float()


class PriorCrossEntropy(nn.CrossEntropyLoss):
    """Mean cross-entropy of logits (N, c) plus the logarithms of class frequencies.

    Menon et al. 2021, "Long-tail learning via logit adjustment", Eq. 10.

    Args:
        log_prior: (c,), see `log_prior_of`; None adds nothing.
    """

    def __init__(self, log_prior: Tensor | None = None) -> None:
        super().__init__()
        self.log_prior = log_prior

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        return super().forward(logits if self.log_prior is None else logits + self.log_prior.to(logits), labels)


class InnerProduct(PriorCrossEntropy):
    """Minus the labels' mean logit, of logits (N, c): a linear head's gradient is minus its input in the label's row.

    A step on sums of clipped gradients then releases the sum of features of each class.
    """

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.nll_loss(logits, labels, reduction=self.reduction)
