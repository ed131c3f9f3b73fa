"""Runs the missing fits of a table: in this process, or in several that share a folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from lightning_modules.runtime.wandb_runs import end_wandb_run
from privacy.files import write_atomically
from sweeps.runner.store import Store
from sweeps.runner.tables.spec import Cell, FitSpec, TableSpec

__all__ = ["Grid", "Progress", "run_table", "work"]

POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Grid:
    """The fits of some tables' cells, parents before children, each once however many cells need it.

    Attributes:
        cells: The cells.
        fits: Their fits by folder name.
    """

    cells: Sequence[Cell]
    fits: Mapping[str, FitSpec]

    @classmethod
    def of(cls, cells: Sequence[Cell]) -> Grid:
        """Collects the fits."""
        fits: dict[str, FitSpec] = {}
        for cell in cells:
            for fit in cell.fit.lineage():
                fits.setdefault(fit.folder_name, fit)
        return cls(cells=cells, fits=fits)


@dataclass(frozen=True)
class Progress:
    """How far a grid is.

    Attributes:
        done: Fits that are finished.
        failed: Fits that failed, or whose parents did.
        running: Fits that some process is making.
        left: Fits that nobody has begun.
        seconds_left: Estimate for what is running and left, None where nothing is known of some fit.
    """

    done: int
    failed: int
    running: int
    left: int
    seconds_left: float | None

    @property
    def finished(self) -> bool:
        """Whether nothing remains to be done or waited for."""
        return self.running == self.left == 0

    def line(self, title: str) -> str:
        """For a person."""
        to_go = "time to go unknown" if self.seconds_left is None else f"about {duration(self.seconds_left)} to go"
        failed = f", {self.failed} failed" if self.failed else ""
        words = f"{self.done} done{failed}, {self.running} running, {self.left} left"
        return f"[{title}] {words}" + ("" if self.finished else f", {to_go}")


def duration(seconds: float) -> str:
    """In the unit that suits it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def estimate(fit: FitSpec, notes: Sequence[Mapping[str, Any]]) -> tuple[float | None, str]:
    """Seconds that a fit will take, and where that figure is from.

    The mean of finished fits of the same table, preset and name that share most labels; else the spec's estimate.
    """
    alike = [
        note
        for note in notes
        if (note.get("table"), note.get("preset"), note.get("fit")) == (fit.table, fit.preset, fit.fit.name)
    ]
    if not alike:
        return fit.seconds, "spec" if fit.seconds is not None else "unknown"
    shared = [len(fit.labels.items() & note["labels"].items()) for note in alike]
    nearest = [note["seconds"] for note, count in zip(alike, shared, strict=True) if count == max(shared)]
    return fmean(nearest), f"{len(nearest)} measured"


def progress(grid: Grid, store: Store, *, since: float, jobs: int = 1) -> Progress:
    """Looks at every fit's folder."""
    counts = {"done": 0, "failed": 0, "running": 0, "left": 0}
    notes = store.notes()
    seconds: float | None = 0.0
    failed: set[str] = set()
    for name, fit in grid.fits.items():
        state = store.state(name, since=since)
        if any(parent.folder_name in failed for parent in fit.parents.values()) and state != "done":
            state = "failed"
        counts[state] += 1
        if state == "failed":
            failed.add(name)
        elif state != "done":
            expected, _ = estimate(fit, notes)
            seconds = None if seconds is None or expected is None else seconds + expected
    return Progress(**counts, seconds_left=None if seconds is None else seconds / jobs)


def arguments(fit: FitSpec, store: Store) -> list[str]:
    """The command line of one fit, which goes on where an interrupted one stopped."""
    places = {name: str(store.folder(parent.folder_name)) for name, parent in fit.parents.items()}
    folder = store.folder(fit.folder_name)
    checkpoint = folder / "checkpoints" / "last.ckpt"
    return fit.fit.command(folder, places, resume=checkpoint if checkpoint.is_file() else None)


def make(fit: FitSpec, store: Store, run: Callable[[list[str]], Any]) -> None:
    """Makes one fit, which the caller has claimed; whatever goes wrong in it is noted and ends nothing else.

    Raises:
        KeyboardInterrupt: Somebody wants everything to stop.
    """
    name = fit.folder_name
    begun = time.monotonic()
    handler = signal.getsignal(signal.SIGINT)
    try:
        run(arguments(fit, store))
    except KeyboardInterrupt:
        raise
    except SystemExit as error:
        # Lightning turns an interruption into an exit and ignores the ones that follow.
        if isinstance(error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from error
        store.fail(name, f"the command ended with status {error.code}; its message is above or in the worker's log")
    except Exception as error:
        store.fail(name, error)
    else:
        record = store.folder(name) / "result.json"
        if not record.is_file():
            store.fail(name, f"the fit ended without writing {record}")
            return
        seconds = json.loads(record.read_text(encoding="utf-8")).get("wall_seconds") or time.monotonic() - begun
        store.finish(
            name,
            table=fit.table,
            preset=fit.preset,
            fit=fit.fit.name,
            labels=dict(fit.labels),
            digest=fit.digest,
            seconds=seconds,
        )
    finally:
        end_wandb_run()
        # A process in the background ignores it from the start: nothing is to be put back then.
        if handler not in (None, signal.SIG_IGN) and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            signal.signal(signal.SIGINT, handler)


def work(
    grid: Grid,
    store: Store,
    run: Callable[[list[str]], Any],
    *,
    since: float,
    say: Callable[[str], None] = lambda text: None,
    title: str = "",
) -> None:
    """Makes fits until none is left that this process could make, and waits for those that others are making.

    Args:
        grid: The fits.
        store: Where they lie.
        run: Takes the arguments of one `fit` command.
        since: Failures before this time are tried again.
        say: Takes lines for a person.
        title: Begins these lines.
    """
    while True:
        made_one = waiting = False
        for name, fit in grid.fits.items():
            if store.done(name) is not None or store.failure(name, since=since) is not None:
                continue
            parents = [parent.folder_name for parent in fit.parents.values()]
            broken = [parent for parent in parents if store.failure(parent, since=since) is not None]
            if broken:
                store.fail(name, f"its parent {broken[0]} failed")
                continue
            if any(store.done(parent) is None for parent in parents):
                waiting = True
                continue
            with store.claim(name) as mine:
                # Between the look above and the claim another process may have finished it.
                if not mine or store.done(name) is not None:
                    waiting |= not mine
                    continue
                label = ", ".join(f"{axis} {value}" for axis, value in fit.labels.items())
                say(f"[{title}] {fit.fit.name} ({label}): {store.folder(name)}")
                make(fit, store, run)
                made_one = True
            if (error := store.failure(name, since=since)) is not None:
                say(f"[{title}] {fit.fit.name} failed: {error}")
            say(progress(grid, store, since=since).line(title))
        if not made_one:
            if not waiting:
                return
            time.sleep(POLL_SECONDS)


def run_table(
    spec: TableSpec,
    *,
    preset: str,
    run: Callable[[list[str]], Any],
    folder: str | Path = "runs/tables",
    results: str | Path = "results/tables",
    seeds: Sequence[int] | None = None,
    jobs: int = 1,
    say: Callable[[str], None] = print,
) -> Progress:
    """Runs what is missing of a table and copies the records of its cells.

    Args:
        spec: The table.
        preset: Its size.
        run: Takes the arguments of one `fit` command; used where `jobs` is 1.
        folder: Where fits lie, shared by all tables.
        results: Where records are copied to.
        seeds: In place of the preset's.
        jobs: Processes.
        say: Takes lines for a person.
    """
    store, since = Store(folder), time.time()
    cells = spec.cells(preset, seeds=seeds)
    grid = Grid.of(cells)
    title = f"{spec.name} {preset}"
    say(progress(grid, store, since=since, jobs=jobs).line(title))
    if jobs == 1:
        work(grid, store, run, since=since, say=say, title=title)
    else:
        _work_in_processes(spec, grid, store, preset=preset, seeds=seeds, jobs=jobs, since=since, say=say, title=title)
    collect(spec, cells, store, preset=preset, results=Path(results))
    return progress(grid, store, since=since)


def _worker_arguments(spec: TableSpec, preset: str, seeds: Sequence[int] | None, root: Path, since: float) -> list[str]:
    """Arguments of a process that makes missing fits of a table until none is left."""
    line = ["tables", "work", spec.path, "--preset", preset, "--folder", str(root), "--since", repr(since)]
    return line if seeds is None else [*line, "--seeds", *map(str, seeds)]


def _work_in_processes(
    spec: TableSpec,
    grid: Grid,
    store: Store,
    *,
    preset: str,
    seeds: Sequence[int] | None,
    jobs: int,
    since: float,
    say: Callable[[str], None],
    title: str,
) -> None:
    store.root.mkdir(parents=True, exist_ok=True)
    threads = str(max(1, (os.cpu_count() or 1) // jobs))
    # Found also from a checkout that is not installed.
    sources = os.pathsep.join([str(Path(__file__).resolve().parents[3]), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {"OMP_NUM_THREADS": threads, **os.environ, "PYTHONPATH": sources}
    command = [sys.executable, "-m", "lightning_modules", *_worker_arguments(spec, preset, seeds, store.root, since)]
    processes: list[subprocess.Popen[bytes]] = []
    logs = [(store.root / f"worker{number}.log").open("wb") for number in range(jobs)]
    try:
        for log in logs:
            processes.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment))
        shown = ""
        while True:
            ended = all(process.poll() is not None for process in processes)
            line = progress(grid, store, since=since, jobs=jobs).line(title)
            if line != shown:
                say(line)
                shown = line
            if ended:
                break
            time.sleep(POLL_SECONDS)
        for name in grid.fits:
            if (error := store.failure(name, since=since)) is not None:
                say(f"[{title}] {name} failed: {error}")
        for number, process in enumerate(processes):
            if process.returncode:
                say(f"[{title}] a worker ended with status {process.returncode}: {store.root}/worker{number}.log")
    finally:
        for process in processes:
            if process.poll() is None:
                process.terminate()
        for process in processes:
            process.wait()
        for log in logs:
            log.close()


def collect(spec: TableSpec, cells: Sequence[Cell], store: Store, *, preset: str, results: Path) -> None:
    """Copies the record of each finished cell to `results/<table>/<preset>/records`, with where it belongs."""
    for cell in cells:
        name = cell.fit.folder_name
        path = results / spec.name / preset / "records" / f"{cell.name}.json"
        if store.done(name) is None:
            if (error := store.failure(name)) is not None:
                # An earlier figure of a cell that now fails is not this cell's.
                stale = {"table": spec.name, "preset": preset, "cell": dict(cell.labels), "error": error}
                write_atomically(path, json.dumps({**stale, "seed": cell.seed}, indent=2, ensure_ascii=False) + "\n")
            continue
        record = json.loads((store.folder(name) / "result.json").read_text(encoding="utf-8"))
        place = {"table": spec.name, "preset": preset, "cell": dict(cell.labels), "digest": cell.fit.digest}
        write_atomically(path, json.dumps({**place, **record}, indent=2, ensure_ascii=False) + "\n")
