"""Every image that a teacher is shown during a fit is charged for, and a method that shows it another is noticed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.runs import configuration, fit, watched

from lightning_modules.callbacks.record import ResultRecord
from lightning_modules.teachers.private_teacher import PrivateTeacher


@pytest.fixture
def shown(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Images that the teacher is shown, call by call, but for the research record's own look, which is marked as
    one."""
    monkeypatch.setattr(ResultRecord, "on_fit_end", lambda *_: None)
    return watched(monkeypatch, PrivateTeacher, "logits")


def uncharged(shown: list[int], **settings: Any) -> int:
    cli = fit(configuration(epochs=2, **settings))
    return sum(shown) - cli.model.annotator.account.queries()


@pytest.mark.parametrize(
    "images", [*(pytest.param(one, marks=pytest.mark.slow) for one in ("generator", "prior")), "both"]
)
def test_every_look_is_charged(shown: list[int], images: str) -> None:
    assert uncharged(shown, model={"images": images}) == 0
    assert sum(shown) > 0


def test_a_look_that_is_not_charged_is_noticed(shown: list[int]) -> None:
    assert uncharged(shown, class_path="support.variants.CuriousDPDFD") > 0
