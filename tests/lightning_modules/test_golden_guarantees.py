"""What a guarantee says, of each method, kind of teacher and history of its run; see also `test_every_setting.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.dp_teachers import teacher_by_dp_sgd
from support.golden_guarantees import require_golden
from support.runs import configuration, fit, interrupted, watched

import lightning_modules
from lightning_modules import DPDFD
from lightning_modules.teachers.private_teacher import PrivateTeacher

NOISY = {"class_path": "NoisyGradients", "init_args": {"noise_multiplier": 50.0, "release": "per_sample_full"}}
LABELS = {"class_path": "NoisyLabels", "init_args": {"epsilon": 1.0}}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "DPDFD": ("DPDFD", {"mechanism": NOISY}),
    "DPSD": ("DPSD", {"mechanism": NOISY}),
    "DPSD_label": ("DPSD", {"mechanism": LABELS}),
    "LabelDP": ("LabelDP", {"mechanism": LABELS, "images": "prior"}),
    "Distillation": ("Distillation", {}),
}


def fitted(method: str, teacher: str, folder: str, *arguments: str) -> Any:
    class_path, settings = METHODS[method]
    model = {**settings, "teacher": teacher}
    return fit(configuration(folder, class_path=class_path, model=model, epochs=2), *arguments).model


@pytest.mark.parametrize("teacher", ["plain", "dp_sgd"])
@pytest.mark.parametrize("method", METHODS)
def test_a_guarantee_is_what_it_was(method: str, teacher: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a first run, of a second on the same ledger, and of one that was interrupted and resumed."""
    path = "teachers/digits.ckpt"
    if teacher == "dp_sgd":
        require_golden("DPSGDTeacher", teacher_by_dp_sgd("dp", noise_multiplier=1.0, delta=1e-4).guarantee())
        path = "dp/checkpoints/last.ckpt"
    asked = watched(monkeypatch, PrivateTeacher, "logits")
    first = fitted(method, path, "first").guarantee()
    assert sum(asked) == first.queries_of_run > 0  # the teacher is asked what is charged, and no more
    require_golden(f"{method}_{teacher}_first", first)
    require_golden(f"{method}_{teacher}_second", fitted(method, path, "second").guarantee())
    kind = getattr(lightning_modules, METHODS[method][0])
    interrupted(kind, 2, lambda: fitted(method, path, "resumed"))
    require_golden(f"{method}_{teacher}_resumed", fitted(method, path, "resumed", "--ckpt_path=last").guarantee())


def test_a_query_that_is_not_charged_is_noticed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    update = DPDFD.update_generator

    def asking(self: DPDFD, *arguments: Any, **settings: Any) -> None:
        update(self, *arguments, **settings)
        self.teacher.logits(torch.zeros(2, *self.image_shape))

    monkeypatch.setattr(DPDFD, "update_generator", asking)
    asked = watched(monkeypatch, PrivateTeacher, "logits")
    said = fitted("DPDFD", "teachers/digits.ckpt", "first").guarantee()
    assert sum(asked) > said.queries_of_run > 0


def test_a_guarantee_that_is_another_one_is_noticed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOLDEN", raising=False)
    name, made = "DPDFD_plain_first", fitted("DPDFD", "teachers/digits.ckpt", "first", "--seed_everything=4")
    require_golden(name, made.guarantee())  # whatever was drawn
    louder = fitted("DPDFD", "teachers/digits.ckpt", "louder", "--model.mechanism.noise_multiplier=49.999999")
    with pytest.raises(AssertionError):
        require_golden(name, louder.guarantee())
