"""A target is kept: stopped before it is passed, refused where nothing fits, enforced without the callback too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from support.runs import BATCH_SIZE, RESUME, checkpoint, distil, guarantee, result

from lightning_modules.callbacks import PrivacyCallback
from privacy import Budget
from privacy.account import BudgetExceeded
from privacy.mechanisms import NoisyGradients, Shape
from privacy.session import PrivacySession

PUBLISHED: dict[str, Any] = {"accounting": "published", "scope": "run"}


def _target_for(steps: int, *, accounting: str) -> float:
    """A target between what `steps` and `steps + 1` calls cost."""
    budget = Budget(accounting=accounting)  # type: ignore[arg-type]
    session = PrivacySession(NoisyGradients(), Shape(BATCH_SIZE, 10, "DPDFD"), budget=budget)
    session.open(private_data="test")
    return sum(session.account.epsilon_after(session.cost, calls) for calls in (steps, steps + 1)) / 2


@pytest.mark.parametrize("accounting", [pytest.param("published", marks=pytest.mark.slow), "record"])
def test_training_stops_before_the_step_that_would_overspend(folder: Path, accounting: str) -> None:
    target = _target_for(5, accounting=accounting)
    cli = distil(mechanism={"target_epsilon": target, "accounting": accounting, "ledger_block": 2}, steps=4, epochs=3)
    account = cli.model.session.account
    assert cli.model.steps_done == 5
    assert sum(account.counts().values()) == 5
    epsilon = account.epsilon() if accounting == "record" else account.epsilon_published()
    assert epsilon <= target < account.epsilon_after(cli.model.session.cost, 1)
    # The stop came in the middle of an epoch, and the state of that moment was judged and saved.
    record = result()
    assert record["steps"] == 5 and record["curve"][-1]["steps"] == 5
    assert checkpoint()["distillation"]["steps_done"] == 5
    assert not cli.model.session.plan.changed and cli.model.session.plan.calls == 5


def test_a_run_that_had_used_its_target_up_ends_quietly_when_resumed(folder: Path) -> None:
    settings: dict[str, Any] = {
        "mechanism": {**PUBLISHED, "target_epsilon": _target_for(5, accounting="published")},
        "steps": 4,
        "epochs": 3,
    }
    distil(**settings)
    before = guarantee()
    again = distil("run", RESUME, **settings)
    assert again.model.steps_done == 5
    assert yaml.safe_load(Path("run/config.yaml").read_text())["ckpt_path"] is None
    assert guarantee() == before


def test_a_class_that_forgets_to_fix_its_plan_is_refused_before_the_first_release(folder: Path) -> None:
    careless = "tests.support.variants.CarelessDPDFD"
    with pytest.raises(RuntimeError, match="on_train_start of CarelessDPDFD must call that of its base class"):
        distil(class_path=careless)
    assert "reserve" not in Path("ledgers/Digits-train.jsonl").read_text()


def test_the_session_refuses_where_the_callback_is_gone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PrivacyCallback, "on_train_batch_end", lambda *_, **__: None)
    target = _target_for(5, accounting="published")
    with pytest.raises(BudgetExceeded, match="published accounting"):
        distil(mechanism={**PUBLISHED, "target_epsilon": target}, steps=4, epochs=3)
    assert checkpoint()["distillation"]["steps_done"] == 5
    # What was released before the error stays released, and is stated.
    assert guarantee()["queries"] == 5 * BATCH_SIZE
