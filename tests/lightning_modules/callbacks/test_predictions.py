"""`predict` writes a table of classes and probabilities; of a private teacher into `private/`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from support.dp_teachers import teacher_by_dp_sgd
from support.ensembles import ensemble_file
from support.runs import configuration, csv_rows, distil

from datamodules import Digits
from lightning_modules import DPDFD
from lightning_modules.cli import main


def predict(config: Any, checkpoint: str) -> None:
    path = Path("predicted.json")
    path.write_text(json.dumps(config), encoding="utf-8")
    main(["predict", "--config", str(path), "--ckpt_path", checkpoint])


def test_a_students_predictions_are_what_the_student_says(folder: Path) -> None:
    distil(model={"images": "prior"})
    shutil.move("teachers", "elsewhere")  # the teacher plays no part
    predict(configuration(model={"images": "prior"}), "run/checkpoints/last.ckpt")
    rows = csv_rows("run/predictions.csv")
    data = Digits()
    data.setup("test")
    assert [int(row["id"]) for row in rows] == data.test_records.ids.tolist()
    assert list(rows[0]) == ["id", "file", "class", "class_name", *(f"p({name})" for name in data.class_names)]
    student = DPDFD.load_from_checkpoint("run/checkpoints/last.ckpt").eval()
    with pytest.raises(RuntimeError, match="loaded when a fit begins"):
        _ = student.teacher
    images = data.test_records.__getitems__(range(len(rows)))[0]
    with torch.no_grad():
        expected = student(images).softmax(dim=1)
    got = torch.tensor([[float(row[f"p({name})"]) for name in data.class_names] for row in rows])
    assert torch.allclose(got, expected, atol=1e-5)
    assert [int(row["class"]) for row in rows] == expected.argmax(dim=1).tolist()
    assert all(row["class_name"] == data.class_names[int(row["class"])] for row in rows)
    # The mutant that numbers rows by their position.
    assert data.test_records.ids.tolist() != list(range(len(rows)))
    assert not Path("run/private/predictions.csv").exists()


def test_a_private_teachers_predictions_are_private(folder: Path) -> None:
    config = {
        "trainer": configuration("elsewhere")["trainer"],
        "model": {"class_path": "Teacher"},
        "data": {"class_path": "Digits"},
    }
    Path("teacher/checkpoints").mkdir(parents=True)
    shutil.copyfile("teachers/digits.ckpt", "teacher/checkpoints/last.ckpt")
    Path("teacher/config.yaml").touch()
    predict(config, "teacher/checkpoints/last.ckpt")
    assert len(csv_rows("teacher/private/predictions.csv")) == 362
    assert not Path("teacher/predictions.csv").exists()


def test_predictions_of_a_teacher_by_dp_sgd_are_covered_by_its_guarantee(folder: Path) -> None:
    teacher_by_dp_sgd("dp", target_epsilon=3.0, epochs=1)
    config = json.loads(Path("given.json").read_text())
    predict(config, "dp/checkpoints/last.ckpt")  # of data that offer no batches to predict
    assert len(csv_rows("dp/predictions.csv")) == 362
    assert not Path("dp/private").exists()


def test_an_ensembles_predictions_are_shares_of_votes_and_private(folder: Path) -> None:
    network = {"class_path": "SmallCNN", "init_args": {"width": 2, "hidden": 4}}
    file = ensemble_file(folder, network=network, num_teachers=4, steps=2)
    predict(json.loads((folder / "given.json").read_text()), str(file))
    rows = csv_rows("run/private/predictions.csv")
    shares = [float(value) for name, value in rows[0].items() if name.startswith("p(")]
    assert sum(shares) == pytest.approx(1.0) and all(share * 4 == int(share * 4) for share in shares)
    assert not Path("run/predictions.csv").exists()
