"""Fits of a plan: each once, failures by themselves, several processes, kills and what they leave, SLURM's script."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from sweeps.runner.fit import Fit
from sweeps.runner.plan import Plan, Store, Task, run_plan

CELLS = [f"cell{number}" for number in range(6)]
LOG = Path("log.txt")


@pytest.fixture(autouse=True)
def no_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sweeps.runner.plan.collect", lambda: None)


def plan(*, value: int = 1) -> Plan:
    """A teacher and six students of it."""
    teacher = Fit(name="teacher", set={"value": value})
    tasks = [Task(name="teacher", fit=teacher, digest=teacher.digest({}))]
    for name in CELLS:
        fit = Fit(name=name, set={"model.teacher.path": "{of}/last.ckpt"})
        digest = fit.digest({"of": tasks[0].digest})
        tasks.append(Task(name=name, fit=fit, digest=digest, parents={"of": "teacher"}))
    return Plan(tasks, Store("store"), title="six")


def log(word: str, cell: str, resumed: bool) -> None:
    # One write of a few bytes at the end of a file is never torn.
    with LOG.open("a") as file:
        file.write(f"{word} {cell} {os.getpid()} {resumed}\n")


def said(word: str) -> list[list[str]]:
    lines = LOG.read_text().splitlines() if LOG.exists() else []
    return [line.split() for line in lines if line.startswith(word)]


def ran() -> list[str]:
    return [cell for _, cell, *_ in said("begun")]


def fit(*, endless: str = "", errors: dict[str, BaseException] | None = None) -> Callable[[Sequence[str]], None]:
    """Stands in for the command line: writes a checkpoint; that of `endless` never ends unless it is resumed."""

    def run(line: Sequence[str]) -> None:
        values = dict(argument[2:].split("=", 1) for argument in line if "=" in argument)
        folder, resumed = Path(values["trainer.default_root_dir"]), "ckpt_path" in values
        log("begun", folder.name, resumed)
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        (folder / "checkpoints" / "last.ckpt").touch()
        if errors and folder.name in errors:
            raise errors[folder.name]
        if folder.name == endless and not resumed:
            time.sleep(120)
        log("ended", folder.name, resumed)

    return run


def made(run: Any = None, *, of: Plan | None = None, say: Any = lambda _: None, **options: Any) -> dict[str, str]:
    LOG.unlink(missing_ok=True)
    return run_plan(of or plan(), run or fit(), say=say, **options)


def test_each_fit_is_made_once_parents_first() -> None:
    lines: list[str] = []
    assert made(say=lines.append) == {} and ran() == ["teacher", *CELLS]
    assert lines[0] == "[six] 0 done, 7 left" and lines[-1] == "[six] 7 done, 0 left"
    assert made() == {} and ran() == []


def test_what_changed_is_made_again_with_what_builds_on_it_and_is_named_first() -> None:
    made()
    lines: list[str] = []
    made(of=plan(value=2), say=lines.append)
    assert ran() == ["teacher", *CELLS] and not any(resumed == "True" for *_, resumed in said("begun"))
    assert "teacher: its configuration" in lines[0] and "are charged again" in lines[0]
    # A parent that is made again makes its children again, also where nobody changed a setting.
    Path("store/teacher/done.json").unlink()
    made(of=plan(value=2))
    assert ran() == ["teacher", *CELLS]


@pytest.mark.parametrize("error", [ValueError("no such thing"), SystemExit(2)])
def test_a_fit_that_fails_leaves_the_others_intact_and_is_tried_again_later(error: BaseException) -> None:
    lines: list[str] = []
    assert list(made(fit(errors={"cell2": error}), say=lines.append)) == ["cell2"] and len(said("ended")) == 6
    note = json.loads(Path("store/cell2/failed.json").read_text())
    assert str(error) in note["error"] and any(note["error"] in line for line in lines)
    assert made() == {} and ran() == ["cell2"] and not list(Path("store").glob("*/failed.json"))
    # Without a parent there are no children.
    assert len(made(fit(errors={"teacher": error}), of=plan(value=2))) == 7 and ran() == ["teacher"]


def interruption() -> SystemExit:
    """As Lightning ends a fit that was interrupted."""
    error = SystemExit(1)
    error.__context__ = KeyboardInterrupt()
    return error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), interruption()])
def test_an_interruption_ends_everything_and_the_next_run_goes_on_from_the_checkpoint(error: BaseException) -> None:
    with pytest.raises(KeyboardInterrupt):
        made(fit(errors={"cell1": error}))
    assert ran() == ["teacher", "cell0", "cell1"] and not list(Path("store").glob("*/failed.json"))
    made()
    assert [(cell, resumed) for _, cell, _, resumed in said("begun")][:2] == [("cell1", "True"), ("cell2", "False")]


def test_one_fit_alone_and_none_that_another_command_is_making() -> None:
    assert "parent is not made" in made(fit="cell3")["cell3"] and ran() == []
    made(fit="teacher")
    with Store("store").claim("cell3"):
        assert list(made()) == ["cell3"]
    assert sorted(ran()) == sorted({*CELLS} - {"cell3"}) and not Path("store/cell3").exists()
    made(fit="cell3")
    assert ran() == ["cell3"]
    for options in ({"fit": "cell7"}, {"jobs": 0}):
        with pytest.raises(ValueError, match="must be"):
            made(**options)


def by_itself(name: str) -> None:
    """What a process does that makes one fit, in place of the command line."""
    sys.exit(1 if run_plan(plan(), fit(endless=os.environ.get("ENDLESS", "")), fit=name) else 0)


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    here = str(Path(__file__).parent)
    code = f"import sys; sys.path.insert(0, {here!r}); import test_plan; test_plan.by_itself(sys.argv[-1])"
    monkeypatch.setattr("sweeps.runner.plan.PROGRAM", ("-c", code))
    return "-c", code


def kill_once_begun(cell: str) -> None:
    """Kills the process that begins a fit."""
    while not (found := said(f"begun {cell}")):
        time.sleep(0.02)
    os.kill(int(found[0][2]), signal.SIGKILL)


def test_two_processes_make_each_fit_once_and_one_that_is_killed_is_resumed(
    program: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENDLESS", "cell2")
    LOG.unlink(missing_ok=True)
    multiprocessing.get_context("fork").Process(target=kill_once_begun, args=("cell2",), daemon=True).start()
    lines: list[str] = []
    assert run_plan(plan(), fit(), jobs=2, command=["tables", "run"], say=lines.append) == {}
    begun = [(cell, resumed) for _, cell, _, resumed in said("begun")]
    assert sorted(begun) == sorted([*((name, "False") for name in ("teacher", *CELLS)), ("cell2", "True")])
    assert sorted(cell for _, cell, *_ in said("ended")) == [*CELLS, "teacher"]
    assert any("cell2 was killed" in line for line in lines) and Path("store/cell2.log").is_file()


def test_slurm_gets_a_job_for_each_fit_after_its_parents(program: tuple[str, str]) -> None:
    script = Path("submit.sh")
    made(slurm=script, command=["tables", "run", "a b"])
    assert ran() == []
    # Stands in for SLURM: notes its arguments, and answers with a number.
    Path("sbatch").write_text('#!/bin/bash\nprintf "%s\\n" "$*" >> sent.txt\nwc -l < sent.txt\n')
    Path("sbatch").chmod(0o755)
    path = f"{Path.cwd()}:{os.environ['PATH']}"
    subprocess.run(["bash", str(script), "--gres=gpu:1"], check=True, env={**os.environ, "PATH": path})
    sent = Path("sent.txt").read_text().split("--parsable")[1:]
    assert len(sent) == 7 and all("--requeue" in line and "--gres=gpu:1" in line for line in sent)
    assert "dependency" not in sent[0] and all("--dependency=afterok:1 " in line for line in sent[1:])
    assert all("tables run 'a b' --fit " in line for line in sent)
    made(fit="teacher")
    made(slurm=script)
    assert "dependency" not in script.read_text()  # what is made needs no job
