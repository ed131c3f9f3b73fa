"""A federation's clients, simulated by disjoint, class-imbalanced parts of one data set."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from datamodules.base import ImageDataModule, Part
from datamodules.image_folder import ImageFolder
from datamodules.records import ImageDataset, id_fraction
from datamodules.shards import ShardedRecords, Shards
from datamodules.wrapped import DerivedDataset
from privacy.checks import check_count, check_number
from privacy.ledger_place import DataHome

MIN_RECORDS = 100
"""Smallest expected number of records of a client; hashing leaves 60 or more, almost two default batches."""

_TRIES = 1000
_LARGEST_SEED = 10**9 - 1  # `id_fraction` takes 16 characters


@dataclass(frozen=True, kw_only=True)
class ClientPartition:
    """Assigns each record to a client by its id, its label and public settings only.

    Each class's proportions p_y are drawn from Dirichlet(alpha), and all are redrawn until no client's expected share,
    Σ_y p_yk / c for equally large classes, lies below `least_share`. A record of class y goes to the client whose
    interval of the cumulated p_y contains the hash of its id: removing, adding or replacing records moves no other.

    Source: the partition of DENSE (Zhang et al. 2022). Its published code redraws by the clients' actual numbers of
    records, which are private; expected numbers are not.

    Attributes:
        num_classes: c.
        num_clients: K.
        alpha: Concentration: a small value gives each class to few clients, a large one spreads it evenly.
        seed: Public; 0 to 999 999 999.
        least_share: Smallest expected share of a client.
    """

    num_classes: int
    num_clients: int
    alpha: float
    seed: int
    least_share: float = 0.0

    def __post_init__(self) -> None:
        """Checks the settings.

        Raises:
            ValueError: A setting is outside its range, or no draw of 1000 gives every client its share.
        """
        # Below 0.001 a draw of Dirichlet may underflow to no proportions at all.
        check_number("alpha", self.alpha, least=1e-3, most=1e6)
        check_count("seed", self.seed, minimum=0)
        check_number("seed", self.seed, most=_LARGEST_SEED)
        self.proportions  # noqa: B018 - raises if no draw is accepted

    @classmethod
    def of(cls, dataset: ImageDataModule, *, num_clients: int, alpha: float, seed: int) -> ClientPartition:
        """Partition of a data set in which each client expects at least 100 of its public number of records.

        Raises:
            ValueError: A setting is outside its range, or leaves a client too few records.
        """
        if dataset.kept_classes is not None:
            raise ValueError(
                f"dataset.classes must be null for clients, whose records depend on it, got {dataset.name}"
            )
        counted = isinstance(dataset, ImageFolder) and not dataset.states_bound
        if dataset.num_records is None or counted:
            # With their number, one more record could move others to other clients.
            raise ValueError(f"dataset.num_records must be given for clients of {dataset.name}, as a bound")
        return cls(
            num_classes=dataset.num_classes,
            num_clients=check_count("num_clients", num_clients, minimum=1),
            alpha=alpha,
            seed=seed,
            least_share=MIN_RECORDS / dataset.num_records,
        )

    @cached_property
    def proportions(self) -> Tensor:
        """Share of each class that each client gets, (c, K) float64; rows sum to 1."""
        draws = np.random.Generator(np.random.PCG64(self.seed))
        for _ in range(_TRIES):
            proportions = draws.dirichlet(np.full(self.num_clients, float(self.alpha)), size=self.num_classes)
            if proportions.mean(axis=0).min() >= self.least_share:
                return torch.from_numpy(proportions)
        raise ValueError(
            f"{_TRIES} draws of alpha={self.alpha}, seed={self.seed} left one of {self.num_clients} clients below its "
            "least share: lower num_clients, or raise alpha"
        )

    def client_of(self, ids: Tensor, labels: Tensor) -> Tensor:
        """Clients (N,) int64 in [0, K) of records with these ids (N,) and labels (N,), int64."""
        fractions = id_fraction(ids, purpose=f"client {self.seed}")
        # Without the last bound, which may round to just below 1: the rest is the last client's.
        bounds = self.proportions.cumsum(1)[:, :-1].contiguous()
        return torch.searchsorted(bounds[labels], fractions[:, None], right=True)[:, 0]


class Clients(Shards):
    """Private records of a federation, with one teacher per client; clients are the shards of `Shards`.

    `ClientPartition` simulates a record's client from its id **and its label**. In a real federation a record simply
    belongs to its client. So neighbouring data sets of a client are its own records with one changed, added or removed,
    and **a record's client does not change with its label**: a replacement that moved a record to another client would
    change two teachers. Guarantees of an ensemble on these data state this as an assumption.

    A client may lack a class, as in the federations that this simulates.

    Args:
        dataset: The private data set.
        num_clients: K.
        alpha: Concentration of the Dirichlet distribution by which each class is divided.
        partition_seed: Public seed of its draws.
        batch_size: Number of records in a batch of a client's teacher; no client may have fewer.
        steps_per_epoch: Number of steps per epoch.

    Raises:
        ValueError: A setting is outside its range, or leaves a client too few records.
    """

    def __init__(
        self,
        *,
        dataset: ImageDataModule,
        num_clients: int = 5,
        alpha: float = 0.5,
        partition_seed: int = 0,
        batch_size: int = 32,
        steps_per_epoch: int = 100,
    ) -> None:
        self._clients = ClientPartition.of(dataset, num_clients=num_clients, alpha=alpha, seed=partition_seed)
        super().__init__(
            dataset=dataset,
            num_teachers=num_clients,
            batch_size=batch_size,
            steps_per_epoch=steps_per_epoch,
            require_all_classes=False,
        )
        self.assumptions += (
            "whose record it is does not change with its label: the simulated clients stand for ones that hold their "
            "records by nature",
        )

    @property
    def shard_settings(self) -> dict[str, float]:
        clients = self._clients
        return {"alpha": float(clients.alpha), "partition_seed": clients.seed, "min_records": MIN_RECORDS}

    def sharded(self, records: ImageDataset) -> ShardedRecords:
        owners = self._clients.client_of(records.ids, records.labels)
        return ShardedRecords.of(records, owners, num_shards=self.num_teachers)


class ClientRecords(DerivedDataset):
    """One client's records as a data set, for training the client's teacher where they are stored.

    These are the records of shard `client` of `Clients` with the same settings; the test split is the whole one. Loader
    settings are those of the wrapped data set (such as `dataset.batch_size`).

    Neighbouring data sets are the client's own records with one changed, added or removed. Each client has its own name
    of the private data, and with it its own ledger, not shared even across partitions. The ledger of the whole data set
    (`MNIST/train`) does not count what clients do: the partition simulates a federation, in which nobody has all data.

    Attributes:
        num_records: N of the whole data set, a public bound: a δ below 1/N is below one over the client's own number,
            which DP-SGD's sample rate publishes unless the data set states a bound.

    Args:
        dataset: The data set to divide.
        client: Number of the client, from 0.
        num_clients: K.
        alpha: See `Clients`.
        partition_seed: See `Clients`.

    Raises:
        ValueError: A setting is outside its range, or leaves a client too few records.
    """

    def __init__(
        self,
        *,
        dataset: ImageDataModule,
        client: int,
        num_clients: int = 5,
        alpha: float = 0.5,
        partition_seed: int = 0,
    ) -> None:
        self._clients = ClientPartition.of(dataset, num_clients=num_clients, alpha=alpha, seed=partition_seed)
        if check_count("client", client) >= num_clients:
            raise ValueError(f"client must be below num_clients={num_clients}, got {client}")
        self.client = client
        self._label = f"of-{num_clients}-alpha{float(alpha)!r}-seed{partition_seed}-min{MIN_RECORDS}"
        self.private_name = f"{dataset.private_data.removesuffix('/train')}/client-{client}-{self._label}"
        super().__init__(dataset=dataset)
        self.label_decides = True
        self.name = f"{dataset.name}-client-{client}-of-{num_clients}"

    @property
    def partition(self) -> dict[str, Any]:
        """Partition of the data set, whose test split is public, with this client's share."""
        whole = self.dataset.partition
        # The number of records determines the least share of a client, and with it the draws.
        label = f"{self._label}-records{self.num_records}" + (f" of {whole['share']}" if whole["share"] else "")
        return {**whole, "share": [label, self.client]}

    @property
    def home(self) -> DataHome | None:
        """That of the data set, for this client alone."""
        whole = self.dataset.home
        name = self.private_data if whole is not None and whole.name else ""
        return whole and replace(whole, name=name, part=f"client-{self.client}-{self._label}")

    def read(self, part: Part) -> ImageDataset:
        """Reads one official part of the data set; all but `test` are restricted to the client's records."""
        records = self.dataset.read(part)
        if part == "test":
            return records
        return records.select(self._clients.client_of(records.ids, records.labels) == self.client)
