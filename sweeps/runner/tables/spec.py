"""A table or figure as a grid of cells: `sweeps/tables/dpdfd-table1.yaml`.

    title: DPDFD under two budgets
    paper: DPDFD
    published: Table 1          # rows of sweeps/reported that stand beside ours
    method: DPDFD
    fits:                       # as in a pipeline; the last one is what a cell measures
      teacher: {config: sweeps/teacher_mnist.yaml, set: {trainer.callbacks: null}}
      student: {config: sweeps/dpdfd_mnist.yaml, set: {model.teacher: "{teacher}/checkpoints/last.ckpt"}}
    axes:                       # each value changes some fits' configuration files or parameters
      dataset:
        MNIST: {}
        FashionMNIST: {teacher: {config: sweeps/methods/teacher_fashionmnist.yaml}, student: {...}}
      epsilon:
        "1": {student: {model.annotator.target_epsilon: 1.0}}
    skip:                       # points of the grid that have no meaning; a preset may leave out more
      - {dataset: FashionMNIST, epsilon: "10"}
    unprinted:                  # points whose figure the paper does not print, though axes of those names select one
      - {alpha: "0.1"}
    exceptions:                 # what a combination of values changes, after each of them; a preset may have its own
      - {when: {dataset: FashionMNIST, epsilon: "1"}, set: {student: {trainer.max_epochs: 40}}}
    measures: [teacher_accuracy] # further figures of the records that are shown: this one, or auroc
    value: 300                  # a number: `tables all` runs tables of a higher one first, those without one last
    presets:
      cpu:
        seeds: [0, 1, 2]
        axes: {epsilon: ["1"]}  # a list selects values; a mapping selects them and changes more
        set: {student: {trainer.max_epochs: 15}}
        seconds: {teacher: 60, student: 300}

Axes named `dataset`, `epsilon`, `setting`, `method` or `unit` (what ε is claimed to protect) select the printed figure
beside a cell, and no other axis does: `unprinted` names the points that would get another's. Only the last fit takes
the cell's seed, and those named in `seeded`: other parents are made once, with the seed of their file. `value` says
when a table is measured, never what: it enters no digest.
"""

from __future__ import annotations

import copy
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from lightning_modules.runtime.paths import find_config
from sweeps.runner.fit import Fit
from sweeps.runner.tables.cells import Cell, FitSpec
from sweeps.runner.tables.published import published

__all__ = ["MEASURES", "Preset", "SpecError", "TableSpec", "list_specs"]

KEYS = {
    "title", "kind", "paper", "published", "method", "note", "fits", "axes", "skip", "seeds", "presets", "figure",
    "seeded", "selection", "compare_with", "exceptions", "value", "unprinted", "measures",
}  # fmt: skip
MEASURES = {"teacher_accuracy": "teacher", "auroc": "AUC"}
"""Figures of a record beside its accuracy that a table may show, each with its heading."""

PRESET_KEYS = {"seeds", "axes", "set", "seconds", "note", "exceptions", "skip"}
FIGURE_KEYS = {"x", "log", "label"}


Patch = Mapping[str, Mapping[str, Any]]
"""What an axis value or a preset changes: fit name → parameter → value, where `config` names other files."""


class SpecError(ValueError):
    """A table spec that makes no sense."""


@dataclass(frozen=True)
class Preset:
    """How large everything is.

    Attributes:
        name: `smoke`, `cpu` or `paper`.
        seeds: Seeds of each cell.
        axes: Values kept of each axis, with what they change.
        set: What the preset changes.
        seconds: Estimated wall time of each fit.
        note: What is not as in the paper.
        exceptions: What combinations of values change in this preset alone, after the spec's own.
        skip: Values of axes whose combination this preset alone leaves out, beside the spec's own.
    """

    name: str
    seeds: tuple[int, ...]
    axes: Mapping[str, Mapping[str, Patch]]
    set: Patch = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    note: str = ""
    exceptions: Sequence[tuple[Mapping[str, str], Patch]] = ()
    skip: Sequence[Mapping[str, str]] = ()


@dataclass(frozen=True)
class TableSpec:
    """A table or figure.

    Attributes:
        name: File name without its ending; `make table-<name>` or `make figure-<name>`.
        title: Heading.
        kind: `table` or `figure`.
        paper: The paper's method.
        table: The table's name in `sweeps/reported`, or None.
        method: The method's name there.
        note: Text below the heading.
        fits: Fits in order: configuration files and parameters.
        presets: By name.
        figure: For figures: `x` (an axis of numbers), `log` and `label`.
        skip: Values of axes whose combination is left out.
        exceptions: Values of axes, `when`, and what their combination changes after them, `set`.
        seeded: Fits that take the cell's seed.
        compare_with: Rows of other tables to show with this one: `table`, `label`, and `cell`, labels to choose by.
        selection: `last` step, or `best_on_test`, which the rendered table then says.
        value: Tables of a higher one are measured first; None is last.
        unprinted: Values of axes whose combination the paper prints no figure of.
        measures: Figures that are shown beside the accuracy, of `MEASURES`.
        path: What it was read by.
    """

    name: str
    title: str
    kind: str
    paper: str
    table: str | None
    method: str | None
    note: str
    fits: Mapping[str, Mapping[str, Any]]
    presets: Mapping[str, Preset]
    figure: Mapping[str, Any] = field(default_factory=dict)
    skip: Sequence[Mapping[str, str]] = ()
    exceptions: Sequence[tuple[Mapping[str, str], Patch]] = ()
    seeded: Sequence[str] = ()
    compare_with: Sequence[Mapping[str, Any]] = ()
    selection: str = "last"
    value: float | None = None
    unprinted: Sequence[Mapping[str, str]] = ()
    measures: Sequence[str] = ()
    path: str = ""

    @classmethod
    def read(cls, path: str | Path) -> TableSpec:
        """Reads a spec by path, or by the name of one that is installed.

        Raises:
            SpecError: Unknown keys, axes, values, fits or files.
        """
        file = _locate(str(path))
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
        where = str(path)
        _only(values, KEYS, where)
        if missing := {"title", "fits", "axes", "presets"} - set(values):
            raise SpecError(f"{where}: `{'`, `'.join(sorted(missing))}` needed")
        kind, selection = values.get("kind", "table"), values.get("selection", "last")
        if kind not in ("table", "figure") or selection not in ("last", "best_on_test"):
            raise SpecError(
                f"{where}: kind is table or figure, selection is last or best_on_test, got {kind}, {selection}"
            )
        fits = _fits(values["fits"], where)
        axes = {str(axis): _values(entry) for axis, entry in values["axes"].items()}
        _check_patches(axes, fits, where)
        seeds = tuple(values.get("seeds", [0]))
        presets = {name: _preset(name, entry, axes, seeds, fits, where) for name, entry in values["presets"].items()}
        figure = values.get("figure") or {}
        _only(figure, FIGURE_KEYS, f"{where}, figure")
        if kind == "figure" and figure.get("x") not in axes:
            raise SpecError(f"{where}: figure.x must be one of the axes {sorted(axes)}, got {figure.get('x')!r}")
        paper, table = str(values.get("paper", "")), values.get("published")
        if table is not None and not any(row.paper == paper and row.table == table for row in published()):
            raise SpecError(f"{where}: sweeps/reported has no {table!r} of paper {paper!r}")
        return cls(
            name=file.stem,
            title=values["title"],
            kind=kind,
            paper=paper,
            table=table,
            method=values.get("method"),
            note=values.get("note", ""),
            fits=fits,
            presets=presets,
            figure=figure,
            skip=[_point(entry, axes, f"{where}, skip") for entry in values.get("skip") or []],
            exceptions=_exceptions(values.get("exceptions") or [], axes, fits, where),
            compare_with=_compare_with(values.get("compare_with") or [], where),
            seeded=_seeded(values.get("seeded") or [], fits, where),
            selection=selection,
            value=_value(values.get("value"), where),
            unprinted=[_point(entry, axes, f"{where}, unprinted") for entry in values.get("unprinted") or []],
            measures=_measures(values.get("measures") or [], where),
            path=where,
        )

    def preset(self, name: str) -> Preset:
        """A preset by name.

        Raises:
            SpecError: There is none of that name.
        """
        if name not in self.presets:
            raise SpecError(f"{self.name}: presets are {sorted(self.presets)}, got {name!r}")
        return self.presets[name]

    def is_printed(self, labels: Mapping[str, str]) -> bool:
        """Whether the paper may print a figure of this point of the grid."""
        return self.table is not None and not any(_holds(point, labels) for point in self.unprinted)

    def cells(self, preset: str, *, seeds: Sequence[int] | None = None) -> list[Cell]:
        """The grid in order, seeds innermost.

        Args:
            preset: Its name.
            seeds: In place of the preset's.
        """
        chosen = self.preset(preset)
        grid = [list(values) for values in chosen.axes.values()]
        points = [dict(zip(chosen.axes, point, strict=True)) for point in itertools.product(*grid)]
        cells = [
            self._cell(chosen, point, seed)
            for point in points
            if not any(_holds(left_out, point) for left_out in [*self.skip, *chosen.skip])
            for seed in (chosen.seeds if seeds is None else seeds)
        ]
        if len({cell.name for cell in cells}) < len(cells):
            raise SpecError(
                f"{self.name}: two cells of preset {preset} would write one record; name their values apart"
            )
        return cells

    def _cell(self, preset: Preset, labels: Mapping[str, str], seed: int) -> Cell:
        made: dict[str, FitSpec] = {}
        patches = [preset.set, *(preset.axes[axis][value] for axis, value in labels.items())]
        patches += [patch for when, patch in [*self.exceptions, *preset.exceptions] if _holds(when, labels)]
        for name, base in self.fits.items():
            config, parameters = base["config"], copy.deepcopy(dict(base["set"]))
            for patch in patches:
                change = dict(patch.get(name, {}))
                config = change.pop("config", config)
                parameters |= change
            if name in self.seeded:
                parameters["seed_everything"] = seed
            files = (config,) if isinstance(config, str) else tuple(config)
            fit = Fit(name=name, config=files, set=parameters)
            if absent := set(fit.parents) - set(made):
                raise SpecError(f"{self.name}, fit {name}: refers to {sorted(absent)}, before it are {sorted(made)}")
            made[name] = FitSpec(
                table=self.name,
                preset=preset.name,
                fit=fit,
                parents={parent: made[parent] for parent in fit.parents},
                labels=labels,
                seconds=preset.seconds.get(name),
            )
        return Cell(labels=labels, seed=seed, fit=made[list(self.fits)[-1]])


def _value(given: Any, where: str) -> float | None:
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not math.isfinite(given):
        raise SpecError(f"{where}: value must be a finite number, got {given!r}")
    return float(given)


def _seeded(given: Sequence[str], fits: Mapping[str, Any], where: str) -> tuple[str, ...]:
    if unknown := set(given) - set(fits):
        raise SpecError(f"{where}, seeded: fits are {sorted(fits)}, got {sorted(unknown)}")
    return (*given, list(fits)[-1])


def _measures(names: Any, where: str) -> tuple[str, ...]:
    if not isinstance(names, list) or not set(map(str, names)) <= set(MEASURES):
        raise SpecError(f"{where}: measures must be a list of {', '.join(MEASURES)}, got {names!r}")
    return tuple(names)


def _compare_with(entries: Any, where: str) -> tuple[Mapping[str, Any], ...]:
    for entry in entries:
        _only(entry, {"table", "label", "cell"}, f"{where}, compare_with")
        if missing := {"table", "label"} - set(entry):
            raise SpecError(f"{where}, compare_with: `{'`, `'.join(sorted(missing))}` needed")
        file = _locate(str(entry["table"]))
        if entry.get("cell"):
            other = yaml.safe_load(file.read_text(encoding="utf-8"))
            axes = {str(axis): _values(values) for axis, values in (other.get("axes") or {}).items()}
            _point(entry["cell"], axes, f"{where}, compare_with {entry['table']}")
    return tuple(entries)


def list_specs() -> list[TableSpec]:
    """The specs that are installed."""
    folder = resources.files("sweeps").joinpath("tables")
    return [
        TableSpec.read(file.name.removesuffix(".yaml"))
        for file in sorted(folder.iterdir(), key=lambda entry: entry.name)
        if file.name.endswith(".yaml")
    ]


def _locate(path: str) -> Path:
    for candidate in (path, f"sweeps/tables/{path}.yaml"):
        file = Path(find_config(candidate))
        if file.suffix == ".yaml" and file.is_file():
            return file
    folder = resources.files("sweeps").joinpath("tables")
    known = sorted(file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml"))
    raise SpecError(f"there is no table or figure {path!r}; known are {', '.join(known)}")


def _only(values: Any, allowed: set[str], where: str) -> None:
    if not isinstance(values, Mapping) or set(values) - allowed:
        got = sorted(map(str, values)) if isinstance(values, Mapping) else type(values).__name__
        raise SpecError(f"{where}: allowed keys are {sorted(allowed)}, got {got}")


def _fits(entries: Any, where: str) -> dict[str, Mapping[str, Any]]:
    fits: dict[str, Mapping[str, Any]] = {}
    for name, entry in entries.items():
        _only(entry, {"config", "set"}, f"{where}, fit {name}")
        if not re.fullmatch(r"\w+", name) or "config" not in entry:
            raise SpecError(f"{where}: a fit has a single word for a name and a `config`, got {name!r}: {entry}")
        fits[name] = {"config": entry["config"], "set": entry.get("set") or {}}
    _check_files((fit["config"] for fit in fits.values()), where)
    return fits


def _values(entry: Any) -> dict[str, Patch]:
    return {str(value): patch or {} for value, patch in entry.items()}


def _point(entry: Any, axes: Mapping[str, Mapping[str, Patch]], where: str) -> Mapping[str, str]:
    _only(entry, set(axes), where)
    # Nothing to compare would mean the whole grid.
    if not entry or any(str(value) not in axes[axis] for axis, value in entry.items()):
        known = {axis: sorted(values) for axis, values in axes.items()}
        raise SpecError(f"{where}: needs values of the axes {known}, got {entry}")
    return {axis: str(value) for axis, value in entry.items()}


def _holds(point: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    return point.items() <= labels.items()


def _exceptions(
    entries: Any, axes: Mapping[str, Mapping[str, Patch]], fits: Mapping[str, Any], where: str
) -> list[tuple[Mapping[str, str], Patch]]:
    made = []
    for entry in entries:
        _only(entry, {"when", "set"}, f"{where}, exceptions")
        when, patch = _point(entry.get("when"), axes, f"{where}, exceptions, when"), entry.get("set") or {}
        if not patch:
            raise SpecError(f"{where}, exceptions: `set` needed, what {when} changes, got {entry}")
        _check_patches({"exceptions": {str(when): patch}}, fits, where)
        made.append((when, patch))
    return made


def _preset(
    name: str,
    entry: Any,
    axes: Mapping[str, Mapping[str, Patch]],
    seeds: tuple[int, ...],
    fits: Mapping[str, Any],
    where: str,
) -> Preset:
    place = f"{where}, preset {name}"
    _only(entry, PRESET_KEYS, place)
    chosen: dict[str, Mapping[str, Patch]] = dict(axes)
    for axis, values in (entry.get("axes") or {}).items():
        if axis not in axes:
            raise SpecError(f"{place}: axes are {sorted(axes)}, got {axis!r}")
        more = _values(values) if isinstance(values, Mapping) else {str(value): {} for value in values}
        if not isinstance(values, Mapping) and (absent := set(more) - set(axes[axis])):
            raise SpecError(f"{place}: {axis} has the values {sorted(axes[axis])}, got {sorted(absent)}")
        chosen[axis] = {value: _merged(axes[axis].get(value, {}), patch) for value, patch in more.items()}
    _check_patches(chosen, fits, place)
    _check_patches({"set": {"set": entry.get("set") or {}}}, fits, place)
    return Preset(
        name=name,
        seeds=tuple(entry.get("seeds", seeds)),
        axes=chosen,
        set=entry.get("set") or {},
        seconds=entry.get("seconds") or {},
        note=entry.get("note", ""),
        exceptions=_exceptions(entry.get("exceptions") or [], chosen, fits, place),
        skip=[_point(left_out, chosen, f"{place}, skip") for left_out in entry.get("skip") or []],
    )


def _merged(first: Patch, second: Patch) -> Patch:
    return {name: {**first.get(name, {}), **second.get(name, {})} for name in {**first, **second}}


def _check_patches(axes: Mapping[str, Mapping[str, Patch]], fits: Mapping[str, Any], where: str) -> None:
    for axis, values in axes.items():
        for value, patch in values.items():
            _only(patch, set(fits), f"{where}, {axis} {value}")
            _check_files((change["config"] for change in patch.values() if "config" in change), where)


def _check_files(configs: Any, where: str) -> None:
    for config in configs:
        for name in [config] if isinstance(config, str) else config:
            if not Path(find_config(name)).is_file():
                raise SpecError(f"{where}: configuration {name} does not exist")
