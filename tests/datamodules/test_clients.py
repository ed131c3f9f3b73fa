"""Clients: whose a record is follows from its id, its label and public settings, and from nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from datamodules import ClientRecords, Clients, Digits, ImageDataset, ImageFolder
from datamodules.clients import ClientPartition

SETTINGS: dict[str, Any] = {"num_clients": 5, "alpha": 0.5, "num_classes": 10, "seed": 0}


@pytest.fixture
def records() -> ImageDataset:
    return Digits().read("train")


def test_other_records_move_no_record_and_a_changed_label_its_own_alone(records: ImageDataset) -> None:
    partition = ClientPartition(**SETTINGS)
    whole = partition.client_of(records.ids, records.labels)
    order = torch.randperm(len(records), generator=torch.Generator().manual_seed(0))
    few = order[: len(order) // 3]
    for rows in (order, few, torch.nonzero(records.labels != 3)[:, 0], torch.tensor([700])):
        assert torch.equal(partition.client_of(records.ids[rows], records.labels[rows]), whole[rows])
    # The comparison notices an assignment by position, as published code has it.
    assert (partition.client_of(torch.arange(len(few)), records.labels[few]) != whole[few]).sum() > 100
    labels = records.labels.clone()
    labels[5] = (labels[5] + 1) % 10
    assert set(torch.nonzero(partition.client_of(records.ids, labels) != whole)[:, 0].tolist()) <= {5}
    assert (partition.client_of(records.ids, (records.labels + 1) % 10) != whole).sum() > 500


def test_the_partition_of_a_seed_stays_what_it_is() -> None:
    """Ledgers are named by it: another stream of random numbers would be another partition under the same name."""
    proportions = ClientPartition(**SETTINGS).proportions
    assert not torch.equal(proportions, ClientPartition(num_classes=10, num_clients=5, alpha=0.5, seed=1).proportions)
    assert proportions[0].tolist() == pytest.approx(
        [0.20702635, 0.00079777, 0.46806847, 0.1826274, 0.14148001], abs=1e-8
    )


def test_each_class_is_shared_out_by_its_proportions() -> None:
    labels = torch.arange(50_000) % 10
    clients = ClientPartition(**SETTINGS).client_of(torch.arange(50_000), labels)
    proportions = ClientPartition(**SETTINGS).proportions
    for label in range(10):
        shares = torch.bincount(clients[labels == label], minlength=5) / 5000
        assert shares.numpy() == pytest.approx(proportions[label].numpy(), abs=0.03)


def test_no_client_expects_fewer_than_its_least_share() -> None:
    def least(share: float, seed: int) -> float:
        settings = {**SETTINGS, "alpha": 0.1, "seed": seed, "least_share": share}
        return float(ClientPartition(**settings).proportions.mean(0).min())

    assert min(least(0.1, seed) for seed in range(20)) >= 0.1 > min(least(0.0, seed) for seed in range(20))
    with pytest.raises(ValueError, match=r"1000 draws of alpha=0.1, seed=0 left one of 5 clients.*lower num_clients"):
        least(0.1999, 0)
    clients = Clients(dataset=Digits(), alpha=0.1, batch_size=8)
    clients.setup("fit")
    assert int(clients.shards.starts.diff().min()) > 60


def test_a_clients_own_data_set_is_its_shard() -> None:
    data = Clients(dataset=Digits(), batch_size=32)
    data.setup("fit")
    kept = data.shards.records
    assert isinstance(kept, ImageDataset)
    sizes, names = [], set()
    for client in range(5):
        own = ClientRecords(dataset=Digits(val_fraction=0.2), client=client)
        of_shard = kept.at(torch.tensor(data.shards.positions(client)))
        read = own.read("train")
        assert sorted(read.ids.tolist()) == of_shard.ids.tolist()
        assert len(own.read("test")) == 362
        own.setup("fit")
        assert len(own.train_records) + len(own.validation_records) == len(read)
        sizes.append(len(read))
        names.add(own.private_data)
        assert (own.num_records, own.num_classes, own.val_fraction) == (1435, 10, 0.2)
    assert sum(sizes) == 1435 and len(names) == 5
    assert "Digits/client-2-of-5-alpha0.5-seed0-min100/train" in names
    others = [{"alpha": 0.1}, {"partition_seed": 1}, {"num_clients": 6}]
    names |= {ClientRecords(dataset=Digits(), client=2, **other).private_data for other in others}
    assert len(names) == 8


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": 0.0}, "alpha must be a number between 0.001 and 1e.06, got 0.0"),
        ({"partition_seed": 0.5}, "seed must be 0 or more and a whole number, got 0.5"),
        ({"partition_seed": 10**9}, "seed must be a number between"),
        ({"num_clients": 15}, "lower num_clients"),
        ({"dataset": Digits(classes=[0, 1])}, "dataset.classes must be null"),
        ({"client": 5}, "client must be below num_clients=5, got 5"),
    ],
)
def test_settings_without_a_meaning(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ClientRecords(**{"dataset": Digits(), "client": 0, **settings})


def test_the_number_of_pictures_does_not_decide_whose_each_is(tmp_path: Path) -> None:
    for number in range(4):
        folder = tmp_path / "train" / str(number % 2)
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8)).save(folder / f"{number}.png")
    with pytest.raises(ValueError, match=r"dataset\.num_records must be given for clients of pictures, as a bound"):
        Clients(dataset=ImageFolder(root=tmp_path, size=8, channels=1, name="pictures"), num_clients=2)
    Clients(dataset=ImageFolder(root=tmp_path, size=8, channels=1, name="pictures", num_records=1000), num_clients=2)
