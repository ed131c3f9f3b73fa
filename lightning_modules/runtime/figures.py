"""Figures of a run, in one style."""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import torch
from torchvision.utils import make_grid

if "matplotlib.pyplot" not in sys.modules:  # a notebook's own backend stays
    matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from privacy.journal import write_atomically

TOP = 0.93
"""Height at which an infinite ε is drawn, as a fraction of the panel's."""


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Writes a PNG atomically and closes the figure."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120, bbox_inches="tight")
    plt.close(figure)
    return write_atomically(path, buffer.getvalue())


def accuracy_axis(axes: Axes) -> None:
    """Formats the vertical axis for accuracies between 0 and 1: in per cent, fitted to the data."""
    axes.set_ylabel("student accuracy (test)")
    axes.yaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))
    axes.grid(alpha=0.3)


def image_grid(images: torch.Tensor, *, title: str) -> Figure:
    """Draw images (N, C, H, W) in a square grid, each scaled to its own range, since generators may exceed [-1, 1]."""
    grid = make_grid(
        images.detach().float().cpu(), nrow=max(1, round(math.sqrt(len(images)))), normalize=True, scale_each=True
    )
    figure, axes = plt.subplots(figsize=(4.5, 4.7))
    axes.imshow(grid.permute(1, 2, 0).numpy(), interpolation="nearest")
    axes.set_title(title, fontsize=10)
    axes.axis("off")
    return figure


def comparison(
    runs: Mapping[str, Sequence[Mapping[str, float]]], pictures: Mapping[str, Path], *, title: str
) -> Figure:
    """Draw synthetic images of several runs next to their accuracy over steps."""
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
