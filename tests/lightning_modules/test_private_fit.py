"""What opens a fit's session, and what a fit says of the noise that it was planned with."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lightning_modules.private_fit import open_session, warn_of_changed_noise
from privacy import Budget
from privacy.identity import CheckpointError
from privacy.mechanisms import NoisyGradients, Shape
from privacy.processes import ALONE
from privacy.session import PrivacySession
from privacy.statement import guarantee_of


def unopened(**settings: Any) -> PrivacySession:
    return PrivacySession(NoisyGradients(), Shape(4, 3), **settings)


def opened(session: PrivacySession, *, data: Any = None, ckpt_path: str | None = None) -> PrivacySession:
    trainer: Any = SimpleNamespace(datamodule=data, ckpt_path=ckpt_path, lightning_module=session, is_global_zero=False)
    facts: dict[str, Any] = {"private_data": "faces/train", "ledger": None, "training": None, "num_records": None}
    open_session(session, trainer, **facts, processes=ALONE)
    return session


@pytest.mark.parametrize("noise", [100.0, 50.0])
def test_noise_that_was_changed_is_said_wherever_a_run_is_resumed(noise: float) -> None:
    """From Python as well, where no command line compares settings."""
    session = opened(unopened())
    session.fix_plan(lambda: 10)
    session.release(session.mechanism, torch.randn(4, 3))
    session.mechanism = NoisyGradients(noise_multiplier=noise)
    session.fix_plan(lambda: 9)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        warn_of_changed_noise(session)
    assert ["THE NOISE WAS CHANGED" in str(one.message) for one in said] == ([True] if noise == 50.0 else [])


@pytest.mark.parametrize(("judged_on", "known"), [("faces/train", True), ("digits/train", False)])
def test_delta_is_compared_with_the_number_of_the_teachers_own_records(judged_on: str, known: bool) -> None:
    data = SimpleNamespace(private_data=judged_on, num_records=100)
    session = opened(unopened(budget=Budget(delta=1e-3)), data=data)
    statement = guarantee_of(session, artefacts=["student"])
    assert any("which was not given" in text for text in statement.assumptions) is not known


def test_a_run_whose_charges_a_class_of_ones_own_keeps_back_is_not_resumed() -> None:
    never_opened = unopened().state()  # of a fit that failed before
    for state in (opened(unopened()).state(), never_opened):
        resumed = unopened()
        resumed.load(state)
        assert opened(resumed, ckpt_path="last.ckpt").is_open
    with pytest.raises(CheckpointError, match="on_load_checkpoint of PrivacySession must call that of its base class"):
        opened(unopened(), ckpt_path="last.ckpt")
