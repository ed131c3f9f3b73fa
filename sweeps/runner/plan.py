"""What is to be made: fits with their parents, how far they are, and what the rest will take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from sweeps.runner.fit import Fit
from sweeps.runner.store import State, Store

__all__ = ["Plan", "Progress", "Task", "duration", "estimate"]


@dataclass(frozen=True)
class Task:
    """One fit that is to be made.

    Attributes:
        name: Of its folder in the store.
        fit: What is run.
        digest: Of all that decides its outcome.
        parents: Name of the task that stands behind each placeholder in the fit's settings.
        label: What tells it from the others, for a person.
        seconds: Estimate of its wall time, or None.
        needs_record: Whether it has failed where it leaves no `result.json`.
        note: Kept with it when it is done; those with equal notes, but for `labels` and
            `seed`, take about equally long.
    """

    name: str
    fit: Fit
    digest: str
    parents: Mapping[str, str] = field(default_factory=dict)
    label: str = ""
    seconds: float | None = None
    needs_record: bool = False
    note: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Task:
        """Inverse of `dataclasses.asdict`."""
        return cls(**{**values, "fit": Fit(**values["fit"])})

    @property
    def title(self) -> str:
        """In a few words, for a person: `dpdfd-table1 student (dataset MNIST, seed 0)`."""
        words = filter(None, [str(self.note.get("table", "")), self.fit.name])
        seed = f"seed {self.note['seed']}" if "seed" in self.note else ""
        inner = ", ".join(filter(None, [self.label, seed]))
        return " ".join(words) + (f" ({inner})" if inner else "")


@dataclass(frozen=True)
class Progress:
    """How far a plan is.

    Attributes:
        done: Fits that are finished.
        failed: Fits that failed, or whose parents did.
        running: Fits that some process is making.
        left: Fits that nobody has begun.
        seconds_left: Estimate for what is running and left, None where nothing is known of some fit.
        now: What is running, in words.
    """

    done: int
    failed: int
    running: int
    left: int
    seconds_left: float | None
    now: tuple[str, ...] = ()

    @property
    def ended(self) -> int:
        """Fits that are over, made or failed."""
        return self.done + self.failed

    @property
    def finished(self) -> bool:
        """Whether nothing remains to be done or waited for."""
        return self.running == self.left == 0

    def line(self, title: str) -> str:
        """For a person."""
        to_go = "time to go unknown" if self.seconds_left is None else f"about {duration(self.seconds_left)} to go"
        failed = f", {self.failed} failed" if self.failed else ""
        words = f"{self.done} done{failed}, {self.running} running, {self.left} left"
        now = f"; now {'; '.join(self.now)}" if self.now else ""
        return f"[{title}] {words}" + ("" if self.finished else f", {to_go}") + now


class Plan:
    """Fits, parents before children, each once.

    Args:
        tasks: Them; those of a name that is there already are left out.
        store: Where they lie.
        title: What they are together, for a person.

    Raises:
        ValueError: A parent comes after its child, or is missing.
    """

    def __init__(self, tasks: Iterable[Task], store: Store, *, title: str = "") -> None:
        self.tasks: dict[str, Task] = {}
        self.store = store
        self.title = title
        for task in tasks:
            if unknown := set(task.parents.values()) - set(self.tasks):
                raise ValueError(f"tasks: {task.name} has the parents {sorted(unknown)}, which do not come before it")
            self.tasks.setdefault(task.name, task)

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for worker processes."""
        return {
            "title": self.title,
            "root": str(self.store.root),
            "tasks": [asdict(task) for task in self.tasks.values()],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Plan:
        """Inverse of `to_dict`."""
        tasks = [Task.from_dict(task) for task in values["tasks"]]
        return cls(tasks, Store(values["root"]), title=values["title"])

    def current(self, task: Task) -> dict[str, Any] | None:
        """What was noted of it, where it was made of this configuration and of its parents as they are; else None."""
        note = self.store.done(task.name)
        if note is None or (note.get("digest") and task.digest not in (note["digest"], *note.get("also", []))):
            return None
        for alias, name in task.parents.items():
            parent = self.current(self.tasks[name])
            if parent is None or _differ(note.get("parents", {}).get(alias), parent.get("made")):
                return None
        return note

    def state(self, task: Task, *, since: float = 0.0) -> State:
        """What is known of it; a failure before `since` (seconds since the epoch) is forgotten."""
        if self.current(task) is not None:
            return "done"
        found = self.store.state(task.name, since=since)
        return "left" if found == "done" else found

    def made_of(self, task: Task) -> dict[str, Any]:
        """Which making of each parent there is, by placeholder."""
        notes = {alias: self.current(self.tasks[name]) or {} for alias, name in task.parents.items()}
        return {alias: note.get("made") for alias, note in notes.items()}

    def resumable(self, task: Task) -> Path | None:
        """The checkpoint that it can go on from: of this configuration, and of its parents as they are."""
        checkpoint, begun = self.store.checkpoint(task.name), self.store.begun(task.name)
        if checkpoint is None:
            return None
        if begun is None:
            # A folder that is named by the digest holds nothing else.
            return checkpoint if task.digest[:16] in task.name else None
        made, before = self.made_of(task), begun.get("parents", {})
        same = begun.get("digest") == task.digest and not any(_differ(before.get(a), made[a]) for a in made)
        return checkpoint if same else None

    def command(self, task: Task) -> list[str]:
        """Its command line, which goes on where an interrupted one stopped."""
        places = {alias: str(self.store.folder(name)) for alias, name in task.parents.items()}
        return task.fit.command(self.store.folder(task.name), places, resume=self.resumable(task))

    def progress(self, *, since: float, jobs: int = 1) -> Progress:
        """Looks at every fit's folder.

        Args:
            since: Failures before this time are forgotten.
            jobs: Processes that share what is left.
        """
        counts = {"done": 0, "failed": 0, "running": 0, "left": 0}
        notes = self.store.notes()
        seconds: float | None = 0.0
        failed: set[str] = set()
        now = []
        for name, task in self.tasks.items():
            state = self.state(task, since=since)
            if state != "done" and any(parent in failed for parent in task.parents.values()):
                state = "failed"
            counts[state] += 1
            if state == "failed":
                failed.add(name)
            elif state != "done":
                if state == "running":
                    now.append(task.title)
                expected, _ = estimate(task, notes)
                seconds = None if seconds is None or expected is None else seconds + expected
        return Progress(**counts, seconds_left=None if seconds is None else seconds / jobs, now=tuple(now))

    def made_before(self) -> list[str]:
        """Lines that name, for a person, what was made before of another configuration and is made again.

        Making it again charges the private data again.
        """
        lines = []
        notes = self.store.notes()
        known = {self.store.folder(name).resolve().name for name in self.tasks}
        for task in self.tasks.values():
            if self.current(task) is not None:
                continue
            if self.store.done(task.name) is not None:
                lines.append(f"{task.name}: its configuration or a parent has changed since it was made")
                continue
            wanted = dict(task.note)
            alike = [
                note["folder"]
                for note in notes  # earlier versions did not note the seed
                if wanted and note["folder"] not in known and all(note.get(k, wanted[k]) == wanted[k] for k in wanted)
            ]
            if alike:
                lines.append(f"{task.fit.name} ({task.label}): made before, of another configuration, as {alike[0]}")
        return lines


def _differ(before: Any, now: Any) -> bool:
    # What version 1 of the tables made says nothing of its making.
    return before is not None and now is not None and before != now


def duration(seconds: float) -> str:
    """In the unit that suits it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def estimate(task: Task, notes: Sequence[Mapping[str, Any]]) -> tuple[float | None, str]:
    """Seconds that a fit will take, and where that figure is from.

    The mean of finished fits whose notes are alike and share most labels; else the task's own estimate.
    """
    kind = {name: value for name, value in task.note.items() if name not in ("labels", "seed")}
    labels = task.note.get("labels", {})
    alike = [
        note for note in notes if note.get("seconds") and all(note.get(name) == value for name, value in kind.items())
    ]
    if not kind or not alike:
        return task.seconds, "spec" if task.seconds is not None else "unknown"
    shared = [len(labels.items() & note.get("labels", {}).items()) for note in alike]
    nearest = [note["seconds"] for note, count in zip(alike, shared, strict=True) if count == max(shared)]
    return fmean(nearest), f"{len(nearest)} measured"
