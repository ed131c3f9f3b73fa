"""Files of fits: a pipeline makes each of its fits, a table makes its last fit on a grid.

    title: DPDFD under two budgets
    fits:                       # in order; parents before the fits whose settings name them
      teacher: {config: sweeps/teacher_mnist.yaml, set: {trainer.max_epochs: 3}}
      student: {config: sweeps/dpdfd_mnist.yaml, set: {model.teacher: "{teacher}/checkpoints/last.ckpt"}}

This is a pipeline. `config` is a file or a list, in which later files override earlier ones; `folder` is its folder,
and `kind: figure` plots the curves of its students. With `axes` and `presets` it is a table or a figure of a grid:

    paper: DPDFD
    reported: Table 1           # tables of sweeps/reported to show next to ours: one or a list; else "DPSD Table I"
    method: DPDFD
    axes:                       # each value changes some fits' configuration files or parameters
      dataset:                # `config` replaces a fit's own files, `also` is added to them
        MNIST: {}
        FashionMNIST: {teacher: {config: sweeps/methods/teacher_fashionmnist.yaml}, student: {...}}
      epsilon:
        "1": {student: {model.budget.target_epsilon: 1.0}}
    skip:                       # points of the grid to leave out; a preset may skip more
      - {dataset: FashionMNIST, epsilon: "10"}
    unprinted:                  # points whose figure the paper does not print, though their axes would select one
      - {alpha: "0.1"}
    exceptions:                 # changes by a combination of values, after those of each; a preset may add its own
      - {when: {dataset: FashionMNIST, epsilon: "1"}, set: {student: {trainer.max_epochs: 40}}}
    protocol:                   # kinds of rows (`PROTOCOLS`), each of a point, the first that fits; otherwise `ours`
      in part as printed: {epsilon: "1"} # a preset may have its own, or one kind for all its rows
    presets:
      cpu:
        seeds: [0, 1, 2]
        axes: {epsilon: ["1"]}  # a list selects values; a mapping selects them and adds changes
        set: {student: {trainer.max_epochs: 15}}

A figure has `figure: {x: AXIS}`, an axis of numbers; or, over the ε reached, `figure: {x: epsilon_record, along: AXIS}`
(or `epsilon_published`), whose lines follow that axis; without `along` the points are not connected.

Without `presets` there is one, `full`, with the whole grid and the file's `seeds`.

Only axes named `dataset`, `epsilon`, `setting`, `method` or `unit` (what ε is claimed to protect) select the printed
figure of a cell; `unprinted` lists the points that would get another point's. Only the last fit and those named in
`seeded` get the cell's seed; other parents are made once, with the seed of their file.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from lightning_modules.cli.configs import find_config
from sweeps.runner.fit import Fit, RunnerError
from sweeps.runner.plan import CLAIMS, Task
from sweeps.runner.reported import Reported, reported

OF_FITS = {"title", "kind", "folder", "fits"}
OF_TABLES = {
    "paper", "reported", "method", "note", "axes", "skip", "seeds", "presets", "figure", "seeded", "compare_with",
    "exceptions", "unprinted", "protocol",
}  # fmt: skip
OF_PRESETS = {"seeds", "axes", "set", "note", "exceptions", "skip", "protocol"}
TEACHER, BASELINE = "teacher_accuracy", "baseline_accuracy"
MEASURES = {TEACHER: "teacher", BASELINE: "baseline", "auroc": "AUC"}
"""Measures of a record, besides its accuracy, that a table shows where it has them, with their headings. The first two
are of the fits that it learns from; an ensemble's is its vote's."""
OURS, IN_PART = "ours", "in part as printed"
PROTOCOLS = {
    "as printed": "the paper's networks, losses and constants",
    IN_PART: "some of the paper's settings, which the note names",
    "their networks, our recipe": "the paper's networks with this project's settings",
    OURS: "this project's networks and settings",
}
"""Kinds of rows, with what a row of each kind has."""
REACHED = {"epsilon_record": "record-level ε", "epsilon_published": "published ε (a claim)"}
"""Kinds of ε that may be on a figure's axis, with their labels."""
QUIET = {"trainer.enable_progress_bar": False, "trainer.enable_model_summary": False}
SMOKE = (
    "Smoke test on scikit-learn's digits, far too short to learn: accuracies near chance, 10 %, only show that "
    "everything runs."
)

Patch = Mapping[str, Mapping[str, Any]]
"""Changes by an axis value or a preset: fit name → parameter → value, where `config` and `also` are files."""
Axes = Mapping[str, Mapping[str, Patch]]
Point = Mapping[str, str]


@dataclass(frozen=True)
class Cell:
    """One measurement of a table.

    Attributes:
        labels: Value of each axis.
        seed: Seed of the measured fit.
        tasks: Its fits, parents before children, the measured fit last.
    """

    labels: Point
    seed: int
    tasks: Sequence[Task]

    @property
    def task(self) -> Task:
        return self.tasks[-1]

    @property
    def parents(self) -> dict[str, Task]:
        """The fits that the measured one learns from, by what their accuracies are called in its record."""
        made = {task.name: task for task in self.tasks}
        names = self.task.parents.items()
        return {BASELINE if fit == "baseline" else TEACHER: made[name] for fit, name in names}


@dataclass(frozen=True)
class Preset:
    """Seeds, grid, changes and protocols of one preset; the spec's own exceptions and skips come first."""

    seeds: Sequence[int]
    axes: Axes
    set: Patch
    note: str
    exceptions: Sequence[tuple[Point, Patch]]
    skip: Sequence[Point]
    protocols: Mapping[str, Point]

    def protocol(self, labels: Point) -> str:
        """Kind of the row of a point of the grid, one of `PROTOCOLS`."""
        return next((name for name, point in self.protocols.items() if point.items() <= labels.items()), OURS)


@dataclass(frozen=True)
class Spec:
    """A checked pipeline, table or figure; see the module's examples.

    Attributes:
        name: File name without its ending; `make table-<name>` or `make figure-<name>`.
        command: Argument of `LightningCLI tables run`: its name if it is installed, otherwise its file.
        kind: `pipeline`, `table` or `figure`.
        tables: Names in `sweeps/reported` of the paper's tables with these cells.
        method: The method's name there.
        figure: For figures of a grid: `x`, `along` and `label`.
        compare_with: Rows of other tables to show with this one: `table`, `label`, and `cell`, the labels to select.
    """

    name: str
    command: str
    kind: str
    folder: Path
    fits: Mapping[str, Fit]
    title: str = ""
    paper: str = ""
    tables: Sequence[str] = ()
    method: str | None = None
    note: str = ""
    presets: Mapping[str, Preset] = field(default_factory=dict)
    figure: Mapping[str, Any] = field(default_factory=dict)
    seeded: Sequence[str] = ()
    compare_with: Sequence[Mapping[str, Any]] = ()
    unprinted: Sequence[Point] = ()

    @classmethod
    def read(cls, path: str | Path) -> Spec:
        """Reads a file by path, or an installed table by name.

        Raises:
            RunnerError: A key, axis, value or fit is unknown, or there is no such file.
        """
        name, values, where = *_found(str(path)), str(path)
        grid = isinstance(values, Mapping) and "axes" in values
        needed = {"fits", "title"} if grid else {"fits"}
        _only(values, OF_FITS | OF_TABLES if grid else OF_FITS, where, needed=needed)
        fits = _fits(values["fits"], where)
        kind = values.get("kind", "table" if grid else "pipeline")
        if kind not in (("table", "figure") if grid else ("pipeline", "figure")):
            raise RunnerError(f"{where}: kind must be figure or left out, got {kind!r}")
        checked = {"kind": kind, "folder": Path(values.get("folder") or f"runs/{name}"), "fits": fits}
        checked |= {"command": name if name in _installed() else where}
        if grid:
            checked |= cls._grid(values, fits, where)
        plain = {entry.name: values[entry.name] for entry in fields(cls) if values.get(entry.name)}
        return cls(name=name, **{**plain, **checked})

    @staticmethod
    def _grid(values: Mapping[str, Any], fits: Mapping[str, Fit], where: str) -> dict[str, Any]:
        """Checks what a table has beside a pipeline."""
        values = {"presets": {"full": {}}, **values}
        axes = {
            str(axis): {str(value): _patch(patch, fits, f"{where}, {axis} {value}") for value, patch in entry.items()}
            for axis, entry in values["axes"].items()
        }
        figure = values.get("figure") or {}
        _only(figure, {"x", "label", "along"}, f"{where}, figure")
        if values.get("kind") == "figure" and figure.get("x") not in {**axes, **REACHED}:
            known = f"one of the axes {sorted(axes)} or of {sorted(REACHED)}"
            raise RunnerError(f"{where}: figure.x must be {known}, got {figure.get('x')!r}")
        _known([figure["along"]] if "along" in figure else [], axes, f"{where}, figure.along")
        tables = values.get("reported") or ()
        tables = (tables,) if isinstance(tables, str) else tuple(tables)
        printed = {name for row in reported() for name in row.named(values.get("paper", ""))}
        _known(tables, printed, f"{where}, reported")
        _known(values.get("seeded") or (), fits, f"{where}, seeded")
        for entry in values.get("compare_with") or ():
            _only(entry, {"table", "label", "cell"}, f"{where}, compare_with", needed={"table", "label"})
        return {
            "tables": tables,
            "presets": {name: _preset(name, values, axes, fits, where) for name in values["presets"]},
            "seeded": (*(values.get("seeded") or ()), list(fits)[-1]),
            "unprinted": [_point(one, axes, f"{where}, unprinted") for one in values.get("unprinted") or ()],
        }

    def reported(self) -> list[Reported]:
        """Returns the printed figures of the paper's tables, each from the first table that has it."""
        found: dict[tuple[Any, ...], Reported] = {}
        for table in self.tables:
            for row in reported():
                if table in row.named(self.paper):
                    found.setdefault((row.dataset, row.method, row.setting, row.unit, row.epsilon), row)
        return list(found.values())

    def printed(self, labels: Point) -> Reported | None:
        """Returns the paper's figure for this point of the grid, if it prints one."""
        if any(point.items() <= labels.items() for point in self.unprinted):
            return None
        found = [row for row in self.reported() if row.matches({"method": self.method or "", **labels})]
        return found[0] if len(found) == 1 else None

    def pipeline(self) -> list[Task]:
        """Returns the fits of a pipeline, each in a folder of its name.

        Raises:
            RunnerError: It is a table, or a fit refers to a later one.
        """
        if self.presets:
            raise RunnerError(f"{self.name} is a table: LightningCLI tables run {self.command}")
        return self._tasks(self.fits)

    def cells(self, preset: str, *, seeds: Sequence[int] | None = None) -> list[Cell]:
        """Returns the cells of the grid in order, for each point all seeds (default: the preset's).

        Raises:
            RunnerError: There is no such preset.
            OSError: There is no such configuration.
        """
        if preset not in self.presets:
            raise RunnerError(f"{self.name}: presets are {sorted(self.presets)}, got {preset!r}")
        chosen = self.presets[preset]
        points = [dict(zip(chosen.axes, point, strict=True)) for point in itertools.product(*chosen.axes.values())]
        return [
            self._cell(chosen, point, seed)
            for point in points
            if not any(left_out.items() <= point.items() for left_out in chosen.skip)
            for seed in (chosen.seeds if seeds is None else seeds)
        ]

    def _cell(self, preset: Preset, labels: Point, seed: int) -> Cell:
        patches = [preset.set, *(preset.axes[axis][value] for axis, value in labels.items())]
        patches += [patch for when, patch in preset.exceptions if when.items() <= labels.items()]
        fits = {}
        for name, base in self.fits.items():
            config, parameters = base.config, {**base.set, **QUIET}
            also: tuple[str, ...] = ()
            for patch in patches:
                change = dict(patch.get(name, {}))
                config = _files(change.pop("config", config))
                also += _files(change.pop("also", ()))
                parameters |= change
            if name in self.seeded:
                parameters["seed_everything"] = seed
            fits[name] = Fit(name=name, config=(*config, *also), set=parameters)
        tasks = self._tasks(fits, labels)
        wanted = {tasks[-1].name}  # with its ancestors
        for task in reversed(tasks):
            wanted |= set(task.parents.values()) if task.name in wanted else set()
        return Cell(labels=labels, seed=seed, tasks=[task for task in tasks if task.name in wanted])

    def _tasks(self, fits: Mapping[str, Fit], labels: Point | None = None) -> list[Task]:
        """Tasks of a pipeline, named by its fits, or of the cell with these labels, named by digest."""
        made: dict[str, Task] = {}
        for name, fit in fits.items():
            if absent := set(fit.parents) - set(made):
                raise RunnerError(f"{self.name}, fit {name}: refers to {sorted(absent)}, before it are {sorted(made)}")
            digest = fit.digest({parent: made[parent].digest for parent in fit.parents})
            seed = {"seed": fit.set["seed_everything"]} if "seed_everything" in fit.set else {}
            made[name] = Task(
                name=name if labels is None else f"{name}-{digest[:16]}",
                fit=fit,
                digest=digest,
                parents={parent: made[parent].name for parent in fit.parents},
                label=", ".join(f"{axis} {value}" for axis, value in {**(labels or {}), **seed}.items()),
                needs_record=labels is not None,
            )
        return list(made.values())


def list_specs() -> list[Spec]:
    """Reads the installed tables and figures."""
    return [Spec.read(name) for name in names_of_tables()]


def names_of_tables() -> list[str]:
    """Names of the installed tables and figures."""
    return sorted(name for name, values in _installed().items() if "axes" in values)


@cache
def _installed() -> dict[str, Any]:
    """Pipelines and tables by name, of the files in `sweeps/` that hold several."""
    folders = [resources.files("sweeps").joinpath(folder) for folder in ("tables", "pipelines")]
    texts = [file.read_text(encoding="utf-8") for folder in folders for file in folder.iterdir()]
    return {name: values for text in texts for name, values in yaml.safe_load(text).items()}


def _found(path: str) -> tuple[str, Any]:
    """Name and content of a file with one pipeline or table, or of an installed one by its name."""
    for candidate in (path, f"{path}.yaml"):
        file = Path(find_config(candidate))
        if file.suffix == ".yaml" and file.is_file():
            return file.stem, yaml.safe_load(file.read_text(encoding="utf-8"))
    if path in _installed():
        return path, _installed()[path]
    raise RunnerError(f"there is no file, table or figure {path!r}; installed are {', '.join(names_of_tables())}")


def _only(values: Any, allowed: Iterable[str], where: str, *, needed: Iterable[str] = ()) -> None:
    if not isinstance(values, Mapping):
        raise RunnerError(f"{where}: must be a mapping with the keys {sorted(allowed)}, got {type(values).__name__}")
    _known(values, allowed, where)
    if missing := sorted(set(needed) - set(values)):
        raise RunnerError(f"{where}: needs {missing}, got {sorted(map(str, values))}")


def _known(given: Iterable[Any], allowed: Iterable[str], where: str) -> None:
    if unknown := {str(value) for value in given} - set(allowed):
        raise RunnerError(f"{where}: allowed are {sorted(allowed)}, got {sorted(unknown)}")


def _fits(entries: Any, where: str) -> dict[str, Fit]:
    if not isinstance(entries, Mapping) or not entries:
        raise RunnerError(f"{where}: `fits` must be a mapping of at least one name to its `config` and `set`")
    fits: dict[str, Fit] = {}
    for name, entry in entries.items():
        _only(entry, {"config", "set"}, f"{where}, fit {name}", needed={"config"})
        if not re.fullmatch(r"\w+", str(name)) or name == CLAIMS:
            raise RunnerError(f"{where}: the name of a fit must be a single word other than {CLAIMS}, got {name!r}")
        fits[name] = Fit(name=name, config=_files(entry["config"]), set=entry.get("set") or {})
    return fits


def _files(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _patch(patch: Any, fits: Mapping[str, Fit], where: str) -> Patch:
    """What a value of an axis or a preset changes; null is nothing."""
    _only(patch or {}, fits, where)
    return patch or {}


def _point(entry: Any, axes: Axes, where: str) -> Point:
    _only(entry, axes, where)
    for axis, value in entry.items():
        _known([value], axes[axis], f"{where}, {axis}")
    return {axis: str(value) for axis, value in entry.items()}


def _preset(name: str, values: Mapping[str, Any], axes: Axes, fits: Mapping[str, Fit], where: str) -> Preset:
    where, entry = f"{where}, preset {name}", values["presets"][name]
    _only(entry, OF_PRESETS, where)
    _known(entry.get("axes") or (), axes, f"{where}, axes")
    chosen: dict[str, dict[str, Patch]] = {axis: dict(values) for axis, values in axes.items()}
    for axis, given in (entry.get("axes") or {}).items():
        if not isinstance(given, Mapping):
            _known(given, axes[axis], f"{where}, {axis}")
            given = dict.fromkeys(given)
        chosen[axis] = {}
        for value, change in given.items():
            patch, own = _patch(change, fits, f"{where}, {axis} {value}"), axes[axis].get(str(value), {})
            chosen[axis][str(value)] = {name: {**own.get(name, {}), **patch.get(name, {})} for name in {**own, **patch}}
    values_of = {axis: {**axes[axis], **chosen[axis]} for axis in axes}
    protocols = entry.get("protocol", values.get("protocol")) or {}
    protocols = {protocols: {}} if isinstance(protocols, str) else protocols
    _only(protocols, PROTOCOLS, f"{where}, protocol")
    exceptions = [*(values.get("exceptions") or ()), *(entry.get("exceptions") or ())]
    for one in exceptions:
        _only(one, {"when", "set"}, f"{where}, exceptions", needed={"when", "set"})
    skipped = [*(values.get("skip") or ()), *(entry.get("skip") or ())]
    return Preset(
        protocols={kind: _point(point, values_of, f"{where}, protocol") for kind, point in protocols.items()},
        seeds=tuple(entry.get("seeds", values.get("seeds", [0]))),
        axes=chosen,
        set=_patch(entry.get("set"), fits, f"{where}, set"),
        note=entry.get("note", SMOKE if name == "smoke" else ""),
        exceptions=[
            (_point(one["when"], values_of, f"{where}, exceptions"), _patch(one["set"], fits, f"{where}, exceptions"))
            for one in exceptions
        ],
        skip=[_point(point, values_of, f"{where}, skip") for point in skipped],
    )
