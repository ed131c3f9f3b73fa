"""Fits of a plan: each once, failures by themselves, several processes on one folder, kills and what they leave."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from sweeps.runner.fit import Fit
from sweeps.runner.queue import Plan, Progress, Store, Task, run_plan

CELLS = [f"cell{number}" for number in range(6)]
LOG = Path("log.txt")


@pytest.fixture(autouse=True)
def quick_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sweeps.runner.queue.POLL_SECONDS", 0.05)
    monkeypatch.setattr("sweeps.runner.queue.collect", lambda: None)


def plan(*, value: int = 1) -> Plan:
    """A teacher and six students of it."""
    teacher = Fit(name="teacher", set={"value": value})
    tasks = [Task(name="teacher", fit=teacher, digest=teacher.digest({}))]
    for name in CELLS:
        fit = Fit(name=name, set={"model.teacher.path": "{of}/last.ckpt"})
        digest = fit.digest({"of": tasks[0].digest})
        tasks.append(Task(name=name, fit=fit, digest=digest, parents={"of": "teacher"}))
    return Plan(tasks, Store("store"), title="six")


def given(line: Sequence[str]) -> tuple[str, bool]:
    """Which fit a command line makes, and whether it goes on from a checkpoint."""
    values = dict(argument[2:].split("=", 1) for argument in line if "=" in argument)
    folder = Path(values["trainer.default_root_dir"])
    (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    (folder / "checkpoints" / "last.ckpt").touch()
    return folder.name, "ckpt_path" in values


def log(word: str, cell: str, resumed: bool) -> None:
    # One write of a few bytes at the end of a file is never torn.
    with LOG.open("a") as file:
        file.write(f"{word} {cell} {os.getpid()} {resumed}\n")


def said(word: str) -> list[list[str]]:
    lines = LOG.read_text().splitlines() if LOG.exists() else []
    return [line.split() for line in lines if line.startswith(word)]


def fit(seconds: float = 0.0, *, endless: str = "", errors: dict[str, BaseException] | None = None) -> Any:
    """Stands in for a fit: it takes `seconds`; that of `endless` never ends unless it is resumed."""

    def run(line: Sequence[str]) -> None:
        cell, resumed = given(line)
        log("begun", cell, resumed)
        if errors and cell in errors:
            raise errors[cell]
        time.sleep(120 if cell == endless and not resumed else seconds)
        log("ended", cell, resumed)

    return run


def ran() -> list[str]:
    return [cell for _, cell, *_ in said("begun")]


def made(run: Any = None, **options: Any) -> Progress:
    LOG.unlink(missing_ok=True)
    return run_plan(options.pop("of", None) or plan(), run or fit(), say=options.pop("say", lambda _: None), **options)


def test_each_fit_is_made_once_parents_first() -> None:
    lines: list[str] = []
    progress = made(say=lines.append)
    assert ran() == ["teacher", *CELLS] and progress.done == 7 and not progress.failed
    assert lines[0] == "[six] 0 done, 7 left" and lines[-1] == "[six] 7 done, 0 left"
    made()
    assert ran() == []


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
    progress = made(fit(errors={"cell2": error}), say=lines.append)
    assert (progress.done, list(progress.failed), progress.left) == (6, ["cell2"], 0)
    note = json.loads(Path("store/cell2/failed.json").read_text())
    assert str(error) in note["error"] and any(note["error"] in line for line in lines)
    assert made().done == 7 and ran() == ["cell2"] and not list(Path("store").glob("*/failed.json"))
    # Without a parent there are no children.
    progress = made(fit(errors={"teacher": error}), of=plan(value=2))
    assert ran() == ["teacher"] and len(progress.failed) == 7


def interruption() -> SystemExit:
    """As Lightning ends a fit that was interrupted."""
    try:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise SystemExit(1)  # noqa: B904 - Lightning does not say where it comes from either
    except SystemExit as error:
        return error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), interruption()])
def test_an_interruption_ends_everything_and_the_next_run_goes_on_from_the_checkpoint(error: BaseException) -> None:
    lines: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        made(fit(errors={"cell1": error}), say=lines.append)
    assert lines[-1].endswith("run the same command to continue")
    assert ran() == ["teacher", "cell0", "cell1"] and not list(Path("store").glob("*/failed.json"))
    made()
    assert [(cell, resumed) for _, cell, _, resumed in said("begun")][:2] == [("cell1", "True"), ("cell2", "False")]


@pytest.fixture
def start() -> Iterator[Callable[..., int]]:
    """Starts a process that makes the plan, which is ended with the test."""
    started: list[int] = []

    def begin(run: Any) -> int:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                run_plan(plan(), run, say=lambda _: None)
                status = 0
            finally:
                os._exit(status)
        started.append(child)
        return child

    yield begin
    for child in started:
        try:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        except (ProcessLookupError, ChildProcessError):
            pass


def until(condition: Callable[[], Any], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, LOG.read_text() if LOG.exists() else "nothing was begun"
        time.sleep(0.02)


def test_two_processes_make_each_fit_once(start: Callable[..., int]) -> None:
    for child in [start(fit(0.1)), start(fit(0.1))]:
        assert os.waitpid(child, 0)[1] == 0
    assert sorted(ran()) == [*CELLS, "teacher"]
    assert len({pid for *_, pid, _ in said("begun")}) == 2


def test_what_a_killed_process_was_making_is_taken_over_from_its_checkpoint(start: Callable[..., int]) -> None:
    run = fit(0.1, endless="cell2")
    children = [start(run), start(run)]
    until(lambda: "cell2" in ran())
    (victim,) = [int(pid) for _, cell, pid, _ in said("begun") if cell == "cell2"]
    until(lambda: len(said("ended")) == len(CELLS))
    time.sleep(0.3)  # its claim is held for as long as it lives
    assert len(ran()) == len(CELLS) + 1
    os.kill(victim, signal.SIGKILL)
    os.waitpid(victim, 0)
    (survivor,) = set(children) - {victim}
    assert os.waitpid(survivor, 0)[1] == 0
    assert said("begun")[-1] == ["begun", "cell2", str(survivor), "True"]
    assert sorted(cell for _, cell, *_ in said("ended")) == [*CELLS, "teacher"]


def helping() -> None:
    """What a process does that `--jobs` starts, in place of the command line."""
    log("helps", "", False)
    run_plan(plan(), fit(0.2, endless=os.environ.get("ENDLESS", "")), say=lambda _: None)


def helped(line: Sequence[str]) -> None:
    """A fit of the process that is helped."""
    if given(line)[0] == "teacher":
        until(lambda: said("helps"))
    fit(0.2, endless=os.environ.get("ENDLESS", ""))(line)


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> None:
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import test_queue; test_queue.helping()"
    monkeypatch.setattr("sweeps.runner.queue.PROGRAM", ("-c", code))


def test_jobs_are_processes_that_are_given_the_same_command(program: None) -> None:
    progress = made(helped, jobs=2, command=["tables", "run"])
    assert progress.done == 7 and sorted(ran()) == [*CELLS, "teacher"]
    assert len({pid for *_, pid, _ in said("begun")}) == 2 and Path("store/helper-1.log").is_file()


def test_what_fails_in_another_process_is_not_tried_again_by_this_one() -> None:
    def run(line: Sequence[str]) -> None:
        fit()(line)
        if given(line)[0] == "cell0":
            Store("store").fail("cell2", "elsewhere")

    progress = made(run)
    assert progress.failed == {"cell2": "elsewhere"} and "cell2" not in ran() and progress.done == 6
    assert made().done == 7 and ran() == ["cell2"]  # a later command does


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_sigterm_ends_helpers_and_a_fit_whose_command_was_killed_holds_its_claim_until_it_ends(
    program: None, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """Each case is the negative control of the other."""
    monkeypatch.setenv("ENDLESS", "cell5")
    child = os.fork()
    if child == 0:
        try:
            run_plan(plan(), helped, jobs=2, say=lambda _: None)
        finally:
            os._exit(1)
    until(lambda: len(said("ended")) == len(CELLS))  # all but one
    until(lambda: said("begun cell5"))
    (helper,) = {int(pid) for *_, pid, _ in said("helps")}
    os.kill(child, number)
    os.waitpid(child, 0)
    assert not list(Path("store").glob("*/failed.json"))
    helps = int(said("begun cell5")[0][2]) == helper

    def claimed() -> bool:
        with Store("store").claim("cell5") as free:
            return not free

    if number == signal.SIGKILL:
        assert claimed() is helps
        os.kill(helper, number) if helps else None
    until(lambda: not claimed())
    until(lambda: not Path(f"/proc/{helper}").exists() or "Z" in Path(f"/proc/{helper}/stat").read_text())


def test_a_process_that_lightning_starts_to_help_makes_the_same_fit_and_waits_for_no_claim(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a fit on several devices Lightning runs the command line once for each; the first one holds the claim."""
    named: list[str | None] = []
    made(lambda line: (given(line), named.append(os.environ.get("TRANSCRIPTION_FIT"))))
    assert named == ["teacher", *CELLS] and "TRANSCRIPTION_FIT" not in os.environ
    for name in ("teacher", *CELLS):
        Store("store").clear(name)
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("TRANSCRIPTION_FIT", "cell3")
    with Store("store").claim("cell3"):
        made()
    assert ran() == ["cell3"]
    assert Store("store").done("cell3") is None  # the one that holds the claim says so
