"""Teachers that are missing, do not fit, or are broken: refused with a way out, before anything is charged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.runs import distil
from support.variants import MoodyTeacher

from datamodules import Digits, SyntheticSteps
from lightning_modules import DPDFD
from lightning_modules.images.source import Images
from lightning_modules.networks import SmallCNN, TwoConvNet
from lightning_modules.teachers.private_teacher import PrivateTeacher, TeacherError

PRIOR = Images(source="prior")

SHAPE = (1, 8, 8)


def load(path: str | Path = "teachers/digits.ckpt", **settings: Any) -> PrivateTeacher:
    return PrivateTeacher.load(path, **{"num_classes": 10, "image_shape": SHAPE, **settings})


def test_a_missing_teacher_names_the_command_that_makes_it(folder: Path) -> None:
    with pytest.raises(TeacherError, match=r"LightningCLI fit --config sweeps/teacher_mnist\.yaml"):
        distil(model={"teacher": "teachers/mnist.ckpt"})
    with pytest.raises(TeacherError, match=r"--model\.teacher to your own file"):
        load("teachers/of_my_own.ckpt")


def test_a_checkpoint_knows_its_architecture_and_its_data(folder: Path) -> None:
    teacher = load()
    assert teacher.private_data == "Digits/train" and teacher.num_records == 1435
    assert teacher.logits(torch.zeros(2, *SHAPE)).shape == (2, 10)


def test_other_architecture_and_other_class_count_are_told(folder: Path) -> None:
    with pytest.raises(TeacherError, match=r"(?s)do not fit the architecture TwoConvNet.*model\.teacher\.network"):
        load(network=TwoConvNet)
    with pytest.raises(TeacherError, match=r"(?s)num_classes=2 .*size mismatch"):
        load(num_classes=2)
    with pytest.raises(TeacherError, match="cannot be built"):
        load(image_shape=(1, 2, 2))


def test_plain_weights_need_the_architecture(folder: Path) -> None:
    torch.save(SmallCNN(image_shape=SHAPE).state_dict(), "weights.pt")
    with pytest.raises(TeacherError, match=r"does not say which architecture .*model\.teacher\.network"):
        load("weights.pt")
    assert load("weights.pt", network=SmallCNN).logits(torch.zeros(1, *SHAPE)).shape == (1, 10)


def test_a_file_that_is_no_weights(folder: Path) -> None:
    Path("text.ckpt").write_text("hello")
    with pytest.raises(TeacherError, match="cannot be read as plain weights"):
        load("text.ckpt")
    torch.save({"a": 1}, "none.ckpt")
    with pytest.raises(TeacherError, match="holds no weights"):
        load("none.ckpt")


def test_weights_that_are_not_finite_are_refused_before_any_charge(folder: Path) -> None:
    content = torch.load("teachers/digits.ckpt", weights_only=True)
    content["state_dict"]["network.head.bias"][0] = torch.nan
    torch.save(content, "teachers/digits.ckpt")
    with pytest.raises(TeacherError, match="not finite"):
        distil()
    assert "reserve" not in Path("ledgers/Digits-train.jsonl").read_text()


def test_answers_that_are_not_finite_neither_stop_the_run_nor_change_its_charge(folder: Path) -> None:
    from lightning import Trainer

    module = DPDFD(num_classes=10, image_shape=SHAPE, batch_size=8, teacher=MoodyTeacher(), images=PRIOR)
    trainer = Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, datamodule=SyntheticSteps(dataset=Digits(), steps_per_epoch=3, batch_size=8))
    assert not torch.isfinite(module.teacher.logits(torch.ones(1, *SHAPE))).any()
    assert all(bool(torch.isfinite(parameter).all()) for parameter in module.student.parameters())
    assert module.steps_done == 3
    healthy = distil(model={"images": "prior"}).model
    assert module.annotator.account.epsilon() == healthy.annotator.account.epsilon() > 0


def test_a_teacher_of_another_shape_in_a_script_is_refused(folder: Path) -> None:
    module = DPDFD(num_classes=10, image_shape=SHAPE, batch_size=4, teacher=torch.nn.Linear(3, 3), images=PRIOR)
    with pytest.raises(TeacherError, match=r"of no use here.*model\.teacher"):
        module.setup("fit")
