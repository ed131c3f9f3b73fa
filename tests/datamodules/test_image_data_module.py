from __future__ import annotations

from typing import Any

import pytest
import torch
from lightning import LightningModule, Trainer
from torch import Tensor, nn
from torch.nn import functional as F

from datamodules import Digits, ImageDataModule, ImageDataset
from datamodules.base import Part


class ReadsCounted(Digits):
    """Remembers which parts were read."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.parts: list[Part] = []

    def read(self, part: Part) -> ImageDataset:
        self.parts.append(part)
        return super().read(part)


@pytest.mark.parametrize(
    ("stage", "parts"), [("fit", ["train"]), ("validate", ["train"]), ("test", ["test"]), ("predict", ["test"])]
)
def test_a_stage_reads_only_its_part_and_only_once(stage: str, parts: list[Part]) -> None:
    data = ReadsCounted()
    data.setup(stage)
    data.setup(stage)
    assert data.parts == parts


def test_validating_keeps_no_training_records() -> None:
    data = Digits()
    data.setup("validate")
    assert len(data.val_dataloader()) == 1
    with pytest.raises(RuntimeError, match=r"train split of Digits is not open: call setup\('fit'\)"):
        data.train_dataloader()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"val_fraction": 0.0}, "val_fraction must lie between 0 and 1"),
        ({"val_fraction": 1.0}, "val_fraction must lie between 0 and 1"),
        ({"val_fraction": float("nan")}, "val_fraction must lie between 0 and 1"),
        ({"batch_size": 0}, "batch_size must be an integer of at least 1, got 0"),
        ({"batch_size": 2.5}, "batch_size must be an integer"),
        ({"eval_batch_size": -1}, "eval_batch_size must be"),
        ({"num_workers": -1}, "num_workers must be"),
        ({"root": ""}, "root must name a folder"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Digits(**settings)


def test_an_unknown_stage_is_refused() -> None:
    with pytest.raises(ValueError, match="stage must be one of fit, validate, test, predict, got 'train'"):
        Digits().setup("train")


def test_an_empty_split_is_refused() -> None:
    with pytest.raises(ValueError, match="val_fraction=1e-09 leaves the validation split of Digits empty"):
        Digits(val_fraction=1e-9).setup("fit")


def test_the_base_class_reads_nothing() -> None:
    with pytest.raises(TypeError, match="abstract"):
        ImageDataModule()  # type: ignore[abstract]


def test_names_are_public_and_stable() -> None:
    assert (Digits().name, Digits().private_data) == ("Digits", "Digits/train")


def seen(batch_size: int) -> tuple[int, list[int]]:
    """Size of the training split, and of every batch of one epoch."""
    data = Digits(batch_size=batch_size)
    data.setup("fit")
    return len(data.train_records), [len(labels) for _, labels in data.train_dataloader()]


def test_every_record_is_seen_in_an_epoch() -> None:
    size, batches = seen(100)
    assert sum(batches) == size == 1275 and batches[-1] == 75


def test_a_last_batch_of_one_is_dropped() -> None:
    size, batches = seen(98)
    assert size % 98 == 1 and sum(batches) == size - 1


def test_batches_of_one_are_all_kept() -> None:
    size, batches = seen(1)
    assert sum(batches) == size


def test_training_batches_are_shuffled_and_others_are_not() -> None:
    data = Digits(batch_size=2000)
    data.setup("fit")
    (train,), (validation,) = list(data.train_dataloader()), list(data.val_dataloader())
    assert not torch.equal(train[1], data.train_records.labels)
    assert torch.equal(train[1].sort().values, data.train_records.labels.sort().values)
    assert torch.equal(validation[1], data.validation_records.labels)


class Linear(LightningModule):
    def __init__(self, *, pixels: int, classes: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(pixels, classes))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.log("validation", (self.net(batch[0]).argmax(1) == batch[1]).float().mean(), batch_size=len(batch[1]))

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.log("test", (self.net(batch[0]).argmax(1) == batch[1]).float().mean(), batch_size=len(batch[1]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
def test_a_classifier_learns_from_it_through_the_trainer() -> None:
    data = Digits(batch_size=64)
    trainer = Trainer(
        max_epochs=5, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    torch.manual_seed(0)
    model = Linear(pixels=64, classes=10)
    trainer.fit(model, data)
    trainer.test(model, data)
    assert trainer.callback_metrics["test"] > 0.9
