"""Linear regression out of noisy answers: what it says it maximises, at nearly the best penalty."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lightning_modules.distillation import LinearResponses, fit_noisy_responses

F, CLASSES = 20, 4
Task = tuple[Tensor, Tensor, Callable[[Tensor], Tensor]]


def task(count: int, *, features: int = F, std: float = 0.0, seed: int = 0) -> Task:
    """Features of unequal size (N, F), noisy answers (N, c), and the function without noise; the latter for all N."""
    fixed = torch.Generator().manual_seed(100 + features)
    sizes = torch.logspace(0, -2, features, dtype=torch.float64)
    mixed = torch.linalg.qr(torch.randn(features, features, generator=fixed, dtype=torch.float64))[0]
    weights = torch.randn(features, CLASSES, generator=fixed, dtype=torch.float64)
    offset = torch.randn(CLASSES, generator=fixed, dtype=torch.float64)

    def clean(rows: Tensor) -> Tensor:
        return offset + rows @ weights

    draw = torch.Generator().manual_seed(seed)
    rows = 3 + torch.randn(count, features, generator=draw, dtype=torch.float64) * sizes @ mixed
    noise = std * torch.randn(count, CLASSES, generator=draw, dtype=torch.float64)
    return rows, clean(rows) + noise, clean


def error(fitted: LinearResponses, clean: Callable[[Tensor], Tensor], *, features: int = F) -> float:
    """Mean squared error on answers without noise to rows that were not asked about."""
    held_out = task(2000, features=features, seed=99)[0]
    return float((fitted(held_out) - clean(held_out)).square().mean())


@pytest.mark.parametrize("count", [F // 2 + 15, 500])
def test_without_noise_to_speak_of_it_finds_the_function(count: int) -> None:
    rows, answers, clean = task(count, std=1e-6)
    fitted = fit_noisy_responses(rows, answers, std=1e-6)
    assert fitted.weights.shape == (F, CLASSES) and fitted.offset.shape == (CLASSES,)
    assert fitted.weights.dtype == fitted.offset.dtype == torch.float32
    held_out = task(100, seed=99)[0]
    assert torch.allclose(fitted(held_out), clean(held_out), atol=1e-2)
    assert error(fitted, clean) < 1e-5


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
    rows, answers, _ = task(count, std=std)
    fitted = fit_noisy_responses(rows, answers, std=std)
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
