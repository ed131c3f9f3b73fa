"""The area under the ROC curve: its value, and where it is logged."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning import Callback
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from sklearn.metrics import roc_auc_score
from support.runs import distil, result

from lightning_modules.callbacks.results import judged, useless
from lightning_modules.training.evaluation import AreaUnderCurve, measured_on, require_monitored, validation_names


def area_of(answers: torch.Tensor, labels: torch.Tensor, *, pieces: int = 3) -> float:
    area = AreaUnderCurve(answers.shape[1])
    for part, right in zip(answers.chunk(pieces), labels.chunk(pieces), strict=True):
        area.add(part, right)
    return float(area.compute())


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("scale", [0.05, 1.0])
def test_it_is_scikit_learn_s_one_against_the_rest(classes: int, scale: float) -> None:
    draw = torch.Generator().manual_seed(classes)
    labels = torch.randint(classes, (300,), generator=draw)
    logits = (torch.randn(300, classes, generator=draw) + torch.eye(classes)[labels]) * scale
    shares = logits.double().softmax(dim=1).numpy()
    expected = roc_auc_score(labels, shares[:, 1]) if classes == 2 else roc_auc_score(labels, shares, multi_class="ovr")
    assert area_of(logits, labels) == pytest.approx(expected, abs=1e-6)
    assert 0.6 < expected < 0.95


class OwnCallback(Callback):
    """May log anything."""


def test_what_lightning_or_another_callback_knows_may_be_monitored() -> None:
    def check(*callbacks: Callback) -> None:
        trainer: Any = SimpleNamespace(callbacks=callbacks, lr_scheduler_configs=[])
        require_monitored(trainer, {"val/accuracy"})

    check(EarlyStopping("val/accuracy"), ModelCheckpoint(monitor="epoch"), ModelCheckpoint())
    for callback in (EarlyStopping("epoch"), ModelCheckpoint(monitor="val/acuracy")):
        with pytest.raises(ValueError, match=rf"monitor of {type(callback).__name__} must be .*val/accuracy \(a class"):
            check(callback)
        check(callback, OwnCallback())


def measured(answers: torch.Tensor, labels: torch.Tensor, names: str) -> dict[str, Any]:
    """The record of these logits, or of these answers as logits."""
    logits = answers if answers.ndim == 2 else 3.0 * torch.eye(len(names.split()))[answers]
    found = measured_on(lambda _: logits, [(torch.zeros(len(labels), 1), labels)], torch.device("cpu"))
    return {**found, "class_names": names.split()}


def test_a_collapsed_network_and_a_calibrated_one_are_told_apart() -> None:
    labels = torch.tensor([0, 0, 0, 1])
    certain, calibrated = torch.tensor([[9.0, -9.0]] * 4), torch.tensor([[math.log(3.0), 0.0]] * 4)
    for logits, error in ((certain, 0.25), (calibrated, 0.0)):
        found = measured(logits, labels, "a b")
        assert found["calibration_error"] == pytest.approx(error, abs=1e-5)
        assert (found["accuracy"], found["largest_share"], found["auroc"]) == (0.75, 1.0, 0.5)
        assert useless(found).startswith("USELESS: 75.00 % of 4 test images is no better than always saying a: 75.00 %")
    assert measured(labels, labels, "a b")["largest_share"] == 0.75


def test_what_an_accuracy_hides_is_said_beside_it() -> None:
    """76 % of X-rays, which misses 63 % of the normal ones; always saying pneumonia gives 62.5 %."""
    labels = (torch.arange(624) >= 234).long()
    answers = labels.clone()
    answers[:147] = 1
    record = measured(answers, labels, "normal pneumonia")
    assert record["recall"] == pytest.approx([87 / 234, 1], abs=1e-6) and record["confusion"] == [[87, 147], [0, 390]]
    assert record["accuracy_interval"] == pytest.approx([0.729572, 0.796038], abs=1e-6)  # by Wilson's formula
    assert judged(record) == [
        "95 % interval: 72.96 % to 79.60 % (624 images); always saying pneumonia: 62.50 %",
        "balanced accuracy: 68.59 %, AUC 0.686; recall: normal 37.18 %, pneumonia 100.00 %",
    ]


def test_what_is_no_better_than_guessing_is_called_useless() -> None:
    four, many = torch.arange(100) % 4, torch.arange(1560) % 4
    rare = (torch.arange(1000) >= 950).long()
    for labels, wrong, names, said in (
        (four, slice(31, None), "a b c d", True),  # 31 % of four classes
        (four, slice(40, None), "a b c d", False),
        (many, slice(484, None), "a b c d", True),  # 31 %, whatever their number
        (four[:40], slice(14, None), "a b c d", True),  # 35 % of 40 pictures may be a quarter
        (rare, slice(0, 30), "well ill", False),  # above 95 %
        (rare, slice(0, 150), "well ill", False),  # 85 % are below 95 %, and tell the two apart
        (rare, slice(900, None), "well ill", True),
    ):
        answers = labels.clone()
        answers[wrong] = (answers[wrong] + 1) % len(names.split())
        assert useless(measured(answers, labels, names)).startswith("USELESS") is said


@pytest.mark.parametrize("asks", [True, False])
def test_a_student_s_area_is_logged_where_the_data_ask_for_it(folder: Path, asks: bool) -> None:
    dataset = "support.variants.AskingDigits" if asks else "Digits"
    cli = distil(model={"images": "prior", "generator": None}, dataset=dataset)
    logged = cli.trainer.callback_metrics
    assert ("test_split/auroc" in logged) is asks and ("auroc" in result()) is asks
    assert validation_names(cli.trainer) == {name for name in logged if "test_split/" in name}
    tested = cli.trainer.test(cli.model, datamodule=cli.datamodule, verbose=False)[0]
    assert ("test/auroc" in tested) is asks
    if asks:
        assert tested["test/auroc"] == pytest.approx(result()["auroc"], abs=1e-4)
        assert float(logged["test_split/auroc"]) == pytest.approx(tested["test/auroc"], abs=1e-4)
