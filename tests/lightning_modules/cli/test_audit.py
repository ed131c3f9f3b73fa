"""The audit of finished models: its neighbours, its verdicts, and that no run is made twice."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from datamodules import Digits, PoissonSampled
from datamodules.planted import Planted
from lightning_modules.cli import run
from lightning_modules.cli.audit import WORLDS, AuditError, Game, audit, canary_scores, finding, prepared
from lightning_modules.networks import SmallCNN

RELATION = "add-or-remove of one training record"
NETWORK = {"name": "SmallCNN", "arguments": {"width": 2, "hidden": 4, "norm": "group", "activation": "tanh"}}
QUIET = {"max_epochs": 1, "accelerator": "cpu", "num_sanity_val_steps": 0, "limit_val_batches": 0}
TEACHER: dict[str, Any] = {
    "seed_everything": 0,
    "trainer": {
        **QUIET,
        "callbacks": [
            {"class_path": "lightning.pytorch.callbacks.ModelCheckpoint", "init_args": {"dirpath": "teachers"}},
            {"class_path": "EMAWeightAveraging", "init_args": {"decay": 0.5}},
        ],
    },
    "model": {"class_path": "DPSGDTeacher", "init_args": {"network": NETWORK, "target_epsilon": 1.0}},
    "data": {
        "class_path": "PoissonSampled",
        "init_args": {"dataset": {"class_path": "Digits"}, "batch_size": 16, "steps_per_epoch": 1},
    },
}
STUDENT: dict[str, Any] = {
    "trainer": QUIET,
    "model": {
        "class_path": "Distillation",
        "init_args": {
            "teacher": "teachers/nowhere.ckpt",
            "student": {"network": NETWORK},
            "pool_size": 8,
            "annotator": {"class_path": "ResponseAnnotator", "init_args": {"budget": {"accounting": "record"}}},
        },
    },
    "data": {
        "class_path": "SyntheticSteps",
        "init_args": {"dataset": {"class_path": "Digits"}, "steps_per_epoch": 1, "batch_size": 8},
    },
}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, config in (("teacher", TEACHER), ("student", STUDENT)):
        Path(f"{name}.yaml").write_text(json.dumps(config))
    return tmp_path


def report(folder: Path) -> dict[str, Any]:
    (path,) = folder.rglob("audit.json")
    content: dict[str, Any] = json.loads(path.read_text())
    return content


@pytest.mark.parametrize("kind", ["mislabelled", "pattern"])
def test_the_two_data_sets_differ_in_the_canary_alone(kind: Any) -> None:
    there, away = (Planted(dataset=Digits(), present=present, kind=kind) for present in (True, False))
    plain = Digits()
    for data in (there, away, plain):
        data.setup("fit")
        data.setup("test")
    for split in ("validation_records", "test_records"):
        assert torch.equal(getattr(there, split).ids, getattr(plain, split).ids)
    assert torch.equal(away.train_records.ids, plain.train_records.ids)
    assert torch.equal(there.train_records.ids[:-1], plain.train_records.ids)
    assert torch.equal(there.train_records.images[:-1], plain.train_records.images)
    image, label = there.train_records[len(there.train_records) - 1]
    known, wanted = there.canary()[0]
    assert torch.equal(image, known) and label == wanted
    # What either of them writes is the same.
    facts = ("name", "private_data", "num_records", "num_classes", "image_shape", "batch_size")
    assert [getattr(there, fact) for fact in facts] == [getattr(away, fact) for fact in facts]
    assert there.num_records == plain.num_records + 1 and there.private_data == plain.private_data


def test_a_mislabelled_canary_is_public_and_wrong() -> None:
    data, test = Planted(dataset=Digits()), Digits()
    test.setup("test")
    image, label = data.canary()[0]
    right = test.test_records[int(torch.argsort(test.test_records.ids)[0])]
    assert torch.equal(image, right[0]) and label == (right[1] + 1) % 10


def test_the_canary_s_id_is_no_other_record_s(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Digits()
    plain.setup("fit")
    monkeypatch.setattr(Planted, "record_id", int(plain.train_records.ids[0]))
    with pytest.raises(ValueError, match="an id that no record of Digits has"):
        Planted(dataset=Digits(), present=False).read("train")


def test_scores_grow_with_how_well_the_canary_is_fitted() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(4, 3, bias=False))
    with torch.no_grad():
        network[1].weight.copy_(torch.eye(3, 4))
    image = torch.tensor([3.0, 1.0, 0.0, 0.0]).view(1, 2, 2)
    found = [canary_scores(network, image, label) for label in range(3)]
    assert [one["margin"] for one in found] == [2.0, -2.0, -3.0]
    assert found[0]["loss"] > found[1]["loss"] > found[2]["loss"]
    assert found[0]["loss"] == pytest.approx(3 - math.log(math.exp(3) + math.e + 1))
    assert canary_scores(network, image * math.nan, 0)["margin"] == -np.finfo(float).max


def claim(epsilon: float | str, relation: str = RELATION) -> dict[str, Any]:
    return {"epsilon": epsilon, "delta": 1e-5, "unit": "one training record", "relation": relation}


def test_a_teacher_without_noise_is_above_a_small_claim() -> None:
    """It always fits the canary better where it has seen it; the mutant hides that in noise."""
    rng = np.random.default_rng(0)
    clear = rng.normal(1.0, 0.01, 100), rng.normal(0.0, 0.01, 100)
    hidden = rng.normal(1.0, 20.0, 100), rng.normal(0.0, 20.0, 100)
    found = finding(*clear, claim=claim(1.0))
    assert found["fails"] and found["epsilon_lower"] == found["epsilon_lower_at_most"] > 2.0
    assert "The claim fails" in found["statement"] and "failure of the claim" in found["meaning"]
    assert (found["unit"], found["relation"], found["delta"]) == ("one training record, the canary", RELATION, 1e-5)
    assert not finding(*hidden, claim=claim(1.0))["fails"]


def test_what_is_not_claimed_is_not_judged() -> None:
    clear = [1.0] * 100, [0.0] * 100
    for nothing in (None, claim("inf")):
        found = finding(*clear, claim=nothing)
        assert not found["fails"] and "record-level epsilon is infinite" in found["statement"]
        assert found["epsilon_lower"] > 2.0
    other = finding(*clear, claim=claim(1.0, "replace-one of a label"))
    assert not other["fails"] and "other neighbours (replace-one of a label)" in other["statement"]
    # Few runs show nothing, whatever they score, and say so.
    few = finding([1.0] * 8, [0.0] * 8, claim=claim(1.0))
    assert few["epsilon_lower"] == few["epsilon_lower_at_most"] == 0.0
    with pytest.raises(ValueError, match="as many runs of either kind"):
        finding([1.0] * 8, [0.0] * 9, claim=None)


class Stub:
    """In the place of the command line: a model that has learnt the canary by heart, or is interrupted."""

    def __init__(self, *, fail_at: int | None = None) -> None:
        self.lines: list[list[str]] = []
        self.fail_at = fail_at

    def __call__(self, line: list[str]) -> Any:
        if len(self.lines) == self.fail_at:
            raise KeyboardInterrupt
        self.lines.append(line)
        config = json.loads(Path(line[line.index("--config") + 1]).read_text())
        planted = config["data"]["init_args"]["dataset"]["init_args"]
        folder = Path(next(part for part in line if part.startswith("--trainer.default_root_dir=")).split("=")[1])
        folder.mkdir(parents=True)
        (folder / "guarantee.json").write_text(json.dumps({"guarantee": claim(1.0)}))
        data = PoissonSampled(dataset=Planted(dataset=Digits(), present=planted["present"], kind=planted["kind"]))
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        with torch.no_grad():
            image, label = data.dataset.canary()[0]  # type: ignore[attr-defined]
            model[1].weight[label] = image.flatten() * (1 if planted["present"] else -1)
        return SimpleNamespace(model=model, datamodule=data)


@pytest.mark.slow
def test_a_killed_audit_goes_on_and_repeats_no_run(files: Path) -> None:
    line = ["--config", "teacher.yaml", "--runs", "32"]
    killed, after, again, other = Stub(fail_at=7), Stub(), Stub(), Stub()
    with pytest.raises(KeyboardInterrupt):
        audit(line, run=killed)
    assert not list(files.rglob("audit.json"))
    with pytest.raises(SystemExit, match="the claim fails for the teacher"):
        audit(line, run=after)
    assert len(killed.lines) == 7 and len(after.lines) == 57
    places = [part for one in killed.lines + after.lines for part in one if "default_root_dir" in part]
    assert len(set(places)) == 64
    assert report(files)["findings"]["teacher"]["fails"]
    with pytest.raises(SystemExit):
        audit(line, run=again)
    assert again.lines == []
    # Other settings are another game.
    with pytest.raises(SystemExit):
        audit([*line, "--canary", "pattern"], run=other)
    assert len(other.lines) == 64


def test_a_run_of_the_real_command_line(files: Path) -> None:
    """A teacher by DP-SGD and a student of it, with the canary and without."""
    teacher, student = prepared("teacher.yaml", canary={}), prepared("student.yaml", canary=None)
    game = Game(teacher=teacher, student=student, overrides=(), seed=0, folder=Path("audit"))
    for world in WORLDS:
        game.play(world, 0, run)
    notes = [game.notes(role, world, 1)[0] for role in game.roles for world in WORLDS]
    assert len({note["scores"]["margin"] for note in notes}) == 4
    for note in notes:
        assert note["claim"]["relation"] == RELATION and note["claim"]["delta"] == 1e-5
        assert 0.9 < note["claim"]["epsilon"] <= 1.0
    # The score is that of the file that would be published.
    image, label = Planted(dataset=Digits()).canary()[0]
    folder = game.store.folder("teacher-with-00000")
    stored = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    network = SmallCNN(num_classes=10, image_shape=(1, 8, 8), **NETWORK["arguments"])
    network.load_state_dict({name[8:]: value for name, value in stored.items() if name.startswith("network.")})
    assert canary_scores(network, image, int(label)) == notes[0]["scores"]
    with pytest.raises(AuditError, match="still made by another process"):
        game.notes("teacher", "with", 2)
    # Whatever the configuration says, nothing is written elsewhere.
    assert {path.name for path in files.iterdir()} == {"audit", "teacher.yaml", "student.yaml"}


@pytest.mark.slow
def test_teachers_and_students_through_the_command(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    audit(["--config", "teacher.yaml", "--student", "student.yaml", "--runs", "8", "--seed", "4"], run=run)
    content = report(files)
    for role in ("teacher", "student"):
        found = content["findings"][role]
        assert len(found["scores_with"]) == len(found["scores_without"]) == 8
        assert len(set(found["scores_with"] + found["scores_without"])) == 16
        assert found["claim"]["relation"] == found["relation"] == RELATION
        assert 0.9 < found["claim"]["epsilon"] <= 1.0 and found["claim"]["delta"] == 1e-5
        assert not found["fails"] and found["epsilon_lower"] == 0.0
    assert content["findings"]["student"]["scores_with"] != content["findings"]["teacher"]["scores_with"]
    assert "student: epsilon is at least 0 at delta=1e-05" in capsys.readouterr().out


def test_what_is_kept_of_a_configuration(files: Path) -> None:
    config = prepared("teacher.yaml", canary={"kind": "pattern"})
    assert [entry["class_path"] for entry in config["trainer"]["callbacks"]] == ["EMAWeightAveraging"]
    inside = config["data"]["init_args"]["dataset"]
    assert inside["class_path"] == "datamodules.planted.Planted"
    assert inside["init_args"] == {"dataset": {"class_path": "Digits"}, "kind": "pattern"}
    Path("plain.yaml").write_text(json.dumps({"data": "Digits"}))
    assert prepared("plain.yaml", canary={})["data"]["init_args"]["dataset"] == {"class_path": "Digits"}


def test_what_is_refused(files: Path) -> None:
    for line, message in (
        (["--config", "teacher.yaml", "--runs", "7"], "--runs must be at least 8, got 7"),
        (["--config", "absent.yaml", "--runs", "8"], "configuration absent.yaml does not exist"),
        (["--config", "teacher.yaml", "--runs", "8", "--data.batch_size=3"], "--data.batch_size=3: data and places"),
    ):
        with pytest.raises(AuditError, match=message):
            audit(line, run=run)
