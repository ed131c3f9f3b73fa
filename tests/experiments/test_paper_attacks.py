"""The papers' figures of attacks, from a pipeline's students; and that features which differ are told apart."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest
import torch
from torch import nn

from experiments import paper_attacks
from sweeps.attacking import attack
from sweeps.runner.documents import render_text

PIPELINE = """
folder: runs/tiny
fits:
  teacher:
    config: sweeps/teacher_digits.yaml
    set: &quick {trainer.max_epochs: 1, trainer.limit_train_batches: 1, trainer.limit_val_batches: 0}
  dpdfd_1:
    config: [sweeps/dpdfd_digits.yaml, sweeps/methods/generated_images.yaml]
    set: {<<: *quick, model.teacher.path: "{teacher}/checkpoints/last.ckpt"}
"""


@pytest.mark.slow
def test_students_are_inverted_and_their_images_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attack, "_BACKGROUND", 60)
    monkeypatch.setattr(paper_attacks, "_POINTS", 40)
    for name, short in (("background", {}), ("generative", {"search": 3}), ("data_free", {}), ("gradient", {})):
        quick = functools.partial(getattr(attack.inversion, f"{name}_inversion"), steps=3, **short)
        monkeypatch.setattr(attack.inversion, f"{name}_inversion", quick)
    Path("tiny.yaml").write_text(PIPELINE)
    paper_attacks.main(["tiny.yaml"])
    assert {path.name for path in Path("results").iterdir()} == {"tiny.json", "tiny.png", "tiny_synthetic.png"}
    runs = json.loads(Path("results/tiny.json").read_text())["runs"]
    assert runs["teacher"]["epsilon_record"] == "inf" and 0 < runs["dpdfd_1"]["epsilon_published"] < 1
    teacher, student = (run["inversions"] for run in runs.values())
    assert teacher[:4] == student[:4] and teacher[4:] != student[4:]  # one control
    text = render_text("<!-- inversions: tiny -->\n<!-- end inversions -->\n", Path("results"))
    assert text.count("| Digits | ") == 3 and "Digits: pipeline `tiny.yaml`; " in text


@pytest.mark.parametrize(("shift", "alike"), [(0.0, True), (3.0, False)])
def test_features_of_another_distribution_are_told_apart(shift: float, alike: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    real, images = torch.randn(2, 100, 1, 2, 2, generator=draw)
    student = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    student.synthetic_grid = lambda count: images[:count] + shift
    drawn = paper_attacks.synthetic_figure({"some": student}, real)
    told = int(drawn.axes[1].get_title().split()[-1].rstrip("%"))
    assert 35 < told < 65 if alike else told > 90
