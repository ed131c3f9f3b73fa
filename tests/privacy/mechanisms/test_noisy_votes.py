"""Votes through the session: the noise that is charged for, charged before, and covered by their plan."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from support.sessions import asked, plan_of, session_of

from privacy.account import BudgetExceeded
from privacy.accounting.composition import compose
from privacy.events import LaplaceVotes, Release, SampledGaussian
from privacy.identity import Training
from privacy.mechanisms import NoisyVotes, Shape
from privacy.mechanisms.base import ReproducibleNoise, laplace, uniform_integers
from privacy.mechanisms.noisy_votes import vote_counts
from privacy.published import published_dgd_epsilon
from privacy.session import PrivacySession

CLASSES = 10


def session(*, num_classes: int = CLASSES, **settings: Any) -> PrivacySession:
    return session_of(NoisyVotes, Shape(8, num_classes, "DGD"), **settings)


def counts(queries: int, *first: int) -> torch.Tensor:
    """Votes of 250 teachers."""
    row = torch.zeros(CLASSES, dtype=torch.int64)
    row[: len(first)] = torch.tensor(first)
    row[-1] = 250 - row.sum()
    return row.repeat(queries, 1)


def winner_probability(kind: str, scale: float) -> float:
    """P(class 0 wins with counts (30, 0)) in closed form."""
    if kind == "gaussian":
        return float(stats.norm.cdf(30 / (math.sqrt(2) * scale)))
    gap = 30 / scale
    return 1 - math.exp(-gap) * (2 + gap) / 4  # the difference of two Laplace draws


@pytest.mark.parametrize("kind", ["laplace", "gaussian"])
def test_answers_have_the_noise_that_is_charged_for(kind: Any) -> None:
    """Accepted at its scale; at 2/3 and at 3/2 of it the same test refuses them."""
    made = session(num_classes=2, kind=kind, scale=40.0)
    draws = 20_000
    wins = int((asked(made, torch.tensor([[140, 110]]).repeat(draws, 1)) == 0).sum())
    release = made.cost.release
    charged = release.scale if isinstance(release, LaplaceVotes) else math.sqrt(2) / release.mu  # type: ignore[attr-defined]

    def p_value(scale: float) -> float:
        return float(stats.binomtest(wins, draws, winner_probability(kind, scale)).pvalue)

    assert p_value(charged) > 1e-8
    assert p_value(2 / 3 * charged) < 1e-12 and p_value(3 / 2 * charged) < 1e-12


def reveal(made: PrivacySession, releases: dict[Release, int] | None, *, reason: str) -> None:
    """Uses a second model, a baseline, beside the ensemble."""
    made.charge_nonprivate_access(reason, training=made.admit(Training("ab" * 16, releases=releases)))


def test_a_baseline_without_privacy_leaves_no_bound_and_costs_nothing_in_the_paper() -> None:
    made = session(latent_epsilon=0.01)
    for _ in range(2):
        reveal(made, None, reason="the generator was trained against it")
    asked(made, counts(27, 200))
    made.plan = plan_of(made, 27)
    assert made.account.epsilon() == math.inf == made.account.epsilon(counts=made.covering())
    assert made.account.unbounded() == ["the generator was trained against it"]
    assert made.account.epsilon_published() == published_dgd_epsilon(27, 0.05, 1e-5, 0.01)
    assert made.calls_made() == 27


BASELINE: dict[Release, int] = {SampledGaussian(1.0, 0.01): 1000}


@pytest.mark.parametrize("kind", ["laplace", "gaussian"])
def test_a_baseline_by_dp_sgd_composes_with_the_votes(kind: Any) -> None:
    made = session(kind=kind)
    for _ in range(2):  # one model: one release, however often it is used
        reveal(made, BASELINE, reason="x")
    asked(made, counts(400, 200))
    together = compose({made.cost.release: 400, **BASELINE}, 1e-5).epsilon
    assert made.account.epsilon() == pytest.approx(together, rel=1e-9)
    votes, baseline = (compose(each, 1e-5).epsilon for each in ({made.cost.release: 400}, BASELINE))
    assert max(votes, baseline) < together < votes + baseline
    assert made.account.epsilon_published() < math.inf
    assert made.calls_made() == 400


def test_nothing_is_revealed_under_a_target_that_it_exceeds() -> None:
    made = session(target_epsilon=0.5)
    for releases in (None, BASELINE):
        with pytest.raises(BudgetExceeded):
            reveal(made, releases, reason="x")
    assert not made.account.counts()


@pytest.mark.parametrize(
    "votes",
    [
        counts(3, 200).double(),
        counts(3, 200)[0],
        counts(3, 200)[:, :4],
        counts(3, 200) - 1,
        torch.cat([counts(2, 200), 2 * counts(1, 200)]),
        counts(0, 200),
    ],
    ids=["float", "one row", "fewer classes", "negative", "two votes each", "none"],
)
def test_what_are_no_votes_is_refused_and_not_charged(votes: torch.Tensor) -> None:
    made = session()
    with pytest.raises(ValueError, match="counts must"):
        asked(made, votes)
    assert not made.account.counts()


def test_latent_noise_has_the_papers_scale_and_stays_in_the_decoders_range() -> None:
    codes = torch.zeros(400, 32)
    silent = NoisyVotes().perturb_latents(codes.requires_grad_())
    assert torch.equal(silent, codes) and not silent.requires_grad
    loud = NoisyVotes(latent_epsilon=0.01).perturb_latents(codes)
    assert float(loud.abs().max()) <= 1.0 and float(loud.abs().mean()) > 0.1
    # Where the noise is small against the code, nothing is scaled back: its size is seen.
    size = float(NoisyVotes(latent_epsilon=6.4e5).perturb_latents(codes).abs().mean())
    assert size == pytest.approx(2 * 32 / 6.4e5, rel=0.05)
    assert size != pytest.approx(2 / 3 * 2 * 32 / 6.4e5, rel=0.1)


def test_laplace_against_scipy() -> None:
    draws = laplace(ReproducibleNoise(seed=5), (20_000,)).numpy()
    assert stats.kstest(draws, "laplace").pvalue > 1e-3
    assert stats.kstest(draws * 1.5, "laplace").pvalue < 1e-20


def test_uniform_integers_are_uniform_below_their_limit() -> None:
    drawn = uniform_integers(ReproducibleNoise(seed=0), torch.full((30_000,), 7)).numpy()
    assert stats.chisquare(np.bincount(drawn), np.full(7, 30_000 / 7)).pvalue > 1e-3  # 7 would be an eighth


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
