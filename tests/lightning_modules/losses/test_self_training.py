"""Pseudo-labels count where the guide is certain, distortions come from their source, spread rows stand for all."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from lightning_modules.losses.selection import spread_samples
from lightning_modules.losses.tangent_normal import distort, pseudo_label_loss


def test_pseudo_labels_count_where_the_guide_is_certain() -> None:
    logits = torch.randn(3, 4)
    guide = torch.tensor([[9.0, 0, 0, 0], [0.1, 0, 0, 0], [0, 0, 9.0, 0]])
    expected = (F.cross_entropy(logits[:1], torch.tensor([0])) + F.cross_entropy(logits[2:], torch.tensor([2]))) / 3
    assert torch.allclose(pseudo_label_loss(logits, guide, threshold=0.9), expected)
    assert float(pseudo_label_loss(logits, guide, threshold=1.0)) == 0.0
    everything = F.cross_entropy(logits, guide.argmax(1))
    assert torch.allclose(pseudo_label_loss(logits, guide, threshold=0.0), everything)


def test_no_gradient_flows_into_the_guide() -> None:
    logits, guide = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)
    pseudo_label_loss(logits, guide, threshold=0.0).backward()
    assert logits.grad is not None and guide.grad is None


def test_what_has_no_meaning_is_refused() -> None:
    with pytest.raises(ValueError, match="one shape"):
        pseudo_label_loss(torch.zeros(2, 3), torch.zeros(3, 3), threshold=0.5)
    with pytest.raises(ValueError, match="threshold must lie"):
        pseudo_label_loss(torch.zeros(2, 3), torch.zeros(2, 3), threshold=1.5)
    with pytest.raises(ValueError, match="strength must be"):
        distort(torch.zeros(2, 1, 8, 8), strength=-1.0, draw=torch.Generator())
    with pytest.raises(ValueError, match="count must lie"):
        spread_samples(torch.zeros(3, 2), count=4, draw=torch.Generator())


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 9, 14)])
def test_distortions_are_drawn_from_their_source_alone(shape: tuple[int, int, int]) -> None:
    images = torch.randn(6, *shape)
    first, second = (distort(images, strength=0.5, draw=torch.Generator().manual_seed(1)) for _ in range(2))
    assert first.shape == images.shape and torch.equal(first, second)
    assert not torch.equal(first, distort(images, strength=0.5, draw=torch.Generator().manual_seed(2)))
    assert torch.equal(distort(images, strength=0.0, draw=torch.Generator()), images)


def test_stronger_distortions_change_more() -> None:
    images = F.avg_pool2d(torch.randn(32, 1, 34, 34, generator=torch.Generator().manual_seed(0)), 7, stride=1)
    small, large = (
        float((distort(images, strength=s, draw=torch.Generator().manual_seed(1)) - images).abs().mean())
        for s in (0.1, 1.0)
    )
    assert 0 < small < 0.5 * large


def cover(codes: torch.Tensor, rows: torch.Tensor) -> float:
    """Mean distance to the nearest chosen row."""
    return float(torch.cdist(codes, codes[rows]).amin(1).mean())


def test_spread_rows_stand_for_all() -> None:
    draw = torch.Generator().manual_seed(0)
    centres = 20 * torch.randn(8, 5, generator=draw)
    codes = centres.repeat_interleave(40, 0) + torch.randn(320, 5, generator=draw)
    rows = spread_samples(codes, count=16, draw=torch.Generator().manual_seed(1))
    assert len(rows.unique()) == 16 == len(rows)
    random = min(cover(codes, torch.randperm(320, generator=draw)[:16]) for _ in range(20))
    assert cover(codes, rows) < random


def test_all_rows_can_be_asked_for() -> None:
    codes = torch.zeros(5, 2)
    assert sorted(spread_samples(codes, count=5, draw=torch.Generator().manual_seed(0)).tolist()) == list(range(5))
