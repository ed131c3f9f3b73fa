"""Tables are run as one plan: their order, the records that follow each fit, and the command line."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.data_files import write_celeba
from support.sweep_fits import SPEC, Fits

from lightning_modules.cli import main
from sweeps.runner.fit import RunnerError
from sweeps.runner.plan import Store
from sweeps.runner.rows import RECORDS, read_records
from sweeps.runner.spec import Spec, _found
from sweeps.runner.tables import in_order, run_tables, tables


def written(name: str, *, sizes: Sequence[int], seeds: Sequence[int] = (0,), **more: Any) -> Spec:
    values = {**copy.deepcopy(SPEC), **more, "seeds": list(seeds)}
    values["axes"] = {"size": {str(size): {"student": {"size": size}} for size in sizes}}
    Path(f"{name}.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    return Spec.read(f"{name}.yaml")


@pytest.fixture
def specs(monkeypatch: pytest.MonkeyPatch) -> list[Spec]:
    """Three tables with one teacher; `second` and `first` share the cells of size 2."""
    monkeypatch.setattr("sweeps.runner.plan.collect", lambda: None)
    Path("teacher.yaml").write_text("a: 1")
    Path("student.yaml").write_text("a: 2")
    return [
        written("first", sizes=[1, 2], seeds=[0, 1, 2]),
        written("second", sizes=[2, 3], seeds=[0, 1]),
        written("third", sizes=[5]),
    ]


def ran(fits: Fits) -> list[tuple[str, str]]:
    """Size and seed of each student that was asked for."""
    return [(asked["size"], asked["seed_everything"]) for asked in fits.asked if "size" in asked]


def measured(specs: Sequence[Spec], fits: Any, **options: Any) -> list[str]:
    said: list[str] = []
    run_tables(in_order(specs, preset="smoke"), preset="smoke", run=fits, say=said.append, **options)
    return said


def records(name: str, results: str = "results/tables") -> dict[str, dict[str, Any]]:
    """Records of a table by their labels and seed."""
    found = read_records(Path(results, name, "smoke", RECORDS))
    return {f"{'_'.join(one['cell'].values())}_seed{one['seed']}": one for one in found}


ALL = [("1", "0"), ("2", "0"), ("3", "0"), ("5", "0"), ("1", "1"), ("2", "1"), ("3", "1"), ("1", "2"), ("2", "2")]


def test_the_second_seed_of_a_table_is_its_second_whatever_number_it_has(specs: list[Spec]) -> None:
    def turns(*specs: Spec, **settings: Any) -> list[tuple[str, int]]:
        return list(dict.fromkeys((spec.name, cell.seed) for spec, cell in in_order(specs, preset="smoke", **settings)))

    other = written("other", sizes=[1], seeds=[7, 3])
    assert turns(other) == [("other", 7), ("other", 3)]
    assert turns(*specs, seeds=[4]) == [("first", 4), ("second", 4), ("third", 4)]


def test_first_seeds_of_all_tables_are_made_before_second_ones_and_shared_fits_once(specs: list[Spec]) -> None:
    fits = Fits()
    measured(specs, fits)
    assert fits.sizes[0] == "teacher" and fits.sizes.count("teacher") == 1 and ran(fits) == ALL
    teacher = fits.asked[0]["trainer.default_root_dir"]
    assert all(asked["model.teacher.path"] == f"{teacher}/checkpoints/last.ckpt" for asked in fits.asked[1:])
    assert [len(records(name)) for name in ("first", "second", "third")] == [6, 4, 1]
    assert all(Path(f"results/tables/{name}.md").is_file() for name in ("first", "second", "third"))


def test_each_record_is_there_before_the_next_fit_begins(specs: list[Spec]) -> None:
    seen: list[int] = []

    class Looking(Fits):
        def __call__(self, arguments: list[str]) -> None:
            seen.append(len(records("first")) + len(records("second")))
            super().__call__(arguments)

    measured(specs, Looking())
    # The teacher and size 1 begin at none; size 2 is a cell of both tables.
    assert seen[:4] == [0, 0, 1, 3]


def test_what_failed_or_wrote_nothing_is_recorded_and_tried_again(specs: list[Spec]) -> None:
    fits = Fits()
    fits.errors["2"] = ValueError("no such thing")
    measured(specs, fits)
    assert ran(fits) == ALL and "no such thing" in records("second")["2_seed0"]["error"]
    again = Fits()
    measured(specs, again)
    assert ran(again) == [one for one in ALL if one[0] == "2"] and "error" not in records("second")["2_seed0"]
    silent = written("silent", sizes=[7])
    measured([silent], lambda line: None)
    assert "without writing" in records("silent")["7_seed0"]["error"]


def test_a_teachers_figure_is_its_own_fits(specs: list[Spec]) -> None:
    measured([written("t", sizes=[1])], Fits())
    found = records("t")["1_seed0"]
    assert found["accuracy"] == 0.5 and found["teacher_accuracy"] == 0.75


def test_dry_run_finds_what_would_fail(capsys: pytest.CaptureFixture[str]) -> None:
    of_ensemble = {"model.teacher.path": "{ensemble}/checkpoints/last.ckpt"}
    fits = {
        "ensemble": {"config": "sweeps/methods/ensemble_digits.yaml"},
        "student": {"config": "sweeps/methods/dgd_digits.yaml", "set": of_ensemble},
    }
    axes: dict[str, Any] = {
        "as it is": {},
        "misspelt": {"student": {"model.mechanism.scales": 1.0}},
        "too little": {"student": {"model.budget.target_epsilon": 1.0e-9}},
        "too short": {"student": {"trainer.max_epochs": 1, "data.steps_per_epoch": 1}},
        "a shard without a class": {"ensemble": {"data.num_teachers": 200, "data.batch_size": 1}},
    }
    Path("own.yaml").write_text(
        yaml.safe_dump({"title": "t", "fits": fits, "axes": {"setting": axes}}, sort_keys=False)
    )
    store, task = Store("runs/tables"), Spec.read("own.yaml").cells("full")[0].tasks[0]
    store.begin(task, {})  # a fit that was interrupted is built, too
    (store.folder(task.name) / "checkpoints").mkdir(parents=True)
    (store.folder(task.name) / "checkpoints/last.ckpt").write_text("half")
    with pytest.raises(SystemExit, match="4 of 7 fits would fail"):
        main(["tables", "run", "own.yaml", "--dry-run"])
    shown = capsys.readouterr().out
    assert "student (setting misspelt, seed 0): " in shown and "scales" in shown
    assert "student (setting too little, seed 0): its first query costs ε = " in shown
    assert "student (setting too short, seed 0): none of its 1 steps is the student's" in shown
    assert "ensemble (setting a shard without a class): " in shown and "could never vote" in shown


def test_one_cell_is_made_by_its_labels_and_is_the_users_until_it_is_to_be_recorded(specs: list[Spec]) -> None:
    fits = Fits()
    tables(["run", "first.yaml", "--cell", "size=2", "--seeds", "1"], run=fits, build=Fits())
    assert ran(fits) == [("2", "1")] and [*records("first", "runs/tables/results")] == ["2_seed1"]
    again = Fits()
    for options, sizes in (([], []), (["--again"], ["2"])):
        tables(["run", "first.yaml", "--cell", "size=2", "--seeds", "1", *options], run=again, build=Fits())
        assert again.sizes == sizes and "ckpt_path" not in str(again.asked)
    for wrong in ("size", "size=9"):
        with pytest.raises(RunnerError, match="--cell"):
            tables(["run", "first.yaml", "--cell", wrong], run=fits, build=Fits())
    assert not Path("results").exists()
    tables(["run", "third.yaml", "--record"], run=Fits(), build=Fits())
    assert [*records("third")] == ["5_seed0"]


def test_a_small_table_end_to_end(capsys: pytest.CaptureFixture[str]) -> None:
    """DPDFD Fig. 2 through the command a user types: two cells, data that are missing, and nothing more to do."""
    values = copy.deepcopy(_found("dpdfd-fig2")[1])
    values["presets"]["smoke"]["axes"]["C"] = ["1e-3"]
    faces = {"class_path": "CelebA", "init_args": {"root": "data", "size": 16, "batch_size": 16, "verify": False}}
    values["presets"]["smoke"]["axes"]["dataset"] = {
        "CelebA-G": {"teacher": {"data": faces}, "student": {"data.dataset": faces}},
        **values["presets"]["smoke"]["axes"]["dataset"],
    }
    Path("dpdfd-fig2.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    main(["tables", "run", "dpdfd-fig2.yaml", "--dry-run"])
    lack = "CelebA-G: 3 file(s) missing in data/celeba; see docs/data.md"
    assert capsys.readouterr().out.count(lack) == 1
    main(["tables", "run", "dpdfd-fig2.yaml"])
    shown = capsys.readouterr()
    said, _, table = shown.out.partition("DPDFD Fig. 2")
    # Three lines of each fit and one of its children, and not what it says alone; then the table, once.
    assert len(said.strip().splitlines()) == 1 + 3 * 3 + 4 and "LightningCLI" not in said + shown.err
    assert said.count(lack) == 1 and said.strip().endswith("3 done, 3 without data, 0 left")
    assert table.count(" normalize ") == table.count(" clip ") == 2 and "chance, 10 %, only show" in table
    results = Path("runs/tables/results")
    text = (results / "dpdfd-fig2.md").read_text()
    assert "| Digits | normalize | 1e-3 | " in text and "| Digits | clip | 1e-3 | " in text
    write_celeba(Path("data"))
    main(["tables", "run", "dpdfd-fig2.yaml"])
    for found in read_records(results / "dpdfd-fig2/smoke" / RECORDS):
        assert found["method"] == "DPDFD" and found["steps"] == 10 and found["seed"] == 0
        assert found["dataset"] == found["cell"]["dataset"] and found["epsilon_published"] > 0
        # The papers' δ = 1e-5 is more than one over the number of CelebA's records.
        assert (float(found["epsilon_record"]) == math.inf) is (found["dataset"] == "CelebA-G")
    made = {path: path.stat().st_mtime_ns for path in Path("runs/tables").glob("*/result.json")}
    assert len(made) == 6
    main(["tables", "run", "dpdfd-fig2.yaml"])
    assert {path: path.stat().st_mtime_ns for path in Path("runs/tables").glob("*/result.json")} == made
    with pytest.raises(SystemExit, match="1 fits failed"):  # a setting that is wrong is no want of data
        main(["tables", "run", "dpdfd-fig2.yaml", "--seeds", "-1", "--cell", "dataset=Digits", "bounding=clip"])
    assert "failed" in (results / "dpdfd-fig2.md").read_text() and not Path("results").exists()
