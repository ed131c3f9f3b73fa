"""The accountant, by itself and inside Opacus."""

from __future__ import annotations

import pytest
from opacus import PrivacyEngine
from opacus.accountants import create_accountant
from opacus.accountants.utils import get_noise_multiplier
from support.closed_forms import rdp_compose

from privacy.accountants import ExactAccountant
from privacy.events import Gaussian, RandomizedResponse, RevealedGaussian

NAME, DELTA = ExactAccountant.mechanism(), 1e-5
pytestmark = pytest.mark.filterwarnings("ignore:Secure RNG", "ignore:Optimal order")


def after(*history: tuple[float, float, int]) -> ExactAccountant:
    accountant = ExactAccountant()
    accountant.history = list(history)
    return accountant


def test_opacus_knows_it_by_name_and_calibrates_with_it() -> None:
    fresh = PrivacyEngine(accountant=NAME).accountant
    assert type(fresh) is ExactAccountant and len(fresh) == 0
    assert fresh.get_epsilon(delta=1e-15, epsilon_tolerance=0.1, poisson=True) == 0.0
    noise = get_noise_multiplier(
        target_epsilon=3.0, target_delta=DELTA, sample_rate=0.02, steps=300, accountant=NAME, poisson=True
    )
    assert 2.98 <= after((noise, 0.02, 300)).get_epsilon(DELTA) <= 3.0


@pytest.mark.parametrize(
    "history", [[(0.6, 256 / 60_000, 2344)], [(1.1, 0.01, 1000)], [(1.0, 0.05, 10), (2.0, 0.01, 500)]]
)
def test_it_agrees_with_opacus(history: list[tuple[float, float, int]]) -> None:
    ours = after(*history).get_epsilon(DELTA)
    prv, rdp = create_accountant("prv"), create_accountant("rdp")
    prv.history, rdp.history = list(history), list(history)
    assert prv.get_epsilon(DELTA) - 0.03 <= ours <= prv.get_epsilon(DELTA)
    renyi = rdp_compose(after(*history).counts(), DELTA)
    # Opacus takes the curve itself between whole orders, and not the line above it.
    assert ours < renyi == pytest.approx(rdp.get_epsilon(DELTA), rel=4e-2)
    # Negative control: one step in ten forgotten.
    fewer = [(noise, rate, int(0.9 * steps)) for noise, rate, steps in history]
    assert after(*fewer).get_epsilon(DELTA) < prv.get_epsilon(DELTA) - 0.03


def test_counting_is_order_free_and_constant_in_memory() -> None:
    one, other, release = ExactAccountant(), after((2.0, 0.1, 5), (1.0, 0.1, 5)), RandomizedResponse(0.5, 10)
    for _ in range(5):
        one.step(noise_multiplier=1.0, sample_rate=0.1)
        one.charge(release)
        one.step(noise_multiplier=2.0, sample_rate=0.1)
    other.charge(release, 5)
    assert one.counts() == other.counts() and len(one) == len(other) == 15
    assert one.get_epsilon(DELTA) == other.get_epsilon(DELTA) > after(*other.history).get_epsilon(DELTA)
    for _ in range(99):
        other.step(noise_multiplier=1.0, sample_rate=0.1)
    assert other.history == [(2.0, 0.1, 5), (1.0, 0.1, 104)]


def test_a_state_shares_nothing_and_a_bad_one_changes_nothing() -> None:
    accountant = after((1.0, 0.1, 1))
    accountant.charge(Gaussian(0.1), 2)
    good, before = accountant.state_dict(), accountant.get_epsilon(DELTA)
    copy = ExactAccountant()
    copy.load_state_dict(good)
    assert copy.get_epsilon(DELTA) == before
    copy.step(noise_multiplier=0.5, sample_rate=0.1)
    copy.charge(Gaussian(0.1), 100)
    assert accountant.get_epsilon(DELTA) == before < copy.get_epsilon(DELTA)
    assert good["history"] == [(1.0, 0.1, 1)]
    wrong = {"mechanism": "rdp"}, {"history": [(1.0, 7.0, 1)]}, {"releases": [({"kind": "magic"}, 1)]}
    for bad in (None, *({**good, **one} for one in wrong)):
        with pytest.raises(ValueError, match="must"):
            accountant.load_state_dict(bad)  # type: ignore[arg-type]
        assert accountant.state_dict() == good


def test_what_is_stated_for_labels_is_refused() -> None:
    with pytest.raises(ValueError, match="labels only"):
        ExactAccountant().charge(RevealedGaussian(1.0, 0.1))
