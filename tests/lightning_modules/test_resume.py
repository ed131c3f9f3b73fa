"""Interrupted runs: the same end as without the interruption, and nothing that was spent is forgotten."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.runs import RESUME, checkpoint, distil, equal, interrupted, networks, result

from lightning_modules import DPDFD
from lightning_modules.cli.fit import TranscriptionCLI

STEPS, EPOCHS = 3, 2
# No noise and dropout in the student: what is left is all that a resumed run has to draw again.
QUIET_MODEL: dict[str, Any] = {
    **{"images": "both", "student": "DataLensClassifier"},
    **{"replay": {"capacity": 20}, "student_balance": 1.0},
}


def _quiet(folder: str, *arguments: str) -> TranscriptionCLI:
    mechanism = {"noise_multiplier": 0.0}
    return distil(folder, *arguments, model=QUIET_MODEL, mechanism=mechanism, steps=STEPS, epochs=EPOCHS)


@pytest.mark.parametrize(
    ("hook", "step"),
    [
        ("on_train_batch_end", 2),
        pytest.param("on_validation_epoch_end", 3, marks=pytest.mark.slow),
        pytest.param("on_train_epoch_end", 3, marks=pytest.mark.slow),
    ],
)
def test_a_resumed_run_ends_as_an_uninterrupted_one(folder: Path, hook: str, step: int) -> None:
    whole = networks(_quiet("whole"))
    interrupted(DPDFD, step, lambda: _quiet("run"), hook=hook)
    assert checkpoint()["distillation"]["steps_done"] == step
    resumed = _quiet("run", RESUME)
    assert resumed.model.steps_done == STEPS * EPOCHS
    assert equal(whole, networks(resumed))


def test_a_generator_that_begins_anew_does_so_in_a_resumed_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Resets come before steps 2 and 4; the run is cut short right before the first."""
    anew = "--model.images.reset_every=2"
    seen: list[torch.Tensor] = []
    reset = DPDFD.reset_generator

    def watched(self: DPDFD) -> None:
        reset(self)
        seen.append(torch.cat([value.flatten() for value in self.generator.parameters()]).clone())  # type: ignore[union-attr]
        assert not self.optimizer("generator").optimizer.state

    monkeypatch.setattr(DPDFD, "reset_generator", watched)
    whole = networks(_quiet("whole", anew))
    assert len(seen) == 2 and not torch.equal(*seen)
    interrupted(DPDFD, 2, lambda: _quiet("run", anew))
    assert equal(whole, networks(_quiet("run", anew, RESUME)))
    assert torch.equal(seen[0], seen[2]) and torch.equal(seen[1], seen[3])
    assert not equal(whole, networks(_quiet("never")))


def test_a_step_that_was_cut_short_is_done_again(folder: Path) -> None:
    def run(*arguments: str) -> TranscriptionCLI:
        return distil("run", *arguments, steps=STEPS, epochs=EPOCHS)

    interrupted(DPDFD, 2, run, hook="update_generator")
    resumed = run(RESUME).model
    assert resumed.steps_done == STEPS * EPOCHS
    assert sum(resumed.session.account.counts(scope="run").values()) == STEPS * EPOCHS + 1
    # Accuracy was measured after each epoch, that of the interruption too.
    assert [point["steps"] for point in result()["curve"]] == [STEPS, 2 * STEPS]


def said(act: Callable[[], object]) -> list[str]:
    """Warnings about files and callbacks."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        act()
    words = ("exists and is not empty", "dirpath has changed", "Be aware that when using")
    return [str(one.message) for one in found if any(word in str(one.message) for word in words)]


def test_no_log_of_an_earlier_fit_is_deleted(folder: Path) -> None:
    assert said(lambda: distil("run", epochs=1)) == []
    first = Path("run/metrics.csv").read_text(encoding="utf-8")
    assert said(lambda: distil("run", "--ckpt_path=last", epochs=2)) == said(lambda: distil("run", epochs=1)) == []
    assert Path("run/metrics_1.csv").read_text(encoding="utf-8") == first and Path("run/metrics_2.csv").is_file()
