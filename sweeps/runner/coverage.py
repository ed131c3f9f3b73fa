"""Which of the papers' printed figures of their own methods have a measured row here, and why the others have none."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from sweeps.runner.reported import Reported, reported
from sweeps.runner.rows import RECORDS, read_records, read_rows
from sweeps.runner.spec import list_specs

OWN = {
    "LabelDP": ("DP-DFD",),
    "DGD": ("DGD", "DGD+"),
    "DPDFD": ("DPDFD", "DPDFD-MM"),
    "DPSD": ("DPSD", "DPSD-T", "FedDPSD", "CNN trained directly"),
}
"""The methods that each paper presents, as its tables name them."""
MEASURED, NO_DATA, MISSING = "measured", "missing for want of data", "missing otherwise"


def coverage(results: Path) -> dict[str, list[Reported]]:
    """Each printed figure of a paper's own method, once, by whether a record in `results` stands beside it.

    A figure that a paper prints again counts once if setting and ε are the same, and is measured where the same value
    for the same method, data and unit is: the whole loss of an ablation is the main table's row. Data are at hand if a
    record is of them.
    """
    found, at_hand = set(), set()
    for spec in list_specs():
        for preset in [name for name in spec.presets if name != "smoke"]:
            at_hand |= {record.get("dataset") for record in read_records(results / spec.name / preset / RECORDS)}
            found |= {_value(row.reported) for row in read_rows(spec, preset, results) if row.records and row.reported}
    states: dict[str, list[Reported]] = {MEASURED: [], NO_DATA: [], MISSING: []}
    seen = set()
    for row in reported():
        point = (row.paper, row.method, row.dataset, row.setting, row.unit, row.epsilon)
        if row.method in OWN.get(row.paper, ()) and point not in seen:
            seen.add(point)
            states[MEASURED if _value(row) in found else MISSING if row.dataset in at_hand else NO_DATA].append(row)
    return states


def _value(row: Reported) -> tuple[object, ...]:
    return row.paper, row.method, row.dataset, row.unit, row.accuracy


def coverage_lines(results: Path) -> list[str]:
    """The counts of `coverage`, each with its figures, a line for each table of a paper."""
    states, lines = coverage(results), []
    lines.append(f"{sum(map(len, states.values()))} printed figures of the papers' own methods")
    for state, figures in states.items():
        lines += ["", f"{len(figures)} {state}"]
        for table, entries in groupby(figures, lambda row: f"{row.paper} {row.table}"):
            lines.append(f"  {table}: {'; '.join(map(_name, entries))}")
    return lines


def _name(row: Reported) -> str:
    unit, epsilon = row.unit.removeprefix("record"), "" if row.epsilon is None else f"ε = {row.epsilon:g}"
    return " ".join(filter(None, [row.method, row.dataset, row.setting, unit, epsilon]))
