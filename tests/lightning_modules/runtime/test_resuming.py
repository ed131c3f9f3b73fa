"""Which differences from a checkpoint's settings a resumed run may have: applied by name, refused by name, or none."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lightning_modules.runtime.resuming import hyperparameters, read_checkpoint, refuse_differences
from lightning_modules.teachers.own_training import CheckpointError

BEFORE: dict[str, Any] = {
    "image_shape": (1, 8, 8),
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


def compare(now: dict[str, Any], **classes: str) -> list[str]:
    names = {"class_before": "lightning_modules.DPDFD", "class_now": "DPDFD", **classes}
    return refuse_differences(BEFORE, {**BEFORE, **now}, checkpoint="last.ckpt", **names)


def test_what_is_the_same_is_said_in_other_words() -> None:
    moved = {"class_path": "elsewhere.StrokePrior", "init_args": {"thickness": (1.0, 2.0)}}
    prior = {"class_path": "c.MixturePrior", "init_args": {"priors": [moved]}}
    images = {"source": "prior", "prior": prior}
    assert compare({"images": images, "image_shape": [1, 8, 8], "teacher": "elsewhere/a.ckpt", "added_since": 3}) == []


def test_budgets_and_noise_are_applied() -> None:
    louder = {"class_path": "GradientAnnotator", "init_args": {"noise_multiplier": 5.0, "top_k": None}}
    assert compare({"annotator": louder}) == ["annotator.noise_multiplier"]


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
    with pytest.raises(CheckpointError, match=message):
        compare(now)


def test_another_class_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"is of lightning_modules\.DPDFD, and the configuration is for DPSD"):
        compare({}, class_now="DPSD")


def test_a_file_that_is_no_checkpoint_is_named(tmp_path: Any) -> None:
    (tmp_path / "text.ckpt").write_text("hello")
    with pytest.raises(CheckpointError, match=r"ckpt_path .*text\.ckpt cannot be read"):
        read_checkpoint(tmp_path / "text.ckpt", command="fit")
    torch.save({"a": torch.zeros(1)}, tmp_path / "weights.ckpt")
    assert hyperparameters(torch.load(tmp_path / "weights.ckpt", weights_only=True)) == {}
    with pytest.raises(CheckpointError, match=r"weights\.ckpt is no checkpoint that test can go by: it holds no loops"):
        read_checkpoint(tmp_path / "weights.ckpt", command="test")
