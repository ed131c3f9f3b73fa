"""The page `results/findings.md`: what the papers claim (`sweeps/reported/claims.yaml`), and what measured records say.

A claim names cells of a table and a relation of their means, such as `k 2 < k 3; k 3 > k 5`. `<` and `>` ask for more
than the margin and than either standard deviation over seeds, `=` for no more; `<=` and `>=` forbid what `>` and `<`
ask for. `paper` is the figure printed for the first cell, an axis of `over` is its value, and numbers are numbers. A
claim that no record can decide has its `verdict` in the file, with the argument and the page that gives it.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from statistics import fmean, stdev

import yaml

from sweeps.runner.fit import RunnerError
from sweeps.runner.markdown import short_claim, table
from sweeps.runner.rows import Row, read_rows
from sweeps.runner.spec import Point, Spec

FINDINGS = "findings.md"
VERDICTS = ("holds", "in part", "does not hold", "undecided", "untested")
INTRODUCTION = """\
# What of the papers holds

Claims of the four papers, and what our runs say of each: means over seeds (how many, in brackets) of accuracy in
percent, unless another measure is named; *paper* is the printed figure. `LightningCLI render` decides each by a
relation in `sweeps/reported/claims.yaml`. Figures differ if they do by more than the margin, mostly one point;
*undecided* are differences within a larger standard deviation over seeds; *in part* means not in every case shown.
Networks, recipes and often images are ours and not the papers', as each table says. ε is the paper's own figure, which
bounds no record, except for DP-SGD and in DGD's Figs. 7 and 8. What no record can decide names the page that argues it.
"""
_NUMBER = re.compile(r"\d+(\.\d+)?")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One claim. Each combination of the values in `over` is a case, whose `cells` share them."""

    paper: str
    where: str
    claim: str
    verdict: str = ""
    because: str = ""
    table: str = ""
    preset: str = "cpu"
    over: Mapping[str, Sequence[str]] = field(default_factory=dict)
    cells: Mapping[str, Point] = field(default_factory=dict)
    holds: str = ""
    margin: float = 1.0
    measure: str = "accuracy"

    def decide(self, results: Path) -> tuple[str, str]:
        """The verdict and what shows it: figures of records, or an argument.

        Raises:
            RunnerError: A cell is not one row of its table, or the relation makes no sense.
        """
        if self.verdict:
            return self.verdict, self.because
        cases = list(self._cases(results))
        held = [one for _, decided in cases for one in decided]
        tables = dict.fromkeys(str(cell.get("table", self.table)) for cell in self.cells.values())
        links = [f"[{table}](tables/{table}.md)" for table in tables]
        measure = [] if self.measure == "accuracy" else [self.measure.replace("_", " ")]
        shown = f"{', '.join([*links, *measure])}: {'; '.join(text for text, _ in cases)}"
        if not held:
            return "untested", shown
        verdict = "does not hold" if False in held else "undecided"
        return "holds" if all(held) else "in part" if True in held else verdict, shown

    def _cases(self, results: Path) -> Iterator[tuple[str, list[bool | None]]]:
        """What stands in each case, and whether the relation holds there; nothing if a cell was not measured."""
        for chosen in itertools.product(*self.over.values()):
            case = dict(zip(self.over, chosen, strict=True))
            rows = {name: self._row({**case, **cell}, results) for name, cell in self.cells.items()}
            values = {axis: [float(value)] for axis, value in case.items() if _NUMBER.fullmatch(value)}
            values |= {name: self._values(row) for name, row in rows.items()}
            counts = {name: f" ({len(row.records)})" for name, row in rows.items() if row.records}
            printed = next(iter(rows.values())).reported
            if printed is not None and "paper" in self.holds:
                values["paper"], counts["paper"] = [100.0 * printed.accuracy], ""
            figures = [f"{name} {short_claim(fmean(values[name]))}{count}" for name, count in counts.items()]
            where = " ".join(f"ε = {value}" if axis == "epsilon" else value for axis, value in case.items())
            held = [holds(self.holds, values, self.margin)] if all(values.values()) else []
            yield f"{where}: {', '.join(figures) or 'not measured'}".removeprefix(": "), held

    def _values(self, row: Row) -> list[float]:
        """Accuracies of all seeds in percent, or the largest value of another measure; empty if there is none."""
        if self.measure == "accuracy":
            return [100.0 * one for one in row.values("accuracy")]
        largest = row.largest(self.measure)
        return [] if largest is None else [largest]

    def _row(self, point: Point, results: Path) -> Row:
        wanted = dict(point)
        table = wanted.pop("table", self.table)
        rows = read_rows(Spec.read(table), self.preset, results)
        found = [row for row in rows if wanted.items() <= dict(row.labels).items()]
        if len(found) != 1:
            raise RunnerError(f"claim {self.claim!r}: must name one row of {table}, {wanted} are {len(found)}")
        return found[0]


def holds(relation: str, values: Mapping[str, Sequence[float]], margin: float = 0.0) -> bool | None:
    """Whether the means of `values` are related so, each chain between neighbours; `;` separates chains.

    None if that depends on a difference that is no larger than a standard deviation, which is above the margin.

    Raises:
        RunnerError: A name is unknown, or a chain compares nothing.

    >>> holds("a < b = 3; a > 0", {"a": [1.0], "b": [3.0, 4.0]})
    True
    """
    held: bool | None = True
    for chain in relation.split(";"):
        first, *rest = re.split(r"\s*(<=|>=|<|>|=)\s*", chain.strip())
        names = [first, *rest[1::2]]
        unknown = [name for name in names if name not in values and not _NUMBER.fullmatch(name)]
        if unknown or not rest:
            raise RunnerError(f"relation {relation!r}: compares numbers and {sorted(values)}, got {unknown or chain}")
        samples = [values[name] if name in values else [float(name)] for name in names]
        for sign, (a, b) in zip(rest[::2], itertools.pairwise(samples), strict=True):
            gap, spread = fmean(b) - fmean(a), max([0.0, *(stdev(one) for one in (a, b) if len(one) > 1)])
            signs = ("<", "<=") if gap > margin else (">", ">=") if gap < -margin else ("=", "<=", ">=")
            if margin < spread and abs(gap) <= spread:
                held = held and None
            elif sign not in signs:
                held = False
    return held


def findings() -> list[Finding]:
    """Reads the installed claims."""
    text = resources.files("sweeps").joinpath("reported", "claims.yaml").read_text(encoding="utf-8")
    return [Finding(**entry) for entry in yaml.safe_load(text)]


def findings_page(results: Path) -> str:
    """Renders all claims, by paper, and how many of them hold."""
    lines, counts = [], Counter[str]()
    for paper, claims in itertools.groupby(findings(), lambda one: one.paper):
        rows = []
        for one in claims:
            verdict, shown = one.decide(results)
            counts[verdict] += 1
            rows.append([one.where, one.claim, f"**{verdict}**", shown])
        lines += ["", f"## {paper}", "", *table(["where", "claim", "verdict", "shown by"], [], rows)]
    total = ", ".join(f"{verdict} {counts[verdict]}" for verdict in VERDICTS)
    return "\n".join([INTRODUCTION, f"{counts.total()} claims: {total}.", *lines, ""])
