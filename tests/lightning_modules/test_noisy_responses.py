"""Linear regression out of noisy answers: what it says it maximises, at nearly the best penalty."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lightning_modules.distillation import fit_noisy_responses

F, CLASSES = 20, 4


def task(count: int, *, std: float) -> tuple[Tensor, Tensor]:
    """Features of unequal size (N, F), and noisy answers (N, c) of a linear function."""
    draw = torch.Generator().manual_seed(0)
    mixed = torch.linalg.qr(torch.randn(F, F, generator=draw, dtype=torch.float64))[0]
    weights, offset = torch.randn(F + 1, CLASSES, generator=draw, dtype=torch.float64).split([F, 1])
    sizes = torch.logspace(0, -2, F, dtype=torch.float64)
    rows = 3 + torch.randn(count, F, generator=draw, dtype=torch.float64) * sizes @ mixed
    return rows, offset + rows @ weights + std * torch.randn(count, CLASSES, generator=draw, dtype=torch.float64)


def by_normal_equations(rows: Tensor, answers: Tensor, *, ratio: float) -> tuple[Tensor, Tensor]:
    """Ridge regression solved head-on, its penalty in units of the mean of the squared singular values above 0."""
    middle, offset = rows.mean(dim=0), answers.mean(dim=0)
    centred = rows - middle
    squares = torch.linalg.svdvals(centred).square()
    penalty = ratio * squares[squares > 1e-10 * squares.max()].mean()
    weights = torch.linalg.solve(
        centred.T @ centred + penalty * torch.eye(rows.shape[1], dtype=rows.dtype), centred.T @ (answers - offset)
    )
    return weights, offset - middle @ weights


def evidence(rows: Tensor, answers: Tensor, *, ratio: float, std: float) -> float:
    """Log density of the centred answers, from the covariance of a row of N of them."""
    centred = rows - rows.mean(dim=0)
    squares = torch.linalg.svdvals(centred).square()
    penalty = ratio * squares[squares > 1e-10 * squares.max()].mean()
    covariance = std**2 * (centred @ centred.T / penalty + torch.eye(len(rows), dtype=rows.dtype))
    targets = answers - answers.mean(dim=0)
    inside = (targets * torch.linalg.solve(covariance, targets)).sum()
    return float(-0.5 * (inside + targets.shape[1] * torch.logdet(covariance)))


@pytest.mark.parametrize("count", [F - 5, F, F + 1, F + 40])
def test_wide_and_tall_are_one_regression(count: int, std: float = 1.0) -> None:
    rows, answers = task(count, std=std)
    fitted = fit_noisy_responses(rows, answers, std=std)
    assert fitted.weights.dtype == fitted.offset.dtype == torch.float32
    weights, offset = by_normal_equations(rows, answers, ratio=fitted.ratio)
    assert torch.allclose(fitted.weights.double(), weights, rtol=1e-3, atol=1e-5)
    assert torch.allclose(fitted.offset.double(), offset, rtol=1e-3, atol=1e-4)
    # No ratio beside it has more evidence.
    found = evidence(rows, answers, ratio=fitted.ratio, std=std)
    step = 10**0.125
    for other in (fitted.ratio * step, fitted.ratio / step, fitted.ratio * step**8, fitted.ratio / step**8):
        if 1e-5 <= other <= 1e4:
            assert evidence(rows, answers, ratio=other, std=std) < found
    mutant, _ = by_normal_equations(rows, answers, ratio=2 * fitted.ratio)
    assert not torch.allclose(fitted.weights.double(), mutant, rtol=1e-3, atol=1e-5)
