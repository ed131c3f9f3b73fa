"""A plain file of weights that names no private data: its ledger is found under any name of the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.runs import distil

from lightning_modules.networks import SmallCNN
from lightning_modules.teachers.config import TeacherConfig
from privacy import Budget, ledger_place
from privacy.guarantee import Guarantee
from privacy.mechanisms import NoisyGradients, Shape
from privacy.session import PrivacySession
from privacy.statement import guarantee_of

SHAPE: dict[str, Any] = {"num_classes": 10, "image_shape": (1, 8, 8)}


@pytest.fixture(autouse=True)
def weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRANSCRIPTION_LEDGERS", raising=False)
    torch.save(SmallCNN(**SHAPE).state_dict(), "weights.pt")


def used(path: str, **given: Any) -> tuple[Guarantee, tuple[str, ...]]:
    """One run that asks until its budget of all runs is used up."""
    teacher = TeacherConfig(path=path, network=SmallCNN, **given).load(**SHAPE)
    mechanism = NoisyGradients(release="per_sample_full", noise_multiplier=30.0)
    session = PrivacySession(mechanism, Shape(32, 10, "DPDFD"), budget=Budget(target_epsilon=3.0))
    session.open(private_data=teacher.private_data, ledger=teacher.ledger_place(), training=teacher.training)
    while session.affordable(limit=1):
        session.release(mechanism, torch.randn(32, 10))
    session.close()
    return guarantee_of(session, artefacts=["student"]), teacher.assumptions


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize(
    ("how", "before", "after"),  # and in which one folder for all ledgers
    [
        ("renamed", None, None),
        ("renamed", "ledgers", "ledgers"),
        ("named twice", None, None),
        ("named twice", None, "ledgers"),
        ("named twice", "once", None),
    ],
)
def test_charges_of_the_same_weights_count_under_any_name(
    how: str, before: str | None, after: str | None, broken: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def used_in(folder: str | None, path: str, **given: Any) -> Guarantee:
        with monkeypatch.context() as patch:
            if folder is not None:
                patch.setenv("TRANSCRIPTION_LEDGERS", str(tmp_path / folder))
            return used(path, **given)[0]

    if broken:  # known by the name alone, of the file or the data
        monkeypatch.setattr(ledger_place, "ledgers_of", lambda training, ledger: set())
    spent = used_in(before, "weights.pt")
    assert spent.queries > 0
    again: list[tuple[str, dict[str, str]]] = [("weights.pt", {"private_data": name}) for name in ("faces", "people")]
    if how == "renamed":
        Path("weights.pt").rename("model.pt")
        again = [("model.pt", {})]
    for path, given in again:
        found = used_in(after, path, **given)
        # Nothing is left of the target; without the check each name has it anew.
        assert found.queries_of_run == (spent.queries if broken else 0)
        assert (found.queries, found.epsilon_all_runs) == (spent.queries, spent.epsilon_all_runs)
    if how == "renamed" and after:
        Path("elsewhere").mkdir()
        Path("model.pt").rename("elsewhere/model.pt")
        assert used_in(after, "elsewhere/model.pt").queries_of_run == 0  # by its name, without the check as well


def test_the_page_says_what_such_a_ledger_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    (said,) = used("weights.pt")[1]
    assert said.startswith("UNNAMED DATA") and "before it was moved" in said
    (said,) = used("weights.pt", private_data="faces")[1]
    assert said.startswith("ONE FOLDER") and "TRANSCRIPTION_LEDGERS (one folder for all ledgers)" in said
    monkeypatch.setenv("TRANSCRIPTION_LEDGERS", "ledgers")
    assert used("weights.pt", private_data="faces")[1] == ()
    monkeypatch.delenv("TRANSCRIPTION_LEDGERS")
    # As it reaches the page of a run.
    model = {"teacher": "weights.pt", "teacher_network": "SmallCNN"}
    distil("run", model=model, mechanism={"noise_multiplier": 100.0}, steps=1)
    page = json.loads(Path("run/public/guarantee.json").read_text())["guarantee"]["assumptions"]
    assert sum("UNNAMED DATA" in text for text in page) == 1


def test_a_copy_in_another_type_and_without_counters_is_no_new_teacher() -> None:
    first, _ = used("weights.pt", private_data="faces")
    weights = torch.load("weights.pt", weights_only=True)
    assert any(name.endswith("num_batches_tracked") for name in weights)
    copy = {name: value.double() for name, value in weights.items() if not name.endswith("num_batches_tracked")}
    torch.save(copy, "copy.pt")
    again, _ = used("copy.pt", private_data="faces")
    assert again.queries == first.queries > 0
    torch.save({name: value + 1e-3 for name, value in copy.items()}, "other.pt")
    assert used("other.pt", private_data="faces")[0].training != first.training == again.training
