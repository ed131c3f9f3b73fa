"""NT-Xent and what is logged beside it, against their definitions pair by pair in float64."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lightning_modules.functional.contrastive import contrast


def embeddings(rows: int = 6, seed: int = 0) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    first = torch.randn(rows, 5, generator=draw)
    return first, first + 0.7 * torch.randn(rows, 5, generator=draw)


def one_by_one(first: Tensor, second: Tensor, temperature: float) -> dict[str, float]:
    rows = [row.double() / row.double().norm() for row in torch.cat([first, second])]
    count = len(rows)
    losses, hits, near, apart = [], 0, [], []
    for i in range(count):
        partner = (i + count // 2) % count
        scores = {j: float(rows[i] @ rows[j]) / temperature for j in range(count) if j != i}
        losses.append(math.log(sum(math.exp(score) for score in scores.values())) - scores[partner])
        hits += max(scores, key=scores.__getitem__) == partner
        near.append(float((rows[i] - rows[partner]).square().sum()))
        apart += [
            math.exp(-2 * float((rows[i] - rows[j]).square().sum())) for j in range(count) if j not in (i, partner)
        ]
    return {
        "loss": sum(losses) / count,
        "pair_accuracy": hits / count,
        "alignment": sum(near) / count,
        "uniformity": math.log(sum(apart) / len(apart)),
    }


def test_figures_are_what_their_definitions_say() -> None:
    first, second = embeddings()
    found = {name: float(value) for name, value in vars(contrast(first, second, temperature=0.3)).items()}
    expected = one_by_one(first, second, 0.3)
    assert found.keys() == expected.keys()
    assert all(abs(found[name] - expected[name]) < 1e-5 for name in expected), (found, expected)
    # Partners in another order are no partners.
    assert float(contrast(first, second.flip(0), temperature=0.3).loss) > found["loss"] + 0.5


def test_lengths_play_no_part_and_half_precision_is_widened() -> None:
    first, second = embeddings()
    plain = contrast(first, second, temperature=0.2)
    assert torch.allclose(contrast(9 * first, second / 4, temperature=0.2).loss, plain.loss)
    with torch.autocast("cpu", torch.bfloat16):
        assert contrast(first, second, temperature=0.2).loss.dtype == torch.float32
        assert torch.equal(contrast(first, second, temperature=0.2).loss, plain.loss)


def test_descending_it_brings_partners_together() -> None:
    first, second = embeddings()
    rows = torch.cat([first, second]).requires_grad_()
    for _ in range(200):
        loss = contrast(*rows.chunk(2), temperature=0.5).loss
        (gradient,) = torch.autograd.grad(loss, rows)
        rows = (rows - 0.5 * gradient).detach().requires_grad_()
    before, after = contrast(first, second, temperature=0.5), contrast(*rows.detach().chunk(2), temperature=0.5)
    assert float(after.pair_accuracy) == 1 and float(after.alignment) < 0.5 * float(before.alignment)
