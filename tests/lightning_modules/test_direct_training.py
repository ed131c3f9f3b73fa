"""Direct training on the digits, through the command line: what it releases, logs, states, refuses and resumes."""

from __future__ import annotations

import itertools
import json
import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from support.dp_teachers import dp_sgd, train
from support.runs import checkpoint, csv_rows, fit, interrupted, result, tensors, trainer_settings
from support.short_names import budgeted
from torch.utils.data import DataLoader, WeightedRandomSampler

from datamodules import COVIDx, Digits, ImageFolder, ImageNet
from datamodules.records import ImageDataset
from lightning_modules import DirectTraining, direct_training
from lightning_modules.losses.targets import Annotation
from privacy import RandomizedResponse, compose
from privacy.events.base import Relation, Unit
from privacy.identity import CheckpointError
from privacy.mechanisms import DirectLabels

ADAM = {"class_path": "torch.optim.Adam", "init_args": {"lr": 3e-3}}
NETWORK = {"class_path": "SmallCNN", "init_args": {"width": 8, "hidden": 32}}


def configuration(
    folder: str = "run",
    *,
    epochs: int = 2,
    poisson: bool = True,
    mechanism: dict[str, Any] | None = None,
    label: bool = False,
    trainer: dict[str, Any] | None = None,
    **model: Any,
) -> dict[str, Any]:
    kind = "DirectLabels" if label else "DirectGradients"
    defaults = {} if label else {"release": "per_sample_full", "noise_multiplier": 2.0}
    release = {"class_path": kind, "init_args": {**defaults, **(mechanism or {})}}
    settings = budgeted({"network": NETWORK, "mechanism": release, **model})
    config = dp_sgd(folder, epochs, data={"batch_size": 64, "steps_per_epoch": None}, trainer=trainer)
    digits = {} if poisson else {"data": {"class_path": "Digits", "init_args": {"batch_size": 64}}}
    return {**config, "model": {"class_path": "DirectTraining", "init_args": settings}, **digits}


def trained(config: dict[str, Any], *, after: str | None = None) -> DirectTraining:
    model: DirectTraining = fit(
        config, *([] if after is None else [f"--ckpt_path={after}/checkpoints/last.ckpt"])
    ).model
    return model


def logged(folder: str, name: str) -> list[float]:
    (file,) = Path(folder).rglob("metrics.csv")
    return [float(row[name]) for row in csv_rows(file) if row.get(name)]


def test_data_whose_labels_decide_who_takes_part_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    of_a_client = {"class_path": "ClientRecords", "init_args": {"dataset": {"class_path": "Digits"}, "client": 0}}
    chosen = {"class_path": "Digits", "init_args": {"classes": [3, 5]}}
    shadowed = {"class_path": "datamodules.shadowed.Shadowed", "init_args": {"dataset": chosen, "number": 0}}
    for dataset, poisson in itertools.product((of_a_client, chosen, shadowed), (True, False)):
        config = configuration(label=True, poisson=poisson)
        if poisson:
            config["data"]["init_args"]["dataset"] = dataset
        else:
            config["data"] = dataset
        with pytest.raises(ValueError, match="decide which records are trained on"):
            trained(config)
    assert ImageFolder.label_decides and ImageNet.label_decides and COVIDx.label_decides
    # The control: unrefused, another label of one record shows in the count, at one stated ε.
    monkeypatch.setattr(Digits, "label_decides", property(lambda _: False, lambda *_: None))
    config = {**configuration(label=True, poisson=False, epochs=1), "data": chosen}
    before: Any = trained(config).guarantee()
    read, records = Digits.read, Digits().read("train")
    records.labels[(records.labels == 3).nonzero()[:20]] = 4  # some may be held out
    monkeypatch.setattr(Digits, "read", lambda self, part: records if part == "train" else read(self, part))
    monkeypatch.setenv("TRANSCRIPTION_LEDGERS", "others")  # two worlds, and no two runs in one
    after: Any = trained({**config, "trainer": trainer_settings("again", 1)}).guarantee()
    assert before.labels.epsilon == after.labels.epsilon and before.mechanism != after.mechanism


class Balanced(Digits):
    """Draws a class that is rare more often."""

    def train_dataloader(self) -> Any:
        weights = torch.where(self.train_records.labels == 3, 1e9, 1e-9).tolist()
        sampler = WeightedRandomSampler(weights, 128, replacement=False)
        return DataLoader(self.loaded_records, batch_size=self.batch_size, sampler=sampler, collate_fn=tuple)


class OfOneClass(Digits):
    """Trains on those of one class."""

    @property
    def loaded_records(self) -> ImageDataset:
        return super().loaded_records.select(self.train_records.labels == 3)


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("own", [Balanced, OfOneClass])
def test_a_sampler_that_labels_decide_is_refused(monkeypatch: pytest.MonkeyPatch, own: Any, broken: bool) -> None:
    module = DirectTraining(num_classes=10, image_shape=(1, 8, 8), batch_size=128, mechanism=DirectLabels(epsilon=0.5))
    if not broken:
        with pytest.raises(
            ValueError, match=r"and loaded_records of \w+ must be those of ImageDataModule or PoissonSampled"
        ):
            train(module, own())
        return
    monkeypatch.setattr(direct_training, "ImageDataModule", own)
    took_part: set[int] = set()
    annotate = DirectTraining.annotate

    def watched(self: DirectTraining, outputs: torch.Tensor, records: torch.Tensor) -> Annotation:
        took_part.update(records.tolist())
        return annotate(self, outputs, records)

    monkeypatch.setattr(DirectTraining, "annotate", watched)
    train(module, data := own())
    assert set(data.train_records.labels[sorted(took_part)].tolist()) == {3}  # their labels are known for certain
    assert module.guarantee().labels.epsilon <= 0.5  # type: ignore[union-attr]


def test_both_figures_are_logged_and_recorded() -> None:
    model = trained(configuration())
    account = model.session.account
    label = account.epsilon_label()
    assert logged("run", "privacy/epsilon")[-1] == math.inf
    assert logged("run", "privacy/epsilon_label")[-1] == pytest.approx(label)
    record = result()
    assert (record["method"], record["epsilon_record"]) == ("DirectTraining", "inf")
    assert record["epsilon_label"] == pytest.approx(label)
    assert record["epsilon_published"] == pytest.approx(account.epsilon_published())
    assert not list(Path("run").rglob("public/*.pt")), "nothing covers the weights"
    # The training itself is registered as one that nothing bounds: no student of it inherits a finite figure.
    assert not account.ledger.releases_by_training()[str(model.own_training.id)]


def test_a_data_switch_learns_and_labels_that_are_wrong_are_noticed() -> None:
    def accuracy(folder: str, *, noise_multiplier: float) -> float:
        trained(configuration(folder, epochs=5, mechanism={"noise_multiplier": noise_multiplier}))
        return float(result(folder)["accuracy"])

    # The noise is another one each time: bounds that no draw comes near.
    assert accuracy("run", noise_multiplier=0.5) > 0.6
    # Negative control: so much noise that nothing of any label is left.
    assert accuracy("none", noise_multiplier=1e4) < 0.4


@pytest.mark.parametrize("broken", [False, True])
def test_batches_that_grow_within_a_fit_are_refused(broken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step is charged at the rate that the fit began with."""

    def grow(module: DirectTraining) -> None:
        module.trainer.datamodule.batch_size = 640  # type: ignore[attr-defined]

    monkeypatch.setattr(DirectTraining, "on_train_epoch_end", grow)
    config = configuration(epochs=2, trainer={"reload_dataloaders_every_n_epochs": 1})
    if broken:
        monkeypatch.setattr(direct_training, "require_poisson", lambda *_: None)
    with nullcontext() if broken else pytest.raises(ValueError, match="must give a PoissonLoader at the sample_rate"):
        model = trained(config)
        assert model.trainer.train_dataloader.batches.sample_rate > 5 * model.session.shape.sample_rate  # type: ignore[union-attr]


def test_labels_that_no_checkpoint_kept_cost_again() -> None:
    settings: dict[str, Any] = {"label": True, "optimizer": ADAM, "mechanism": {"epsilon": 1.0}}
    first = trained(configuration("one", epochs=1, **settings)).noisy_labels
    content = checkpoint("one")
    assert first is not None and torch.equal(content["direct_training"]["noisy_labels"], first)
    for name, kept in (("lost", None), ("fewer", first[1:])):
        content["direct_training"]["noisy_labels"] = kept
        Path(name, "checkpoints").mkdir(parents=True)
        torch.save(content, f"{name}/checkpoints/last.ckpt")
    second = trained(configuration("two", **settings), after="lost")
    assert second.noisy_labels is not None and not torch.equal(first, second.noisy_labels), "drawn twice"
    of_label = RandomizedResponse(1.0, 10, unit=Unit.LABEL, relation=Relation.REPLACE_ONE)
    assert second.session.account.epsilon_label(scope="run") == compose({of_label: 2}, 1e-5).epsilon > 1.5
    with pytest.raises(CheckpointError, match="kept responses for"):
        trained(configuration("three", **settings), after="fewer")


def test_as_many_labels_are_kept_as_randomized_response_keeps() -> None:
    model: Any = trained(configuration(label=True, poisson=False, epochs=1, mechanism={"epsilon": 2.0}))
    assert any("ACCESSED WITHOUT CHARGE" in text for text in model.guarantee().assumptions)
    kept = model.noisy_labels
    assert len(kept) == len(model._labels()) and set(kept.tolist()) <= set(range(10))
    share = float((kept == model._labels()).double().mean())
    assert share == pytest.approx(math.exp(2) / (math.exp(2) + 9), abs=0.06)


def test_no_true_label_reaches_a_batch_or_a_checkpoint() -> None:
    model: Any = trained(configuration(epochs=1))
    batch = next(iter(model.trainer.datamodule.train_dataloader()))
    assert int(batch[1].max()) > 9, "numbers of records in place of labels"
    content = checkpoint()
    # Nor would whoever saves or copies the module as it is.
    assert not [one for one in tensors(dict(vars(model))) if one.shape == model._labels().shape]
    assert not [one for one in tensors(content) if one.shape == model._labels().shape]


def test_choosing_by_held_out_private_records_is_refused() -> None:
    best = {"class_path": "lightning.pytorch.callbacks.ModelCheckpoint", "init_args": {"monitor": "val/accuracy"}}
    with pytest.raises(ValueError, match="chooses by"):
        fit(configuration(label=True, poisson=False, trainer={"callbacks": [best]}))
    # Of noisy gradients the samples' rate decides what a step costs.
    with pytest.raises(ValueError, match=r"needs data\.class_path PoissonSampled, got Digits"):
        fit(configuration(poisson=False))


def test_a_run_that_was_interrupted_after_a_step_has_its_page_and_keeps_its_plan() -> None:
    interrupted(DirectTraining, 2, lambda: trained(configuration(epochs=1)))
    labels = json.loads(Path("run/public/guarantee.json").read_text())["label_guarantee"]
    assert labels["epsilon"] > labels["epsilon_spent"] > 0
    model = trained(configuration(epochs=1), after="run")
    assert model.session.plan.calls == model.steps_done and not model.session.plan.changed
