"""Terms of the losses that make images: where student and ensemble disagree, and how smooth an image is."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["boundary_support", "jensen_shannon", "total_variation"]


def boundary_support(ensemble_logits: Tensor, student_logits: Tensor) -> Tensor:
    """KL(ensemble || student) of the images that the two decide differently, 0 of the others; mean over all.

    DENSE's L_div is this with a minus sign: images between the two decision boundaries teach the student most.
    **Subtracted** from the generator's loss.

    Args:
        ensemble_logits: (N, c).
        student_logits: (N, c).

    Returns:
        Scalar, not negative.
    """
    ensemble, student = (functional.log_softmax(logits, 1) for logits in (ensemble_logits, student_logits))
    divergence = (ensemble.exp() * (ensemble - student)).sum(1)
    disagree = (ensemble_logits.argmax(1) != student_logits.argmax(1)).to(divergence.dtype)
    return (disagree * divergence).mean()


def jensen_shannon(first_logits: Tensor, second_logits: Tensor) -> Tensor:
    """Jensen-Shannon divergence of two predictions in units of its largest value ln 2; mean over the batch.

    Adaptive DeepInversion (Yin et al. 2020): 1 minus this is its R_compete. Their code has other numbers: both
    predictions at temperature 3, all probabilities kept in [0.01, 0.99], KL(middle || prediction) in place of
    KL(prediction || middle), and no division by ln 2.

    Args:
        first_logits: (N, c).
        second_logits: (N, c).

    Returns:
        Scalar in [0, 1].
    """
    first, second = (functional.log_softmax(logits, 1) for logits in (first_logits, second_logits))
    middle = torch.logsumexp(torch.stack([first, second]), 0) - math.log(2)
    each = [(one.exp() * (one - middle)).sum(1) for one in (first, second)]
    return 0.5 * (each[0] + each[1]).mean() / math.log(2)


def total_variation(images: Tensor) -> Tensor:
    """Norm of the differences of neighbouring pixels, to the right, below and on both diagonals; mean over images.

    Args:
        images: (N, C, H, W), 2 pixels a side or more.

    Returns:
        Scalar, not negative; Yin et al. 2020, R_TV, in whose code each norm is of the whole batch: with N images of
        like variation √N times as much.
    """
    differences = (
        images[..., 1:] - images[..., :-1],
        images[..., 1:, :] - images[..., :-1, :],
        images[..., 1:, 1:] - images[..., :-1, :-1],
        images[..., 1:, :-1] - images[..., :-1, 1:],
    )
    norms = [torch.linalg.vector_norm(one.flatten(1), dim=1).mean() for one in differences]
    return torch.stack(norms).sum()
