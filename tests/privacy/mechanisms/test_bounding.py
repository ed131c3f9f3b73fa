"""Norm bounds that hold in floating point, for every input that a broken or hostile teacher can bring about."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import example, given, strategies as st

from privacy.mechanisms.bounding import clip_per_sample, normalize_per_sample, zero_non_finite_samples

magnitudes = st.floats(min_value=-300, max_value=308).map(lambda power: 10.0**power)
entries = st.one_of(
    st.just(0.0),
    st.floats(allow_nan=False, allow_infinity=False),
    st.builds(lambda m, s: m * s, magnitudes, st.sampled_from([-1.0, 1.0])),
)
tables = st.integers(2, 12).flatmap(
    lambda c: st.lists(st.lists(entries, min_size=c, max_size=c), min_size=1, max_size=4)
)
bounds = st.sampled_from([1e-30, 1e-4, 1e-3, 1.0, 7.3, 1e30])


def norms(rows: torch.Tensor) -> list[float]:
    """Exactly rounded, unlike the norm under test."""
    return [math.hypot(*row) for row in rows.tolist()]


def within(rows: torch.Tensor, norm_bound: float) -> bool:
    return all(norm <= norm_bound for norm in norms(rows))


@given(tables, bounds, st.sampled_from([0.0, 1e-12, 1e-4, 1.0]))
@example([[5e-324, 0.0]], 1e-3, 0.0)
@example([[3e-308, 1e-320]], 1e30, 0.0)
@example([[1.7e308] * 12], 1e-3, 1e-4)
def test_normalised_norms_stay_below_the_bound(table: list[list[float]], norm_bound: float, stability: float) -> None:
    rows = torch.tensor(table, dtype=torch.float64)
    out = normalize_per_sample(rows, norm_bound=norm_bound, stability=stability)
    assert torch.isfinite(out).all()
    assert within(out, norm_bound)
    assert (out[rows == 0] == 0).all()
    for row, norm in zip(rows, norms(out), strict=True):
        peak = float(row.abs().max())
        if peak == 0:
            assert norm == 0
        elif peak > max(1e4 * stability, 1e-300):
            assert norm == pytest.approx(norm_bound, rel=1e-3)


@given(tables, bounds)
def test_clipped_norms_stay_below_the_bound(table: list[list[float]], norm_bound: float) -> None:
    rows = torch.tensor(table, dtype=torch.float64)
    out = clip_per_sample(rows, norm_bound=norm_bound)
    assert torch.isfinite(out).all()
    assert within(out, norm_bound)
    for before, after, row in zip(rows, out, norms(rows), strict=True):
        if 1e-300 < row < norm_bound * (1 - 1e-9):
            assert torch.equal(before, after)


def test_a_mechanism_without_its_bound_is_noticed() -> None:
    """Negative controls: rows as they are, and the plain formula, whose rounding and overflow break the bound."""
    rows = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    assert within(normalize_per_sample(rows, norm_bound=1.0, stability=0.0), 1.0)
    assert not within(rows, 1.0)
    many = torch.randn(20_000, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    plain = many / many.norm(dim=1, keepdim=True)
    assert within(normalize_per_sample(many, norm_bound=1.0, stability=0.0), 1.0)
    assert not within(plain, 1.0)
    coarse = (many.bfloat16() / many.bfloat16().norm(dim=1, keepdim=True)).double()
    assert max(norms(coarse)) > 1.002


def test_the_papers_formula() -> None:
    rows = torch.tensor([[3.0, 4.0], [0.03, -0.04]])
    out = normalize_per_sample(rows, norm_bound=2.0, stability=0.05)
    expected = torch.stack([2 * rows[0] / 5.05, 2 * rows[1] / 0.1]).double()
    assert torch.allclose(out, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_non_finite_rows_become_zeros_and_leave_the_others(bad: float, dtype: torch.dtype) -> None:
    rows = torch.tensor([[1.0, 2.0], [bad, 1.0], [3.0, bad]], dtype=dtype)
    out = zero_non_finite_samples(rows)
    assert torch.equal(out, torch.tensor([[1.0, 2.0], [0.0, 0.0], [0.0, 0.0]], dtype=torch.float64))


def test_half_precision_rows_are_bounded_in_double() -> None:
    rows = torch.randn(500, 10, generator=torch.Generator().manual_seed(1)).bfloat16()
    out = normalize_per_sample(rows, norm_bound=1e-3, stability=0.0)
    assert out.dtype == torch.float64
    assert within(out, 1e-3)
    assert within(clip_per_sample(rows, norm_bound=1e-3), 1e-3)
