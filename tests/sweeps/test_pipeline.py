"""Pipelines: command lines, what is skipped, files that make no sense, and a real one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.runs import QUIET, configuration

from lightning_modules.cli import main
from sweeps.runner.fit import RunnerError
from sweeps.runner.plan import Plan, Store
from sweeps.runner.spec import Spec

FITS: dict[str, Any] = {
    "teacher": {"config": "teacher.yaml"},
    "student": {"config": ["student.yaml"], "set": {"model.teacher.path": "{teacher}/checkpoints/last.ckpt"}},
    "other": {"config": "student.yaml", "set": {"model.gradient_targets.gamma": 2.0, "model.images.prior": None}},
}


@pytest.fixture(autouse=True)
def files() -> None:
    Path("teacher.yaml").write_text("a: 1")
    Path("student.yaml").write_text("a: 2")
    Path("pipe.yaml").write_text(yaml.safe_dump({"folder": "out", "fits": FITS}, sort_keys=False))


def test_command_lines() -> None:
    spec = Spec.read("pipe.yaml")
    plan = Plan(spec.pipeline(), Store(spec.folder))
    asked = {name: plan.command(name) for name in plan.tasks}
    assert list(asked) == ["teacher", "student", "other"]
    of_runner = ["--trainer.default_root_dir=out/teacher", "--trainer.enable_model_summary=false"]
    assert asked["teacher"] == ["fit", "--config", "teacher.yaml", *of_runner]
    assert asked["student"][-1] == "--model.teacher.path=out/teacher/checkpoints/last.ckpt"
    assert asked["other"][-2:] == [
        "--model.gradient_targets.gamma=2.0",
        '--config={"model": {"images": {"prior": null}}}',
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"fits": [FITS["teacher"]]}, "`fits` must be a mapping"),
        ({"fits": {"a": {}}}, r"needs \['config'\]"),
        ({"fits": {"student": FITS["student"]}}, r"refers to \['teacher'\]"),
        ([], "must be a mapping"),
    ],
)
def test_files_that_make_no_sense(content: Any, message: str) -> None:
    Path("pipe.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(RunnerError, match=message):
        Spec.read("pipe.yaml").pipeline()


def test_a_real_pipeline_from_another_folder(folder: Path) -> None:
    Path("student.yaml").write_text(json.dumps(configuration(steps=2, model={"images": "prior"})))
    small = {argument.split("=")[0][2:]: yaml.safe_load(argument.split("=")[1]) for argument in QUIET}
    quick = {"trainer.callbacks": None, "trainer.max_epochs": 1, **small}
    teacher = {"config": "sweeps/teacher_digits.yaml", "set": quick}
    fits = {"teacher": teacher, "student": FITS["student"]}
    pipe = {"fits": fits, "title": "two", "kind": "figure", "folder": "made"}
    Path("pipe.yaml").write_text(yaml.safe_dump(pipe, sort_keys=False))
    main(["pipeline", "pipe.yaml"])
    assert Path("made/teacher/result.json").is_file() and Path("made/figure.png").is_file()
    record = json.loads(Path("made/student/result.json").read_text())
    assert record["steps"] == 2 and "made/teacher/checkpoints/last.ckpt" in json.dumps(record["config"])
    before = Path("made/student/result.json").stat().st_mtime_ns
    main(["pipeline", "pipe.yaml"])
    assert Path("made/student/result.json").stat().st_mtime_ns == before
