"""Figures of a spec: accuracy over one of its axes, and below it both ε of every point."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from privacy.formatting import round_up
from sweeps.runner.rows import Row
from sweeps.runner.spec import Spec

__all__ = ["figure_of"]

RECORD = "record-level ε: a bound for every record"
CLAIMED = "published ε: the paper's claim"
TOP = 0.93
"""Where an infinite ε is drawn, as a part of the panel's height."""


@dataclass
class _Line:
    """Points of one line; where a paper prints it, it is dashed and without ε."""

    printed: bool = False
    x: list[float] = field(default_factory=list)
    mean: list[float] = field(default_factory=list)
    std: list[float] = field(default_factory=list)
    record: list[float | None] = field(default_factory=list)
    published: list[float | None] = field(default_factory=list)

    def add(self, x: float, mean: float, std: float = 0.0, row: Row | None = None) -> None:
        self.x.append(x)
        self.mean.append(mean)
        self.std.append(std)
        self.record.append(None if row is None else row.largest("epsilon_record"))
        self.published.append(None if row is None else row.largest("epsilon_published"))


def figure_of(spec: Spec, rows: Sequence[Row]) -> Figure:
    """Accuracy over the axis `figure.x`, a line for each combination of the other axes, what the paper prints dashed.

    A panel below has the ε of each point, record-level and published. A paper that counts one label of the whole run,
    or one row of one batch, draws its figure at one ε: what that leaves out grows along the axis.

    Args:
        spec: The figure.
        rows: Its rows.
    """
    axis = spec.figure["x"]
    lines: dict[str, _Line] = {}
    for row in rows:
        labels = dict(row.labels)
        x = float(labels.pop(axis))
        name = ", ".join(labels.values()) or "ours"
        if row.mean is not None:
            lines.setdefault(name, _Line()).add(x, row.mean, row.std or 0.0, row)
        if row.printed is not None:
            lines.setdefault(f"{name} (paper)", _Line(printed=True)).add(x, row.printed.accuracy)
    figure, axes = plt.subplots(figsize=(6, 4))
    colors = {}
    for name, line in lines.items():
        style = "--s" if line.printed else "-o"
        drawn = axes.errorbar(line.x, line.mean, yerr=line.std, fmt=style, markersize=4, capsize=2, label=name)
        colors[name] = drawn[0].get_color()
    if spec.figure.get("log"):
        axes.set_xscale("log")
    axes.set_xlabel(str(spec.figure.get("label", axis)))
    axes.set_ylabel("student accuracy (test)")
    axes.set_ylim(0, 1)
    axes.set_title(spec.title, fontsize=10)
    axes.grid(alpha=0.3)
    if lines:
        axes.legend(fontsize=8)
    figure.tight_layout()
    if measured := {name: line for name, line in lines.items() if not line.printed}:
        _add_panel(figure, measured, colors)
    return figure


def _add_panel(figure: Figure, lines: Mapping[str, _Line], colors: Mapping[str, Any]) -> None:
    top = figure.axes[0]
    grid = figure.add_gridspec(2, 1, height_ratios=[3, 2])
    top.set_subplotspec(grid[0])
    panel = figure.add_subplot(grid[1], sharex=top)
    panel.set_xlabel(top.get_xlabel())
    top.set_xlabel("")
    top.tick_params(which="both", labelbottom=False)
    panel.tick_params(axis="x", which="minor", labelsize=6)
    figure.set_size_inches(6, 6)
    seen: dict[float, dict[str, tuple[float, bool]]] = {}
    for name, line in lines.items():
        for values, style, bound in ((line.record, "-o", True), (line.published, ":s", False)):
            points = [(x, value) for x, value in zip(line.x, values, strict=True) if value is not None and value > 0]
            finite = [point for point in points if math.isfinite(point[1])]
            if finite:
                panel.plot(*zip(*finite, strict=True), style, color=colors[name], markersize=3, linewidth=1)
            for x, value in points:
                seen.setdefault(x, {})[_short(value, bound=bound)] = (value, bound)
                if math.isinf(value):
                    where = panel.get_xaxis_transform()
                    panel.plot([x], [TOP], "o" if bound else "s", color=colors[name], markersize=3, transform=where)
    panel.set_yscale("log")
    panel.margins(y=0.3)
    panel.set_ylabel("ε")
    panel.grid(alpha=0.3)
    for x, texts in seen.items():
        _write(panel, x, texts)
    handles = [
        Line2D([], [], color="0.3", linestyle="-", marker="o", markersize=3, linewidth=1, label=RECORD),
        Line2D([], [], color="0.3", linestyle=":", marker="s", markersize=3, linewidth=1, label=CLAIMED),
    ]
    panel.legend(handles=handles, fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.28), ncols=2, frameon=False)
    figure.tight_layout()


def _write(panel: Axes, x: float, texts: Mapping[str, tuple[float, bool]]) -> None:
    """Writes the figures of one x beside their points: the highest that is finite above, the others below."""
    highest = max((value for value, _ in texts.values() if math.isfinite(value)), default=None)
    for text, (value, bound) in texts.items():
        infinite = math.isinf(value)
        offset, vertical = ((0, 3), "bottom") if value == highest else ((0, -4), "top")
        panel.annotate(
            text,
            (x, TOP if infinite else value),
            xycoords=panel.get_xaxis_transform() if infinite else "data",
            xytext=(4, 0) if infinite else offset,
            textcoords="offset points",
            ha="left" if infinite else "center",
            va="center" if infinite else vertical,
            fontsize=6,
            fontweight="bold" if bound else "normal",
        )


def _short(value: float, *, bound: bool) -> str:
    """Two digits, a bound never below its value: `4.3e6`."""
    text = round_up(value, digits=2) if bound else f"{value:.2g}"
    mantissa, _, exponent = text.partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent else text
