"""What opens a fit's session, and what a fit says of the noise that it was planned with."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lightning_modules.private_fit import PrivateFit
from privacy import Budget
from privacy.identity import CheckpointError
from privacy.mechanisms import NoisyGradients, Shape
from privacy.session import PrivacySession
from privacy.statement import guarantee_of


def unopened(**settings: Any) -> PrivacySession:
    return PrivacySession(NoisyGradients(), Shape(4, 3), **settings)


class Fit(PrivateFit):
    def __init__(self, session: PrivacySession, **trainer: Any) -> None:
        super().__init__()
        self.session = session
        given = {"datamodule": None, "ckpt_path": None, "is_global_zero": False, "lr_scheduler_configs": (), **trainer}
        self._trainer: Any = SimpleNamespace(**given)

    def logged_names(self) -> set[str]:
        return set()


def opened(session: PrivacySession, **trainer: Any) -> PrivacySession:
    Fit(session, **trainer).open_session(private_data="faces/train", ledger=None, training=None, num_records=None)
    return session


@pytest.mark.parametrize("noise", [100.0, 50.0])
def test_noise_that_was_changed_is_said_wherever_a_run_is_resumed(
    noise: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From Python as well, where no command line compares settings."""
    monkeypatch.setattr("lightning_modules.private_fit.steps_of_run", lambda *_, **__: 10)
    session = opened(unopened())
    Fit(session).on_train_start()
    session.release(session.mechanism, torch.randn(4, 3))
    session.mechanism = NoisyGradients(noise_multiplier=noise)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        Fit(session).on_train_start()
    assert ["THE NOISE WAS CHANGED" in str(one.message) for one in said] == ([True] if noise == 50.0 else [])


@pytest.mark.parametrize(("judged_on", "known"), [("faces/train", True), ("digits/train", False)])
def test_delta_is_compared_with_the_number_of_the_teachers_own_records(judged_on: str, known: bool) -> None:
    data = SimpleNamespace(private_data=judged_on, num_records=100)
    session = opened(unopened(budget=Budget(delta=1e-3)), datamodule=data)
    statement = guarantee_of(session, artefacts=["student"])
    assert any("which was not given" in text for text in statement.assumptions) is not known


def test_a_run_whose_charges_a_class_of_ones_own_keeps_back_is_not_resumed() -> None:
    never_opened = unopened().state()  # of a fit that failed before
    for state in (opened(unopened()).state(), never_opened):
        resumed = unopened()
        resumed.load(state)
        assert opened(resumed, ckpt_path="last.ckpt").is_open
    with pytest.raises(CheckpointError, match="on_load_checkpoint of Fit must call that of its base class"):
        opened(unopened(), ckpt_path="last.ckpt")
