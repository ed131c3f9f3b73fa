"""Renders the records in `results/tables`: a page with figures for each table, and an index of all."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from lightning_modules.callbacks.figures import save_figure
from lightning_modules.callbacks.results import useless
from privacy.checks import short_epsilon
from privacy.journal import write_atomically
from sweeps.runner.figures import figure_of
from sweeps.runner.findings import FINDINGS, findings_page
from sweeps.runner.markdown import short_claim, table
from sweeps.runner.reported import SELECTING, Reported, footnotes, reported
from sweeps.runner.rows import RECORDS, Row, read_rows
from sweeps.runner.spec import IN_PART, MEASURES, OURS, PROTOCOLS, TEACHER, Spec, list_specs

LEGEND = (
    "*ε published*: the paper's claim for our runs; where labels are protected (LabelDP, DPSD's label switch), of one "
    "response, however many there are. *ε record-level*: a bound for every single record, however it changes, or for "
    "DP-SGD as it is added or removed. Of several seeds the largest ε is shown."
)
KINDS = f"Kinds of rows: {'; '.join(f'*{name}*, {what}' for name, what in PROTOCOLS.items())}."
DROP = "*Drop*: the teacher's accuracy minus the student's, in points."
OF_TEACHERS = "*Teacher*, *baseline*: accuracy of a fit of that configuration; of an ensemble, of its vote."
OF_LABELS = (
    "*ε of labels*: a bound where two data sets differ in the label of one record and every image counts as known; it "
    "says nothing of an image."
)
INDEX = """\
# Measured results

`make table-NAME PRESET=cpu RECORD=1` (`make figure-NAME`) measures one again.
[What of the papers holds](../results/findings.md).

*ε published* is what the paper's own theorem gives for our runs: a claim, which bounds no record; for methods that
protect labels (LabelDP, DPSD's label switch) it is that of one response, however many there are. *ε record-level* is
an upper bound for every single record of the teacher's training data; in the hundreds or above it protects nobody.
Accuracies are of the last step, on the test split: both values of two seeds, mean and standard deviation from three on.
The seeds of a table share its private teachers, except in `records`, `records-images` and `records-untuned`.
"""


def render_table(spec: Spec, *, results: Path) -> Path:
    """Writes a table's page and returns its path; for a figure, `figure.png` next to each preset's records too."""
    return write_atomically(results / f"{spec.name}.md", _rendered(spec, results))


def render_pages(index: Path, *, results: Path) -> dict[Path, str]:
    """Draws figures, and renders the page of each installed table with records, the index and findings."""
    pages, lines = {}, ["| table | what |", "|---|---|"]
    for spec in list_specs():
        if any(results.joinpath(spec.name).glob(f"*/{RECORDS}")):
            page = results / f"{spec.name}.md"
            pages[page] = _rendered(spec, results)
            link = Path(os.path.relpath(page, index.parent)).as_posix()
            lines.append(f"| [{spec.name}]({link}) | {spec.title} |")
    pages[results.parent / FINDINGS] = findings_page(results)
    return {**pages, index: "\n".join([INDEX, *lines, ""])}


def _rendered(spec: Spec, results: Path) -> str:
    """The page of all presets that have records."""
    there = [preset for preset in spec.presets if (results / spec.name / preset / RECORDS).is_file()]
    measured = {preset: read_rows(spec, preset, results) for preset in there}
    for preset, rows in measured.items() if spec.kind == "figure" else ():
        save_figure(figure_of(spec, rows), results / spec.name / preset / "figure.png")
    return page_of(spec, measured, results=results)


def page_of(spec: Spec, measured: Mapping[str, Sequence[Row]], *, results: Path, brief: bool = False) -> str:
    """Renders a table's page: the paper beside ours, each preset's rows, other methods, footnotes.

    `brief` leaves out pictures and figures that are only printed in papers.
    """
    rows = [row for of_preset in measured.values() for row in of_preset]
    notes: Notes = {}
    beside = _beside_paper(spec, rows, notes)
    lines = [f"# {spec.title}", "", *beside, *([spec.note.strip(), ""] if spec.note.strip() else [])]
    for preset, of_preset in measured.items():
        lines += [f"## Preset `{preset}`", ""] if len(measured) > 1 else []
        lines += _section(spec, preset, of_preset, brief=brief)
    legend = [LEGEND, *([OF_LABELS] if _of_labels(rows) else []), *([KINDS] if spec.paper and not beside else [])]
    legend += [OF_TEACHERS] if any(row.values(TEACHER) for row in rows) else []
    lines += [" ".join(legend), ""] if rows else []
    lines += _by_method("Ours, from other tables:", _comparisons(spec, measured, results), _columns(rows))
    if not brief:
        lines += _by_method("Other methods, as printed:", _competitors(spec, rows, notes), _columns(rows))
        summary = "<details><summary>Printed in the same table and not run here</summary>"
        lines += [*left, "</details>", ""] if (left := _by_method(summary, _not_run(spec, rows, notes))) else []
    lines += [*(f"{number}. {footnotes()[key]}" for key, number in notes.items()), *([""] if notes else [])]
    lines += ["±: the standard deviation over seeds.", ""] if any(row.std is not None for row in rows) else []
    return "\n".join(lines)


def _beside_paper(spec: Spec, rows: Sequence[Row], notes: Notes) -> list[str]:
    """A table of the printed figures that have a row here, each beside ours by kind."""
    printed: dict[Reported, list[Row]] = {}
    for row in rows:
        if row.reported is not None:
            printed.setdefault(row.reported, []).append(row)
    if not printed:
        return []
    selecting = [name for name in SELECTING if any(getattr(entry, name) for entry in printed)]
    selecting = [name for name in selecting if name != "unit" or len({entry.unit for entry in printed}) > 1]
    heading, rendered = ["paper", *(name for name in PROTOCOLS if name != IN_PART)], []
    for entry, found in printed.items():
        values = [getattr(entry, name) for name in selecting]
        cells = [f"{value:g}" if isinstance(value, float) else value or "–" for value in values]
        cells += [_marked(entry.accuracy, entry.notes, notes)]
        for kind in heading[1:]:
            own = [row for row in found if row.records and row.protocol in (kind, f"in part {kind}")]
            cells.append(_listed(own, lambda row: _ours(row) + " (in part)" * (row.protocol == IN_PART)))
        ours = [row for row in found if row.records and row.protocol == OURS]
        measured = any(row.drop is not None for row in ours)
        drops = _listed(ours, lambda row: _cell(row.drop, _points)) if measured else "–"
        rendered.append([*cells, _cell(_printed_drop(spec, entry), _points), drops])
    names, legend = [{"dataset": "data", "epsilon": "ε"}.get(name, name) for name in selecting], [KINDS]
    if all(row[-2:] == ["–", "–"] for row in rendered):
        rendered = [row[:-2] for row in rendered]
    else:
        heading, legend = [*heading, "drop, paper", "drop, ours"], [*legend, DROP]
    return [*table(names, heading, rendered), "", " ".join(legend), ""]


def _listed(rows: Sequence[Row], text: Callable[[Row], str]) -> str:
    """Texts of the rows behind one printed figure; of several, each after what tells it from the others."""
    return ", ".join(f"{row.free if len(rows) > 1 else ''} {text(row)}".strip() for row in rows) or "–"


def _printed_drop(spec: Spec, entry: Reported) -> float | None:
    """By how much a printed student falls short of the teacher that the same page's tables print."""
    wanted = {"method": "Teacher", "dataset": entry.dataset}
    found = [row for row in spec.reported() if row.matches(wanted) and row.setting in ("", entry.setting)]
    return found[0].accuracy - entry.accuracy if found else None


def _section(spec: Spec, preset: str, rows: Sequence[Row], *, brief: bool) -> list[str]:
    axes = [axis for axis, _ in rows[0].labels]
    lines = [text + "\n" for text in [spec.presets[preset].note.strip()] if text]
    if spec.kind == "figure" and not brief:
        lines += [f"![{spec.title}]({spec.name}/{preset}/figure.png)", ""]
    measures = {name: text for name, text in MEASURES.items() if any(row.values(name) for row in rows)}
    # ε of labels is only shown if only labels are protected.
    shown = {"ε published": ("epsilon_published", short_claim), "ε record-level": ("epsilon_record", short_epsilon)}
    shown |= {"ε of labels": ("epsilon_label", short_epsilon)} if _of_labels(rows) else {}
    shown |= {"δ": ("delta", short_claim), "steps": ("steps", short_claim)}
    cells = [
        [
            *(value for _, value in row.labels),
            *([row.protocol] if spec.paper else []),
            _ours(row),
            *(_shares(_shared(row.values(name))) for name in measures),
            str(len(row.records)),
            *(_cell(row.largest(name), show) for name, show in shown.values()),
        ]
        for row in rows
    ]
    names = [*axes, *(["protocol"] if spec.paper else [])]
    lines += [*table(names, ["accuracy", *measures.values(), "seeds", *shown], cells), ""]
    if any(row.outdated for row in rows):
        lines += ["† Measured before its configuration last changed; the command below measures it again.", ""]
    remarks: list[str] = []
    for row in rows:
        where = ", ".join(value for _, value in row.labels)
        remarks += [f"- failed ({where}): {error.strip().splitlines()[0]}" for error in row.errors]
        judged = [(record["seed"], useless(record)) for record in row.records if "recall" in record]
        remarks += [f"- {where}, seed {seed}: {text}" for seed, text in judged if text]
    lines += [*remarks, ""] if remarks else []
    return [*lines, _provenance(spec, preset, [record for row in rows for record in row.records]), ""]


def _of_labels(rows: Sequence[Row]) -> bool:
    return any(row.largest("epsilon_label") is not None for row in rows)


Notes = dict[str, int]
"""Keys of the footnotes of a page, with their numbers, in the order of their first mention."""


def _marked(accuracy: float, keys: Sequence[str], notes: Notes) -> str:
    """A printed figure with the numbers of its footnotes, which join those of the page."""
    return f"{100 * accuracy:.2f} %" + "".join(f" [{notes.setdefault(key, len(notes) + 1)}]" for key in keys)


_Entry = tuple[str, str, str]
"""Method, column and text of one figure of a table by methods."""


def _comparisons(spec: Spec, measured: Mapping[str, Sequence[Row]], results: Path) -> Iterator[_Entry]:
    """Measured rows of other tables at the same points, each with its record-level ε."""
    for entry, (preset, rows) in itertools.product(spec.compare_with, measured.items()):
        other = Spec.read(str(entry["table"]))
        for row in read_rows(other, preset, results) if preset in other.presets else ():
            at = dict(row.labels)
            point = (at.get("dataset", ""), at.get("epsilon", ""))
            chosen = all(at.get(axis) == str(value) for axis, value in (entry.get("cell") or {}).items())
            if chosen and row.records and point in _columns(rows):
                bound = _cell(row.largest("epsilon_record"), short_epsilon)
                yield str(entry["label"]), _heading(*point), f"{_ours(row)} (record-level ε = {bound})"


def _competitors(spec: Spec, rows: Sequence[Row], notes: Notes) -> Iterator[_Entry]:
    """The same printed table's figures of other methods at the same points, and anchors from other papers."""
    own, units = _methods(spec, rows), {row.reported.unit for row in rows if row.reported is not None}
    units = units or {entry.unit for entry in reported() if entry.method == spec.method}
    for entry in (*spec.reported(), *(row for row in reported() if not row.paper)):
        # ε for labels and for records cannot be compared.
        if entry.method in own or (not entry.paper and units and entry.unit not in units):
            continue
        for dataset, epsilon in _columns(rows):
            if entry.matches({"dataset": dataset, "epsilon": epsilon}):
                name = entry.method if entry.paper else f"{entry.method} {entry.setting} ({entry.table})"
                yield name, _heading(dataset, epsilon), _marked(entry.accuracy, entry.notes, notes)


def _not_run(spec: Spec, rows: Sequence[Row], notes: Notes) -> Iterator[_Entry]:
    """The same printed table's figures at points without a row here: other data sets, budgets, teachers."""
    own, shown = _methods(spec, rows), {row.reported for row in rows}
    here = [{"dataset": dataset, "epsilon": epsilon} for dataset, epsilon in _columns(rows)]
    left = [
        entry
        for entry in spec.reported()
        if entry not in shown and (entry.method in own or not any(entry.matches(point) for point in here))
    ]
    several_units = len({entry.unit for entry in spec.reported() if entry.unit}) > 1
    for entry in left:
        words = [entry.method, entry.setting, entry.unit if several_units else ""]
        heading = entry.dataset if entry.epsilon is None else _heading(entry.dataset, f"{entry.epsilon:g}")
        yield ", ".join(filter(None, words)), heading, _marked(entry.accuracy, entry.notes, notes)


def _by_method(caption: str, entries: Iterable[_Entry], columns: Sequence[tuple[str, str]] = ()) -> list[str]:
    headings = dict.fromkeys(_heading(*point) for point in columns)
    methods: dict[str, dict[str, str]] = {}
    for method, heading, text in entries:
        methods.setdefault(method, {})[heading] = text
        headings[heading] = None
    if not methods:
        return []
    rows = ([method, *(cells.get(heading, "–") for heading in headings)] for method, cells in methods.items())
    return [caption, "", *table(["method"], [*headings], rows), ""]


def _heading(dataset: str, epsilon: str) -> str:
    return f"{dataset}, ε = {epsilon}"


def _columns(rows: Sequence[Row]) -> list[tuple[str, str]]:
    points = [dict(row.labels) for row in rows]
    return list(dict.fromkeys((at["dataset"], at["epsilon"]) for at in points if {"dataset", "epsilon"} <= at.keys()))


def _methods(spec: Spec, rows: Sequence[Row]) -> set[str | None]:
    """Names of the methods that are run here, as in the paper."""
    return {dict(row.labels).get("method", spec.method) for row in rows}


def _provenance(spec: Spec, preset: str, records: Sequence[Mapping[str, Any]]) -> str:
    again = f"Again: `LightningCLI tables run {spec.command} --preset {preset}`."
    if not records:
        return f"Preset `{preset}`. {again}"
    seconds = sum(float(record["wall_seconds"]) for record in records)
    seeds_of: dict[str, list[str]] = {}  # which seeds were run by whom
    for seed in _distinct(records, "seed"):
        own = [record for record in records if str(record["seed"]) == seed]
        torch = ", ".join(sorted({record["versions"]["torch"] for record in own}))
        origin = f"commit {', '.join(_distinct(own, 'commit'))}; {'; '.join(_distinct(own, 'hardware'))}; torch {torch}"
        seeds_of.setdefault(origin, []).append(seed)
    origins = "; ".join(
        f"seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}: {origin}" for origin, seeds in seeds_of.items()
    )
    unit = ", ".join(_distinct(records, "unit"))
    return (
        f"Last step, no selection. Preset `{preset}`; unit: {unit}; {origins}; {len(records)} cells, {seconds:,.0f} s. "
        f"{again}"
    )


def _ours(row: Row) -> str:
    if not row.records:
        return "failed" if row.errors else "–"
    return f"{_shares(row.values('accuracy'))}{' †' if row.outdated else ''}"


def _shared(values: Sequence[float]) -> Sequence[float]:
    """One value instead of several equal ones: of a teacher that all seeds have."""
    return values if len(set(values)) > 1 else values[:1]


def _shares(values: Sequence[float]) -> str:
    """Formats the values of up to two seeds, or the mean and standard deviation of more."""
    if len(values) > 2:
        return f"{100 * fmean(values):.2f} ± {100 * stdev(values):.2f} %"
    return f"{' / '.join(f'{100 * value:.2f}' for value in values)} %" if values else "–"


def _points(drop: float) -> str:
    return f"{100 * drop:.2f}"


def _cell(value: float | None, show: Callable[[float], str]) -> str:
    return "–" if value is None else show(value)


def _distinct(records: Sequence[Mapping[str, Any]], name: str) -> list[str]:
    return sorted({str(record[name]) for record in records if record.get(name) not in (None, "")})
