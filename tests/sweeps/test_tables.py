"""Printed figures, table specs, and what is rendered of measured records."""

from __future__ import annotations

import copy
import csv
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.data_files import write_folders

from lightning_modules.cli import main
from lightning_modules.cli.fit import command_line as build
from privacy.published import published_dpdfd_epsilon
from sweeps.runner.fit import RunnerError
from sweeps.runner.queue import Task
from sweeps.runner.rendering import page_of, render_index, render_table
from sweeps.runner.reported import Reported, footnotes, reported
from sweeps.runner.rows import read_rows
from sweeps.runner.spec import QUIET, Cell, Spec, list_specs

SPECS = list_specs()


def figure(**wanted: Any) -> Reported:
    found = [row for row in reported() if all(getattr(row, name) == value for name, value in wanted.items())]
    assert len(found) == 1, found
    return found[0]


def test_every_printed_figure_is_complete_and_stands_once() -> None:
    seen = set()
    for row in reported():
        assert 0 < row.accuracy < 1 and row.dataset and row.method and row.source and row.table
        assert row.paper in ("LabelDP", "DGD", "DPDFD", "DPSD", "")
        assert row.unit in ("record", "label", "") and (row.delta is None or 0 <= row.delta < 1)
        assert set(row.notes) <= set(footnotes())
        key = (row.paper, row.table, row.dataset, row.method, row.setting, row.epsilon, row.unit)
        assert key not in seen, key
        seen.add(key)
    assert {note for row in reported() for note in row.notes} == set(footnotes())


def test_sizes_of_the_printed_tables() -> None:
    def size(paper: str, table: str) -> int:
        return sum(row.paper == paper and row.table == table for row in reported())

    # Methods x columns less what is not available, plus the teachers.
    assert size("DPDFD", "Table 1") == 10 * 8 - 5 + 4 - 0
    assert size("DPSD", "Table I") == 13 * 8 - 5 - 4 - 4 + 4
    assert size("DGD", "Table I") == 7 * 4 + 2
    assert size("DPDFD", "Table 3") == 9 * 4 and size("DPSD", "Table V") == 6 * 4 and size("DPSD", "Table VI") == 16


def test_known_figures_and_the_footnotes_of_misprints() -> None:
    ours = figure(paper="DPDFD", table="Table 1", dataset="MNIST", method="DPDFD", epsilon=1.0)
    assert ours.accuracy == 0.9512 and "c1-c4" in ours.notes
    assert figure(paper="DPDFD", table="Table 4", dataset="MNIST", method="DPDFD", epsilon=1.0).accuracy == 0.9762
    permuted = figure(paper="DPSD", table="Table I", dataset="MNIST", method="DGD", epsilon=1.0)
    assert permuted.accuracy == 0.882 and permuted.notes == ("d1-dgd",)
    assert figure(paper="DGD", table="Table I", dataset="MNIST", method="DGD", epsilon=1.0).accuracy == 0.736
    misplaced = figure(paper="DPSD", table="Table IV", dataset="CelebA-G", method="DPSD", epsilon=8.0)
    assert misplaced.notes == ("d4-headings",)
    assert (
        figure(paper="LabelDP", table="Table II", dataset="CIFAR100", method="DP-DFD", epsilon=8.0).accuracy == 0.7467
    )


SPEC: dict[str, Any] = {
    "title": "Two students",
    "paper": "DPDFD",
    "reported": "Table 1",
    "method": "DPDFD",
    "fits": {
        "teacher": {"config": "teacher.yaml"},
        "student": {"config": "student.yaml", "set": {"model.teacher": "{teacher}/x.ckpt"}},
    },
    "axes": {
        "dataset": {"MNIST": None, "FashionMNIST": {"teacher": {"data": "F"}, "student": {"data": "F"}}},
        "epsilon": {"1": {"student": {"target": 1.0}}, "10": {"student": {"target": 10.0}}},
    },
    "presets": {
        "cpu": {"seeds": [0, 1], "set": {"student": {"epochs": 5}}, "seconds": {"teacher": 3, "student": 7}},
        "smoke": {"axes": {"dataset": ["MNIST"], "epsilon": {"1": {"student": {"sigma": 2}}}}},
    },
}


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Spec:
    monkeypatch.chdir(tmp_path)
    Path("teacher.yaml").write_text("a: 1")
    Path("student.yaml").write_text("a: 2")
    return written(SPEC)


def teacher(cell: Cell) -> Task:
    (found,) = [task for task in cell.tasks if task.fit.name == "teacher"]
    return found


def page(spec: Spec, preset: str = "cpu") -> str:
    results = Path("results")
    return page_of(spec, {preset: read_rows(spec, preset, results)}, results=results)


def written(values: dict[str, Any]) -> Spec:
    Path("t.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    return Spec.read("t.yaml")


def test_the_grid_with_shared_teachers(spec: Spec) -> None:
    cells = spec.cells("cpu")
    assert [(*cell.labels.values(), cell.seed) for cell in cells[:3]] == [
        ("MNIST", "1", 0), ("MNIST", "1", 1), ("MNIST", "10", 0),
    ]  # fmt: skip
    assert len(cells) == 8 and len({cell.task.digest for cell in cells}) == 8
    assert len({teacher(cell).digest for cell in cells}) == 2
    assert cells[0].task.fit.set == {
        "model.teacher": "{teacher}/x.ckpt", "epochs": 5, "target": 1.0, "seed_everything": 0, **QUIET,
    }  # fmt: skip
    assert teacher(cells[-1]).fit.set == {"data": "F", **QUIET}


def test_a_preset_selects_values_and_changes_more(spec: Spec) -> None:
    (cell,) = spec.cells("smoke")
    assert cell.labels == {"dataset": "MNIST", "epsilon": "1"}
    assert cell.task.fit.set["target"] == 1.0 and cell.task.fit.set["sigma"] == 2
    assert [cell.seed for cell in spec.cells("smoke", seeds=[4, 5])] == [4, 5]


def test_points_without_a_meaning_are_left_out(spec: Spec) -> None:
    some = written({**SPEC, "skip": [{"dataset": "FashionMNIST", "epsilon": 10}]})
    points = {tuple(cell.labels.values()) for cell in some.cells("cpu")}
    assert points == {("MNIST", "1"), ("MNIST", "10"), ("FashionMNIST", "1")}
    assert {tuple(cell.labels.values()) for cell in spec.cells("cpu")} == points | {("FashionMNIST", "10")}


def test_a_preset_leaves_points_out_that_the_others_keep(spec: Spec) -> None:
    presets = copy.deepcopy(SPEC["presets"])
    presets["larger"] = copy.deepcopy(presets["cpu"])
    presets["cpu"]["skip"] = [{"dataset": "FashionMNIST", "epsilon": 10}]
    some = written({**SPEC, "presets": presets})
    points = {tuple(cell.labels.values()) for cell in some.cells("cpu")}
    assert points == {("MNIST", "1"), ("MNIST", "10"), ("FashionMNIST", "1")}
    assert {tuple(cell.labels.values()) for cell in some.cells("larger")} == points | {("FashionMNIST", "10")}
    digests = {cell.name: cell.task.digest for cell in spec.cells("cpu")}
    assert {cell.name: cell.task.digest for cell in some.cells("cpu")}.items() <= digests.items()


def test_a_combination_changes_what_its_values_do_not(spec: Spec) -> None:
    before = {(*cell.labels.values(), cell.seed): cell.task.digest for cell in spec.cells("cpu")}
    some = written({
        **SPEC,
        "exceptions": [
            {"when": {"dataset": "FashionMNIST", "epsilon": 10}, "set": {"student": {"target": 9.0}}},
            {"when": {"dataset": "FashionMNIST"}, "set": {"teacher": {"data": "G"}}},
        ],
    })  # fmt: skip
    after = {(*cell.labels.values(), cell.seed): cell for cell in some.cells("cpu")}
    same = {key for key, cell in after.items() if cell.task.digest == before[key]}
    assert same == {key for key in before if "MNIST" in key}
    targets = {key[:2]: cell.task.fit.set["target"] for key, cell in after.items()}
    assert targets == {(d, "1"): 1.0 for d in ("MNIST", "FashionMNIST")} | {
        ("MNIST", "10"): 10.0, ("FashionMNIST", "10"): 9.0,
    }  # fmt: skip
    assert {teacher(cell).fit.set["data"] for key, cell in after.items() if "MNIST" not in key} == {"G"}


def test_a_preset_changes_combinations_of_its_own(spec: Spec) -> None:
    presets = copy.deepcopy(SPEC["presets"])
    presets["cpu"]["exceptions"] = [{"when": {"dataset": "MNIST", "epsilon": 10}, "set": {"student": {"target": 8.0}}}]
    last = {"when": {"dataset": "MNIST"}, "set": {"student": {"target": 9.0}}}
    some = written({**SPEC, "presets": presets, "exceptions": [last]})
    found = {tuple(cell.labels.values()): cell.task.fit.set["target"] for cell in some.cells("cpu", seeds=[0])}
    assert found == {
        ("MNIST", "1"): 9.0,
        ("MNIST", "10"): 8.0,
        ("FashionMNIST", "1"): 1.0,
        ("FashionMNIST", "10"): 10.0,
    }
    assert {cell.task.fit.set["target"] for cell in some.cells("smoke")} == {9.0}


def test_cells_of_one_name_are_refused(spec: Spec) -> None:
    """Their records would be one file, the last to be written."""
    plus = {"dataset": {"PATE": None, "PATE+": None}, "epsilon": {"1": None}}
    names = [cell.name for cell in written({**SPEC, "axes": plus, "presets": {"cpu": {}}}).cells("cpu")]
    assert names == ["PATE_1_seed0", "PATEplus_1_seed0"]
    with pytest.raises(RunnerError, match="would write one record"):
        alike = {"dataset": {"a b": None, "a-b": None}, "epsilon": {"1": None}}
        written({**SPEC, "axes": alike, "presets": {"cpu": {}}}).cells("cpu")


def test_a_teacher_may_take_the_cells_seed(spec: Spec) -> None:
    cells = written({**SPEC, "seeded": ["teacher"]}).cells("cpu")
    assert len({teacher(cell).digest for cell in cells}) == 4  # two data sets, two seeds
    for cell in cells:
        assert cell.task.fit.set["seed_everything"] == cell.seed
        assert teacher(cell).fit.set["seed_everything"] == cell.seed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"axis": {}}, "allowed keys"),
        ({"fits": {"teacher": {"config": "nowhere.yaml"}}}, "does not exist"),
        ({"axes": {"dataset": {"MNIST": {"pupil": {}}}}}, "allowed keys"),
        ({"reported": "Table 99"}, "no 'Table 99'"),
        ({"seeded": ["pupil"]}, "seeded: fits are"),
        ({"kind": "drawing"}, "kind must be"),
        ({"kind": "figure"}, "figure.x"),
        ({"presets": {"cpu": {"axes": {"size": ["1"]}}}}, "axes are"),
        ({"presets": {"cpu": {"axes": {"epsilon": ["3"]}}}}, "has the values"),
        ({"skip": [{"size": "1"}]}, "allowed keys"),
        ({"skip": [{"epsilon": "3"}]}, "skip: needs values"),
        ({"skip": [{}]}, "skip: needs values"),
        ({"presets": {"cpu": {"skip": [{"epsilon": "3"}]}}}, "preset cpu, skip: needs values"),
        ({"unprinted": [{"epsilon": "3"}]}, "unprinted: needs values"),
        ({"unprinted": [{}]}, "unprinted: needs values"),
        ({"measures": ["loss"]}, "measures must be a list of teacher_accuracy, auroc"),
        ({"exceptions": [{"when": {"epsilon": "3"}, "set": {"student": {"a": 1}}}]}, "when: needs values"),
        ({"exceptions": [{"set": {"student": {}}}]}, "when: allowed keys"),
        ({"exceptions": [{"when": {"epsilon": "1"}}]}, "`set` needed"),
        ({"exceptions": [{"when": {"epsilon": "1"}, "set": {"pupil": {}}}]}, "allowed keys"),
        ({"exceptions": [{"when": {"epsilon": "1"}, "student": {}}]}, "allowed keys"),
    ],
)
def test_a_spec_that_makes_no_sense_is_refused(spec: Spec, change: dict[str, Any], message: str) -> None:
    with pytest.raises(RunnerError, match=message):
        written({**SPEC, **change})


def test_unknown_tables_and_presets_are_named(spec: Spec) -> None:
    with pytest.raises(RunnerError, match=r"known are .*dpdfd-table1"):
        Spec.read("no-such-table")
    with pytest.raises(RunnerError, match="presets are"):
        spec.cells("huge")


@pytest.mark.parametrize("installed", SPECS, ids=lambda found: found.name)
def test_installed_specs_have_all_presets_and_find_their_printed_figures(installed: Spec) -> None:
    assert set(installed.presets) == {"smoke", "cpu", "paper"}
    for preset in installed.presets:
        cells = installed.cells(preset)
        assert cells and all(fit.seconds is not None for cell in cells for fit in cell.tasks)
    if installed.table is not None:
        rows = read_rows(installed, "paper", Path("nowhere"))
        # Of a curve the papers print a few points at most.
        # DGD Table II is of a data set alone that is not at hand: it stands below ours.
        datasets = {row.dataset for row in reported() if (row.paper, row.table) == (installed.paper, installed.table)}
        sought = [row for row in rows if dict(row.labels)["dataset"] in datasets]
        found = [row.printed is not None for row in sought if installed.is_printed(dict(row.labels))]
        assert any(found) if installed.kind == "figure" else all(found)


@pytest.mark.parametrize(
    ("first", "second", "shared"),
    [
        ("dpsd-table1", "dpdfd-table1", 24),  # all of DPDFD Table 1
        ("dpsd-table3", "dpsd-table1", 9),
        ("dpsd-fig9", "dpsd-table1", 24),  # two budgets of five
        ("dpsd-fig6", "dpsd-table1", 15),  # decoupled distillation; of the generator one budget on MNIST
        ("dpsd-table6", "dpsd-table1", 3),
        ("dpsd-discriminator", "dpsd-table6", 3),
        ("dpsd-fig5-k", "dpsd-table4", 6),
        ("labeldp-table2", "labeldp-table1", 18),
        ("labeldp-table3", "labeldp-table1", 3),
    ],
)
def test_tables_share_the_cells_that_they_have_in_common(first: str, second: str, shared: int) -> None:
    digests = [{cell.task.digest for cell in Spec.read(name).cells("cpu")} for name in (first, second)]
    assert len(digests[0] & digests[1]) == shared


@pytest.mark.parametrize("preset", ["cpu", pytest.param("paper", marks=pytest.mark.slow)])
def test_all_tables_have_one_teacher_of_a_kind_for_each_data_set(preset: str) -> None:
    teachers = {
        teacher(cell).digest: (
            cell.labels["dataset"],
            "LinearOnFeatures" in str(teacher(cell).fit.set.get("model.network")),
        )
        for installed in list_specs()
        if "teacher" not in installed.seeded
        for cell in installed.cells(preset)
        if "teacher" in cell.task.parents  # DGD has ensembles
    }
    of_fixed_features = [("FashionMNIST", True)] if preset == "cpu" else []
    assert sorted(teachers.values()) == sorted([("FashionMNIST", False), ("MNIST", False), *of_fixed_features])


@pytest.mark.parametrize(
    ("name", "preset"), [(name, preset) for name in ("labeldp-table1", "labeldp-table2") for preset in ("cpu", "paper")]
)
def test_as_printed_labels_have_the_papers_threshold_and_no_correction(name: str, preset: str) -> None:
    def settings(variant: str) -> list[tuple[Any, Any]]:
        cells = Spec.read(name).cells(preset, seeds=[0])
        found = [cell.task.fit.set for cell in cells if cell.labels["variant"] == variant]
        return [
            tuple(each.get(f"model.stages.{key}", "file") for key in ("threshold", "noise_correction"))
            for each in found
        ]

    assert set(settings("as_printed")) == {(None, False)}  # null is 1/(2c)
    assert set(settings("generator")) == {("file", "file")}


@pytest.mark.parametrize("name", ["dpsd-table1", "dpsd-table3", "dpsd-table4", "dpsd-fig5-k"])
def test_as_printed_dpsd_makes_the_papers_200_steps(name: str) -> None:
    cells = [cell for cell in Spec.read(name).cells("cpu", seeds=[0]) if cell.labels["variant"] == "as_printed"]
    assert cells and all(cell.task.fit.set["trainer.max_epochs"] == 2 for cell in cells)  # of 100 steps each


BUDGET = ("noise_multiplier", "norm_bound", "budget.target_epsilon")


def _budgets() -> list[tuple[str, Cell]]:
    """Cells of the `cpu` presets with a budget of gradients, each once, where σ was lowered to meet it."""
    found = {}
    for name in (
        "dpdfd-table1",
        "dpdfd-losses",
        "dpsd-table1",
        "dpsd-table3",
        "dpsd-table6",
        "dpsd-fig9",
        "dpsd-discriminator",
        "dpsd-fig6",
    ):
        for cell in Spec.read(name).cells("cpu", seeds=[0]):
            settings = cell.task.fit.set
            if "model.annotator.noise_multiplier" in settings:
                found[tuple(settings.get(f"model.annotator.{setting}") for setting in BUDGET)] = (name, cell)
    return list(found.values())


@pytest.mark.parametrize(
    ("name", "cell"), _budgets(), ids=lambda value: value if isinstance(value, str) else value.name
)
def test_the_steps_at_hand_use_the_published_budget_up_and_no_more(name: str, cell: Cell) -> None:
    settings = cell.task.fit.set
    sigma, bound, target = (settings[f"model.annotator.{setting}"] for setting in BUDGET)

    def spent(sigma: float) -> float:
        return published_dpdfd_epsilon(bound, 10, 256, 1500, sigma, 1e-5)  # DPSD's Theorem 1 is DPDFD's Theorem 3

    assert 0.99 * target < spent(sigma) <= target
    assert spent(0.99 * sigma) > target


def record(spec: Spec, preset: str, accuracies: dict[tuple[str, str, int], float], **more: Any) -> Path:
    folder = Path("results") / spec.name / preset / "records"
    folder.mkdir(parents=True, exist_ok=True)
    for cell in spec.cells(preset):
        key = (cell.labels["dataset"], cell.labels["epsilon"], cell.seed)
        if key not in accuracies:
            continue
        content = {
            "cell": dict(cell.labels), "accuracy": accuracies[key], "seed": cell.seed, "epsilon_published": 0.98,
            "epsilon_record": "inf", "delta": 1e-5, "unit": "one record", "steps": 1500, "wall_seconds": 10.0,
            "commit": "abc", "hardware": "CPU", "versions": {"torch": "2"}, "digest": cell.task.digest, **more,
        }  # fmt: skip
        (folder / f"{cell.name}.json").write_text(json.dumps(content))
    return folder


def rendered(spec: Spec) -> tuple[str, list[dict[str, str]]]:
    """The page, and the lines of `table.csv`."""
    text = render_table(spec, results=Path("results")).read_text()
    return text, list(csv.DictReader(Path("results", spec.name, "cpu", "table.csv").open()))


def test_a_rendered_table(spec: Spec) -> None:
    accuracies = {("MNIST", "1", 0): 0.9, ("MNIST", "1", 1): 0.92, ("FashionMNIST", "10", 1): 0.8}
    folder = record(spec, "cpu", accuracies)
    failed = {"cell": {"dataset": "MNIST", "epsilon": "10"}, "error": "ValueError: no\nmore", "seed": 0}
    (folder / "MNIST_10_seed0.json").write_text(json.dumps(failed))
    text, rows = rendered(spec)
    assert "| MNIST | 1 | 95.12 % [1] [2] | 90.00 / 92.00 % | 2 | 0.98 | inf | 1e-05 | 1,500 |" in text
    assert "| MNIST | 10 | 97.51 % [1] | failed | 0 |" in text
    assert "| FashionMNIST | 1 | 83.86 % [1] | – | 0 |" in text and "| 80.00 % | 1 |" in text
    assert "| DPGEN | 90.46 % | 93.57 % |" in text
    assert "| PSG (Chen et al. 2022) | 80.90 % | 95.60 % |" in text
    assert f"1. {footnotes()['c-epsilon']}" in text and f"2. {footnotes()['c1-c4']}" in text
    assert "- failed (MNIST, 10): ValueError: no\n" in text
    assert "Last step, no selection" in text and "commit abc" in text
    assert (rows[0]["ours_mean"], rows[0]["ours"], rows[0]["ours_sd"]) == (repr(0.91), "0.9 0.92", "")
    assert rows[0]["seeds"] == "0 1" and rows[0]["epsilon_record"] == "inf"
    assert rows[1]["errors"].startswith("ValueError") and rows[2]["paper_accuracy"] == "0.8386"


def test_a_deviation_is_of_three_seeds_or_more(spec: Spec) -> None:
    three = {**SPEC, "presets": {"cpu": {**SPEC["presets"]["cpu"], "seeds": [0, 1, 2]}}}
    record(written(three), "cpu", {("MNIST", "1", seed): value for seed, value in enumerate((0.9, 0.92, 0.94))})
    text, rows = rendered(written(three))
    assert "| 92.00 ± 2.00 % | 3 |" in text and float(rows[0]["ours_sd"]) == pytest.approx(0.02)


def test_a_figure_for_labels_has_a_column_of_its_own_beside_the_infinite_one(spec: Spec) -> None:
    record(spec, "cpu", {("MNIST", "1", 0): 0.9})
    text, rows = rendered(spec)
    assert "ε of labels" not in text and "epsilon_label" not in rows[0]
    record(spec, "cpu", {("MNIST", "1", 0): 0.9}, epsilon_label=9.194)
    text, rows = rendered(spec)
    assert "| ε record-level | ε of labels | δ |" in text and "says nothing of an image" in text
    assert "| 0.98 | inf | 9.194 | 1e-05 |" in text
    assert (rows[0]["epsilon_record"], rows[0]["epsilon_label"]) == ("inf", "9.194")


def section(text: str, caption: str) -> str:
    return text.split(caption)[1].split("\n\n")[1] if caption in text else ""


def test_what_is_printed_and_not_run_here_is_shown(spec: Spec) -> None:
    file = page(spec, "cpu")
    left = section(file, "not run here:")
    assert left.startswith("| method | MNIST | FashionMNIST | CelebA-G | CelebA-G, ε = 1 | ")
    assert "| Teacher | 99.21 % | 91.02 % |" in left and "| DPDFD | – |" in left and "MNIST, ε" not in left
    # What one column less is run of is shown there instead.
    file = page(spec, "smoke")
    assert "| FashionMNIST, ε = 10 |" in section(file, "not run here:")


def test_further_figures_of_the_records_are_shown_where_a_table_asks_for_them(spec: Spec) -> None:
    accuracies = {("MNIST", "1", 0): 0.9, ("MNIST", "1", 1): 0.92}
    made = written({**SPEC, "measures": ["teacher_accuracy", "auroc"]})
    record(made, "cpu", accuracies, teacher_accuracy=0.95, auroc=0.8)
    text, rows = rendered(made)
    assert "| paper | ours | teacher | AUC | seeds |" in text
    assert "| MNIST | 1 | 95.12 % [1] [2] | 90.00 / 92.00 % | 95.00 % | 80.00 % | 2 |" in text
    assert "| MNIST | 10 | 97.51 % [1] | – | – | – | 0 |" in text
    assert (rows[0]["teacher_accuracy"], rows[0]["auroc"]) == ("0.95", "0.8")
    record(made, "cpu", accuracies, teacher_accuracy=0.95)  # not measured: never taken for 0
    assert "| 95.00 % | – | 2 |" in page(made)
    plain = page(written(SPEC))
    assert "| paper | ours | seeds |" in plain and "95.00 %" not in plain


def test_a_point_that_the_paper_does_not_print_gets_no_other_points_figure(spec: Spec) -> None:
    """DPSD Table V is of α = 0.5 alone: its figures stood beside α = 0.1 as well."""
    axes = {"alpha": {"0.5": None, "0.1": {"student": {"other": 1}}}, **SPEC["axes"]}
    for unprinted, shown in (([], True), ([{"alpha": "0.1"}], False)):
        made = written({**SPEC, "axes": axes, "unprinted": unprinted})
        text = page(made)
        assert "| 0.5 | MNIST | 1 | 95.12 %" in text
        assert ("| 0.1 | MNIST | 1 | 95.12 %" in text) is shown
    federated = Spec.read("dpsd-table5")
    printed = {row.labels: row.printed for row in read_rows(federated, "cpu", Path("nowhere"))}
    assert {dict(labels)["setting"] for labels, figure in printed.items() if figure is not None} == {"alpha 0.5"}


def test_methods_that_are_run_are_no_competitors(spec: Spec) -> None:
    both = {"method": {"DPSD": None, "DPDFD": {"student": {"other": 1}}}, **SPEC["axes"]}
    run = written({**SPEC, "paper": "DPSD", "reported": "Table I", "method": "DPSD", "axes": both})
    file = page(run, "cpu")
    others = section(file, "Other methods, as printed:")
    assert "| DPGEN |" in others and "DPSD" not in others and "DPDFD" not in others
    assert "| DPDFD | MNIST | 1 | 95.12 %" in file and "| DPSD | MNIST | 1 | 96.03 %" in file


def test_what_is_claimed_to_be_protected_selects_the_printed_figure(spec: Spec) -> None:
    units = {"dataset": SPEC["axes"]["dataset"], "setting": {"all": None}, "unit": {"record": None, "label": None}}
    values = {**SPEC, "paper": "DPSD", "reported": "Table VI", "method": "DPSD", "axes": units}
    terms = written({**values, "presets": {"cpu": {}}})
    file = page(terms, "cpu")
    assert "| MNIST | all | record | 97.85 % |" in file
    assert "| MNIST | all | label | 98.19 % |" in file


def test_anchors_that_protect_another_unit_are_left_out(spec: Spec) -> None:
    labels = {"dataset": SPEC["axes"]["dataset"], "epsilon": {"1": None}}
    values = {**SPEC, "paper": "DPSD", "reported": "Table IV", "method": "DPSD", "axes": labels}
    file = page(written({**values, "presets": {"cpu": {}}}), "cpu")
    others = section(file, "Other methods, as printed:")
    assert "| LP-2ST | 95.82 % | 83.26 % |" in others and "PSG (Chen et al. 2022)" not in others
    file = page(spec, "cpu")
    assert "PSG (Chen et al. 2022)" in section(file, "Other methods, as printed:")


def test_rows_of_another_table_stand_beside(spec: Spec) -> None:
    record(spec, "cpu", {("MNIST", "1", 0): 0.5, ("FashionMNIST", "1", 0): 0.25})
    chosen = [{"table": "t.yaml", "label": "ours elsewhere", "cell": {"dataset": "MNIST"}}]
    Path("other.yaml").write_text(yaml.safe_dump({**SPEC, "title": "Another", "compare_with": chosen}, sort_keys=False))
    file = page(Spec.read("other.yaml"), "cpu")
    cells = section(file, "Ours, from other tables:")
    assert "| ours elsewhere | 50.00 % (record-level ε =" in cells and "25.00 %" not in cells
    with pytest.raises(RunnerError, match="`label` needed"):
        written({**SPEC, "compare_with": [{"table": "t.yaml"}]})
    for cell, message in (
        ({"data": "MNIST"}, "allowed keys"),
        ({"dataset": "Mnist"}, "compare_with dpdfd-table1: needs values"),
    ):
        with pytest.raises(RunnerError, match=message):
            written({**SPEC, "compare_with": [{"table": "dpdfd-table1", "label": "ours", "cell": cell}]})


def test_figures_of_an_earlier_configuration_are_marked(spec: Spec) -> None:
    record(spec, "smoke", {("MNIST", "1", 0): 0.5})
    text = page(spec, "smoke")
    assert "†" not in text
    Path("student.yaml").write_text("a: 3")
    text = page(spec, "smoke")
    assert "50.00 % † |" in text and "before its configuration last changed" in text


def test_a_figure_is_drawn_as_png_and_svg(spec: Spec) -> None:
    drawn = written({**SPEC, "kind": "figure", "figure": {"x": "epsilon", "log": True}})
    record(drawn, "cpu", {("MNIST", "1", 0): 0.9, ("MNIST", "1", 1): 0.8, ("MNIST", "10", 0): 0.95})
    text, _ = rendered(drawn)
    folder = Path("results/t/cpu")
    assert (folder / "figure.png").read_bytes().startswith(b"\x89PNG") and "](t/cpu/figure.png)" in text
    first = (folder / "figure.svg").read_text()
    assert "<svg" in first and rendered(drawn)[0] == text and (folder / "figure.svg").read_text() == first


def test_a_page_for_each_table_and_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    installed = Spec.read("dpdfd-fig2")
    cell = installed.cells("smoke")[0]
    folder = Path("results/tables/dpdfd-fig2/smoke/records")
    folder.mkdir(parents=True)
    content = {
        "cell": dict(cell.labels), "accuracy": 0.5, "seed": 0, "epsilon_published": 0.1, "epsilon_record": 5.0,
        "delta": 1e-5, "unit": "one record", "steps": 10, "wall_seconds": 1.0, "commit": "abc", "hardware": "CPU",
        "versions": {"torch": "2"},
    }  # fmt: skip
    (folder / f"{cell.name}.json").write_text(json.dumps(content))
    Path("results/tables/gone/smoke/records").mkdir(parents=True)
    with pytest.raises(SystemExit, match="not as"):
        main(["tables", "render", "--check"])
    assert not Path("docs").exists()
    main(["tables", "render"])
    main(["tables", "render", "--check"])
    text = Path("docs/results.md").read_text()
    assert f"| [dpdfd-fig2](../results/tables/dpdfd-fig2.md) | {installed.title} |" in text and "gone" not in text
    assert "](dpdfd-fig2/smoke/figure.png)" in Path("results/tables/dpdfd-fig2.md").read_text()
    assert (folder.parent / "figure.png").is_file()
    (folder / f"{cell.name}.json").write_text(json.dumps({**content, "accuracy": 0.6}))
    with pytest.raises(SystemExit, match=r"dpdfd-fig2\.md is not as the records"):
        main(["tables", "render", "--check"])


ROOT = Path(__file__).parents[2]


def test_pages_are_as_the_records_have_them() -> None:
    stale = render_index(ROOT / "docs" / "results.md", results=ROOT / "results" / "tables", write=False)
    assert stale == [], "run: LightningCLI tables render"


@pytest.mark.usefixtures("quick_whitening")
@pytest.mark.parametrize(
    ("installed", "preset"),
    [
        # The fast suite takes one table of each method: the settings of the others are of the same kind.
        pytest.param(
            found, preset, id=f"{preset}-{found.name}",
            marks=() if preset == "cpu" and found.name.endswith(("-table1", "records")) else pytest.mark.slow,
        )
        for preset in ("cpu", "paper")
        for found in SPECS
    ],
)  # fmt: skip
def test_the_larger_presets_are_accepted_by_the_command_line(
    installed: Spec, preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if installed.name == "records-untuned":  # folders of pictures are listed when a command begins
        for part in ("cropped/train", "cropped/test", "overlaid/train", "overlaid/test"):
            write_folders(tmp_path / "data" / "untuned" / part, classes="0123456789", count=1)
    there = list(tmp_path.iterdir())
    for task in installed.cells(preset)[-1].tasks:
        command = task.fit.command(tmp_path / task.name, {name: str(tmp_path / name) for name in task.parents})
        cli = build(command[1:], run=False)
        assert cli.trainer.max_epochs and list(tmp_path.iterdir()) == there
