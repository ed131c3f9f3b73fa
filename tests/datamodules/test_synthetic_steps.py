from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from support.runs import trainer_settings
from support.variants import LockedDigits
from torch import Tensor, nn

from datamodules import Digits, SyntheticSteps
from datamodules.records import id_fraction, selection_halves


class Recorder(LightningModule):
    """Remembers which steps and how many evaluation images it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.steps: list[int] = []
        self.evaluated: list[int] = []
        self.crash_at: int | None = None

    def training_step(self, batch: int, batch_idx: int) -> Tensor:
        if len(self.steps) == self.crash_at:
            raise RuntimeError("crash")
        self.steps.append(batch)
        return self.weight**2

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.evaluated.append(len(batch[1]))

    test_step = validation_step

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def trainer(epochs: int, **settings: Any) -> Trainer:
    return Trainer(**trainer_settings(".", epochs, logger=False, **{"enable_checkpointing": False, **settings}))


pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers")


def test_training_and_evaluating_never_read_the_private_part() -> None:
    data, model = SyntheticSteps(dataset=LockedDigits(), steps_per_epoch=3), Recorder()
    run = trainer(2)
    run.fit(model, data)
    run.validate(model, data, verbose=False)
    run.test(model, data, verbose=False)
    assert model.steps == [0, 1, 2, 0, 1, 2]
    assert model.evaluated == [362] * 4
    # To select by, half of the test split; the other half is for the figure that is reported.
    data, model = SyntheticSteps(dataset=LockedDigits(), steps_per_epoch=1, evaluation="selection"), Recorder()
    run = trainer(1)
    run.fit(model, data)
    run.test(model, data, verbose=False)
    chosen, reported = model.evaluated
    assert chosen + reported == 362 and 130 < chosen < 232


def test_the_halves_have_no_record_in_common_and_depend_on_ids_alone() -> None:
    data = Digits()
    data.setup("test")
    records = data.test_records
    chosen, reported = selection_halves(records)
    assert sorted([*chosen.ids.tolist(), *reported.ids.tolist()]) == sorted(records.ids.tolist())
    assert not set(chosen.ids.tolist()) & set(reported.ids.tolist())
    # A record that goes changes nothing for the others.
    kept = torch.arange(len(records)) % 3 != 0
    fewer = selection_halves(records.select(kept))[0].ids.tolist()
    assert fewer == [i for i in chosen.ids.tolist() if i in set(records.select(kept).ids.tolist())]
    with pytest.raises(ValueError, match="needs a test split that can be halved, got 1 record"):
        selection_halves(records.at(torch.tensor([0])))
    # What decides a teacher's validation split decides nothing here.
    by_other = id_fraction(records.ids, purpose="validation") < 0.5
    assert set(chosen.ids.tolist()) != set(records.select(by_other).ids.tolist())


@pytest.mark.parametrize("crash_at", [3, 5, 12])
def test_a_resumed_run_takes_the_steps_that_were_left(tmp_path: Path, crash_at: int) -> None:
    first, second = Recorder(), Recorder()
    first.crash_at = crash_at
    for model, checkpoint in ((first, None), (second, tmp_path / "last.ckpt")):
        saver = ModelCheckpoint(dirpath=tmp_path, every_n_train_steps=crash_at, save_last=True, save_top_k=0)
        run = trainer(3, enable_checkpointing=True, callbacks=[saver])
        with pytest.raises(RuntimeError, match="crash") if model is first else nullcontext():
            run.fit(model, SyntheticSteps(dataset=Digits(), steps_per_epoch=5), ckpt_path=checkpoint)
    assert first.steps + second.steps == [0, 1, 2, 3, 4] * 3
