"""Identity of one training: what goes on from its last state is the same, whatever else does is another."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lightning_modules.teachers.own_training import OwnTraining
from privacy import Ledger, LedgerError, Release, SampledGaussian

STEPS: dict[Release, int] = {SampledGaussian(1.0, 0.1): 6}
MODULE: Any = SimpleNamespace(
    trainer=SimpleNamespace(datamodule=SimpleNamespace(private_data="digits/train", num_records=10))
)


def begun(checkpoint: dict[str, Any] | None = None) -> OwnTraining:
    """A fit before its first step."""
    made = OwnTraining("DPSGDTeacher")
    if checkpoint is not None:
        made.load(checkpoint)
    made.begin(MODULE)
    made.branch()
    made.register(STEPS)
    return made


def saved(training: OwnTraining, progress: int) -> dict[str, Any]:
    checkpoint: dict[str, Any] = {}
    training.save(checkpoint, trainer=MODULE.trainer, releases=STEPS, progress=progress)
    return checkpoint


def stepped(training: OwnTraining) -> OwnTraining:
    training.renew_token()
    return training


@pytest.mark.parametrize("broken", [False, True])
def test_the_last_state_is_gone_on_with_and_an_earlier_one_is_a_branch(
    monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    if broken:  # nobody asks the ledger which state was saved last, neither before a fit nor when it writes
        ask = OwnTraining.branch

        def unasked(self: OwnTraining) -> None:
            monkeypatch.setattr(Ledger, "saved", lambda ledger, training: self._token)
            ask(self)

        monkeypatch.setattr(OwnTraining, "branch", unasked)
        monkeypatch.setattr(Ledger, "note_saved", lambda self, training, token, *, after: None)
    first = stepped(begun())
    early, last = saved(first, 1), saved(first, 2)
    assert saved(first, 2)["training"]["state"] == last["training"]["state"]  # the same state, saved twice
    again = stepped(begun(last))
    branch = stepped(begun(early))
    late = stepped(begun(last))  # somebody has gone on from it meanwhile
    assert first.id == again.id
    assert len({first.id, branch.id, late.id}) == (1 if broken else 3)


@pytest.mark.parametrize("broken", [False, True])
def test_two_fits_that_go_on_at_the_same_time_are_not_one(monkeypatch: pytest.MonkeyPatch, broken: bool) -> None:
    last = saved(stepped(begun()), 1)
    if broken:  # the mutant does not look again when it writes
        monkeypatch.setattr(Ledger, "note_saved", lambda self, training, token, *, after: None)
    one, other = begun(last), begun(last)
    assert one.id == other.id
    stepped(one)
    said = "another fit has gone on from the same checkpoint"
    with nullcontext() if broken else pytest.raises(LedgerError, match=said):
        stepped(other)
    assert broken or stepped(begun(last)).id != one.id


def test_another_ledger_makes_one_branch_and_not_one_at_each_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = saved(stepped(begun()), 1)
    Path(last["training"]["ledger"]).rename(tmp_path / "taken away.jsonl")
    monkeypatch.setenv("TRANSCRIPTION_LEDGERS", str(tmp_path / "others"))
    there = stepped(begun(last))
    assert there.ledger_was_replaced and there.id != last["training"]["id"]
    again = stepped(begun(saved(there, 2)))
    assert again.id == there.id and again.ledger_was_replaced


def test_a_file_names_the_data_of_its_training_and_not_what_it_was_tested_on_since() -> None:
    own, other = ({"data": name} for name in ("digits", "others"))
    data = SimpleNamespace(private_data="digits/train", num_records=10, partition=own)
    fitted = OwnTraining("Teacher")
    fitted.begin(SimpleNamespace(trainer=SimpleNamespace(datamodule=data)))  # type: ignore[arg-type]
    tested = SimpleNamespace(datamodule=SimpleNamespace(private_data="others/train", num_records=99, partition=other))
    for _ in range(2):  # as fitted, and as loaded
        file: dict[str, Any] = {}
        fitted.save(file, trainer=tested)  # type: ignore[arg-type]
        named = file["private_data"], file["num_records"], file["training"]["partition"]
        assert named == ("digits/train", 10, own)
        fitted = OwnTraining("Teacher")
        fitted.load(file)
    # Control: what was neither fitted nor loaded has only the trainer's data.
    OwnTraining("Teacher").save(file, trainer=tested)  # type: ignore[arg-type]
    assert (file["private_data"], file["num_records"]) == ("others/train", 99)
