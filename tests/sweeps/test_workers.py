"""Two real workers on one folder: each fit once, what a killed one was making taken over; and the engines."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sweeps.runner.engines import DaskWorkers, EngineError, LocalProcesses, shared_environment
from sweeps.runner.fit import Fit
from sweeps.runner.plan import Plan, Task
from sweeps.runner.run_plan import run_plan
from sweeps.runner.store import Store
from sweeps.runner.work import work
from sweeps.runner.worker_process import run_worker

CELLS = [f"cell{number}" for number in range(6)]
LOG = Path("log.txt")


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sweeps.runner.work.POLL_SECONDS", 0.05)


def plan() -> Plan:
    fits = {name: Fit(name=name, set={"size": name}) for name in CELLS}
    return Plan([Task(name=n, fit=fit, digest=fit.digest({})) for n, fit in fits.items()], Store("store"), title="six")


def log(word: str, cell: str, resumed: bool) -> None:
    # One write of a few bytes at the end of a file is never torn.
    with LOG.open("a") as file:
        file.write(f"{word} {cell} {os.getpid()} {resumed}\n")


def said(word: str) -> list[list[str]]:
    lines = LOG.read_text().splitlines() if LOG.exists() else []
    return [line.split() for line in lines if line.startswith(word)]


def fit(seconds: float, *, endless: str | None = None) -> Callable[[list[str]], None]:
    """What stands in for a fit: it takes `seconds`; that of `endless` never ends unless it is resumed."""

    def run(arguments: list[str]) -> None:
        given = dict(argument[2:].split("=", 1) for argument in arguments if "=" in argument)
        cell, resumed = given["size"], "ckpt_path" in given
        log("begun", cell, resumed)
        checkpoint = Path(given["trainer.default_root_dir"]) / "checkpoints" / "last.ckpt"
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        checkpoint.touch()
        log("saved", cell, resumed)
        time.sleep(120 if cell == endless and not resumed else seconds)
        log("ended", cell, resumed)

    return run


@pytest.fixture
def start() -> Iterator[Callable[[Callable[[list[str]], None]], int]]:
    """Starts a worker process, which is ended with the test."""
    started: list[int] = []

    def begin(run: Callable[[list[str]], None]) -> int:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                work(plan(), run, since=0.0)
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


def until(condition: Callable[[], Any], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, LOG.read_text() if LOG.exists() else "nothing was begun"
        time.sleep(0.02)


def two_workers(start: Callable[..., int]) -> None:
    for child in [start(fit(0.1)), start(fit(0.1))]:
        assert os.waitpid(child, 0)[1] == 0
    made = said("begun")
    assert sorted(cell for _, cell, *_ in made) == CELLS
    assert len({pid for *_, pid, _ in made}) == 2


def test_two_workers_make_each_fit_once(start: Callable[..., int]) -> None:
    two_workers(start)
    assert plan().progress(since=0.0).done == len(CELLS)


def test_without_the_lock_fits_would_be_made_twice(start: Callable[..., int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sweeps.runner.store.fcntl.flock", lambda *_: None)
    with pytest.raises(AssertionError):
        two_workers(start)
    assert len(said("begun")) > len(CELLS)


def test_what_a_killed_worker_was_making_is_taken_over_from_its_checkpoint(start: Callable[..., int]) -> None:
    run = fit(0.1, endless="cell2")
    children = [start(run), start(run)]
    until(lambda: any(cell == "cell2" for _, cell, *_ in said("saved")))
    ((_, _, victim, _),) = [line for line in said("saved") if line[1] == "cell2"]
    until(lambda: len(said("ended")) == len(CELLS) - 1)
    # Its claim is held for as long as it lives.
    time.sleep(0.3)
    assert plan().progress(since=0.0).running == 1 and len(said("begun")) == len(CELLS)
    os.kill(int(victim), signal.SIGKILL)
    os.waitpid(int(victim), 0)
    (survivor,) = set(children) - {int(victim)}
    assert os.waitpid(survivor, 0)[1] == 0
    begun = said("begun")
    assert sorted(cell for _, cell, *_ in begun) == sorted([*CELLS, "cell2"])
    assert begun[-1] == ["begun", "cell2", str(survivor), "True"]
    assert sorted(cell for _, cell, *_ in said("ended")) == CELLS
    assert plan().progress(since=0.0).done == len(CELLS)


def test_a_worker_reads_the_plan_that_was_written_for_it() -> None:
    written = json.loads(json.dumps(plan().to_dict()))
    assert json.loads(json.dumps(Plan.from_dict(written).to_dict())) == written
    assert Plan.from_dict(written).tasks["cell1"].fit.digest({}) == plan().tasks["cell1"].digest


def test_a_process_that_lightning_starts_to_help_makes_the_same_fit_and_waits_for_no_claim(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a fit on several devices Lightning runs the command line once for each; the first one holds the claim."""
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("TRANSCRIPTION_FIT", "cell3")
    with Store("store").claim("cell3"):
        work(plan(), fit(0.0), since=0.0)
    assert [cell for _, cell, *_ in said("begun")] == ["cell3"]
    assert plan().progress(since=0.0).done == 0  # the one that holds the claim says so


# Engines, with a program in place of a worker.

PROGRAM = """
import os, sys, time
from pathlib import Path
here = Path.cwd()
with open(here / "begun", "a") as file:
    file.write(f"{os.getpid()} {os.environ.get('TRANSCRIPTION_LEDGERS', '')}\\n")
if "{ending}" == "dies once" and not (here / "died").exists():
    (here / "died").touch()
    os.kill(os.getpid(), 9)
time.sleep(60 if "{ending}" == "never ends" else 0)
"""


def program(ending: str) -> tuple[str, str]:
    return "-c", PROGRAM.replace("{ending}", ending)


def starts() -> list[list[str]]:
    return [line.split() for line in Path("begun").read_text().splitlines()] if Path("begun").exists() else []


def test_local_workers_that_die_are_told_of_and_what_is_left_is_counted() -> None:
    lines: list[str] = []
    engine = LocalProcesses(2, program=program("dies once"))
    found = run_plan(plan(), lambda _: None, since=time.time(), engine=engine, say=lines.append)
    assert found.left == len(CELLS) and not found.finished and len(starts()) == 2
    assert any("ended with status -9" in line for line in lines)
    assert not list(Path("store").glob("plan-*"))


def test_a_worker_ends_where_its_plan_is_removed() -> None:
    Path("plan.json").write_text("{}")
    remover = os.fork()
    if remover == 0:
        while not starts():
            time.sleep(0.02)
        os.unlink("plan.json")
        os._exit(0)
    before = time.monotonic()
    run_worker(program("never ends"), folder=str(Path.cwd()), environment={}, plan="plan.json", log="log")
    os.waitpid(remover, 0)
    assert time.monotonic() - before < 30


def test_a_worker_that_was_killed_is_an_error_for_whoever_started_it() -> None:
    Path("plan.json").write_text("{}")
    with pytest.raises(RuntimeError, match="status -9: log"):
        run_worker(program("dies once"), folder=str(Path.cwd()), environment={}, plan="plan.json", log="log")


@pytest.mark.parametrize("of_client", [None, "ledgers"])
def test_a_worker_has_the_clients_ledgers_and_none_of_its_own(
    of_client: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("plan.json").write_text("{}")
    monkeypatch.delenv("TRANSCRIPTION_LEDGERS", raising=False)
    if of_client is not None:
        monkeypatch.setenv("TRANSCRIPTION_LEDGERS", of_client)
    shared = shared_environment()
    monkeypatch.setenv("TRANSCRIPTION_LEDGERS", "/of/the/worker")

    def seen(environment: Any) -> str:
        code = "import os; print(os.environ.get('TRANSCRIPTION_LEDGERS'))"
        Path("log").unlink(missing_ok=True)
        run_worker(["-c", code], folder=str(Path.cwd()), environment=environment, plan="plan.json", log="log")
        return Path("log").read_text().strip()

    assert seen(shared) == str(of_client and Path(of_client).resolve())
    # Negative control: what is not sent is the worker's own.
    assert seen({}) == "/of/the/worker"


def test_without_dask_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(EngineError, match=r"the extra `dask` brings: pip install .*\[dask\]"):
        run_plan(plan(), lambda _: None, since=0.0, engine=DaskWorkers(2, scheduler="tcp://x:1"), say=lambda _: None)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A scheduler and two worker processes of Dask on this machine."""
    distributed = pytest.importorskip("distributed", reason="the extra `dask` is not installed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
    ) as found:
        yield found


def test_dask_starts_as_many_as_asked_for_and_again_where_one_dies(cluster: Any) -> None:
    engine = DaskWorkers(2, scheduler=cluster.scheduler_address, program=program("dies once"))
    lines: list[str] = []
    run_plan(plan(), lambda _: None, since=time.time(), engine=engine, say=lines.append)
    # Both may have begun before one of them died.
    assert len({pid for pid, _ in starts()}) in (3, 4)
    assert not any("failed" in line for line in lines)
    # Charges of all of them go to one ledger.
    assert {ledgers for _, ledgers in starts()} == {os.environ["TRANSCRIPTION_LEDGERS"]}


def test_without_retries_a_death_is_told_of(cluster: Any) -> None:
    engine = DaskWorkers(2, scheduler=cluster.scheduler_address, retries=0, program=program("dies once"))
    lines: list[str] = []
    run_plan(plan(), lambda _: None, since=time.time(), engine=engine, say=lines.append)
    assert len(starts()) == 2 and any("a worker failed" in line and "status -9" in line for line in lines)


def test_a_scheduler_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed", reason="the extra `dask` is not installed")
    with pytest.raises(EngineError, match=r"--dask must be the address of a running scheduler.*'nonsense://x'"):
        DaskWorkers(1, scheduler="nonsense://x").start([], Path("plan.json"))
