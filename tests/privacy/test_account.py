"""Both figures, and budgets that stop exactly before they are overspent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from privacy import Budget
from privacy.account import BudgetExceeded, PrivacyAccount
from privacy.accounting.composition import compose
from privacy.events import Gaussian
from privacy.ledger import Ledger
from privacy.plan import Charge
from privacy.published import RdpSlope, dpdfd_rdp_slope

STEP = Charge(
    release=Gaussian(mu=0.32),
    claim=RdpSlope(source="DPDFD Theorem 3", slope=dpdfd_rdp_slope(1e-3, 10, 256, 100.0)),
    queries=256,
)


def account(*, path: Path | None = None, run: str = "one", block: int = 100, **settings: Any) -> PrivacyAccount:
    ledger = Ledger(path=path, private_data="digits/train", run=run, block=block)
    return PrivacyAccount(ledger=ledger, budget=Budget(**settings))


def charged(spender: PrivacyAccount, charge: Charge) -> None:
    spender.ledger.charge(charge, afford=spender.grant)


def spend(spender: PrivacyAccount, charge: Charge, most: int) -> int:
    for count in range(most):
        try:
            charged(spender, charge)
        except BudgetExceeded:
            return count
    return most


@pytest.mark.parametrize("kept", [{}, {"accounting": "published"}, {"fully_adaptive": True}])
@pytest.mark.parametrize("block", [1, 7, 1000])
@pytest.mark.parametrize("room", [0, 1, 6, 7, 8, 23])
def test_the_target_is_met_to_the_step(kept: dict[str, Any], block: int, room: int) -> None:
    """room steps cost exactly the target, so they fit and not one more does."""
    probe = account(target_epsilon=1.0, **kept)
    target = max(probe.epsilon_after(STEP, room), 1e-9)
    spender = account(target_epsilon=target, block=block, **kept)
    assert spender.affordable(STEP, limit=10_000) == room
    assert spend(spender, STEP, room + 5) == room
    assert spender.epsilon_after(STEP, 0) <= target < spender.epsilon_after(STEP, 1)
    assert spender.affordable(STEP, limit=10_000) == 0
    with pytest.raises(BudgetExceeded):
        charged(spender, STEP)
    assert spender.counts() == ({STEP: room} if room else {})


def test_an_account_that_stops_afterwards_is_noticed() -> None:
    """The mutant looks at what is spent instead of what would be."""

    class Late(PrivacyAccount):
        def epsilon_after(self, charge: Charge, more: int) -> float:
            return super().epsilon_after(charge, max(0, more - 1))

    target = account().epsilon_after(STEP, 5)
    late = Late(ledger=Ledger(path=None, private_data="d", run="r", block=1), budget=Budget(target_epsilon=target))
    assert spend(late, STEP, 100) == 6
    assert late.epsilon() > target


def test_the_refusal_names_figures_and_ways_out() -> None:
    spender = account(target_epsilon=1.5)
    assert spend(spender, STEP, 5) == 1
    figures = r"target_epsilon=1\.5 \(record accounting, delta=1e-05\).*digits/train.*: 1\.21514; .* step: 1\.78"
    with pytest.raises(BudgetExceeded, match=f"{figures}.*noise_multiplier"):
        charged(spender, STEP)


def test_scope_of_figures_and_target(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    one_step = account().epsilon_after(STEP, 1)
    first = account(path=path, run="first", block=1)
    charged(first, STEP)
    whole = account(path=path, run="second", block=1, target_epsilon=one_step)
    alone = account(path=path, run="third", block=1, target_epsilon=one_step, scope="run")
    assert whole.epsilon() == one_step
    assert alone.epsilon() == 0
    with pytest.raises(BudgetExceeded, match="from digits/train by all runs in its ledger"):
        charged(whole, STEP)
    charged(alone, STEP)
    with pytest.raises(BudgetExceeded, match="by this run"):
        charged(alone, STEP)
    assert alone.queries() == 256
    assert alone.queries(scope="private_data") == 512
    assert alone.epsilon(scope="private_data") == compose({STEP.release: 2}, 1e-5).epsilon


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"delta": 0.0}, "delta must be in"),
        ({"target_epsilon": 0.0}, "target_epsilon must be above 0, or null for no limit, got 0.0"),
        ({"accounting": "both"}, "accounting must be record or published, got 'both'"),
        ({"scope": "teacher"}, "scope must be private_data or run, got 'teacher'"),
        ({"ledger": "None"}, "ledger must be a file, got 'None': leave it out"),
        ({"fully_adaptive": True}, "fully_adaptive needs a target_epsilon, .* got None, record and private_data"),
        ({"fully_adaptive": True, "target_epsilon": 1.0, "scope": "run"}, "got 1.0, record and run"),
    ],
)
def test_settings_without_meaning_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        account(**settings)
