"""Pipelines: what is done is skipped, what was interrupted goes on, what changed runs again."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.runs import QUIET, configuration

from lightning_modules.cli import main
from sweeps.runner.pipeline import Pipeline, PipelineError

FITS: list[dict[str, Any]] = [
    {"name": "teacher", "config": "teacher.yaml"},
    {"name": "student", "config": ["student.yaml"], "set": {"model.teacher": "{teacher}/checkpoints/last.ckpt"}},
    {
        "name": "other",
        "config": "student.yaml",
        "set": {"model.gradient_targets.gamma": 2.0, "model.images.prior": None},
    },
]


class Fits:
    """Stands in for the command line: writes what a fit would, and remembers what it was asked for."""

    def __init__(self) -> None:
        self.asked: dict[str, list[str]] = {}
        self.fail_in: str | None = None

    def __call__(self, arguments: list[str]) -> None:
        folder = Path(next(a for a in arguments if a.startswith("--trainer.default_root_dir=")).split("=", 1)[1])
        self.asked[folder.name] = arguments
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        (folder / "checkpoints" / "last.ckpt").write_text("half" if self.fail_in == folder.name else "whole")
        if self.fail_in == folder.name:
            raise KeyboardInterrupt


@pytest.fixture
def fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fits:
    monkeypatch.chdir(tmp_path)
    Path("teacher.yaml").write_text("a: 1")
    Path("student.yaml").write_text("a: 2")
    Path("pipe.yaml").write_text(yaml.safe_dump({"folder": "out", "fits": FITS}))
    return Fits()


def run(fits: Fits, **options: Any) -> dict[str, list[str]]:
    fits.asked = {}
    Pipeline.read("pipe.yaml").run(fits, **options)
    return fits.asked


def test_command_lines(fits: Fits) -> None:
    asked = run(fits)
    assert asked["teacher"] == ["fit", "--config", "teacher.yaml", "--trainer.default_root_dir=out/teacher"]
    assert asked["student"][-1] == "--model.teacher=out/teacher/checkpoints/last.ckpt"
    assert asked["other"][-2:] == ["--model.gradient_targets.gamma=2.0", "--model.images.prior=null"]


def test_what_is_done_is_skipped_unless_forced(fits: Fits) -> None:
    assert list(run(fits)) == ["teacher", "student", "other"]
    assert run(fits) == {}
    assert list(run(fits, force=True)) == ["teacher", "student", "other"]


def test_an_interrupted_fit_goes_on_from_its_checkpoint(fits: Fits) -> None:
    fits.fail_in = "student"
    with pytest.raises(KeyboardInterrupt):
        run(fits)
    fits.fail_in = None
    asked = run(fits)
    assert list(asked) == ["student", "other"]
    assert asked["student"][-1] == "--ckpt_path=out/student/checkpoints/last.ckpt"


def test_a_changed_configuration_runs_again_from_the_start(fits: Fits) -> None:
    run(fits)
    Path("student.yaml").write_text("a: 3")
    asked = run(fits)
    assert list(asked) == ["student", "other"]
    assert not any(argument.startswith("--ckpt_path") for arguments in asked.values() for argument in arguments)


def test_the_checkpoint_of_another_configuration_is_not_resumed(fits: Fits) -> None:
    run(fits)
    Path("student.yaml").write_text("a: 3")
    assert Path("out/student/checkpoints/last.ckpt").is_file()

    def dies_at_once(arguments: list[str]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Pipeline.read("pipe.yaml").run(dies_at_once)
    assert not any(argument.startswith("--ckpt_path") for argument in run(fits)["student"])


def test_a_parent_that_was_made_again_makes_its_children_again(fits: Fits) -> None:
    run(fits)
    Path("teacher.yaml").write_text("a: 9")
    assert list(run(fits)) == ["teacher", "student"]
    Path("out/teacher/done.json").unlink()
    assert list(run(fits)) == ["teacher", "student"]
    assert run(fits) == {}


def test_a_comment_runs_nothing_again(fits: Fits) -> None:
    run(fits)
    Path("student.yaml").write_text("# as before\na:   2\n")
    Path("pipe.yaml").write_text(yaml.safe_dump({"fits": FITS, "folder": "out"}, sort_keys=False) + "# again\n")
    assert run(fits) == {}


def test_a_digest_of_the_text_would_run_it_again(fits: Fits, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sweeps.runner.digest._read", lambda path: Path(path).read_text())
    with pytest.raises(AssertionError):
        test_a_comment_runs_nothing_again(fits)


def test_what_runs_again_is_named_first(fits: Fits, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("sweeps.runner.pipeline.rank_zero_info", said.append)
    run(fits)
    assert not any("charged again" in line for line in said)
    Path("student.yaml").write_text("a: 3")
    said.clear()
    run(fits)
    named = [line for line in said if "charged again" in line]
    assert [line.split()[1] for line in named] == ["student:", "other:"]
    assert said.index(named[-1]) < next(index for index, line in enumerate(said) if line.endswith("out/student"))


def as_version_1(fits: Fits) -> None:
    """The folders as the runner of version 1 left them."""
    run(fits)
    shutil.rmtree("out/claims")
    made: dict[str, str] = {}
    for fit in Pipeline.read("pipe.yaml").fits:
        content = [[Path(name).read_text() for name in fit.config], dict(fit.set), {n: made[n] for n in fit.parents}]
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        made[fit.name] = f"making of {fit.name}"
        Path(f"out/{fit.name}/begun.json").write_text(json.dumps({"digest": digest}))
        Path(f"out/{fit.name}/done.json").write_text(json.dumps({"digest": digest, "made": made[fit.name]}))


def test_what_version_1_made_is_not_made_again(fits: Fits) -> None:
    as_version_1(fits)
    assert run(fits) == {}
    Path("student.yaml").write_text("# from now on, no comment counts\na: 2")
    assert run(fits) == {}
    Path("student.yaml").write_text("a: 3")
    assert list(run(fits)) == ["student", "other"]


def test_what_version_1_began_goes_on(fits: Fits) -> None:
    as_version_1(fits)
    Path("out/other/done.json").unlink()
    assert run(fits)["other"][-1] == "--ckpt_path=out/other/checkpoints/last.ckpt"


def test_what_version_1_made_of_other_text_is_neither_run_again_nor_taken_in_silence(fits: Fits) -> None:
    as_version_1(fits)
    Path("student.yaml").write_text("# only a comment?\na: 2")
    with pytest.raises(PipelineError, match=r"student, other was made by an earlier version.*--keep.*charged again"):
        run(fits)
    assert fits.asked == {}
    assert run(fits, keep=True) == {} and run(fits) == {}


def test_it_may_be_forced(fits: Fits) -> None:
    as_version_1(fits)
    Path("student.yaml").write_text("a: 3")
    assert list(run(fits, force=True)) == ["teacher", "student", "other"]


def test_an_error_ends_it_and_is_let_through(fits: Fits) -> None:
    def breaks(arguments: list[str]) -> None:
        raise LookupError("no such teacher")

    with pytest.raises(LookupError, match="no such teacher"):
        Pipeline.read("pipe.yaml").run(breaks)
    assert list(run(fits)) == ["teacher", "student", "other"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"fits": []}, "`fits` is empty"),
        ({"fits": FITS, "extra": 1}, "allowed keys are"),
        ({"fits": [{"name": "a"}]}, "`name` and `config` are needed"),
        ({"fits": [FITS[0], FITS[0]]}, "differ, got 'teacher'"),
        ({"fits": [{"name": "two words", "config": "teacher.yaml"}]}, "single words"),
        ({"fits": [{"name": "claims", "config": "teacher.yaml"}]}, "other than claims"),
        ({"fits": [FITS[1]]}, r"refers to \['teacher'\]"),
        ({"fits": [{"name": "a", "config": "missing.yaml"}]}, r"missing\.yaml does not exist"),
        ([], "allowed keys are"),
    ],
)
def test_files_that_make_no_sense(fits: Fits, content: Any, message: str) -> None:
    Path("pipe.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(PipelineError, match=message):
        Pipeline.read("pipe.yaml")


def test_a_file_that_is_not_there(fits: Fits) -> None:
    with pytest.raises(PipelineError, match="does not exist"):
        main(["pipeline", "absent.yaml"])


def test_a_real_pipeline_from_another_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    student = configuration(steps=2, model={"images": "prior"})
    Path("student.yaml").write_text(json.dumps(student))
    small = {argument.split("=")[0][2:]: yaml.safe_load(argument.split("=")[1]) for argument in QUIET}
    pipe = {
        "fits": [
            {
                "name": "teacher",
                "config": "sweeps/teacher_digits.yaml",
                "set": {"trainer.callbacks": None, "trainer.max_epochs": 1, **small},
            },
            FITS[1],
        ],
        "compare": "two",
    }
    Path("pipe.yaml").write_text(yaml.safe_dump(pipe))
    main(["pipeline", "pipe.yaml", "--folder", "made", "--results", "results"])
    assert {path.name for path in Path("results").iterdir()} >= {"pipe_teacher.json", "pipe_student.json"}
    record = json.loads(Path("results/pipe_student.json").read_text())
    assert (
        record["steps"] == 2
        and record["config"]["model"]["init_args"]["teacher"] == "made/teacher/checkpoints/last.ckpt"
    )
    before = Path("made/student/result.json").stat().st_mtime_ns
    main(["pipeline", "pipe.yaml", "--folder", "made"])
    assert Path("made/student/result.json").stat().st_mtime_ns == before
