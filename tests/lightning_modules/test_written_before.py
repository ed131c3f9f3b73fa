"""What commit ae22c58 wrote, before trainings had identities: read where its meaning is certain, else refused."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from support.dp_teachers import teacher_by_dp_sgd
from support.runs import QUIET, distil

from lightning_modules.cli import main
from lightning_modules.teachers.private_model import TeacherError
from lightning_modules.teachers.private_teacher import PrivateTeacher
from privacy import LedgerError, SampledGaussian, compose
from privacy.identity import UnnamedTraining

OLD = Path(__file__).parents[1] / "written_by" / "ae22c58"
OPEN: dict[str, Any] = {"noise_multiplier": 0.0}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for file in OLD.iterdir():
        if file.suffix == ".ckpt":
            shutil.copyfile(file, tmp_path / file.name)


def stated(folder: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(Path(f"{folder}/public/guarantee.json").read_text())["guarantee"]
    return content


def load(name: str) -> PrivateTeacher:
    return PrivateTeacher.load(f"{name}.ckpt", num_classes=10, image_shape=(1, 8, 8))


@pytest.mark.slow
def test_a_private_teacher_is_known_again_by_its_weights() -> None:
    noisy = {"noise_multiplier": 100.0, "release": "per_sample_full"}
    one = distil("one", model={"teacher": "private.ckpt"}, annotator=noisy, steps=1).model.annotator.account
    shutil.copyfile("private.ckpt", "moved.ckpt")
    two = distil("two", model={"teacher": "moved.ckpt"}, annotator=noisy, steps=1).model.annotator.account
    assert one.training == two.training and two.epsilon() > one.epsilon(scope="run")
    content = torch.load("private.ckpt", weights_only=True)
    next(iter(content["state_dict"].values())).view(-1)[0] += 1e-3
    torch.save(content, "changed.ckpt")
    three = distil("three", model={"teacher": "changed.ckpt"}, annotator=noisy, steps=1).model.annotator.account
    assert three.training != one.training
    # No file keeps a plain hash of private weights.
    training = load("private").training
    assert isinstance(training, UnnamedTraining)
    for path in (path for path in Path().rglob("*") if path.is_file()):
        assert training.digest not in path.read_bytes() and training.digest.hex().encode() not in path.read_bytes()


def test_the_plan_of_a_calibrated_teacher_is_what_its_target_allows() -> None:
    content = torch.load("dp_target.ckpt", weights_only=True)
    ((release, steps),) = content["releases"]
    planned = load("dp_target").training
    assert isinstance(planned, UnnamedTraining) and planned.releases is not None
    event = SampledGaussian(release["noise_multiplier"], release["sample_rate"])
    assert dict(planned.releases) == {event: steps} == {event: 6}
    # As if it had been stopped after two of its six steps: the target still tells.
    content["releases"] = [[release, 2]]
    torch.save(content, "stopped.ckpt")
    stopped = load("stopped").training
    assert isinstance(stopped, UnnamedTraining) and stopped.releases == planned.releases
    distil("run", model={"teacher": "stopped.ckpt"}, annotator=OPEN, steps=1)
    assert stated("run")["epsilon"] == pytest.approx(3.0, abs=1e-3)
    assert compose({event: 2}, 1e-5).epsilon < 2.5  # what the file alone would have said


@pytest.mark.slow
def test_an_old_teacher_does_not_shed_its_plan_by_being_resumed() -> None:
    content = torch.load("dp_target.ckpt", weights_only=True)
    content["dp_sgd"]["history"][0][2] = 3
    torch.save(content, "stopped.ckpt")
    settings = {"target_epsilon": 3.0, "epochs": 1, "network": _network(), "optimizer": None}
    teacher = teacher_by_dp_sgd("teacher", "--ckpt_path=stopped.ckpt", **settings)
    assert sum(entry[2] for entry in teacher.plan) == 6 and teacher.guarantee().epsilon > 2.98


@pytest.mark.slow
def test_a_teacher_whose_plan_nobody_knows_is_refused_with_the_way_out(ledgers: Path) -> None:
    with pytest.raises(TeacherError, match=r"before a file said how many steps were planned.*--ckpt_path .*dp_noise"):
        distil("run", model={"teacher": "dp_noise.ckpt"}, annotator=OPEN, steps=1)
    assert not ledgers.exists()
    shutil.copytree(".", "way_out", ignore=shutil.ignore_patterns("way_out"))
    settings = {"noise_multiplier": 1.0, "epochs": 3, "network": _network(), "optimizer": None}
    teacher_by_dp_sgd("teacher", "--ckpt_path=dp_noise.ckpt", **settings)
    distil("run", model={"teacher": "teacher/checkpoints/last.ckpt"}, annotator=OPEN, steps=1)
    rate = 128 / 1275
    assert stated("run")["epsilon"] == compose({SampledGaussian(1.0, rate): 9}, 1e-5).epsilon


def _network() -> dict[str, Any]:
    small = {"width": 2, "hidden": 4, "norm": "group", "activation": "tanh"}
    return {"class_path": "SmallCNN", "init_args": small}


@pytest.mark.slow
def test_charges_of_an_old_ledger_count_in_full_and_no_bound_covers_them() -> None:
    shutil.copyfile(OLD / "dp_target.ckpt.ledger.jsonl", "dp_target.ckpt.ledger.jsonl")
    before = Path("dp_target.ckpt.ledger.jsonl").read_bytes()
    account = distil("run", model={"teacher": "dp_target.ckpt"}, annotator=OPEN, steps=1).model.annotator.account
    charges = account.counts()
    old = {charge.release: count for charge, count in charges.items() if charge.training is None}
    assert len(account.ledger.runs()) == 2 and sum(old.values()) == 3
    own = compose(account.ledger.trained()[account.training], 1e-5).epsilon
    both = compose({**old, **account.ledger.trained()[account.training]}, 1e-5).epsilon
    assert account.epsilon() == both > own and account.epsilon(scope="run") == own
    # Once, however often the teacher is used.
    again = distil("again", model={"teacher": "dp_target.ckpt"}, annotator=OPEN, steps=1).model.annotator.account
    assert again.epsilon() == both and Path("dp_target.ckpt.ledger.jsonl").read_bytes() == before


def test_an_old_ledger_that_is_named_is_refused_with_the_way_out() -> None:
    shutil.copyfile(OLD / "private.ckpt.ledger.jsonl", "old.jsonl")
    with pytest.raises(LedgerError, match=r"version 1.*LightningCLI ledger take-over .*old.jsonl NEW.jsonl"):
        distil("run", model={"teacher": "private.ckpt"}, annotator={"ledger": "old.jsonl"}, steps=1)
    main(["ledger", "take-over", "old.jsonl", "new.jsonl"])
    made = distil("run", model={"teacher": "private.ckpt"}, annotator={"ledger": "new.jsonl"}, steps=1)
    assert len(made.model.annotator.account.ledger.runs()) == 2
    with pytest.raises(LedgerError, match=r"training must be one that new\.jsonl knows"):
        main(["ledger", "take-over", "old.jsonl", "new.jsonl", "--training", "abcdef0123"])


def test_who_knows_which_training_old_charges_are_about_may_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    distil("run", model={"teacher": "dp_target.ckpt"}, annotator={**OPEN, "ledger": "new.jsonl"}, steps=1)
    training = stated("run")["training"]
    shutil.copyfile(OLD / "dp_target.ckpt.ledger.jsonl", "old.jsonl")
    main(["ledger", "take-over", "old.jsonl", "new.jsonl", "--training", training])
    main(["ledger", "show", "new.jsonl"])
    shown = capsys.readouterr().out
    assert training in shown and "3 block" not in shown and "All of it together: 3 (" in shown


@pytest.mark.parametrize("name", [pytest.param("private", marks=pytest.mark.slow), "dp_target"])
def test_an_old_student_is_tested_and_goes_on(name: str) -> None:
    config = yaml.safe_load((OLD / f"student_of_{name}.yaml").read_text())
    config["model"]["init_args"]["teacher"] = f"{name}.ckpt"
    config["trainer"]["default_root_dir"] = "run"
    Path("config.yaml").write_text(yaml.safe_dump(config))
    checkpoint = f"--ckpt_path=student_of_{name}.ckpt"
    tested = main(["test", "--config", "config.yaml", checkpoint, *QUIET])
    assert tested is not None and 0 <= float(tested.trainer.callback_metrics["test/accuracy"]) <= 1
    resumed = main(["fit", "--config", "config.yaml", checkpoint, "--trainer.max_epochs=2", *QUIET])
    assert resumed is not None and resumed.model.steps_done == 6
    account = resumed.model.annotator.account
    # What was charged before is about a training that nobody named then: it composes, and no bound covers it.
    assert {charge.training for charge in account.counts(scope="run")} == {None, account.training}
    assert sum(account.counts(scope="run").values()) == 6
    assert 0 < account.epsilon(scope="run") < math.inf
