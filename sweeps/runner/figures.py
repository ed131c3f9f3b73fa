"""Figures of a spec: accuracy over one of its axes with both ε below, or accuracy over the ε reached."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from sweeps.runner.reported import reported
from sweeps.runner.rows import Row
from sweeps.runner.spec import REACHED, Spec

TOP = 0.93
"""Height at which an infinite ε is drawn, as a fraction of the panel's."""
_DECADE = 8
"""Ratio of the largest to the smallest value from which an axis is logarithmic: 1 to 10, but not 2 to 10."""
RECORD = "record-level ε: a bound for every record"
CLAIMED = "published ε: the paper's claim"

_Line = list[tuple[float, float, float, Row | None]]
"""Points of one line: x, mean and standard deviation of accuracy, and the row; None for a paper's figure."""


def figure_of(spec: Spec, rows: Sequence[Row]) -> Figure:
    """Plot accuracy over the axis `figure.x`, with a line per combination of the other axes and the paper's dashed.

    A panel below shows the record-level and the published ε of each point: where a paper accounts for one label of the
    whole run, or one row of one batch, its ε is constant while the record-level one grows along the axis. A figure over
    the ε reached has no such panel and omits infinite ε; over the record-level ε it adds other papers' figures for the
    same data sets without public images. Values that span about a decade are on a logarithmic axis.
    """
    axis = spec.figure["x"]
    reached, along, infinite = axis in REACHED, spec.figure.get("along", axis), 0
    lines: dict[str, _Line] = {}
    for row in rows:
        labels = dict(row.labels)
        value = labels.pop(along, None)
        x = row.largest(axis) if reached else float(str(value))
        name = ", ".join(labels.values()) or "ours"
        infinite += x == math.inf
        if row.mean is not None and x is not None and x < math.inf:
            lines.setdefault(name, []).append((x, row.mean, row.std or 0.0, row))
        if row.reported is not None and not reached:
            lines.setdefault(f"{name} (paper)", []).append((float(str(value)), row.reported.accuracy, 0.0, None))
    shown = {label for row in rows for _, label in row.labels}
    for entry in reported() if axis == "epsilon_record" else ():  # other papers' bounds for records
        elsewhere = not entry.paper and entry.unit == "record" and "anchor-public" not in entry.notes
        if elsewhere and entry.dataset in shown and entry.epsilon is not None:
            name = f"{entry.dataset}: {entry.method} {entry.setting} ({entry.table})"
            lines.setdefault(name, []).append((entry.epsilon, entry.accuracy, 0.0, None))
    measured = {name: line for name, line in lines.items() if line[0][-1] is not None}
    paneled = bool(measured) and not reached
    ratios, size = ([3, 2], (6, 6)) if paneled else ([1], (10 if reached else 6, 4))
    figure, panels = plt.subplots(
        len(ratios), sharex=True, squeeze=False, figsize=size, height_ratios=ratios, layout="constrained"
    )
    axes, bottom = panels[0, 0], panels[-1, 0]
    colors = {}
    for name, line in lines.items():
        xs, means, spreads, of = zip(*line, strict=True)
        style, spread = "--s" if of[0] is None else "-o", spreads if any(spreads) else None
        drawn = axes.errorbar(xs, means, yerr=spread, fmt=style, markersize=4, capsize=2, label=name)
        colors[name] = drawn[0].get_color()
    positions = [point[0] for line in lines.values() for point in line]
    if positions and 0 < _DECADE * min(positions) <= max(positions):
        axes.set_xscale("log")
    left_out = f"; {infinite} infinite, not shown" if infinite else ""
    bottom.set_xlabel(f"{spec.figure.get('label', REACHED.get(axis, axis))}{left_out}")
    bottom.tick_params(axis="x", which="minor", labelsize=6)
    accuracy_axis(axes)
    axes.set_title(fill(spec.title, 70), fontsize=10)
    if lines:
        beside = {"loc": "center left", "bbox_to_anchor": (1.02, 0.5)} if reached else {"loc": "best"}
        axes.legend(fontsize=8, **beside)
    if paneled:
        _draw_epsilons(bottom, measured, colors)
    return figure


def _draw_epsilons(panel: Axes, lines: Mapping[str, _Line], colors: Mapping[str, Any]) -> None:
    """Draws both ε of each point; infinite ones at the top."""
    shown: dict[str, Line2D] = {}
    for name, line in lines.items():
        for epsilon, style, label in (("epsilon_record", "-o", RECORD), ("epsilon_published", ":s", CLAIMED)):
            values = [(x, row.largest(epsilon)) for x, *_, row in line if row is not None]
            points = [(x, value) for x, value in values if value is not None and value > 0]
            if finite := [point for point in points if math.isfinite(point[1])]:
                panel.plot(*zip(*finite, strict=True), style, color=colors[name], markersize=3, linewidth=1)
            if points:
                (shown[label],) = panel.plot([], [], style, color="0.3", markersize=3, linewidth=1, label=label)
            where = panel.get_xaxis_transform()
            for x in [x for x, value in points if math.isinf(value)]:
                panel.plot([x], [TOP], style[-1], color=colors[name], markersize=3, transform=where)
                panel.annotate("inf", (x, TOP), xycoords=where, xytext=(4, -3), textcoords="offset points", fontsize=6)
    panel.set(yscale="log", ylabel="ε")
    panel.margins(y=0.3)
    panel.grid(alpha=0.3)
    panel.legend(handles=[*shown.values()], fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.28), frameon=False)


def comparison(
    runs: Mapping[str, Sequence[Mapping[str, float]]], pictures: Mapping[str, Path], *, title: str
) -> Figure:
    """Draws synthetic images of several runs next to their accuracy over steps."""
    widths = [3.4] * len(pictures) + [5.6]
    figure, panels = plt.subplots(1, len(widths), figsize=(sum(widths), 3.8), width_ratios=widths, squeeze=False)
    for panel, (name, path) in zip(panels[0], pictures.items(), strict=False):
        panel.imshow(plt.imread(path))
        panel.set_title(name, fontsize=10)
        panel.axis("off")
    axes = panels[0][-1]
    for name, history in runs.items():
        steps = [point["steps"] for point in history]
        axes.plot(steps, [point["accuracy"] for point in history], marker="o", markersize=3, label=name)
    axes.set_xlabel("steps")
    accuracy_axis(axes)
    axes.set_title(title, fontsize=10)
    axes.legend(fontsize=8)
    figure.tight_layout()
    return figure


def accuracy_axis(axes: Axes) -> None:
    """Formats the vertical axis for accuracies between 0 and 1: in per cent, fitted to the data."""
    axes.set_ylabel("student accuracy (test)")
    axes.yaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))
    axes.grid(alpha=0.3)
