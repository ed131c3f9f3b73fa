"""Private selection against the winner's exact distribution, and mutants in which a bound lacks a term."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from scipy.special import logsumexp, ndtr
from support.seeded import Seeded

from privacy import (
    Gaussian,
    RandomizedResponse,
    Release,
    SampledGaussian,
    SystemNoise,
    Unbounded,
    compose,
    compose_delta,
)
from privacy.accounting.selection import (
    Distribution,
    Poisson,
    SelectionCost,
    TruncatedNegativeBinomial,
    all_candidates,
    draw_candidates,
    negative_binomial_rdp,
    poisson_rdp,
    profile_epsilon,
    pure_selection_epsilon,
    selection_epsilon,
)
from privacy.mechanisms.noise import NoiseSource

DELTA = 1e-5
GEOMETRIC = TruncatedNegativeBinomial(1.0, 0.1)
Masses = NDArray[np.float64]


# The oracle: the distribution of the best of K, by the generating function of K.


def generating(law: Distribution, x: float) -> float:
    """E[x^K], from its closed form (the module knows no more than the masses of K and E[K])."""
    if isinstance(law, Poisson):
        return math.exp(law.mu * (x - 1.0))
    rest = 1.0 - (1.0 - law.gamma) * x
    if law.eta == 0.0:
        return math.log(rest) / math.log(law.gamma)
    return math.expm1(-law.eta * math.log(rest)) / math.expm1(-law.eta * math.log(law.gamma))


def best_of(masses: ArrayLike, law: Distribution) -> Masses:
    """Masses of the winner, the worst output first; K = 0 is an output of its own, worse than all."""
    below = [0.0, *np.cumsum(np.asarray(masses) / np.sum(masses)).tolist()]
    values = [0.0, *(generating(law, min(x, 1.0)) for x in below)]
    return np.diff(values)


def exact_delta(first: Masses, second: Masses, epsilon: float) -> float:
    return float(np.maximum(first - math.exp(epsilon) * second, 0.0).sum())


def exact_rdp(first: Masses, second: Masses, orders: ArrayLike) -> Masses:
    order = np.asarray(orders, dtype=np.float64)[:, None]
    kept = (first > 0.0) & (second > 0.0)
    terms = order * np.log(first[kept]) + (1.0 - order) * np.log(second[kept])
    return logsumexp(terms, axis=1) / (order[:, 0] - 1.0)


class Base:
    """A mechanism by its masses on two neighbouring inputs, the worst output first: exact, in both directions."""

    def __init__(self, first: ArrayLike, second: ArrayLike) -> None:
        self.first, self.second = (np.asarray(x, dtype=np.float64) / np.sum(x) for x in (first, second))

    def curve(self, orders: Masses) -> Masses:
        return np.maximum(exact_rdp(self.first, self.second, orders), exact_rdp(self.second, self.first, orders))

    def profile(self, epsilon: float) -> float:
        return max(exact_delta(self.first, self.second, epsilon), exact_delta(self.second, self.first, epsilon))

    @property
    def pure(self) -> float:
        possible = (self.first > 0.0) | (self.second > 0.0)
        return float(np.abs(np.log(self.first[possible] / self.second[possible])).max())

    def epsilon(self, delta: float) -> float:
        low, high = 0.0, self.pure
        for _ in range(60):
            middle = 0.5 * (low + high)
            low, high = (low, middle) if self.profile(middle) <= delta else (middle, high)
        return high

    def winner(self, law: Distribution) -> Base:
        """The best of K runs, exactly."""
        return Base(best_of(self.first, law), best_of(self.second, law))


weights = st.floats(-5.0, 0.0).map(math.exp)
bases = st.integers(2, 4).flatmap(
    lambda n: st.builds(Base, *[st.lists(weights, min_size=n, max_size=n) for _ in range(2)])
)
negative_binomials = st.builds(
    TruncatedNegativeBinomial,
    st.sampled_from([-0.7, -0.2, 0.0, 0.5, 1.0, 2.0]),
    st.floats(-6.0, -0.05).map(math.exp),
)
poissons = st.builds(Poisson, st.floats(0.05, 12.0))
laws = st.one_of(negative_binomials, poissons)
ORDERS = np.array([1.05, 1.5, 2.0, 4.0, 9.0, 40.0, 300.0])


def test_the_oracle_against_plain_counting() -> None:
    """The masses of K, summed up to 400 runs, give what the generating function gives."""
    masses = np.array([0.5, 0.2, 0.3])
    for law in (GEOMETRIC, TruncatedNegativeBinomial(0.0, 0.2), TruncatedNegativeBinomial(-0.5, 0.1), Poisson(3.0)):
        counts = np.arange(0 if isinstance(law, Poisson) else 1, 400)
        below = np.concatenate([[0.0], np.cumsum(masses)])
        plain = (np.exp(law.log_mass(counts))[:, None] * below[None, :] ** counts[:, None]).sum(axis=0)
        assert best_of(masses, law) == pytest.approx(np.diff([0.0, *plain]), abs=1e-12)


# The bounds as functions of one run's curve and profile.


@given(base=bases, law=negative_binomials)
@settings(max_examples=150)
def test_negative_binomial_rdp_is_above_the_exact_divergence(base: Base, law: TruncatedNegativeBinomial) -> None:
    bound = negative_binomial_rdp(base.curve, ORDERS, law)
    assert np.all(base.winner(law).curve(ORDERS) <= bound * (1 + 1e-6) + 1e-9)


@given(base=bases, law=poissons)
@settings(max_examples=150)
def test_poisson_rdp_is_above_the_exact_divergence(base: Base, law: Poisson) -> None:
    bound = poisson_rdp(base.curve, base.profile, ORDERS, law)
    assert np.all(base.winner(law).curve(ORDERS) <= bound * (1 + 1e-6) + 1e-9)


@given(base=bases, law=laws, delta=st.floats(-12.0, -1.0).map(math.exp))
@settings(max_examples=200)
def test_profile_epsilon_is_above_the_exact_one(base: Base, law: Distribution, delta: float) -> None:
    epsilon = profile_epsilon(base.epsilon, base.profile, delta, law)
    assert base.winner(law).profile(epsilon) <= delta * (1 + 1e-6)


@given(base=bases, law=negative_binomials)
def test_pure_epsilon_is_above_the_exact_one(base: Base, law: TruncatedNegativeBinomial) -> None:
    assert base.winner(law).pure <= pure_selection_epsilon(base.pure, law) * (1 + 1e-6) + 1e-9


def sharp(epsilon: float) -> Base:
    """A rare good output, made rarer by the record, above a rarer one that the record makes likelier."""
    a, b, grow = 1e-6, 1e-3, math.exp(epsilon)
    return Base([1 - a * grow - b, a * grow, b], [1 - a - b * grow, a, b * grow])


@pytest.mark.parametrize("eta", [-0.5, 0.0, 0.5, 1.0, 2.0])
def test_pure_epsilon_is_reached(eta: float) -> None:
    """(2 + eta) epsilon cannot be improved: 97 % of it, and at eta = 1 the factor 2 of one comparison, fail."""
    law, base = TruncatedNegativeBinomial(eta, 1e-7), sharp(0.5)
    assert base.pure == pytest.approx(0.5)
    assert base.winner(law).pure > 0.97 * pure_selection_epsilon(0.5, law)
    assert base.winner(law).pure <= pure_selection_epsilon(0.5, law) * (1 + 1e-6)


def test_negative_binomial_rdp_without_its_correction_is_too_low() -> None:
    base = sharp(0.5)
    law, order = TruncatedNegativeBinomial(1.0, 1e-4), np.array([200.0])
    exact = base.winner(law).curve(order)
    assert exact <= negative_binomial_rdp(base.curve, order, law)
    assert exact > base.curve(order) + math.log(law.mean) / (order - 1.0)


def test_poisson_rdp_without_a_term_is_too_low() -> None:
    base, law, order = Base([0.6, 0.4], [0.4, 0.6]), Poisson(8.0), np.array([30.0])
    exact = base.winner(law).curve(order)
    assert exact <= poisson_rdp(base.curve, base.profile, order, law)
    assert exact > poisson_rdp(base.curve, lambda epsilon: 0.0, order, law)
    # K = 0 forgotten: with half a run on average the curve would be negative.
    same, half, two = Base([0.5, 0.5], [0.5, 0.5]), Poisson(0.5), np.array([2.0])
    assert same.winner(half).curve(two) == pytest.approx(0.0, abs=1e-12)
    assert math.log(half.mu) / (two - 1.0) < 0.0 <= poisson_rdp(same.curve, same.profile, two, half)


@pytest.mark.parametrize("law", [GEOMETRIC, TruncatedNegativeBinomial(0.0, 0.01), Poisson(10.0)])
def test_the_profile_bound_without_a_term_is_too_low(law: Distribution) -> None:
    # One run leaks with probability 1e-4, by an output that always wins: E[K] runs leak about E[K] times as often.
    leak = Base([1 - 1e-4, 1e-4], [1 - 1e-9, 1e-9])
    delta = 2e-4
    enough = profile_epsilon(leak.epsilon, leak.profile, delta, law)
    assert leak.winner(law).profile(enough) <= delta
    assert leak.winner(law).profile(profile_epsilon(leak.epsilon, leak.profile, delta * law.mean, law)) > delta
    # The second comparison, c, forgotten: the cost of one run at delta/E[K].
    base = Base([0.7, 0.3], [0.3, 0.7])
    assert base.winner(law).profile(base.epsilon(DELTA / law.mean)) > DELTA


# Closed forms.


@pytest.mark.parametrize("eta", [-0.5, 0.0, 1.0, 3.0])
def test_pure_limit_of_theorem_two(eta: float) -> None:
    law = TruncatedNegativeBinomial(eta, 0.05)
    limit = negative_binomial_rdp(lambda orders: np.full_like(orders, 0.3), [1e10], law)
    assert limit == pytest.approx(pure_selection_epsilon(0.3, law), rel=1e-6)


@pytest.mark.parametrize(("rho", "eta", "gamma"), [(0.02, 1.0, 0.1), (0.5, 0.0, 0.01), (0.1, -0.5, 0.001)])
def test_concentrated_base_by_hand(rho: float, eta: float, gamma: float) -> None:
    """rho (m-1) + L/m with L = log(1/gamma) is least at m = sqrt(L/rho): 2 sqrt(rho L) - rho."""
    law = TruncatedNegativeBinomial(eta, gamma)
    orders, level = np.array([2.0, 5.0, 30.0]), math.log(1 / gamma)
    by_hand = rho * orders + math.log(law.mean) / (orders - 1) + (1 + eta) * (2 * math.sqrt(rho * level) - rho)
    value = negative_binomial_rdp(lambda l: rho * l, orders, law)  # noqa: E741
    assert np.all(value >= by_hand * (1 - 1e-12))
    assert value == pytest.approx(by_hand, rel=2e-3)


def test_poisson_by_hand() -> None:
    """mu = 1, order 2, a constant curve 0.3 and delta 0.1: log(1/e + exp(0.4))."""
    value = poisson_rdp(lambda l: 0.0 * l + 0.3, lambda epsilon: 0.1, [2.0], Poisson(1.0))  # noqa: E741
    assert value == pytest.approx(math.log(math.exp(-1) + math.exp(0.4)))
    asked: list[float] = []

    def profile(epsilon: float) -> float:
        asked.append(epsilon)
        return 0.0

    poisson_rdp(lambda l: 0.0 * l, profile, [2.0, 5.0], Poisson(1.0))  # noqa: E741
    assert asked == pytest.approx([math.log(2.0), math.log(1.25)])


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0])
def test_a_pure_profile_never_falls_below_its_closed_form(epsilon: float) -> None:
    """The search for c stops on the safe side."""
    value = profile_epsilon(lambda delta: epsilon, lambda e: float(e < epsilon), DELTA, GEOMETRIC)
    assert 3.0 * epsilon <= value <= 3.0 * epsilon * (1 + 1e-5)


# What a ledger costs.


def answers(epsilon: float, k: int, count: int, truth: int) -> list[float]:
    """Masses of ``count`` randomized responses to one truth, over all k^count outputs."""
    one = [math.exp(epsilon) if i == truth else 1.0 for i in range(k)]
    return [math.prod(one[i] for i in output) for output in itertools.product(range(k), repeat=count)]


@given(
    epsilon=st.floats(0.05, 2.0),
    shape=st.sampled_from([(2, 1), (3, 1), (4, 1), (2, 2), (3, 2)]),
    truths=st.permutations(range(2)),
    order=st.randoms(use_true_random=False),
    law=laws,
    delta=st.sampled_from([1e-8, 1e-5, 1e-2]),
)
@settings(max_examples=80)
def test_randomized_responses_exactly(
    epsilon: float, shape: tuple[int, int], truths: list[int], order: Random, law: Distribution, delta: float
) -> None:
    k, count = shape
    ranks = list(range(k**count))
    order.shuffle(ranks)
    base = Base(*[np.array(answers(epsilon, k, count, truth))[ranks] for truth in truths])
    ledger: dict[Release, int] = {RandomizedResponse(epsilon, k): count}
    cost = selection_epsilon(ledger, delta=delta, distribution=law)
    assert base.winner(law).profile(cost.epsilon) <= delta * (1 + 1e-6)
    assert cost.expected_candidates == law.mean


def test_pretending_that_one_candidate_ran_is_too_low() -> None:
    ledger: dict[Release, int] = {RandomizedResponse(1.0, 2): 1}
    base = Base(answers(1.0, 2, 1, 0), answers(1.0, 2, 1, 1))
    for law in (GEOMETRIC, TruncatedNegativeBinomial(0.0, 0.01), Poisson(10.0)):
        assert base.winner(law).profile(selection_epsilon(ledger, delta=DELTA, distribution=law).epsilon) <= DELTA
        assert base.winner(law).profile(compose(ledger, DELTA).epsilon) > DELTA


def gaussian_winner_delta(mu: float, law: Distribution, epsilon: float, sign: float) -> float:
    """Largest of N(0, 1) draws against N(sign mu, 1) draws, by quadrature of the densities f'(Phi(y)) phi(y)."""
    y = np.linspace(-14.0, 14.0, 40001)

    def density(shift: float) -> Masses:
        cdf, normal = ndtr(y - shift), stats.norm.pdf(y - shift)
        if isinstance(law, Poisson):
            return law.mu * np.exp(-law.mu * ndtr(shift - y)) * normal
        rest = law.gamma + (1 - law.gamma) * ndtr(shift - y)
        assert np.all(cdf + ndtr(shift - y) == pytest.approx(1.0))
        return law.mean * (law.gamma / rest) ** (1 + law.eta) * normal

    assert np.trapezoid(density(0.0), y) == pytest.approx(1.0 - (isinstance(law, Poisson) and math.exp(-law.mean)))
    return float(np.trapezoid(np.maximum(density(0.0) - math.exp(epsilon) * density(sign * mu), 0.0), y))


@pytest.mark.parametrize("law", [GEOMETRIC, TruncatedNegativeBinomial.of_mean(10.0, eta=0.0), Poisson(10.0)])
@pytest.mark.parametrize("mu", [0.2, 1.0])
def test_gaussian_score_exactly(law: Distribution, mu: float) -> None:
    """A noisy score that the record moves, released with the winner: between one run and all that are expected."""
    epsilon = selection_epsilon({Gaussian(mu): 1}, delta=DELTA, distribution=law).epsilon
    one = compose({Gaussian(mu): 1}, DELTA).epsilon
    assert max(gaussian_winner_delta(mu, law, epsilon, sign) for sign in (-1.0, 1.0)) <= DELTA
    assert max(gaussian_winner_delta(mu, law, one, sign) for sign in (-1.0, 1.0)) > DELTA
    assert one < epsilon < all_candidates({Gaussian(mu): 1}, 10, DELTA).epsilon


@pytest.mark.slow
def test_sampled_gaussian_lies_between_one_and_all() -> None:
    ledger: dict[Release, int] = {SampledGaussian(1.0, 0.01): 20}
    cost = selection_epsilon(ledger, delta=DELTA, distribution=GEOMETRIC)
    assert compose(ledger, DELTA / 10).epsilon < cost.epsilon < all_candidates(ledger, 10, DELTA).epsilon


def test_a_known_number_pays_for_every_candidate() -> None:
    cost = selection_epsilon({Gaussian(0.2): 4}, delta=DELTA, distribution=25)
    assert cost == SelectionCost(compose({Gaussian(2.0): 1}, DELTA).epsilon, DELTA, "composition", 25.0)
    answers_of_all = all_candidates({RandomizedResponse(1.0, 10): 3}, 7, DELTA)
    assert answers_of_all == compose({RandomizedResponse(1.0, 10): 21}, DELTA)


def test_the_smallest_bound_is_named() -> None:
    profile = selection_epsilon({Gaussian(0.2): 1}, delta=DELTA, distribution=GEOMETRIC)
    assert profile.method == "profile"
    assert selection_epsilon({Gaussian(0.2): 1}, delta=DELTA, distribution=Poisson(10.0)).method == "rdp"
    pure = selection_epsilon({RandomizedResponse(1.0, 2): 1}, delta=1e-300, distribution=GEOMETRIC)
    assert pure.epsilon <= 3.0
    nothing = selection_epsilon({Unbounded("no noise"): 0}, delta=DELTA, distribution=GEOMETRIC)
    assert nothing.epsilon == 0.0


@pytest.mark.parametrize("law", [GEOMETRIC, Poisson(3.0), 3])
def test_an_unbounded_base_stays_unbounded(law: Distribution | int) -> None:
    cost = selection_epsilon({Unbounded("no noise"): 1, Gaussian(0.1): 1}, delta=DELTA, distribution=law)
    assert (cost.epsilon, cost.method) == (math.inf, "unbounded")


def test_less_than_one_run_on_average() -> None:
    """mu below delta: the winner differs from the public output less often than delta."""
    assert selection_epsilon({Gaussian(5.0): 1}, delta=1e-2, distribution=Poisson(5e-3)).epsilon < 0.01
    assert compose_delta({Gaussian(5.0): 1}, 0.01) > 0.9
    assert selection_epsilon({Gaussian(5.0): 1}, delta=1e-2, distribution=Poisson(2e-2)).epsilon > 0.5


# K.


@pytest.mark.parametrize(
    ("law", "mass"),
    [
        (TruncatedNegativeBinomial(1.0, 0.2), lambda k: stats.geom.pmf(k, 0.2)),
        (TruncatedNegativeBinomial(0.0, 0.2), lambda k: stats.logser.pmf(k, 0.8)),
        (TruncatedNegativeBinomial(2.5, 0.2), lambda k: stats.nbinom.pmf(k, 2.5, 0.2) / (1 - 0.2**2.5)),
        (TruncatedNegativeBinomial(1e-9, 0.2), lambda k: stats.logser.pmf(k, 0.8)),
        (Poisson(4.0), lambda k: stats.poisson.pmf(k, 4.0)),
    ],
)
def test_masses_and_means(law: Distribution, mass: Callable[[ArrayLike], Masses]) -> None:
    counts = np.arange(0 if isinstance(law, Poisson) else 1, 600)
    values = np.exp(law.log_mass(counts))
    assert values == pytest.approx(mass(counts), rel=1e-7, abs=1e-15)
    assert values.sum() == pytest.approx(1.0, abs=1e-12)
    assert (counts * values).sum() == pytest.approx(law.mean, rel=1e-10)


def test_a_negative_shape_against_its_definition() -> None:
    eta, gamma = -0.4, 0.3
    products = np.cumprod([(i + eta) / (i + 1) for i in range(200)])
    by_hand = (1 - gamma) ** np.arange(1, 201) / (gamma**-eta - 1) * products
    law = TruncatedNegativeBinomial(eta, gamma)
    assert np.exp(law.log_mass(np.arange(1, 201))) == pytest.approx(by_hand, rel=1e-10)
    assert (np.arange(1, 201) * by_hand).sum() == pytest.approx(law.mean)


@pytest.mark.parametrize("eta", [-0.9, -0.3, 0.0, 1e-6, 1.0, 7.0])
@pytest.mark.parametrize("mean", [1.001, 3.0, 50.0, 1e4])
def test_shape_of_a_mean(eta: float, mean: float) -> None:
    assert TruncatedNegativeBinomial.of_mean(mean, eta=eta).mean == pytest.approx(mean, rel=1e-9)


class Word(NoiseSource):
    """One word, again and again."""

    def __init__(self, word: int) -> None:
        self.word = word

    def words(self, count: int) -> NDArray[np.uint64]:
        return np.full(count, self.word, dtype=np.uint64)


LAWS = [GEOMETRIC, TruncatedNegativeBinomial(0.0, 0.05), TruncatedNegativeBinomial(-0.5, 0.02), Poisson(6.0)]


@pytest.mark.parametrize("law", [*LAWS, TruncatedNegativeBinomial(1.0, 1e-4)])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.999])
def test_draws_invert_the_distribution_function(law: Distribution, share: float) -> None:
    drawn = draw_candidates(Word(int(share * 2**64)), law)
    first = 0 if isinstance(law, Poisson) else 1
    sums = np.cumsum(np.exp(law.log_mass(np.arange(first, drawn + 1))))
    assert sums[-1] > share
    assert sums.size == 1 or sums[-2] <= share


@pytest.mark.parametrize("law", [*LAWS, Poisson(1e-3), Poisson(9000.0)])
def test_the_largest_word_ends(law: Distribution) -> None:
    assert law.mean < draw_candidates(Word(2**64 - 1), law) < 100 * law.mean + 10_000


def fit(draws: list[int], law: Distribution) -> float:
    """p-value of a chi-squared test, cells of at least ten expected draws."""
    counts = np.arange(0 if isinstance(law, Poisson) else 1, max(draws) + 1)
    expected = len(draws) * np.exp(law.log_mass(counts))
    kept = counts[: max(2, int(np.argmax(np.append(expected < 10.0, True))))]
    cells = [float(expected[i]) for i in range(len(kept))] + [len(draws) - float(expected[: len(kept)].sum())]
    seen = [draws.count(int(k)) for k in kept]
    return float(stats.chisquare([*seen, len(draws) - sum(seen)], cells).pvalue)


@pytest.mark.parametrize("law", LAWS)
def test_draws_follow_their_distribution_and_no_other(law: Distribution) -> None:
    noise = Seeded(seed=3)
    draws = [draw_candidates(noise, law) for _ in range(4000)]
    assert fit(draws, law) > 1e-3
    for factor in (2 / 3, 3 / 2):
        other = (
            Poisson(law.mu * factor)
            if isinstance(law, Poisson)
            else TruncatedNegativeBinomial.of_mean(law.mean * factor, eta=law.eta)
        )
        assert fit(draws, other) < 1e-6


def test_no_seed_of_the_run_reaches_the_draws() -> None:
    runs = []
    for _ in range(2):
        torch.manual_seed(7)
        np.random.seed(7)
        runs.append([draw_candidates(SystemNoise(), GEOMETRIC) for _ in range(60)])
    assert runs[0] != runs[1]


# Arguments.


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="eta must be above -1 and finite, got -1"):
        TruncatedNegativeBinomial(-1.0, 0.5)
    for gamma in (0.0, 1.0, math.nan):
        with pytest.raises(ValueError, match=r"gamma must be in \(0, 1\), got"):
            TruncatedNegativeBinomial(1.0, gamma)
    with pytest.raises(ValueError, match="mean must be in"):
        TruncatedNegativeBinomial.of_mean(1.0)
    with pytest.raises(ValueError, match="mu must be above 0"):
        Poisson(0.0)
    with pytest.raises(ValueError, match="epsilon must be at least 0"):
        pure_selection_epsilon(-0.1, GEOMETRIC)
    for orders in ([1.0], [2.0, 0.5]):
        with pytest.raises(ValueError, match="orders must all be above 1"):
            negative_binomial_rdp(lambda l: l, orders, GEOMETRIC)  # noqa: E741
        with pytest.raises(ValueError, match="orders must all be above 1"):
            poisson_rdp(lambda l: l, lambda epsilon: 0.0, orders, Poisson(1.0))  # noqa: E741
    with pytest.raises(ValueError, match="n must be a whole number of at least 1, got 0"):
        all_candidates({Gaussian(1.0): 1}, 0, DELTA)
    with pytest.raises(ValueError, match="count must be a whole number"):
        # Twice a half would pass.
        all_candidates({Gaussian(1.0): 0.5}, 2, DELTA)  # type: ignore[dict-item]
    for law in (GEOMETRIC, Poisson(2.0), 2):
        with pytest.raises(ValueError, match=r"delta must be in \(0, 1\), got 0"):
            selection_epsilon({Gaussian(1.0): 1}, delta=0.0, distribution=law)
        with pytest.raises(ValueError, match="count must be a whole number"):
            selection_epsilon({Gaussian(1.0): -1}, delta=DELTA, distribution=law)
