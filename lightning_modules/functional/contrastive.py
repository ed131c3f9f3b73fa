"""Contrastive learning: two views of one image are a pair, and each is to be told from all other views by it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["Contrast", "contrast"]


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """What is measured of pairs of embeddings.

    Attributes:
        loss: NT-Xent, the mean cross-entropy of naming each view's partner among the 2N - 1 others (Chen et al. 2020).
        pair_accuracy: Share of views whose partner is the nearest of these; a guess has 1 / (2N - 1).
        alignment: Mean squared distance of partners on the unit sphere, 0 to 4: less is better (Wang and Isola 2020).
        uniformity: Logarithm of the mean of exp(-2 d²) over distances d of views that are no partners: less is better.
    """

    loss: Tensor
    pair_accuracy: Tensor
    alignment: Tensor
    uniformity: Tensor


def contrast(first: Tensor, second: Tensor, *, temperature: float) -> Contrast:
    """Compares two views of each of N images.

    Args:
        first: Embeddings (N, D) of a view of each image, N at least 2; any length, any precision.
        second: (N, D), of another view of each, in the same order.
        temperature: Cosines are divided by it, above 0.

    Returns:
        Scalars in float32; the loss with its graph, the others without.
    """
    with torch.autocast(first.device.type, enabled=False):
        rows = F.normalize(torch.cat([first, second]).float(), dim=1)
        cosines = rows @ rows.T
        own = torch.eye(len(rows), dtype=torch.bool, device=rows.device)
        partner = torch.arange(len(rows), device=rows.device).roll(len(first))
        logits = (cosines / temperature).masked_fill(own, float("-inf"))
        loss = F.cross_entropy(logits, partner)
        with torch.no_grad():
            partners = cosines.gather(1, partner[:, None])[:, 0]
            # d² = 2 - 2 cos on the unit sphere.
            apart = torch.exp(-4 + 4 * cosines).masked_fill(own, 0.0)
            total = apart.sum() - torch.exp(-4 + 4 * partners).sum()
            return Contrast(
                loss=loss,
                pair_accuracy=(logits.argmax(dim=1) == partner).float().mean(),
                alignment=(2 - 2 * partners).mean(),
                uniformity=torch.log(total / (len(rows) * (len(rows) - 2))),
            )
