"""Figures of tables: both ε of every point stand below its accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from support.sweep_fits import SPEC

from sweeps.runner.figures import figure_of
from sweeps.runner.rows import Row
from sweeps.runner.spec import Spec


@pytest.fixture
def spec() -> Spec:
    Path("teacher.yaml").write_text("a: 1")
    Path("student.yaml").write_text("a: 2")
    values = {**SPEC, "kind": "figure", "figure": {"x": "size", "label": "size of the student"}}
    Path("t.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    return Spec.read("t.yaml")


def row(size: int, variant: str, *seeds: tuple[float | str, float | str]) -> Row:
    """A row of a record for each seed, given by its ε: published and record-level."""
    found = [{"accuracy": 0.5, "epsilon_published": claim, "epsilon_record": bound} for claim, bound in seeds]
    labels = (("size", str(size)), ("variant", variant))
    return Row(labels=labels, records=found, errors=[], reported=None)


def drawn(spec: Spec, rows: Sequence[Row]) -> Figure:
    figure = figure_of(spec, rows)
    figure.canvas.draw()
    plt.close(figure)
    return figure


def test_both_figures_stand_at_each_point_the_largest_of_its_seeds(spec: Spec) -> None:
    rows = [row(1, "prior", (1.0, 26.0), (1.0, 27.0)), row(2, "prior", (1.0, 4.21e6)), row(3, "prior")]
    figure = drawn(spec, rows)
    points = {(float(x), float(y)) for line in figure.axes[1].lines for x, y in zip(*line.get_data(), strict=True)}
    assert points == {(1, 1.0), (1, 27.0), (2, 1.0), (2, 4.21e6)}
    assert figure.axes[0].get_xlabel() == "" and figure.axes[1].get_xlabel() == "size of the student"


def test_an_infinite_bound_is_said_and_no_line_hides_it(spec: Spec) -> None:
    figure = drawn(spec, [row(1, "prior", (1.0, 27.0)), row(1, "generator", (1.0, "inf"))])
    assert [text.get_text() for text in figure.axes[1].texts] == ["inf"]
    colors = [container[0].get_color() for container in figure.axes[0].containers]  # type: ignore[index]
    (infinite,) = [line for line in figure.axes[1].lines if line.get_transform() != figure.axes[1].transData]
    assert infinite.get_color() == colors[1]
