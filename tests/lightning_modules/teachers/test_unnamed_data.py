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
@pytest.mark.parametrize("place", ["beside it", "one folder for all"])
def test_a_file_that_was_renamed_has_no_new_budget(
    place: str, broken: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if place != "beside it":
        monkeypatch.setenv("TRANSCRIPTION_LEDGERS", str(tmp_path / "ledgers"))
    if broken:  # known by the file's name alone
        monkeypatch.setattr(ledger_place, "ledgers_of", lambda training, ledger: set())
    first, _ = used("weights.pt")
    spent = first.queries
    assert spent > 0
    Path("weights.pt").rename("model.pt")
    renamed, _ = used("model.pt")
    assert (renamed.epsilon_all_runs, renamed.queries) == (first.epsilon, spent)
    assert renamed.queries_of_run == (spent if broken else 0)
    if place != "beside it":
        Path("elsewhere").mkdir()
        Path("model.pt").rename("elsewhere/model.pt")
        moved, _ = used("elsewhere/model.pt")
        assert moved.queries_of_run == 0  # by its name, without the check as well


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


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("then", ["named twice", "one folder for all", "no longer one folder for all"])
def test_charges_of_the_same_weights_count_under_any_name(
    then: str, broken: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if broken:
        monkeypatch.setattr(ledger_place, "ledgers_of", lambda training, ledger: set())
    with monkeypatch.context() as patch:
        if then == "no longer one folder for all":
            patch.setenv("TRANSCRIPTION_LEDGERS", str(tmp_path / "once"))
        spent, _ = used("weights.pt")
    assert spent.queries > 0
    if then == "one folder for all":
        monkeypatch.setenv("TRANSCRIPTION_LEDGERS", str(tmp_path / "ledgers"))
    for name in ("faces", "people"):
        named, _ = used("weights.pt", private_data=name)
        # Nothing is left of the target; without the check each name has it anew.
        assert named.queries_of_run == (spent.queries if broken else 0)
        assert (named.queries, named.epsilon_all_runs) == (spent.queries, spent.epsilon_all_runs)


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
