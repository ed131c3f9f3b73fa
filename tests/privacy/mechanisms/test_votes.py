"""Noisy votes, latent codes and the draws beneath them: the right distribution, and no other."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from privacy.accounting.composition import compose_delta
from privacy.events import DiscreteLaplaceVotes, LaplaceVotes
from privacy.mechanisms.draws import discrete_laplace, laplace, laplace_latents, uniform_integers
from privacy.mechanisms.noise import ReproducibleNoise
from privacy.mechanisms.votes import vote_counts


def test_discrete_laplace_has_its_mass_function() -> None:
    scale = 3.0
    draws = discrete_laplace(ReproducibleNoise(seed=0), (50_000,), scale=scale).numpy()
    values = np.arange(-12, 13)
    observed = np.array([(draws == value).sum() for value in values] + [(np.abs(draws) > 12).sum()])

    def p_value(other: float) -> float:
        decay = math.exp(-1 / other)
        mass = (1 - decay) / (1 + decay) * decay ** np.abs(values)
        return float(stats.chisquare(observed, np.append(mass, 1 - mass.sum()) * draws.size).pvalue)

    assert p_value(scale) > 1e-3
    assert p_value(scale * 1.1) < 1e-6


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 0.6])
def test_discrete_noise_is_priced_by_enumeration_and_not_as_continuous_noise(epsilon: float) -> None:
    """The noisy histogram of two counts that a record moves apart, and the same at the price of continuous noise."""
    scale = 2.0
    values = np.arange(-100, 101)
    mass = math.tanh(0.5 / scale) * np.exp(-np.abs(values) / scale)
    there, back = np.outer(mass[1:], mass[:-1]), np.outer(mass[:-1], mass[1:])
    exact = float(np.maximum(there - math.exp(epsilon) * back, 0.0).sum())
    assert exact == pytest.approx(compose_delta({DiscreteLaplaceVotes(scale): 1}, epsilon), rel=1e-8)
    assert exact > 1.005 * compose_delta({LaplaceVotes(scale): 1}, epsilon)


def test_laplace_against_scipy() -> None:
    draws = laplace(ReproducibleNoise(seed=5), (20_000,)).numpy()
    assert stats.kstest(draws, "laplace").pvalue > 1e-3
    assert stats.kstest(draws * 1.5, "laplace").pvalue < 1e-20


@given(limit=st.integers(1, 2**62), seed=st.integers(0, 100))
def test_uniform_integers_stay_below_their_limit(limit: int, seed: int) -> None:
    drawn = uniform_integers(ReproducibleNoise(seed=seed), torch.full((20,), limit))
    assert (drawn >= 0).all()
    assert (drawn < limit).all()


def test_uniform_integers_are_uniform() -> None:
    drawn = uniform_integers(ReproducibleNoise(seed=0), torch.full((30_000,), 7)).numpy()
    assert stats.chisquare(np.bincount(drawn, minlength=7)).pvalue > 1e-3


def test_uniform_integers_reject_the_incomplete_multiple() -> None:
    class Highest(ReproducibleNoise):
        """First the largest word, which lies in the incomplete multiple of 3 * 2**61, then small ones."""

        calls = 0

        def words(self, count: int) -> np.ndarray:
            self.calls += 1
            return np.full(count, 2**64 - 1 if self.calls == 1 else 5, dtype=np.uint64)

    noise = Highest(seed=0)
    assert uniform_integers(noise, torch.tensor([3 * 2**61])).tolist() == [5]
    assert noise.calls == 2


def test_counts_of_decisions() -> None:
    decisions = torch.tensor([[0, 1], [0, 2], [1, 2]])
    assert vote_counts(decisions, num_classes=3).tolist() == [[2, 1, 0], [0, 1, 2]]
    with pytest.raises(ValueError, match="decisions must lie"):
        vote_counts(torch.tensor([[3]]), num_classes=3)


def test_discrete_draws_fit_into_integers_at_the_largest_scale() -> None:
    draws = discrete_laplace(ReproducibleNoise(seed=0), (1000,), scale=2.0**53)
    assert draws.abs().max() < 2**62
    assert stats.kstest(draws.numpy() / 2.0**53, "laplace").pvalue > 1e-3
    with pytest.raises(ValueError, match="scale"):
        discrete_laplace(ReproducibleNoise(seed=0), (1,), scale=2.0**54)


def within_sensitivity(codes: torch.Tensor) -> bool:
    """Two codes in [-1, 1]^c differ by at most 2c in L1, which is what LaplaceVector charges."""
    return float(codes.abs().max()) <= 1 + 1e-9


@given(size=st.floats(0, 1e6), seed=st.integers(0, 50))
def test_latent_codes_stay_within_their_sensitivity(size: float, seed: int) -> None:
    codes = torch.randn(4, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * size
    assert within_sensitivity(laplace_latents(codes, epsilon=1e15, noise=ReproducibleNoise(seed=0)))


def test_codes_that_are_not_scaled_break_the_sensitivity() -> None:
    codes = torch.randn(4, 8, generator=torch.Generator().manual_seed(0)) * 10
    assert not within_sensitivity(codes)


def test_a_broken_code_is_released_like_any_other() -> None:
    codes = torch.tensor([[math.nan, 1.0], [math.inf, 0.0]])
    assert torch.isfinite(laplace_latents(codes, epsilon=1.0, noise=ReproducibleNoise(seed=0))).all()
