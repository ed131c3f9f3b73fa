"""What attackers got, from records to tables and figure."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from experiments import leaks
from privacy.attacks import MEMBERSHIP
from sweeps.runner.documents import render_text

PIPELINE = """
folder: runs/tiny
fits:
  teacher: {config: sweeps/teacher_digits.yaml}
  ensemble: {config: sweeps/methods/ensemble_digits.yaml}
  student: {config: sweeps/dpdfd_digits.yaml, set: {model.teacher.path: "{teacher}/checkpoints/last.ckpt"}}
"""
SHADOWS = ["--shadows", "8"]
MEMBERS = ["--attacks", *MEMBERSHIP]


def attacked(role: str) -> dict[str, Any]:
    """As `attack` writes it."""
    audited = {"epsilon_lower": 1.25, "delta": 1e-5, "confidence": 0.998}
    reached = {"auc": 0.75, "tpr_at_1%": 0.125, "roc": {"fpr": [0.001, 1.0], "tpr": [0.1, 1.0]}, "audited": audited}
    rows = [
        {"model": role, "records": kind, "attack": name, **reached}
        for kind in ("record", "mislabelled", "noise")
        for name in ("loss", "label-only", "rmia", "lira")
    ]
    rows.append({**rows[0], "model": "control", "auc": 0.57})
    drawn = [
        {"model": model, "attack": name, "accuracy": 0.5, "nearer": 0.25, "inception_score": 2.5}
        for model in ("control", "this run")
        for name in ("gradient", "data-free", "background", "generative")
    ]
    facts = {"commits": ["abc"], "shadows": 8, "epsilon": "inf", "published": 1.0, "judge": 0.9}
    return {**facts, "recipe": {"teacher": {}, role: {}}, "leaks": rows, "inversions": drawn}


def test_fits_are_attacked_and_tables_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("tiny.yaml").write_text(PIPELINE)
    lines: list[list[str]] = []

    def command(line: list[str]) -> None:
        lines.append(line)
        if line[0] == "attack":
            if line[1].endswith("ensemble"):
                raise SystemExit("error: its student is attacked")
            folder = Path(line[1], "private", "attack")
            folder.mkdir(parents=True)
            (folder / "attack.json").write_text(json.dumps(attacked(folder.parents[1].name)))
            (folder / "attack.png").write_bytes(b"picture")
            (folder.parents[1] / "result.json").write_text(json.dumps({"accuracy": 0.875, "dataset": "Digits"}))
            raise SystemExit("error: the claim fails")

    monkeypatch.setattr(leaks, "command", command)
    leaks.main(["tiny.yaml", *SHADOWS])
    assert [line[:2] for line in lines[1:]] == [
        ["attack", f"runs/tiny/{name}"] for name in ("teacher", "ensemble", "student")
    ]
    assert [line[2:] for line in lines[1:]] == [SHADOWS, [*MEMBERS, *SHADOWS], [*MEMBERS, *SHADOWS]]
    assert Path("results/tiny.png").is_file() and Path("results/tiny_teacher.png").read_bytes() == b"picture"
    page = "<!-- leaks: tiny -->\n<!-- end leaks -->\n<!-- inversions: tiny -->\n<!-- end inversions -->\n"
    text = render_text(page, Path("results"))
    assert "| ensemble |" not in text
    row = "| Digits | student | 87.5 % | 0.750 † | 0.750 | 0.750 | 0.750 | 12.5 % | 1.25, 1.25, 1.25 | inf | 1 |"
    assert (
        row in text
        and "† Without power here" in text
        and text.count("| 50 %, 25 %, 2.5 ") == 12
        and "; commit abc." in text
    )
    content = json.loads(Path("results/tiny.json").read_text())
    changed = copy.deepcopy(content)
    changed["runs"]["student"]["leaks"] = changed["runs"]["student"]["leaks"][:4]  # without canaries
    Path("results/tiny.json").write_text(json.dumps(changed))
    assert row.replace("1.25, 1.25, 1.25", "1.25, –, –").replace(" †", "") in render_text(page, Path("results"))
    with pytest.raises(FileNotFoundError, match=r"other\.json"):
        render_text(page.replace("tiny", "other"), Path("results"))
