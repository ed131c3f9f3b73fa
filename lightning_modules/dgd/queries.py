"""Images for which an ensemble is queried once, and their noisy labels, charged and never drawn again; their choice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from lightning_modules.images import PoolSource
from privacy.identity import CheckpointError


class QuerySet:
    """N images and the labels released for them so far.

    Attributes:
        images: Shape (N, C, H, W), in the half precision in which they are queried. Empty until they are chosen; with
            several rounds, the images of the rounds so far.
        labels: Shape (n,), int64, of the first n images.
        positions: Positions of these images in the pool, saved instead of images that might be private.
    """

    def __init__(self, image_shape: tuple[int, int, int]) -> None:
        self.images = torch.empty(0, *image_shape, dtype=torch.float16)
        self.labels = torch.empty(0, dtype=torch.int64)
        self.positions = torch.empty(0, dtype=torch.int64)

    def __len__(self) -> int:
        return len(self.labels)

    def next(self, count: int) -> torch.Tensor:
        """The next images to query, shape (at most `count`, C, H, W), float32."""
        return self.images[len(self) : len(self) + count].float()

    def add(self, labels: torch.Tensor) -> None:
        """Stores released labels, shape (k,)."""
        self.labels = torch.cat([self.labels, labels.cpu()])

    def batch(self, size: int, draw: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """Draws labelled images with replacement, (B, C, H, W) and (B,); empty if there are no labels yet."""
        positions = torch.randint(max(1, len(self)), (size if len(self) else 0,), generator=draw)
        return self.images[positions].float(), self.labels[positions]

    def state(self, *, of_pool: bool) -> dict[str, Any]:
        """State for a checkpoint."""
        return {
            # Not a slice: saving one would save the whole tensor.
            "query_images": torch.empty_like(self.images[:0]) if of_pool else self.images,
            "query_positions": self.positions,
            "query_labels": self.labels,
        }

    def load(self, state: Mapping[str, Any], *, pool: PoolSource | None) -> None:
        """Inverse of `state`.

        Raises:
            CheckpointError: The pool is not the one that the queries were chosen from.
        """
        self.images, self.labels = state["query_images"], state["query_labels"]
        self.positions = state["query_positions"]
        if pool is None or not len(pool) or not len(self.positions):
            return
        if int(self.positions.max()) >= len(pool):
            raise CheckpointError(
                f"images.pool has {len(pool)} images, and the checkpoint's queries are of a larger one: give that pool"
            )
        self.images = pool[self.positions].half()


def balanced_quotas(held: torch.Tensor, *, count: int) -> torch.Tensor:
    """Numbers of samples to add to each class, so that class counts become as equal as possible.

    The result, with sum `count`, and `held`, the current samples per class, are (c,) int64. Ties go to the lowest
    class.
    """
    quotas = torch.zeros_like(held)
    for _ in range(count):
        quotas[int((held + quotas).argmin())] += 1
    return quotas


def confident_samples(probabilities: torch.Tensor, *, quotas: torch.Tensor) -> torch.Tensor:
    """Distinct indices, int64 on the CPU, of the samples with the largest probability for each class.

    Classes take turns, each choosing its best remaining sample, also if the classifier never predicts the class.
    Probabilities are (M, c), and quotas are samples per class, (c,) int64; there are as many indices as their sum,
    which is at most M.
    """
    # Stable, so that equal probabilities, as from an untrained student, keep the samples in order.
    ranks = probabilities.detach().float().cpu().argsort(dim=0, descending=True, stable=True)
    best = [iter(samples) for samples in ranks.T.tolist()]
    chosen: dict[int, None] = {}
    for turn in range(int(quotas.max())):
        for label in torch.nonzero(quotas > turn)[:, 0].tolist():
            chosen[next(sample for sample in best[label] if sample not in chosen)] = None
    return torch.tensor([*chosen], dtype=torch.int64)
