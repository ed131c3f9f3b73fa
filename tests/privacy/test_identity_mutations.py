"""Ways in which an ε loses its training: each check passes as the code is, and fails for the mutant."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import privacy.journal
import privacy.ledger
from privacy import Ledger, LedgerError, PrivacyAccount, Release, SampledGaussian, Training, compose
from privacy.identity import new_training_id
from privacy.mechanisms import RawResponses, Shape
from privacy.plan import Charge
from privacy.session import PrivacySession

DATA = "digits/train"
STEPS: dict[Release, int] = {SampledGaussian(1.0, 0.05): 100}
DP, PRIVATE = new_training_id(), new_training_id()


def asked(path: Path, training: Training) -> PrivacySession:
    """One batch of a teacher's answers without noise."""
    made = PrivacySession(RawResponses(), Shape(2, 3))
    made.open(private_data=DATA, ledger=path, training=training)
    made.release(made.mechanism, torch.zeros(2, 3))
    made.close()
    return made


def of_dp(path: Path) -> PrivacySession:
    return asked(path, Training(DP, releases=STEPS))


def keeps_trainings_apart(path: Path) -> bool:
    asked(path, Training(PRIVATE))
    return of_dp(path).account.epsilon() == float("inf")


def composes_two_trainings(path: Path) -> bool:
    asked(path, Training(new_training_id(), releases=STEPS))
    twice = {release: 2 * count for release, count in STEPS.items()}
    return of_dp(path).account.epsilon() == compose(twice, 1e-5).epsilon


def reads_trainings_back(path: Path) -> bool:
    of_dp(path)
    book = Ledger(path=path, private_data=DATA, run="reader")
    return {charge.training for charge in book.counts()} == {DP} and dict(book.releases_of(DP)) == STEPS


def never_forgets_a_plan(path: Path) -> bool:
    book = Ledger(path=path, private_data=DATA, run="reader")
    book.register(Training(DP, releases={SampledGaussian(1.0, 0.05): 100}))
    book.register(Training(DP, releases={SampledGaussian(1.0, 0.05): 10}))
    return book.releases_of(DP) == Counter(STEPS)


def totals_everything(path: Path) -> bool:
    book = Ledger(path=path, private_data=DATA, run="reader")
    book.register(Training(DP, releases=STEPS))
    account = PrivacyAccount(ledger=book)
    before = Ledger(path=None, private_data=DATA, run="reader")  # one that knows of its first steps alone
    before.register(Training(DP, releases={SampledGaussian(1.0, 0.05): 10}))
    if PrivacyAccount(ledger=before).epsilon_of_ledger(book) != account.epsilon_of_ledger():
        return False
    return account.epsilon_of_ledger() == compose(STEPS, 1e-5).epsilon > 0 == account.epsilon()


def refuses_an_edited_line(path: Path) -> bool:
    of_dp(path)
    path.write_bytes(path.read_bytes().replace(b'"count":100', b'"count":101', 1))
    try:
        Ledger(path=path, private_data=DATA, run="reader")
    except LedgerError:
        return True
    return False


def refuses_a_shorter_ledger(path: Path) -> bool:
    state = of_dp(path).state()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))
    made = PrivacySession(RawResponses(), Shape(2, 3))
    made.load(state)
    try:
        made.open(private_data=DATA, ledger=path, training=Training(DP, releases=STEPS))
    except LedgerError:
        return True
    return False


def _one_for_all(self: Ledger, training: str | None) -> Counter[Release]:
    bounds = [RELEASES_OF(self, one) for one in self._state.trainings]
    return next((releases for releases in bounds if releases), Counter())


def _anonymous(values: Any) -> Charge:
    return replace(FROM_DICT(values), training=None)


UNCHECKED = SimpleNamespace(sha256=lambda line: SimpleNamespace(hexdigest=lambda: "0" * 64))
FROM_DICT = Charge.from_dict
REGISTER, RELEASES_OF = Ledger.register, Ledger.releases_of


def _anew(self: Ledger, training: Training) -> None:
    self._state.totals.pop(training.id, None)
    REGISTER(self, training)


MUTANTS: dict[str, tuple[Callable[[Path], bool], list[tuple[Any, str, Any]]]] = {
    "a bound for every training": (keeps_trainings_apart, [(Ledger, "releases_of", _one_for_all)]),
    "two trainings as one": (
        composes_two_trainings,
        [(PrivacyAccount, "covering", lambda self, counts: (self.ledger.releases_of(DP), {DP}))],
    ),
    "charges that name no training": (
        reads_trainings_back,
        [(privacy.ledger.Charge, "from_dict", staticmethod(_anonymous))],
    ),
    "a plan that shrinks": (never_forgets_a_plan, [(Ledger, "register", _anew)]),
    "a total without trainings": (totals_everything, [(Ledger, "releases_by_training", lambda self: {})]),
    "a chain that nobody checks": (refuses_an_edited_line, [(privacy.journal, "hashlib", UNCHECKED)]),
    "a head that nobody checks": (
        refuses_a_shorter_ledger,
        [(Ledger, "verify_head", lambda self, head, *, whose: True)],
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check, changes = MUTANTS[name]
    assert check(tmp_path / "as it is" / "ledger.jsonl")
    for owner, attribute, mutant in changes:
        monkeypatch.setattr(owner, attribute, mutant)
    with contextlib.suppress(LedgerError, ValueError):  # that it is told on writing or reading will do as well
        assert not check(tmp_path / "mutant" / "ledger.jsonl")
