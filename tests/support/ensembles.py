"""Ensembles for tests: trained on digits of which one record was changed, or as a file that was trained once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning import Trainer, seed_everything
from support.runs import fit, shelve, trainer_settings, working_in
from torch import nn

from datamodules import Digits, ImageDataset, Shards
from datamodules.base import Part
from lightning_modules import TeacherEnsemble

#: Id of the record that `Changed` adds.
ADDED = 100_000


class Changed(Digits):
    """Digits of which one private record was taken out, added or replaced."""

    def __init__(self, *, record: int, how: str) -> None:
        super().__init__()
        self.record, self.how = record, how
        if how == "added":
            self.num_records = Digits.num_records + 1  # type: ignore[misc]

    def read(self, part: Part) -> ImageDataset:
        records = super().read(part)
        if part == "test":
            return records
        if self.how == "taken out":
            return records.select(records.ids != self.record)
        images, labels, ids = records.images.clone(), records.labels.clone(), records.ids
        position = int(torch.nonzero(ids == self.record)[0])
        if self.how == "replaced":
            images[position], labels[position] = 16 - images[position], (labels[position] + 1) % 10
        else:
            images, labels = (torch.cat([values, values[position : position + 1]]) for values in (images, labels))
            ids = torch.cat([ids, torch.tensor([ADDED])])
        return ImageDataset(images=images, labels=labels, ids=ids, peak=16)


def train_ensemble(
    dataset: Digits | None,
    *,
    network: Callable[..., nn.Module],
    num_teachers: int,
    kind: type[TeacherEnsemble] = TeacherEnsemble,
    seed: int = 0,
    **settings: Any,
) -> TeacherEnsemble:
    """An ensemble on a data set (None: the digits as they are), without a command line or files."""
    seed_everything(seed, verbose=False)
    module = kind(num_classes=10, image_shape=(1, 8, 8), network=network, **settings)
    quiet = {"logger": False, "enable_checkpointing": False, "limit_val_batches": 0}
    trainer = Trainer(**trainer_settings(".", -1, **quiet))
    data = Shards(dataset=dataset or Digits(), num_teachers=num_teachers, batch_size=40, steps_per_epoch=8)
    trainer.fit(module, datamodule=data)
    assert len(module.trained_teachers) == num_teachers
    return module


def differ(first: TeacherEnsemble, second: TeacherEnsemble) -> list[int]:
    """Numbers of the teachers that are not the same to the last bit, BatchNorm's buffers included."""
    pairs = zip(first.trained_teachers, second.trained_teachers, strict=True)
    return [
        number
        for number, (a, b) in enumerate(pairs)
        if not all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))
    ]


def of_shards(
    folder: str = "run", epochs: int = -1, *, data: dict[str, Any], trainer: Any = None, **model: Any
) -> dict[str, Any]:
    """A training of an ensemble on shards of the digits."""
    return {
        "seed_everything": 3,
        "trainer": trainer_settings(folder, epochs, **(trainer or {})),
        "model": {"class_path": "TeacherEnsemble", "init_args": model},
        "data": {"class_path": "Shards", "init_args": {"dataset": {"class_path": "Digits"}, **data}},
    }


def ensemble_file(folder: Path, *, network: dict[str, Any], num_teachers: int, steps: int) -> Path:
    """The checkpoint of an ensemble of the digits that the command line has trained in `folder`."""
    with working_in(folder):
        data = {"num_teachers": num_teachers, "batch_size": 40, "steps_per_epoch": steps}
        fit(of_shards(data=data, trainer={"log_every_n_steps": 1}, network=network, steps=steps))
    shelve(folder)
    return folder / "run" / "checkpoints" / "last.ckpt"


def ensemble_weights() -> list[torch.Tensor]:
    """Each teacher's tensors of `teachers/ensemble.ckpt` that are long enough to be recognised."""
    weights = torch.load("teachers/ensemble.ckpt", map_location="cpu", weights_only=True)["ensemble"]["weights"]
    each = [teacher for values in weights.values() if values.is_floating_point() for teacher in values]
    return [values for values in each if values.numel() >= 4 and len(values.unique()) > 1]
