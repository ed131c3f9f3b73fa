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


def test_what_is_the_same_is_said_in_other_words() -> None:
    moved = {"class_path": "elsewhere.StrokePrior", "init_args": {"thickness": (1.0, 2.0)}}
    prior = {"class_path": "c.MixturePrior", "init_args": {"priors": [moved]}}
    now = {**BEFORE, "images": {"source": "prior", "prior": prior}, "image_shape": (1, 8, 8)}
    assert differences({"model": BEFORE}, {"model": now}) == {}


def test_another_class_is_refused_by_its_name() -> None:
    assert not may_change("model.annotator.epsilon")  # labels that are kept are read by it
    found = differences({"model": BEFORE}, {"model": {**BEFORE, "annotator": {"class_path": "b.LabelAnnotator"}}})
    with pytest.raises(CheckpointError, match=r"model\.annotator was 'GradientAnnotator' and is 'LabelAnnotator'"):
        refuse(found, Path("last.ckpt"))
