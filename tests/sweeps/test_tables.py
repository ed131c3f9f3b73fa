"""Printed figures, table specs, and what is rendered of measured records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from support import data_files
from support.data_files import write_folders
from support.pages import blocks

from lightning_modules.cli import main
from lightning_modules.cli.fit import TranscriptionCLI
from sweeps.runner.coverage import MEASURED, MISSING, NO_DATA, coverage
from sweeps.runner.documents import INDEX
from sweeps.runner.fit import RunnerError
from sweeps.runner.plan import Task
from sweeps.runner.rendering import page_of, render_pages, render_table
from sweeps.runner.reported import footnotes, reported
from sweeps.runner.rows import RECORDS, read_rows, write_records
from sweeps.runner.spec import QUIET, Cell, Spec, list_specs

SPECS = list_specs()


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


SPEC: dict[str, Any] = {
    "title": "Two students",
    "paper": "DPDFD",
    "reported": "Table 1",
    "method": "DPDFD",
    "fits": {
        "teacher": {"config": "teacher.yaml"},
        "student": {"config": "student.yaml", "set": {"model.teacher.path": "{teacher}/x.ckpt"}},
    },
    "axes": {
        "dataset": {"MNIST": None, "FashionMNIST": {"teacher": {"data": "F"}, "student": {"data": "F"}}},
        "epsilon": {"1": {"student": {"target": 1.0}}, "10": {"student": {"target": 10.0}}},
    },
    "presets": {
        "cpu": {"seeds": [0, 1], "set": {"student": {"epochs": 5}}},
        "smoke": {"axes": {"dataset": ["MNIST"], "epsilon": {"1": {"student": {"sigma": 2}}}}},
    },
}


@pytest.fixture
def spec() -> Spec:
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
        "model.teacher.path": "{teacher}/x.ckpt", "epochs": 5, "target": 1.0, "seed_everything": 0, **QUIET,
    }  # fmt: skip
    assert teacher(cells[-1]).fit.set == {"data": "F", **QUIET}


def test_a_file_of_ones_own_needs_no_preset_and_is_found_by_its_name(spec: Spec) -> None:
    own = {name: value for name, value in SPEC.items() if name not in ("presets", "paper", "reported", "method")}
    written({**own, "seeds": [0, 1, 2]})
    found = Spec.read("t")
    assert [cell.seed for cell in found.cells("full")[:3]] == [0, 1, 2] and len(found.cells("full")) == 12
    record(found, "full", {("MNIST", "1", seed): 0.9 + seed / 100 for seed in range(3)})
    text = page(found, "full")
    assert "| dataset | epsilon | accuracy | seeds |" in text and "Kinds of rows" not in text  # a column of nothing
    assert "| MNIST | 1 | 91.00 ± 1.00 % | 3 |" in text and "±: the standard deviation" in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"axis": {}}, "allowed are"),
        ({"axes": {"dataset": {"MNIST": {"pupil": {}}}}}, "dataset MNIST: allowed are"),
        ({"seeded": ["pupil"]}, "seeded: allowed are"),
        ({"kind": "drawing"}, "kind must be"),
        ({"presets": {"cpu": {"axes": {"epsilon": ["3"]}}}}, "preset cpu, epsilon: allowed are"),
        ({"skip": [{"epsilon": "3"}]}, "skip, epsilon: allowed are"),
        ({"protocol": "printed"}, "protocol: must be a mapping|protocol: allowed are"),
        ({"protocol": {"as printed": {"epsilon": "3"}}}, "protocol, epsilon: allowed are"),
        ({"exceptions": [{"when": {"epsilon": "1"}, "set": {"pupil": {}}}]}, "allowed are"),
    ],
)
def test_a_spec_that_makes_no_sense_is_refused(spec: Spec, change: dict[str, Any], message: str) -> None:
    with pytest.raises(RunnerError, match=message):
        written({**SPEC, **change})


@pytest.mark.parametrize("installed", SPECS, ids=lambda found: found.name)
def test_installed_specs_have_all_presets_and_find_their_printed_figures(installed: Spec) -> None:
    assert {"paper"} <= set(installed.presets) - {"cifar10", "gpu"} <= {"smoke", "cpu", "paper"}
    for preset in installed.presets:
        cells = installed.cells(preset)
        for entry in installed.compare_with:
            assert any(
                entry.get("cell", {}).items() <= cell.labels.items() for cell in Spec.read(entry["table"]).cells("cpu")
            )
        assert cells
    if installed.tables:
        rows = read_rows(installed, "paper", Path("nowhere"))
        # Of a curve the papers print a few points at most.
        # DGD Table II is of a data set alone that is not at hand: it stands below ours.
        datasets = {row.dataset for row in installed.reported()}
        sought = [row for row in rows if dict(row.labels)["dataset"] in datasets]
        printed = [
            row for row in sought if not any(one.items() <= dict(row.labels).items() for one in installed.unprinted)
        ]
        found = [row.reported is not None for row in printed]
        assert any(found) if installed.kind == "figure" else all(found)


ABSENT = {"CelebA-G", "CelebA-H", "CIFAR100", "COVIDx", "ImageNet", "PathMNIST", "SVHN"}
"""Data sets of the papers that are not at hand."""
OWN = {"DP-DFD", "DGD", "DPDFD", "DPDFD-MM", "DPSD", "FedDPSD"}


def test_every_printed_figure_on_data_that_are_not_at_hand_has_a_cell() -> None:
    cells = {row.reported for spec in SPECS for row in read_rows(spec, "paper", Path("nowhere"))}
    # A paper also prints the earlier one's figures again.
    wanted = {row for row in reported() if row.dataset in ABSENT and row.method in OWN}
    wanted -= {row for row in wanted if (row.paper, row.method) == ("DPSD", "DPDFD")}
    assert len(wanted) == 63 and wanted <= cells


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(spec.name, marks=() if spec.name == "dgd-fig7" else pytest.mark.slow)
        for spec in SPECS
        if ABSENT & {cell.labels["dataset"] for cell in spec.cells("paper")}
    ],
)
def test_cells_on_data_that_are_not_at_hand_can_be_made_once_they_are(name: str, tmp_path: Path) -> None:
    """With the data set that the cell names, from small files of the published form."""
    for kind in ("celeba", "cifar100", "svhn", "radiographs"):
        getattr(data_files, f"write_{kind}")(tmp_path / "data")
    data_files.write_medmnist(tmp_path / "data", subset="pathmnist", channels=3, classes=9)
    wnids = [f"n{number:08d}" for number in range(300)]  # DPSD's k
    data_files.write_folders(tmp_path / "data/imagenet/val", classes=wnids, count=1, size=8)
    cells = {
        cell.labels["dataset"]: cell for cell in Spec.read(name).cells("paper") if cell.labels["dataset"] in ABSENT
    }
    for dataset, cell in cells.items():
        for task in cell.tasks:
            command = task.fit.command(tmp_path / task.name, {name: str(tmp_path / name) for name in task.parents})
            data = TranscriptionCLI(command[1:], run=False).datamodule
            assert data.name.startswith(dataset) and getattr(data, "dataset", data).missing("test") == []


def record(spec: Spec, preset: str, accuracies: dict[tuple[str, str, int], float], **more: Any) -> None:
    cells = [(cell, (cell.labels["dataset"], cell.labels["epsilon"], cell.seed)) for cell in spec.cells(preset)]
    records = [
        {
            "cell": dict(cell.labels), "accuracy": accuracies[key], "seed": cell.seed, "epsilon_published": 0.98,
            "epsilon_record": "inf", "delta": 1e-5, "unit": "one record", "steps": 1500, "wall_seconds": 10.0,
            "commit": "abc", "hardware": "CPU", "versions": {"torch": "2"}, "digest": cell.task.digest, **more,
        }
        for cell, key in cells
        if key in accuracies
    ]  # fmt: skip
    write_records(Path("results", spec.name, preset, RECORDS), records)


def test_a_rendered_table(spec: Spec) -> None:
    accuracies = {("MNIST", "1", 0): 0.9, ("MNIST", "1", 1): 0.92, ("FashionMNIST", "10", 1): 0.8}
    record(spec, "cpu", accuracies)
    failed = {"cell": {"dataset": "MNIST", "epsilon": "10"}, "error": "ValueError: no\nmore", "seed": 0}
    write_records(Path("results", spec.name, "cpu", RECORDS), [failed])
    text = render_table(spec, results=Path("results")).read_text()
    first, _, rest = text.partition("Kinds of rows")
    assert "| method | data | ε | paper | as printed | their networks, our recipe | ours | drop, paper |" in first
    assert "| DPDFD | MNIST | 1 | 95.12 % [1] [2] | – | – | 90.00 / 92.00 % | 4.09 | – |" in first
    assert "| DPDFD | FashionMNIST | 1 | 83.86 % [1] | – | – | – | 7.16 | – |" in first
    assert "| MNIST | 1 | ours | 90.00 / 92.00 % | 2 | 0.98 | inf | 1e-05 | 1,500 |" in rest
    assert "| MNIST | 10 | ours | failed | 0 |" in rest and "| ours | 80.00 % | 1 |" in rest
    assert "CelebA-G" not in rest.partition("<details>")[0] and "CelebA-G" in rest.partition("<details>")[2]
    assert "| DPGEN | 90.46 % | 93.57 % |" in text
    assert "| PSG on synthetic data (Chen et al. 2022) | 80.90 % | 95.60 % |" in text
    assert f"1. {footnotes()['c-epsilon']}" in text and f"2. {footnotes()['c1-c4']}" in text
    assert "- failed (MNIST, 10): ValueError: no\n" in text
    assert "Last step, no selection" in text and "commit abc" in text


def test_a_point_that_the_paper_does_not_print_gets_no_other_points_figure(spec: Spec) -> None:
    """DPSD Table V is of α = 0.5 alone: its figures stood beside α = 0.1 as well."""
    axes = {"alpha": {"0.5": None, "0.1": {"student": {"other": 1}}}, **SPEC["axes"]}
    for unprinted, shown in (([], True), ([{"alpha": "0.1"}], False)):
        rows = read_rows(written({**SPEC, "axes": axes, "unprinted": unprinted}), "cpu", Path("nowhere"))
        found = {row.free: row.reported for row in rows if row.labels[1:] == (("dataset", "MNIST"), ("epsilon", "1"))}
        assert found["0.5"] and found["0.5"].accuracy == 0.9512 and bool(found["0.1"]) is shown
    federated = Spec.read("dpsd-table5")
    reported = {row.labels: row.reported for row in read_rows(federated, "cpu", Path("nowhere"))}
    assert {dict(labels)["setting"] for labels, row in reported.items() if row is not None} == {"alpha 0.5"}


def test_the_papers_figure_stands_beside_each_kind_of_row(spec: Spec) -> None:
    images = {"prior": None, "generator": {"student": {"g": 1}}, "printed": {"student": {"g": 2}}}
    larger = {"axes": {"images": ["prior"]}, "protocol": "their networks, our recipe", "set": {"student": {"large": 1}}}
    plain = {**SPEC, "axes": {"images": images, **SPEC["axes"]}, "presets": {"cpu": {}, "paper": larger}}
    made = written({**plain, "protocol": {"in part as printed": {"images": "printed"}}})
    for preset, share in (("cpu", 0.9), ("paper", 0.95)):
        record(made, preset, {("MNIST", "1", 0): share}, teacher_accuracy=0.97)
    measured = {preset: read_rows(made, preset, Path("results")) for preset in made.presets}
    text = page_of(made, measured, results=Path("results"))
    row = "| 90.00 % (in part) | 95.00 % | prior 90.00 %, generator 90.00 % | 4.09 | prior 7.00, generator 7.00 |"
    assert f"| DPDFD | MNIST | 1 | 95.12 % [1] [2] {row}" in text
    assert "| printed | MNIST | 1 | in part as printed | 90.00 % | 97.00 % |" in text
    # What a row is called changes nothing that is run.
    assert [cell.task.digest for cell in made.cells("cpu")] == [
        cell.task.digest for cell in written(plain).cells("cpu")
    ]


def test_a_printed_figure_counts_once_and_as_measured_with_a_record_alone() -> None:
    before = coverage(Path("results/tables"))
    assert not before[MEASURED] and not before[MISSING] and len(before[NO_DATA]) == 139  # without a record, no data
    made = Spec.read("dpdfd-table1")
    results = Path("results/tables", made.name, "cpu", RECORDS)
    place = {"cell": dict(made.cells("cpu", seeds=[0])[0].labels), "seed": 0, "dataset": "MNIST"}
    write_records(results, [{**place, "error": "ValueError: no"}])
    after = coverage(Path("results/tables"))
    assert not after[MEASURED] and {row.dataset for row in after[MISSING]} == {"MNIST"}
    write_records(results, [{**place, "accuracy": 0.9}])
    (found,) = coverage(Path("results/tables"))[MEASURED]  # and not in Tables 2 and 7 again
    assert (found.table, found.dataset, found.epsilon) == ("Table 1", "MNIST", 1.0)


def test_figures_of_an_earlier_configuration_are_marked(spec: Spec) -> None:
    record(spec, "smoke", {("MNIST", "1", 0): 0.5})
    text = page(spec, "smoke")
    assert "†" not in text
    Path("student.yaml").write_text("a: 3")
    text = page(spec, "smoke")
    assert "50.00 % † |" in text and "before its configuration last changed" in text


def test_a_page_says_which_students_are_no_better_than_guessing(spec: Spec) -> None:
    two = {"class_names": ["cat", "dog"], "class_images": [60, 40], "majority_class": 0, "majority_share": 0.6}
    for accuracy, recall, said in ((0.6, [1.0, 0.0], True), (0.9, [0.9, 0.9], False)):
        low = {"accuracy_interval": [accuracy - 0.1, accuracy + 0.1], "balanced_accuracy": sum(recall) / 2}
        record(spec, "smoke", {("MNIST", "1", 0): accuracy}, **two, **low, recall=recall, test_images=100)
        assert ("MNIST, 1, seed 0: USELESS: 60.00 % of 100" in page(spec, "smoke")) == said


def test_a_page_for_each_table_and_an_index() -> None:
    installed = Spec.read("dpdfd-fig2")
    cell = installed.cells("smoke")[0]
    file = Path("results/tables/dpdfd-fig2/smoke", RECORDS)
    content = {
        "cell": dict(cell.labels), "accuracy": 0.5, "seed": 0, "epsilon_published": 0.1, "epsilon_record": 5.0,
        "delta": 1e-5, "unit": "one record", "steps": 10, "wall_seconds": 1.0, "commit": "abc", "hardware": "CPU",
        "versions": {"torch": "2"},
    }  # fmt: skip
    write_records(file, [content])
    main(["render"])
    text = Path("docs/results.md").read_text()
    assert f"| [dpdfd-fig2](../results/tables/dpdfd-fig2.md) | {installed.title} |" in text
    assert "](dpdfd-fig2/smoke/figure.png)" in Path("results/tables/dpdfd-fig2.md").read_text()
    assert (file.parent / "figure.png").is_file()


ROOT = Path(__file__).parents[2]


def test_pages_are_as_the_records_have_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("figure_of", "save_figure"):
        monkeypatch.setattr(f"sweeps.runner.rendering.{name}", lambda *_: None)
    for page, text in render_pages(ROOT / INDEX, results=ROOT / "results" / "tables").items():
        assert page.read_text() == text, "run: LightningCLI render"


@pytest.mark.usefixtures("quick_whitening")
@pytest.mark.parametrize(
    ("installed", "preset"),
    [
        # The fast suite takes one table of each method: the settings of the others are of the same kind.
        pytest.param(
            found, preset, id=f"{preset}-{found.name}",
            marks=() if preset == "cpu" and found.name.endswith(("-table1", "records")) else pytest.mark.slow,
        )
        for preset in ("cpu", "gpu", "paper")
        for found in SPECS
        if preset in found.presets and found.name != "dpdfd-table3"  # of 300 classes: see `write_folders` above
    ],
)  # fmt: skip
def test_the_larger_presets_are_accepted_by_the_command_line(installed: Spec, preset: str, tmp_path: Path) -> None:
    if "ImageNet" in installed.cells(preset)[-1].labels.values():  # folders are listed when a command begins
        data_files.write_imagenet(tmp_path / "data")
    if installed.name == "records-untuned":
        for part in ("cropped/train", "cropped/test", "overlaid/train", "overlaid/test"):
            data_files.write_folders(tmp_path / "data" / "untuned" / part, classes="0123456789", count=1)
    there = list(tmp_path.iterdir())
    for task in installed.cells(preset)[-1].tasks:
        command = task.fit.command(tmp_path / task.name, {name: str(tmp_path / name) for name in task.parents})
        cli = TranscriptionCLI(command[1:], run=False)
        assert cli.trainer.max_epochs and list(tmp_path.iterdir()) == there


def test_five_methods_on_own_pictures_are_thirty_lines_of_the_page(tmp_path: Path) -> None:
    *_, text = blocks(ROOT / "docs/experiments.md", "yaml")
    Path("five.yaml").write_text(text)
    for part in ("train", "test"):
        write_folders(tmp_path / "pictures" / part, classes="ab", count=2)
    spec = Spec.read("five.yaml")
    cells = spec.cells("full", seeds=[0])
    assert len(cells) == 5 and len(text.splitlines()) <= 30
    for cell in cells:
        command = cell.task.fit.command(tmp_path / "run", {name: str(tmp_path / name) for name in cell.task.parents})
        cli = TranscriptionCLI(command[1:], run=False)
        assert type(cli.model).__name__ == cell.labels["method"] and cli.model.num_classes == 2
