"""Whether images suit a teacher, from its answers alone."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["informativeness"]


def informativeness(logits: Tensor) -> float:
    """How much an image says about a teacher's class in the teacher's own view, as a share of the most it could say.

    The mutual information of image and class under the answers p_i = softmax(logits_i), which is (H(mean of p) - mean
    of H(p)) / log c: the logarithm of the *Inception score* (Salimans et al. 2016), with the teacher in Inception's
    place, in units of its largest value. It is high where the teacher is sure of each image, and of different classes
    in turn; images of a kind that it never saw leave it unsure, or of one class throughout.

    It is 0.97 and more on a data set's own test images where the classes are equally frequent and the teacher is sure.
    A teacher whose logits are small has less on any images, its own included: compare images of one teacher by it
    rather than teachers. Large is necessary and not sufficient: textures at full contrast make some teachers sure too.

    Args:
        logits: (N, c) with N >= 1 and c >= 2.

    Returns:
        A number from 0 to 1.

    Raises:
        ValueError: The shape is another.
    """
    if logits.dim() != 2 or len(logits) < 1 or logits.shape[1] < 2:
        raise ValueError(f"logits must be (N, c) with N of 1 or more and c of 2 or more, got {tuple(logits.shape)}")
    logs = functional.log_softmax(logits.double(), dim=1)
    probabilities = logs.exp()
    mean = probabilities.mean(dim=0)
    told = torch.special.entr(mean).sum() - torch.special.entr(probabilities).sum(dim=1).mean()
    return min(1.0, max(0.0, float(told) / math.log(logits.shape[1])))
