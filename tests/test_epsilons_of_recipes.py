"""No ε of a recipe changes unnoticed: against commit ae22c58, by current names, or since."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from support import epsilons_of_recipes
from support.epsilons_of_recipes import SWEEPS, epsilons
from support.fixtures import quick_whitening as quick_whitening

FILE = Path(epsilons_of_recipes.__file__).with_suffix(".json")
PINNED: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))["recipes"]
#: Building these takes seconds each: statistics of procedural images are computed for their features.
SLOW = {
    name
    for name in PINNED
    if re.search("whitening|Kernels", (SWEEPS / f"{name.split()[0]}.yaml").read_text(encoding="utf-8"))
}


def same(found: dict[str, float], pinned: dict[str, float | str]) -> bool:
    """To the last bits: a bound that moves by a millionth has changed."""
    return found.keys() == pinned.keys() and all(
        math.isclose(found[name], float(value), rel_tol=1e-9) or found[name] == float(value)
        for name, value in pinned.items()
    )


@pytest.mark.usefixtures("quick_whitening")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in PINNED]
)
def test_a_recipe_costs_what_it_did(name: str) -> None:
    assert same(epsilons(name), PINNED[name])


def test_another_cost_is_noticed() -> None:
    pinned = PINNED["dpdfd_digits"]
    found = {name: float(value) for name, value in pinned.items()}
    assert same(found, pinned)
    for name, value in found.items():
        if math.isfinite(value):
            assert not same({**found, name: value * (1 + 1e-6)}, pinned)
    assert not same({**found, "record": math.inf}, pinned)
