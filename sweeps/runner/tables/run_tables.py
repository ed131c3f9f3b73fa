"""Runs many tables as one plan, so that no core is idle where one of them ends and the next begins."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sweeps.runner.engines import Engine
from sweeps.runner.plan import Plan, Progress
from sweeps.runner.run_plan import run_plan
from sweeps.runner.store import Store
from sweeps.runner.tables.cells import Cell
from sweeps.runner.tables.order import Turn
from sweeps.runner.tables.records import collect, plan_of
from sweeps.runner.tables.rendering import render_table
from sweeps.runner.tables.spec import TableSpec

__all__ = ["plan_of_turns", "run_tables"]


def plan_of_turns(turns: Sequence[Turn], store: Store, *, preset: str) -> Plan:
    """One plan of several tables; a fit that many need stands where it is first needed."""
    return plan_of([cell for turn in turns for cell in turn.cells], store, title=f"tables {preset}")


def run_tables(
    turns: Sequence[Turn],
    *,
    preset: str,
    run: Callable[[list[str]], Any],
    folder: str | Path = "runs/tables",
    results: str | Path = "results/tables",
    engine: Engine | None = None,
    hours: float = math.inf,
    say: Callable[[str], None] = print,
) -> Progress:
    """Runs what is missing, in order; records and rendered tables follow each cell, also where this is interrupted.

    Args:
        turns: Tables and seeds in order, see `in_order`.
        preset: Their size.
        run: Takes the arguments of one `fit` command; used where there is no engine.
        folder: Where fits lie, shared by all tables.
        results: Where records and rendered tables go.
        engine: What runs the fits; None is this process.
        hours: Time limit: no fit is begun that its estimate says would end later.
        say: Takes lines for a person.

    Returns:
        How far it is.
    """
    plan = plan_of_turns(turns, Store(folder), preset=preset)
    since = time.time()
    records = _Records(turns, plan, preset=preset, results=Path(results), since=since, say=say)
    records.follow()
    try:
        return run_plan(
            plan, run, since=since, until=since + 3600 * hours, engine=engine, say=say, after=records.follow
        )
    finally:
        records.follow()


class _Records:
    """Keeps the records and rendered tables up with the fits."""

    def __init__(
        self,
        turns: Sequence[Turn],
        plan: Plan,
        *,
        preset: str,
        results: Path,
        since: float,
        say: Callable[[str], None],
    ) -> None:
        self.plan, self.preset, self.results, self.since, self.say = plan, preset, results, since, say
        self.specs: dict[str, TableSpec] = {turn.spec.name: turn.spec for turn in turns}
        self.left: dict[str, list[Cell]] = {name: [] for name in self.specs}
        for turn in turns:
            self.left[turn.spec.name] += turn.cells
        self.sizes = {name: len(cells) for name, cells in self.left.items()}

    def follow(self) -> None:
        """Copies and renders what has ended since the last call."""
        for name, spec in self.specs.items():
            cells = self.left[name]
            if ended := [cell for cell in cells if self._ended(cell)]:
                collect(spec, ended, self.plan, preset=self.preset, results=self.results, since=self.since)
                self.left[name] = [cell for cell in cells if cell not in ended]
                files = render_table(spec, preset=self.preset, results=self.results)
                page = next(file for file in files if file.suffix == ".md")
                self.say(f"[{self.plan.title}] {len(ended)} more of the {self.sizes[name]} cells of {name}: {page}")

    def _ended(self, cell: Cell) -> bool:
        name = cell.fit.folder_name
        done = self.plan.current(self.plan.tasks[name]) is not None
        return done or self.plan.store.failure(name, since=self.since) is not None
