"""DP-SGD's arithmetic: gradients stay within their clipping norm, and noise is added before anything is rounded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from opacus.optimizers import DPOptimizer
from opacus.optimizers.optimizer import _check_processed_flag
from scipy import stats
from support.dp_teachers import teacher_by_dp_sgd
from support.seeded import Seeded
from torch import nn

from lightning_modules.teachers.dp_optimizers import FlatOptimizer, GhostOptimizer
from privacy import NoiseSource, compose
from privacy.events.discrete import SampledDiscreteGaussian

C = 0.3


def optimizer(
    kind: type[DPOptimizer] = FlatOptimizer,
    *,
    shapes: tuple[tuple[int, ...], ...] = ((7, 5), (11,)),
    noise: NoiseSource | None = None,
    granularity: float | None = None,
    sigma: float = 0.0,
    batch: int = 1,
) -> DPOptimizer:
    weights = [nn.Parameter(torch.zeros(shape)) for shape in shapes]
    made = kind(torch.optim.SGD(weights, lr=1.0), noise_multiplier=sigma, max_grad_norm=C, expected_batch_size=batch)
    made.source, made.granularity = noise or Seeded(), granularity  # type: ignore[attr-defined]
    return made


def clipped(kind: type[DPOptimizer], gradients: list[torch.Tensor], **settings: Any) -> torch.Tensor:
    """The clipped sum of records' gradients, (records, *shape) for each weight, as one vector in float64."""
    made = optimizer(kind, **settings)
    for weight, rows in zip(made.params, gradients, strict=True):
        weight.grad_sample = rows.clone()  # type: ignore[attr-defined]
    made.clip_and_accumulate()
    scale = settings.get("granularity") or 1.0
    return torch.cat([weight.summed_grad.double().flatten() * scale for weight in made.params])  # type: ignore[attr-defined]


def gradients(records: int, *, seed: int, scale: float = 1.0) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [scale * torch.randn(records, *shape, generator=draw) for shape in ((7, 5), (11,))]


def longest(kind: type[DPOptimizer], **settings: Any) -> float:
    """The longest clipped gradient of many single records, in clipping norms."""
    return max(float(clipped(kind, gradients(1, seed=seed), **settings).norm()) / C for seed in range(300))


def test_no_record_moves_the_sum_by_more_than_its_clipping_norm() -> None:
    assert 1 - 1e-6 < longest(FlatOptimizer) <= 1.0
    # The negative control, Opacus's own, clips in float32.
    assert longest(DPOptimizer) > 1.0
    assert longest(FlatOptimizer, granularity=2.0**-20) <= 1.0


@pytest.mark.parametrize("granularity", [None, 2.0**-12])
def test_the_sum_is_that_of_the_clipped_records(granularity: float | None) -> None:
    rows = gradients(200, seed=1, scale=0.05)
    flat = torch.cat([each.flatten(1) for each in rows], dim=1).double()
    factor = (C / flat.norm(dim=1)).clamp(max=1.0)
    assert 20 < int((factor < 1).sum()) < 180
    expected = (factor.unsqueeze(1) * flat).sum(dim=0)
    found = clipped(FlatOptimizer, rows, granularity=granularity)
    assert torch.allclose(found, expected, atol=1e-9 if granularity is None else 200 * 2.0**-12)
    if granularity is not None:
        assert torch.equal(found / granularity, (found / granularity).round())


class _Normalizing(FlatOptimizer):
    stability = 0.01


class _Unstable(FlatOptimizer):
    """Negative control: a stability below 0 lengthens what it should bound."""

    stability = -0.01


def test_a_normalised_record_moves_the_sum_by_no_more_than_its_clipping_norm() -> None:
    assert 0.99 < longest(_Normalizing) <= 1.0
    assert longest(_Normalizing, granularity=2.0**-20) <= 1.0
    assert longest(_Unstable) > 1.0


def test_the_sum_is_that_of_the_normalised_records_however_short_they_are() -> None:
    rows = gradients(200, seed=1, scale=1e-3)
    flat = torch.cat([each.flatten(1) for each in rows], dim=1).double()
    expected = C / (flat.norm(dim=1) + 0.01) @ flat
    assert torch.allclose(clipped(_Normalizing, rows), expected, atol=1e-9)
    # Clipping would leave such short gradients as they are.
    assert not torch.allclose(clipped(FlatOptimizer, rows), expected, rtol=0.1)
    rows[0][0], rows[1][0] = 0.0, 0.0
    flat[0] = 0.0
    assert torch.allclose(clipped(_Normalizing, rows), C / (flat.norm(dim=1) + 0.01) @ flat, atol=1e-9)


@pytest.mark.parametrize("kind", [FlatOptimizer, _Normalizing])
def test_a_record_that_is_not_finite_counts_as_zeros(kind: type[FlatOptimizer]) -> None:
    rows = gradients(5, seed=2)
    without = clipped(kind, [each[1:] for each in rows])
    for value in (torch.nan, torch.inf):
        rows[0][0, 0, 0] = value
        assert torch.allclose(clipped(kind, rows), without, atol=1e-12)
    assert not torch.isfinite(clipped(DPOptimizer, rows)).all()  # the mutant tells that there was such a record


class _RoundedNoise(FlatOptimizer):
    """Negative control: noise is rounded to float32 before it is added to a float32 sum, as it once was."""

    def add_noise(self) -> None:
        for weight in self.params:
            _check_processed_flag(weight.summed_grad)
            total = weight.summed_grad.float()
            noise = self.source.gaussian(tuple(total.shape)) * (self.noise_multiplier * self.max_grad_norm)
            weight.grad = total + noise.float()


def fine_and_small(kind: type[FlatOptimizer], value: float, *, granularity: float | None = None) -> float:
    """How often a coordinate is small and yet no multiple of 2^-26, for a sum of `value` and noise of deviation 1."""
    made = optimizer(kind, shapes=((20_000,),), sigma=1 / C, granularity=granularity)
    (weight,) = made.params
    set_sum(weight, value if granularity is None else round(value / granularity), granularity)
    made.add_noise()
    assert weight.grad is not None
    found = weight.grad.double()
    return float(((found.abs() < 0.1) & (found * 2.0**26 != (found * 2.0**26).round())).double().mean())


def set_sum(weight: nn.Parameter, value: float, granularity: float | None) -> None:
    kind = torch.float64 if granularity is None else torch.int64
    weight.summed_grad = torch.full(weight.shape, value).to(kind)  # type: ignore[attr-defined]
    weight.grad_sample = torch.zeros(1, *weight.shape)  # type: ignore[attr-defined]


def test_low_bits_do_not_tell_whether_a_record_took_part() -> None:
    """Noise that was rounded first leaves coarse numbers alone beside a record of 1: fine ones tell of its absence."""
    assert fine_and_small(_RoundedNoise, 0.0) > 0.03 and fine_and_small(_RoundedNoise, 1.0) == 0.0
    assert fine_and_small(FlatOptimizer, 0.0) > 0.03 and fine_and_small(FlatOptimizer, 1.0) > 0.03
    # On a lattice there are no such numbers at all.
    for value in (0.0, 1.0):
        assert fine_and_small(FlatOptimizer, value, granularity=2.0**-20) == 0.0


@pytest.mark.parametrize("granularity", [None, 2.0**-8])
def test_the_noise_has_the_stated_scale(granularity: float | None) -> None:
    sigma, batch = 4.0, 16
    made = optimizer(shapes=((30_000,),), sigma=sigma, batch=batch, granularity=granularity)
    (weight,) = made.params
    set_sum(weight, 0.0, granularity)
    made.add_noise()
    assert weight.grad is not None and weight.grad.dtype == torch.float32
    drawn = weight.grad.double().numpy() * batch

    def p_value(scale: float) -> float:
        share = float(np.square(drawn / scale).sum())
        return float(2 * min(stats.chi2.cdf(share, drawn.size), stats.chi2.sf(share, drawn.size)))

    right = sigma * C
    assert p_value(right) > 1e-3
    assert max(p_value(right * 2 / 3), p_value(right * 3 / 2)) < 1e-20


def test_ghost_clipping_sums_physical_batches_in_float64() -> None:
    made = optimizer(GhostOptimizer, shapes=((3,),))
    (weight,) = made.params
    for value in (1.0, 1e-9):
        weight.grad = torch.full((3,), value)
        made.accumulate()  # type: ignore[attr-defined]
    assert float(weight.summed_grad[0]) == pytest.approx(1.0 + 1e-9, abs=1e-15) != 1.0  # type: ignore[attr-defined]


@pytest.mark.slow
def test_discrete_noise_end_to_end(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    teacher = teacher_by_dp_sgd("teacher", target_epsilon=3.0, granularity=1e-3)
    ((event, steps),) = teacher.releases.items()
    assert isinstance(event, SampledDiscreteGaussian) and steps == 6
    assert 2.9 < compose(teacher.releases, 1e-5).epsilon <= 3.0
    guarantee = teacher.guarantee()
    assert "discrete Gaussian noise" in guarantee.mechanism and any("no low bits" in s for s in guarantee.assumptions)
    assert guarantee.relation == "add-or-remove of one training record"
    # Its noise is larger: RDP alone is known for it.
    plain = teacher_by_dp_sgd("plain", target_epsilon=3.0)
    assert teacher.noise_multiplier is not None and plain.noise_multiplier is not None
    assert plain.noise_multiplier < teacher.noise_multiplier < 1.6 * plain.noise_multiplier
