"""All tables as one plan: their order, the time there is, interruptions, and records that follow each cell."""

from __future__ import annotations

import copy
import json
import math
import os
import re
import signal
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.sweep_fits import SPEC, Fits, settings

from lightning_modules.cli import main
from sweeps.runner.plan import Plan
from sweeps.runner.schedule import schedule
from sweeps.runner.store import Store
from sweeps.runner.tables.order import by_value, in_order, without_measured
from sweeps.runner.tables.records import records_by_digest, share_records
from sweeps.runner.tables.run_tables import plan_of_turns, run_tables
from sweeps.runner.tables.spec import SpecError, TableSpec, list_specs
from sweeps.runner.work import worker

BY_VALUE = [
    "dpdfd-table1", "dpsd-table1", "labeldp-table1", "labeldp-table2", "dgd-table1", "dpsd-table3", "dpsd-table4",
    "dpdfd-fig2", "dpdfd-losses", "limits-generator", "limits-labels", "limits-votes", "dpsd-table6",
    "labeldp-table3", "labeldp-fig2", "dpdfd-table7", "dpdfd-table4", "dpsd-table5", "dgd-table2", "labeldp-fig3",
    "dgd-fig7", "dpsd-fig6", "dpsd-discriminator", "dpdfd-sigma", "dpsd-fig9", "dpsd-fig5-bound", "dpsd-fig5-k",
    "dpsd-fig5-sigma", "dpsd-fig5-steps", "dgd-fig6", "dgd-fig8", "dgd-fig3", "records-images", "records-features",
    "records-untuned", "records", "records-ensembles", "priors",
]  # fmt: skip


def written(name: str, *, sizes: Sequence[int], seeds: Sequence[int] = (0,), **more: Any) -> TableSpec:
    values = {**copy.deepcopy(SPEC), **more, "seeds": list(seeds)}
    values["axes"] = {"size": {str(size): {"student": {"size": size}} for size in sizes}}
    Path(f"{name}.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    return TableSpec.read(f"{name}.yaml")


@pytest.fixture
def specs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[TableSpec]:
    """Three tables with one teacher; `low` and `high` share the cells of size 2."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sweeps.runner.work.POLL_SECONDS", 0.02)
    Path("teacher.yaml").write_text("a: 1")
    Path("student.yaml").write_text("a: 2")
    return [
        written("none", sizes=[5]),
        written("low", sizes=[2, 3], seeds=[0, 1], value=1),
        written("high", sizes=[1, 2], seeds=[0, 1, 2], value=2.5),
    ]


def ran(fits: Fits) -> list[tuple[str, str]]:
    """Size and seed of each student that was asked for."""
    return [(asked["size"], asked["seed_everything"]) for asked in fits.asked if "size" in asked]


def measured(specs: Sequence[TableSpec], fits: Any, **options: Any) -> list[str]:
    said: list[str] = []
    run_tables(in_order(specs, preset="smoke"), preset="smoke", run=fits, say=said.append, **options)
    return said


def records(name: str) -> list[str]:
    return sorted(path.stem for path in Path(f"results/tables/{name}/smoke/records").glob("*.json"))


ALL = [("1", "0"), ("2", "0"), ("3", "0"), ("5", "0"), ("1", "1"), ("2", "1"), ("3", "1"), ("1", "2"), ("2", "2")]


def test_tables_of_a_higher_value_come_first_and_those_without_one_last(specs: list[TableSpec]) -> None:
    assert [spec.name for spec in by_value(specs)] == ["high", "low", "none"]
    below = [written("below", sizes=[1], value=-1), *specs]
    assert [spec.name for spec in by_value(below)] == ["high", "low", "below", "none"]


def test_the_first_seed_of_every_table_comes_before_the_second_of_any(specs: list[TableSpec]) -> None:
    turns = in_order(specs, preset="smoke")
    assert [(turn.spec.name, turn.seed) for turn in turns] == [
        ("high", 0), ("low", 0), ("none", 0), ("high", 1), ("low", 1), ("high", 2),
    ]  # fmt: skip
    # The second seed of a table is its second, whatever number it has.
    other = written("other", sizes=[1], seeds=[7, 3])
    assert [(turn.number, turn.seed) for turn in in_order([other], preset="smoke")] == [(0, 7), (1, 3)]
    chosen = in_order(specs, preset="smoke", seeds=[4])
    assert [(turn.spec.name, turn.seed) for turn in chosen] == [("high", 4), ("low", 4), ("none", 4)]


def test_fits_are_made_in_that_order_and_shared_ones_once(specs: list[TableSpec]) -> None:
    fits = Fits()
    measured(specs, fits)
    assert fits.sizes[0] == "teacher" and fits.sizes.count("teacher") == 1 and ran(fits) == ALL
    assert [len(records(name)) for name in ("high", "low", "none")] == [6, 4, 1]
    assert all(Path(f"results/tables/{name}/smoke/table.md").is_file() for name in ("high", "low", "none"))


def test_installed_tables_in_the_order_of_their_value() -> None:
    turns = in_order(list_specs(), preset="cpu")
    assert [turn.spec.name for turn in turns][: len(BY_VALUE)] == BY_VALUE
    assert [turn.number for turn in turns] == sorted(turn.number for turn in turns)


def test_a_value_enters_no_digest(specs: list[TableSpec]) -> None:
    def digests(**more: Any) -> list[str]:
        return [cell.fit.digest for cell in written("valued", sizes=[1, 2], **more).cells("smoke")]

    assert digests() == digests(value=1) == digests(value=1000)
    # Were it a setting of a fit, its digest would follow.
    student = SPEC["fits"]["student"]
    as_a_setting = {**SPEC["fits"], "student": {**student, "set": {**student["set"], "value": 1}}}
    assert not set(digests()) & set(digests(fits=as_a_setting))


@pytest.mark.parametrize("value", ["high", True, math.nan, math.inf, [1]])
def test_a_value_is_a_finite_number(specs: list[TableSpec], value: Any) -> None:
    with pytest.raises(SpecError, match="value must be a finite number"):
        written("valued", sizes=[1], value=value)


def test_each_record_is_there_before_the_next_fit_begins(specs: list[TableSpec]) -> None:
    seen: list[int] = []

    class Looking(Fits):
        def __call__(self, arguments: list[str]) -> None:
            seen.append(len(records("high")) + len(records("low")))
            super().__call__(arguments)

    measured(specs, Looking())
    # The teacher and size 1 begin at none; size 2 is a cell of both tables.
    assert seen[:4] == [0, 0, 1, 3]


def test_an_interruption_keeps_what_is_finished_and_the_same_command_goes_on(specs: list[TableSpec]) -> None:
    fits = Fits()
    fits.errors["3"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        measured(specs, fits)
    assert ran(fits) == ALL[:3] and records("high") == ["1_seed0", "2_seed0"] and records("low") == ["2_seed0"]
    assert "| 2 | – | 50.00 % | 1 |" in Path("results/tables/low/smoke/table.md").read_text()
    again = Fits()
    measured(specs, again)
    assert ran(again) == ALL[2:] and "ckpt_path" in again.asked[0]
    assert [len(records(name)) for name in ("high", "low", "none")] == [6, 4, 1]


def test_what_failed_is_recorded_and_tried_again(specs: list[TableSpec]) -> None:
    fits = Fits()
    fits.errors["2"] = ValueError("no such thing")
    measured(specs, fits)
    assert ran(fits) == ALL
    assert "error" in json.loads(Path("results/tables/low/smoke/records/2_seed0.json").read_text())
    again = Fits()
    measured(specs, again)
    assert ran(again) == [one for one in ALL if one[0] == "2"]
    assert "error" not in json.loads(Path("results/tables/low/smoke/records/2_seed0.json").read_text())


class Clock:
    """A clock that fits alone move, each by as long as it takes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fits: Fits, seconds: dict[str, float]) -> None:
        self.now, self.fits, self.seconds = time.time(), fits, seconds
        monkeypatch.setattr("sweeps.runner.work.time.time", lambda: self.now)

    def __call__(self, arguments: list[str]) -> None:
        self.fits(arguments)
        self.now += self.seconds["teacher" if self.fits.sizes[-1] == "teacher" else "student"]


def test_no_fit_is_begun_that_would_not_end_in_time(specs: list[TableSpec], monkeypatch: pytest.MonkeyPatch) -> None:
    fits = Fits()
    # By the estimates the teacher takes 100 s and students 10 s; what was measured counts from then on: 8 s.
    clock = Clock(monkeypatch, fits, {"teacher": 100, "student": 8})
    measured(specs, clock, hours=127 / 3600)
    assert fits.sizes[0] == "teacher" and ran(fits) == ALL[:3]
    measured(specs, clock, hours=7 / 3600)
    assert ran(fits) == ALL[:3]
    measured(specs, clock)
    assert ran(fits) == ALL


def test_without_the_estimate_a_fit_would_be_begun_that_ends_too_late(
    specs: list[TableSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sweeps.runner.work.estimate", lambda *_: (0.0, "none"))
    fits = Fits()
    measured(specs, Clock(monkeypatch, fits, {"teacher": 100, "student": 8}), hours=127 / 3600)
    assert ran(fits) == ALL[:4]


def test_a_shorter_fit_takes_the_time_that_a_longer_one_does_not(specs: list[TableSpec]) -> None:
    long = written("long", sizes=[9], value=9, presets={"smoke": {"seconds": {"teacher": 10, "student": 5000}}})
    fits = Fits()
    measured([*specs, long], fits, hours=1)
    assert ran(fits) == ALL
    # A parent that is too long is not waited for.
    fits = Fits()
    other = written("other", sizes=[9], presets={"smoke": {"seconds": {"teacher": 5000}, "set": {"teacher": {"b": 1}}}})
    measured([other], fits, hours=1)
    assert fits.asked == []


def test_the_schedule_is_what_would_be_made(specs: list[TableSpec]) -> None:
    def plan() -> Plan:
        return plan_of_turns(in_order(specs, preset="smoke"), Store("runs/tables"), preset="smoke")

    alone = schedule(plan(), jobs=1)
    assert len(alone) == 10 and max(alone.values()) == 190
    # A second process waits for the one teacher, and then takes every other student.
    both = schedule(plan(), jobs=2)
    assert max(both.values()) == 150 and sorted(both.values())[1:3] == [110, 110]
    assert len(schedule(plan(), jobs=2, seconds=115)) == 3
    assert schedule(plan(), jobs=2, seconds=99) == {}
    measured(specs, Fits())
    assert set(schedule(plan(), jobs=2, seconds=0).values()) == {0.0}


def test_what_has_an_up_to_date_record_can_be_left_out(specs: list[TableSpec]) -> None:
    measured(specs[:2], Fits())

    def left() -> list[tuple[str, int, list[str]]]:
        turns = without_measured(in_order(specs, preset="smoke"), records_by_digest(Path("results/tables")))
        return [(turn.spec.name, turn.seed, [cell.labels["size"] for cell in turn.cells]) for turn in turns]

    # Size 2 was measured for another table, but not with seed 2.
    others = [("high", 0, ["1"]), ("high", 1, ["1"]), ("high", 2, ["1", "2"])]
    assert left() == others
    path = Path("results/tables/low/smoke/records/3_seed1.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "digest": "of another configuration"}))
    assert left() == [*others[:2], ("low", 1, ["3"]), others[2]]
    path.write_text(json.dumps({**json.loads(path.read_text()), "error": "failed"}))
    assert ("low", 1, ["3"]) in left()


def test_a_table_gets_the_cells_that_another_has_measured(specs: list[TableSpec]) -> None:
    measured(specs[:2], Fits())
    records, results = records_by_digest(Path("results/tables")), Path("results/tables")
    cells = specs[2].cells("smoke")
    assert share_records(specs[2], cells, records, preset="smoke", results=results) == 2
    assert share_records(specs[2], cells, records, preset="smoke", results=results) == 0
    shared = json.loads((results / "high/smoke/records/2_seed1.json").read_text())
    source = json.loads((results / "low/smoke/records/2_seed1.json").read_text())
    assert shared["table"] == "high" and source["table"] == "low"
    assert {**shared, "table": "low"} == source
    assert not (results / "high/smoke/records/1_seed1.json").exists()


def test_dry_run_shows_the_order_and_what_the_time_is_enough_for(
    specs: list[TableSpec], capsys: pytest.CaptureFixture[str]
) -> None:
    main(["tables", "all", "none.yaml", "low.yaml", "high.yaml", "--dry-run", "--jobs", "2", "--hours", "0.0325"])
    shown = re.sub(" +", " ", capsys.readouterr().out)
    order = [line.split()[2] for line in shown.splitlines() if line.startswith(" seed")]
    assert order == ["table-high", "table-low", "table-none", "table-high", "table-low", "table-high"]
    assert "table-low 2 cells, 1 fits to do 10 s" in shown
    assert "ends after 2 min, 1 of its cells not reached" in shown
    assert "0 done, 0 running, 10 left" in shown and "in 0.0325 h: 3 of 10 missing fits" in shown
    assert not Path("runs").exists() and not Path("results").exists()


class IdleWorkers:
    """An engine whose workers end at once, with nothing made."""

    jobs = 1

    def start(self, arguments: Sequence[str], plan: Path) -> IdleWorkers:
        return self

    def running(self) -> bool:
        return False

    def complaints(self) -> list[str]:
        return []

    def stop(self) -> None:
        pass


def test_workers_that_end_too_early_are_an_error_and_time_that_is_over_is_none(
    specs: list[TableSpec], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sweeps.runner.tables.commands.engine_of", lambda options: IdleWorkers())
    with pytest.raises(SystemExit, match="10 fits were not made: workers ended too early"):
        main(["tables", "all", "none.yaml", "low.yaml", "high.yaml"])
    main(["tables", "all", "none.yaml", "low.yaml", "high.yaml", "--hours", "0.02"])  # the teacher takes 100 s
    assert "10 fits are left that would not end in 0.02 h" in capsys.readouterr().out


def test_a_preset_that_no_table_has_is_refused() -> None:
    with pytest.raises(SystemExit, match="--preset must be one of cpu, paper, smoke, got 'big'"):
        main(["tables", "all", "--preset", "big", "--dry-run"])


@pytest.mark.parametrize("hours", ["0", "-1", "many", "nan"])
def test_hours_are_more_than_none(specs: list[TableSpec], hours: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["tables", "all", "low.yaml", "--hours", hours])
    assert "must be a number of hours above 0" in capsys.readouterr().err


def test_progress_says_what_runs(specs: list[TableSpec]) -> None:
    plan = plan_of_turns(in_order(specs, preset="smoke"), Store("runs/tables"), preset="smoke")
    first, second = list(plan.tasks)[:2]
    with plan.store.claim(first), plan.store.claim(second):
        line = plan.progress(since=0.0).line(plan.title)
    assert line.startswith("[tables smoke] 0 done, 2 running, 8 left, about 3 min to go; now high teacher (size 1); ")
    assert line.endswith("high student (size 1, seed 0)")


class Forks:
    """An engine whose workers are forks of this process, which have everything imported."""

    jobs = 2

    def start(self, arguments: Sequence[str], plan: Path) -> Forks:
        self.children = [self.fork(arguments) for _ in range(self.jobs)]
        self.living = set(self.children)
        return self

    def fork(self, arguments: Sequence[str]) -> int:
        child = os.fork()
        if child == 0:
            # What a new process would have, in place of its parent's handler.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            try:
                worker(arguments[1:], run=self.fit)
            finally:
                os._exit(0)
        return child

    @staticmethod
    def fit(arguments: list[str]) -> None:
        """One of size 3 never ends with its first seed."""
        asked = settings(arguments)
        Fits()(arguments)
        if (asked.get("size"), asked.get("seed_everything")) == ("3", "0"):
            time.sleep(120)

    def running(self) -> bool:
        self.living -= {child for child in self.living if os.waitpid(child, os.WNOHANG)[0]}
        return bool(self.living)

    def complaints(self) -> list[str]:
        return []

    def stop(self) -> None:
        for child in self.living:
            os.kill(child, signal.SIGTERM)
            os.waitpid(child, 0)
        Path("stopped").touch()


def until_ended_by_sigterm(specs: Sequence[TableSpec]) -> int:
    """Exit status of a process that runs tables by two workers and gets SIGTERM when all but one fit is made."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            measured(specs, None, engine=Forks())
        except SystemExit as error:
            status = int(str(error.code))
        finally:
            os._exit(status)
    end = time.monotonic() + 60
    while len(records("high") + records("low")) < 9 and time.monotonic() < end:
        time.sleep(0.02)
    os.kill(child, signal.SIGTERM)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_sigterm_ends_the_workers_and_keeps_what_is_finished(specs: list[TableSpec]) -> None:
    assert until_ended_by_sigterm(specs[1:]) == 128 + signal.SIGTERM
    assert Path("stopped").is_file() and not list(Path("runs/tables").glob("plan-*.json"))
    assert [len(records(name)) for name in ("high", "low")] == [6, 3]
    fits = Fits()
    measured(specs[1:], fits)
    assert ran(fits) == [("3", "0")] and len(records("low")) == 4
    assert "ckpt_path" in fits.asked[0]


def test_without_the_handler_sigterm_would_leave_the_workers(
    specs: list[TableSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sweeps.runner.run_plan._ended_by_sigterm", nullcontext)
    monkeypatch.setattr("sweeps.runner.work.time.sleep", lambda seconds, sleep=time.sleep: sleep(min(seconds, 5)))
    assert until_ended_by_sigterm(specs[1:]) == -signal.SIGTERM
    assert not Path("stopped").exists() and list(Path("runs/tables").glob("plan-*.json"))
