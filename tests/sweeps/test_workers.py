"""Fits in processes of their own, several at a time."""

from __future__ import annotations

import os
import signal
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from lightning_modules.cli import main
from sweeps.runner.fit import Fit
from sweeps.runner.queue import Plan, Progress, Store, Task, run_plan
from sweeps.runner.workers import Workers

# In place of the command line.
PROGRAM = """
import os, sys, time
from pathlib import Path
given = dict(argument[2:].split("=", 1) for argument in sys.argv[1:] if "=" in argument)
folder = Path(given["trainer.default_root_dir"])
with open(Path.cwd() / "begun", "a") as file:
    file.write(f"{folder.name} {os.getpid()} {os.environ.get('TRANSCRIPTION_LEDGERS', '')} {'ckpt_path' in given}\\n")
(folder / "checkpoints").mkdir(parents=True, exist_ok=True)
(folder / "checkpoints" / "last.ckpt").touch()
if folder.name == "ENDING" and "ckpt_path" not in given:
    print("error: it is enough")
    sys.stdout.flush()
    HOW
"""
NAMES = ["a", "b", "c"]


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for module in ("queue", "workers"):
        monkeypatch.setattr(f"sweeps.runner.{module}.POLL_SECONDS", 0.05)


def program(ending: str = "", how: str = "sys.exit(3)") -> tuple[str, str]:
    return "-c", PROGRAM.replace("ENDING", ending).replace("HOW", how)


def plan() -> Plan:
    fits = {name: Fit(name=name, set={"size": name}) for name in NAMES}
    return Plan([Task(name=n, fit=fit, digest=fit.digest({})) for n, fit in fits.items()], Store("store"), title="x")


def begun() -> list[list[str]]:
    return [line.split(" ") for line in Path("begun").read_text().splitlines()] if Path("begun").exists() else []


def made(workers: Workers, **options: Any) -> Progress:
    return run_plan(plan(), lambda _: pytest.fail("in this process"), workers=workers, say=lambda _: None, **options)


def test_each_fit_has_a_process_of_its_own_with_the_ledgers_of_this_one() -> None:
    assert made(Workers(2, program=program())).done == 3
    assert sorted(name for name, *_ in begun()) == NAMES and len({pid for _, pid, *_ in begun()}) == 3
    assert {ledgers for _, _, ledgers, _ in begun()} == {os.environ["TRANSCRIPTION_LEDGERS"]}
    assert not list(Path("store").glob("plan-*"))


@pytest.mark.parametrize(("how", "status"), [("sys.exit(3)", "3"), ("os.kill(os.getpid(), 9)", "-9")])
def test_a_process_that_dies_is_a_failure_of_its_fit_only_and_is_gone_on_with(how: str, status: str) -> None:
    progress = made(Workers(2, program=program("b", how)))
    assert progress.done == 2 and list(progress.failed) == ["b"]
    assert f"status {status}" in progress.failed["b"] and "error: it is enough" in progress.failed["b"]
    assert made(Workers(2, program=program("b", how))).done == 3  # from its checkpoint, where it does not die
    assert begun()[-1][3] == "True"


def until_ended_by_sigterm() -> int:
    """Exit status of a process whose fit never ends and that gets SIGTERM."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            made(Workers(2, program=program("b", "time.sleep(120)")))
        except SystemExit as error:
            status = int(str(error.code))
        finally:
            os._exit(status)
    end = time.monotonic() + 60
    while len(list(Path("store").glob("*/done.json"))) < 2 and time.monotonic() < end:
        time.sleep(0.02)
    os.kill(child, signal.SIGTERM)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def claimed() -> bool:
    with Store("store").claim("b") as claim:
        return claim is None


def test_sigterm_ends_the_fits_and_keeps_what_is_finished() -> None:
    assert until_ended_by_sigterm() == 128 + signal.SIGTERM
    assert not claimed() and not list(Path("store").glob("plan-*")) and not list(Path("store").glob("*/failed.json"))


def test_a_fit_whose_command_was_killed_holds_its_claim_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control of the test above, too: without a handler nobody ends the fits."""
    monkeypatch.setattr("sweeps.runner.workers._ended_by_sigterm", nullcontext)
    assert until_ended_by_sigterm() == -signal.SIGTERM
    (process,) = [int(pid) for name, pid, *_ in begun() if name == "b"]
    assert claimed()
    os.kill(process, signal.SIGKILL)
    end = time.monotonic() + 10
    while claimed() and time.monotonic() < end:
        time.sleep(0.02)
    assert not claimed()


@pytest.mark.slow
def test_two_processes_make_a_table() -> None:
    main(["tables", "run", "dpdfd-sigma", "--jobs", "2"])
    assert len(list(Path("results/tables/dpdfd-sigma/smoke/records").iterdir())) == 3
    assert "failed" not in Path("results/tables/dpdfd-sigma.md").read_text()
    (ledger,) = Path().rglob("*.jsonl")  # all charges are in the ledger of whoever asked
    assert ledger.resolve().parent == Path(os.environ["TRANSCRIPTION_LEDGERS"]).resolve()
