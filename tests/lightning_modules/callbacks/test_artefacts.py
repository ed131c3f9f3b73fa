"""What a run leaves behind: figures for machines and people, a configuration that runs again, logs in every logger."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Trainer
from support.runs import RESUME, configuration, csv_rows, distil, fit, result

RESULT_FIELDS = {
    "paper", "method", "dataset", "accuracy", "epsilon_record", "epsilon_published", "delta",
    "unit", "seed", "steps", "wall_seconds", "hardware", "versions", "commit", "config",
}  # fmt: skip


def test_each_fit_of_one_object_counts_its_own_steps(folder: Path) -> None:
    cli = distil(steps=1)
    again = Trainer(max_epochs=1, accelerator="cpu", default_root_dir="again", logger=False, enable_progress_bar=False)
    again.fit(cli.model, cli.datamodule)
    assert again.global_step == 1  # as many as the first fit's last: it was taken for the same step


def test_result_guarantee_metrics_and_figures(folder: Path) -> None:
    cli = distil(steps=3, epochs=2)
    account = cli.model.session.account
    record = result()
    assert set(record) >= RESULT_FIELDS
    assert (record["paper"], record["method"], record["dataset"]) == ("DPDFD", "DPDFD", "Digits")
    assert (record["steps"], record["seed"]) == (6, 3)
    assert cli.trainer.global_step == 6  # names checkpoints: the student's steps, and not the generator's as well
    assert 0 <= record["accuracy"] <= 1 and "teacher_accuracy" not in record
    assert record["uncharged_accesses"] == [] and not Path("run/private").exists()
    assert record["epsilon_record"] == account.epsilon() and record["epsilon_published"] == account.epsilon_published()
    assert record["config"]["model"]["class_path"].endswith("DPDFD")
    # The last point of the curve and the figure that is reported are one measurement.
    assert record["curve_metric"] == "test_split/accuracy" and [point["steps"] for point in record["curve"]] == [3, 6]
    assert record["curve"][-1]["accuracy"] == pytest.approx(record["accuracy"], abs=1e-6)
    assert record["curve"][0]["epsilon"] < record["curve"][1]["epsilon"] < math.inf

    stated = json.loads(Path("run/public/guarantee.json").read_text())
    assert stated["guarantee"]["epsilon"] == record["epsilon_record"]
    assert not any("accuracy" in key for part in stated.values() for key in part)

    rows = csv_rows("run/metrics.csv")
    assert set(rows[0]) >= {"privacy/epsilon", "privacy/epsilon_published", "privacy/queries", "test_split/accuracy"}
    judged = [row for row in rows if row["test_split/accuracy"]]
    assert len(judged) == 2 and float(judged[-1]["privacy/epsilon"]) == pytest.approx(account.epsilon(), rel=1e-6)
    spent = [float(row["privacy/epsilon"]) for row in rows if row["privacy/epsilon"]]
    assert spent == sorted(spent) and spent[0] < spent[-1]
    planned = {float(row["privacy/epsilon_planned"]) for row in rows if row["privacy/epsilon_planned"]}
    assert len(planned) == 1 and planned.pop() == pytest.approx(record["epsilon_record"], rel=1e-6)
    pictures = {"synthetic_000003.png", "synthetic_000006.png"}  # of the generator, at each validation
    assert {path.name for path in Path("run/public/figures").iterdir()} == pictures


@pytest.mark.parametrize("noise", [1.0, 0.0])
def test_loggers_are_given_no_images_that_nothing_bounds(
    folder: Path, noise: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[Path] = []
    monkeypatch.setattr("lightning_modules.callbacks.figures.log_image", lambda *given, **_: shown.append(given[2]))
    distil(mechanism={"noise_multiplier": noise}, steps=1)
    drawn = list(Path("run").rglob("synthetic_*.png"))
    assert drawn and all(("private" in path.parts) is not bool(noise) for path in drawn)
    assert bool(shown) is bool(noise)


@pytest.mark.parametrize("broken", [False, True])
def test_no_page_of_an_earlier_fit_lies_beside_images_of_a_later_one(
    broken: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The resumed fit may be killed at any time."""
    distil(steps=3, epochs=1)
    page = Path("run/public/guarantee.json")
    beside, of_first = [], json.loads(page.read_text())["guarantee"]["epsilon"]

    def note(*given: Any, **_: Any) -> None:
        stated = json.loads(page.read_text())["guarantee"]["epsilon"] if page.exists() else math.inf
        beside.append((stated, given[0].lightning_module.session.account.epsilon()))

    monkeypatch.setattr("lightning_modules.callbacks.figures.log_image", note)
    if broken:
        monkeypatch.setattr("lightning_modules.private_fit.run_folder", lambda trainer: Path("elsewhere"))
    distil("run", RESUME, steps=3, epochs=3)
    assert len(beside) == 2 and all((stated == of_first < spent) is broken for stated, spent in beside)
    assert json.loads(page.read_text())["guarantee"]["epsilon"] == pytest.approx(beside[-1][1])


def test_an_accuracy_on_what_is_kept_apart_is_called_val(folder: Path) -> None:
    config = configuration(model={"images": "prior", "generator": None})
    config["data"]["init_args"]["evaluation"] = "selection"
    metrics = fit(config).trainer.callback_metrics
    assert "val/accuracy" in metrics and "test_split/accuracy" not in metrics
    record = result()
    assert record["curve_metric"] == "val/accuracy" and len(record["curve"]) == 1
    assert record["config"]["data"]["init_args"]["evaluation"] == "selection"


def test_fast_dev_run_leaves_no_litter(folder: Path) -> None:
    distil("run", "--trainer.fast_dev_run=true")
    assert {path.name for path in folder.iterdir()} == {"teachers", "ledgers", "given.json"}
    # A real answer of the teacher was released all the same.
    assert "reserve" in Path("ledgers/Digits-train.jsonl").read_text()


def test_a_teachers_record_promises_nothing(trained_teacher: Path) -> None:
    (file,) = trained_teacher.parents[1].rglob("result.json")
    record = json.loads(file.read_text())
    assert record["epsilon_record"] == "inf" and "epsilon_published" not in record
    assert not (file.parent / "public" / "guarantee.json").exists()
    content: dict[str, Any] = torch.load(trained_teacher, weights_only=True)
    assert content["private_data"] == "Digits/train" and content["num_records"] == 1435
