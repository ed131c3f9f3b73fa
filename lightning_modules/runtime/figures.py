"""Figures of a run, in one style."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import torch
from torchvision.utils import make_grid

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from privacy.files import write_atomically

TOP = 0.93
"""Where an infinite ε is drawn, as a part of the panel's height."""


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Writes a PNG atomically and closes the figure."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120, bbox_inches="tight")
    plt.close(figure)
    return write_atomically(path, buffer.getvalue())


def accuracy_axis(axes: Axes, *, of: str = "test") -> None:
    """Makes the vertical axis one of accuracies, which are between 0 and 1: in per cent, fitted to the data."""
    axes.set_ylabel(f"student accuracy ({of})")
    axes.yaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))
    axes.grid(alpha=0.3)


def image_grid(images: torch.Tensor, *, title: str) -> Figure:
    """A square grid of images (N, C, H, W), each scaled to its own range, since generators do not stop at [-1, 1]."""
    grid = make_grid(
        images.detach().float().cpu(), nrow=max(1, round(math.sqrt(len(images)))), normalize=True, scale_each=True
    )
    figure, axes = plt.subplots(figsize=(4.5, 4.7))
    axes.imshow(grid.permute(1, 2, 0).numpy(), interpolation="nearest")
    axes.set_title(title, fontsize=10)
    axes.axis("off")
    return figure


def run_curves(
    history: Sequence[Mapping[str, float]], *, title: str, of: str = "test", level: str = "record"
) -> Figure:
    """Accuracy over steps, and both ε figures over steps on a logarithmic axis.

    Args:
        history: Points with `steps`, `accuracy`, `epsilon` and `epsilon_published`.
        title: Heading.
        of: Which images the accuracy is of.
        level: What ε is about, `record` or another unit.
    """
    figure, (top, bottom) = plt.subplots(2, 1, sharex=True, figsize=(6, 5.5))
    steps = [point["steps"] for point in history]
    top.plot(steps, [point["accuracy"] for point in history], marker="o", markersize=3, color="C0")
    accuracy_axis(top, of=of)
    top.set_title(title, fontsize=10)
    for name, label, color in (
        ("epsilon", f"{level}-level ε (a bound)", "C3"),
        ("epsilon_published", "published ε (the paper's claim)", "C2"),
    ):
        points = [(point["steps"], point[name]) for point in history if 0 < point[name] < math.inf]
        if points:
            bottom.plot(*zip(*points, strict=True), marker="o", markersize=3, color=color, label=label)
    if infinite := [point["steps"] for point in history if math.isinf(point["epsilon"])]:
        where = bottom.get_xaxis_transform()
        bottom.plot(infinite, [TOP] * len(infinite), "C3^", label=f"{level}-level ε: infinite", transform=where)
        bottom.margins(y=0.2)  # below it
    bottom.set_yscale("log")
    bottom.set_ylabel("ε")
    bottom.set_xlabel("steps")
    bottom.grid(alpha=0.3)
    if bottom.get_legend_handles_labels()[0]:
        bottom.legend(fontsize=8)
    figure.tight_layout()
    return figure


def comparison(
    runs: Mapping[str, Sequence[Mapping[str, float]]], pictures: Mapping[str, Path], *, title: str
) -> Figure:
    """Synthetic images of several runs beside their accuracy over steps, for comparison under equal steps."""
    shown = {name: path for name, path in pictures.items() if name in runs}
    widths = [3.4] * len(shown) + [5.6]
    figure, panels = plt.subplots(1, len(widths), figsize=(sum(widths), 3.8), width_ratios=widths, squeeze=False)
    for panel, (name, path) in zip(panels[0], shown.items(), strict=False):
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
