"""What recipes reach is what their records say: `make test-accuracy`, every night. Their privacy noise has no seed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.fixtures import here as here

from lightning_modules.cli import main
from sweeps.runner.plan import Plan, Store, run_plan
from sweeps.runner.rows import RECORDS, read_records
from sweeps.runner.spec import Spec

pytestmark = [pytest.mark.accuracy, pytest.mark.slow, pytest.mark.timeout(3600)]

RESULTS = Path(__file__).parents[1] / "results"
DATA = RESULTS.parent / "data"
#: Fits of pipelines that are held to their records.
RECIPES = {"sweeps/demo.yaml": ["prior", "record"], "digits_methods": ["dpsd_data", "dpsd_label", "labeldp"]}
LESS = 0.05


def missed(measured: float, recorded: float) -> bool:
    return measured < recorded - LESS


@pytest.mark.parametrize("pipeline", RECIPES)
def test_recipes_reach_their_recorded_accuracy(pipeline: str) -> None:
    spec, wanted = Spec.read(pipeline), {*RECIPES[pipeline]}
    tasks = spec.pipeline()
    for task in reversed(tasks):
        wanted |= set(task.parents.values()) if task.name in wanted else set()
    store = Store("runs")
    assert run_plan(Plan([task for task in tasks if task.name in wanted], store), main) == {}
    for name in RECIPES[pipeline]:
        recorded = json.loads((RESULTS / f"{spec.name}_{name}.json").read_text())["accuracy"]
        measured = json.loads((store.folder(name) / "result.json").read_text())["accuracy"]
        assert not missed(measured, recorded), (name, measured, recorded)
        assert missed(measured - 0.1, recorded)  # the negative control: a student that lost ten points


@pytest.mark.skipif(not (DATA / "MNIST").is_dir(), reason="needs MNIST in data/")
def test_a_cell_of_a_table_reaches_its_recorded_accuracy() -> None:
    Path("data").symlink_to(DATA)
    cell = {"dataset": "MNIST", "images": "prior", "epsilon": "1"}
    options = ["--cell", *(f"{axis}={value}" for axis, value in cell.items()), "--seeds", "0"]
    main(["tables", "run", "dpdfd-table1", "--preset", "cpu", *options])
    found, recorded = (
        next(one for one in read_records(folder / "dpdfd-table1/cpu" / RECORDS) if one["cell"] == cell)
        for folder in (Path("runs/tables/results"), RESULTS / "tables")
    )
    assert found["digest"] == recorded["digest"] and found["epsilon_record"] == recorded["epsilon_record"]
    assert not missed(found["accuracy"], recorded["accuracy"])
