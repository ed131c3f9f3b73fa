"""No ε of a recipe or of docs/privacy.md changes unnoticed: against commit ae22c58, by current names, or since."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from support import figures_of_epsilon
from support.figures_of_epsilon import SWEEPS, figures
from support.fixtures import quick_whitening as quick_whitening

from privacy import gaussian_epsilon, published_dpdfd_epsilon
from sweeps.runner.guarantee_tables import methods_table, papers_table

PINNED: dict[str, Any] = json.loads(Path(figures_of_epsilon.__file__).with_suffix(".json").read_text(encoding="utf-8"))
#: Building these takes seconds each: statistics of procedural images are computed for their features.
SLOW = {
    name
    for name in PINNED["recipes"]
    if re.search("whitening|Kernels", (SWEEPS / f"{name}.yaml").read_text(encoding="utf-8"))
}


def same(found: dict[str, float], pinned: dict[str, float | str]) -> bool:
    """To the last bits: a bound that moves by a millionth has changed."""
    return found.keys() == pinned.keys() and all(
        math.isclose(found[name], float(value), rel_tol=1e-9) or found[name] == float(value)
        for name, value in pinned.items()
    )


@pytest.mark.usefixtures("quick_whitening")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in PINNED["recipes"]]
)
def test_a_recipe_costs_what_it_did(name: str) -> None:
    assert same(figures(SWEEPS / f"{name}.yaml"), PINNED["recipes"][name])


def test_dpsd_as_printed_costs_what_one_record_moves_its_batches() -> None:
    """200 means of 256 gradients that are bounded together; bounded each by itself they would cost far more."""
    found = figures(SWEEPS / "methods/dpsd_mnist_paper.yaml")
    assert found["calls"] == 200
    assert found["record"] == pytest.approx(gaussian_epsilon(math.sqrt(200) * 2 / 100, 1e-5), rel=1e-9)
    assert found["record"] < 0.1 * gaussian_epsilon(math.sqrt(200 * 256) * 2 / 100, 1e-5)
    assert found["published"] == pytest.approx(published_dpdfd_epsilon(1e-3, 10, 256, 200, 100.0, 1e-5))


def test_another_cost_is_noticed() -> None:
    pinned = PINNED["recipes"]["dpdfd_digits"]
    found = {name: float(value) for name, value in pinned.items()}
    assert same(found, pinned)
    for name, value in found.items():
        if math.isfinite(value):
            assert not same({**found, name: value * (1 + 1e-6)}, pinned)
    assert not same({**found, "record": math.inf}, pinned)


def cells(lines: list[str]) -> list[tuple[str, ...]]:
    return [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines]


@pytest.mark.parametrize("table", ["methods", "papers"])
def test_the_tables_of_the_privacy_page_say_the_same_rounded_up(table: str) -> None:
    now = (methods_table() if table == "methods" else papers_table()).splitlines()
    assert len(now) == len(PINNED[table])
    for old_row, new_row in zip(cells(PINNED[table]), cells(now), strict=True):
        for old, new in zip(old_row, new_row, strict=True):
            if old == new or not re.fullmatch(r"[\d.,]+", old):
                # The heading tells the DP-SGD teacher's own figure.
                assert re.sub(r"[\d.]+", "", old) == re.sub(r"[\d.]+", "", new)
                continue
            before, after = (float(text.replace(",", "")) for text in (old, new))
            unit = 1.0 if before >= 1000 else 10.0 ** (math.floor(math.log10(before)) - 3)
            assert before <= after <= before + unit * (1 + 1e-6)
