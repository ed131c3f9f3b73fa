"""Noisy votes, latent codes and the draws beneath them: the right distribution, and no other."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from scipy import stats

from privacy.mechanisms import NoisyVotes
from privacy.mechanisms.noise import ReproducibleNoise, laplace, uniform_integers
from privacy.mechanisms.noisy_votes import vote_counts


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


@pytest.mark.parametrize("scaled", [True, False])
def test_latent_codes_are_scaled_to_their_sensitivity_before_noise(scaled: bool) -> None:
    """Two codes in [-1, 1]^c differ by at most 2c in L1, of which the noise is made: larger codes would drown it."""
    codes = torch.randn(4, 8, generator=torch.Generator().manual_seed(0)) * 1e6
    direction = codes / codes.abs().amax(dim=1, keepdim=True)
    mechanism, epsilon = NoisyVotes(latent_epsilon=16.0), 1e9  # noise of scale 1; and, as if not scaled, of 1e-8
    released = (mechanism if scaled else NoisyVotes(latent_epsilon=epsilon)).perturb_latents(codes)
    assert torch.allclose(released, direction, atol=1e-3) is not scaled


def test_a_broken_code_is_released_like_any_other() -> None:
    codes = torch.tensor([[math.nan, 1.0], [math.inf, 0.0]])
    assert torch.isfinite(NoisyVotes(latent_epsilon=1.0).perturb_latents(codes)).all()
