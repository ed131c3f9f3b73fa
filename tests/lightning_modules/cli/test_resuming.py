"""Which differences from the saved configuration a resumed run may have: applied or refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lightning_modules.cli.resuming import differences, may_change, refuse
from privacy.identity import CheckpointError

BEFORE: dict[str, Any] = {
    "image_shape": [1, 8, 8],
    "teacher": "teachers/a.ckpt",
    "gradient_targets": {"gamma": None},
    "annotator": {"class_path": "privacy.GradientAnnotator", "init_args": {"noise_multiplier": 100.0, "top_k": None}},
    "images": {
        "source": "prior",
        "prior": {
            "class_path": "a.MixturePrior",
            "init_args": {"priors": [{"class_path": "a.b.StrokePrior", "init_args": {"thickness": [1, 2]}}]},
        },
    },
}


def compare(now: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    return differences({"model": BEFORE}, {"model": {**BEFORE, **now}})


def test_what_is_the_same_is_said_in_other_words() -> None:
    moved = {"class_path": "elsewhere.StrokePrior", "init_args": {"thickness": (1.0, 2.0)}}
    prior = {"class_path": "c.MixturePrior", "init_args": {"priors": [moved]}}
    assert compare({"images": {"source": "prior", "prior": prior}, "image_shape": (1, 8, 8)}) == {}


def test_budgets_and_noise_are_applied() -> None:
    louder = {"class_path": "GradientAnnotator", "init_args": {"noise_multiplier": 5.0, "top_k": None}}
    found = compare({"annotator": louder, "teacher": "elsewhere/a.ckpt"})
    assert found == {
        "model.annotator.noise_multiplier": (100.0, 5.0),
        "model.teacher": ("teachers/a.ckpt", "elsewhere/a.ckpt"),
    }
    assert all(may_change(name) for name in found)


@pytest.mark.parametrize(
    ("now", "message"),
    [
        ({"images": {"source": "both"}}, r"model\.images\.source was 'prior' and is 'both'"),
        ({"gradient_targets": {"gamma": 2.0}}, r"model\.gradient_targets\.gamma was None and is 2\.0"),
        ({"annotator": {"class_path": "LabelAnnotator", "init_args": {}}}, r"model\.annotator was 'GradientAnnotator'"),
        (
            {"images": {"prior": {"class_path": "MixturePrior", "init_args": {"priors": []}}}},
            r"model\.images\.prior\.priors was",
        ),
    ],
)
def test_everything_else_is_refused_by_name(now: dict[str, Any], message: str) -> None:
    found = compare(now)
    assert not any(may_change(name) for name in found)
    with pytest.raises(CheckpointError, match=message):
        refuse(found, Path("last.ckpt"))
