"""Weighted means of states, and federated averaging of clients that start at the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.runs import QUIET, checkpoint, equal, result
from torch import nn

from datamodules import Digits
from lightning_modules import FedAvg
from lightning_modules.cli import main
from lightning_modules.federated.fed_avg import weighted_mean
from lightning_modules.teachers.config import TeacherConfig


def test_the_mean_is_weighted_and_of_every_buffer() -> None:
    states = []
    for value, batches in ((1.0, 3), (4.0, 10)):
        layer = nn.BatchNorm1d(2)
        nn.init.constant_(layer.weight, value)
        layer.running_mean.fill_(value)  # type: ignore[union-attr]
        layer.num_batches_tracked.fill_(batches)  # type: ignore[union-attr]
        states.append(layer.state_dict())
    mean = weighted_mean(states, [200, 100])
    assert mean["weight"].tolist() == mean["running_mean"].tolist() == [2.0, 2.0]
    assert mean["num_batches_tracked"].item() == 5 and mean["num_batches_tracked"].dtype == torch.int64


SMALL = ["--model.network.init_args.width=8", "--model.local_steps=60"]


def average(folder: str, *arguments: str) -> FedAvg:
    given = ["--config", "sweeps/methods/fedavg_digits.yaml", f"--trainer.default_root_dir={folder}", *SMALL, *QUIET]
    return main(["fit", *given, *arguments]).model  # type: ignore[union-attr,no-any-return]


def test_clients_average_to_a_network_that_none_of_them_bounds(folder: Path) -> None:
    module = average("run", "--model.rounds=3")
    assert module.rounds_done == 3
    assert module.logged_names() == {*module.trainer.callback_metrics}
    found = result("run")
    assert found["accuracy"] > 0.7 and found["epsilon_record"] in ("inf", float("inf"))
    assert found["method"] == "FedAvg"
    ledger = Path("ledgers/Digits-train.jsonl").read_text(encoding="utf-8")
    assert "FedAvg" in ledger
    teacher = TeacherConfig(path="run/checkpoints/last.ckpt").load(num_classes=10, image_shape=(1, 8, 8))
    images, labels = Digits().read("test").__getitems__(range(362))
    assert float((teacher.logits(images).argmax(1) == labels).float().mean()) == pytest.approx(found["accuracy"])


def test_a_round_is_the_mean_of_local_trainings_by_numbers_of_records(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[dict[str, torch.Tensor]] = []
    ended: list[dict[str, torch.Tensor]] = []
    sizes: list[int] = []
    trained_at = FedAvg.trained_at

    def watched(self: FedAvg, client: int, records: Any) -> dict[str, torch.Tensor]:
        begun.append({name: value.clone() for name, value in self.network.state_dict().items()})
        sizes.append(len(records.positions(client)))
        ended.append(trained_at(self, client, records))
        return ended[-1]

    monkeypatch.setattr(FedAvg, "trained_at", watched)
    module = average("run", "--model.local_steps=5")
    assert len(begun) == 5 and sum(sizes) == 1435 and len(set(sizes)) > 1
    weight = [state["head.weight"] for state in ended]
    assert all(torch.equal(state["head.weight"], begun[0]["head.weight"]) for state in begun)
    assert not torch.allclose(weight[0], weight[1])
    expected = sum(size * value for size, value in zip(sizes, weight, strict=True)) / 1435
    assert torch.allclose(module.network.state_dict()["head.weight"], expected, atol=1e-6)  # type: ignore[arg-type]
    # The comparison notices a mean in which every client counts the same.
    assert not torch.allclose(torch.stack(weight).mean(0), expected, atol=1e-6)  # type: ignore[arg-type]


def test_resumed_as_if_never_interrupted(folder: Path) -> None:
    few = "--model.local_steps=4"
    average("whole", few, "--model.rounds=2", "--data.steps_per_epoch=1")
    average("part", few, "--model.rounds=2", "--data.steps_per_epoch=1", "--trainer.max_epochs=1")
    assert checkpoint("part")["federated"]["rounds_done"] == 1
    average("part", few, "--model.rounds=2", "--ckpt_path=part/checkpoints/last.ckpt")
    assert equal(checkpoint("whole")["state_dict"], checkpoint("part")["state_dict"])
