"""The server's view of its clients' teachers: their introductions, without any network."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import nn

from datamodules.records import Partition
from lightning_modules.federated.client import Introduction
from lightning_modules.teachers.files import TeacherError
from lightning_modules.teachers.private_teacher import PrivateEnsemble, PrivateModel
from privacy.events import OneOf, Release
from privacy.identity import Training, UnnamedTraining
from privacy.ledger_place import LedgerPlace, place_of
from privacy.neighbours import Unit


class Federation(PrivateModel):
    """The teachers of all clients as one entry of the server's ledger. It answers no queries: clients do.

    Each record is at one client, so the training of all teachers is bounded by the largest of the clients' bounds, if
    each client states one.

    Args:
        introductions: Introductions of all clients.
        private_data: Public name of the clients' data together.
        num_records: Number of the clients' records together; None takes the sum of the numbers that they state.
        of_clients: Whether guarantees are about whole clients, which DP-SGD training of a teacher does not bound.
        ensemble: The ensemble that all teachers were loaded from, if they are from one file.
    """

    #: The server has no network to try.
    is_external = False

    def __init__(
        self,
        introductions: Sequence[Introduction],
        *,
        private_data: str,
        num_records: int | None = None,
        of_clients: bool = False,
        ensemble: PrivateEnsemble | None = None,
    ) -> None:
        self.names = tuple(introduction.name for introduction in introductions)
        counts = [introduction.num_records for introduction in introductions]
        known = sum(count for count in counts if count is not None) if None not in counts else None
        super().__init__(
            private_data=private_data if ensemble is None else ensemble.private_data,
            training=_training(introductions, of_clients) if ensemble is None else ensemble.training,
            num_records=num_records or (known if ensemble is None else ensemble.num_records),
            path=None if ensemble is None else ensemble.path,
        )
        self._partitions = tuple(one.partition and {**one.partition, "share": None} for one in introductions)
        self.assumptions = _assumptions(introductions) if ensemble is None else ensemble.assumptions

    def ledger_place(self, data: Any = None) -> LedgerPlace:
        """The server's ledger: the ensemble's if one file holds all teachers, otherwise the federation's."""
        return place_of(self.private_data) if self.path is None else super().ledger_place(data)

    @property
    def partitions(self) -> tuple[Partition | None, ...]:
        return self._partitions if any(self._partitions) else super().partitions

    @property
    def num_teachers(self) -> int:
        return len(self.names)

    def require_unlike(self, networks: Mapping[str, nn.Module]) -> list[str]:
        """Check nothing: the server has no weights to compare."""
        return []

    def logits(self, images: torch.Tensor) -> torch.Tensor:
        """Not available: clients answer, through their sessions.

        Raises:
            TeacherError: Always.
        """
        return self._network_of(0)

    def each(self, images: torch.Tensor) -> torch.Tensor:
        return self._network_of(0)

    def _network_of(self, teacher: int) -> NoReturn:
        raise TeacherError("the server of a federation holds no teacher: ask the clients")


_OWN_LEDGER = (
    "no run asked a single client, other clients together, or these from another working folder, about the same "
    "records: such runs are counted in ledgers of their own, and not together with this one"
)


def _assumptions(introductions: Sequence[Introduction]) -> tuple[str, ...]:
    """Collect the assumptions that clients state for their teachers, each with the clients that state it."""
    said: dict[str, list[str]] = {}
    for introduction in introductions:
        for text in dict.fromkeys(introduction.assumptions):
            said.setdefault(text, []).append(introduction.name)
    stated = (f"of the teacher of {', '.join(names)}, as stated there: {text}" for text, names in said.items())
    return (*stated, _OWN_LEDGER)


def _training(introductions: Sequence[Introduction], of_clients: bool) -> Training | UnnamedTraining | None:
    """Join the clients' trainings into one, determined by the clients and bounded if all of theirs are.

    A record is at one client. A person may be at several, so bounds for persons do not carry over.
    """
    ids = sorted(introduction.training for introduction in introductions)
    if "" in ids:
        return None
    stated = [introduction.releases for introduction in introductions]
    bounds: list[Mapping[Release, int]] = [
        releases for releases in stated if releases and all(one.unit is not Unit.PERSON for one in releases)
    ]
    bounded = len(bounds) == len(stated) and not of_clients
    # Which client is the worst depends on what else is composed.
    joined: Mapping[Release, int] | None = {OneOf.of(bounds): 1} if bounded else None
    # A ledger must not apply a bound for these clients' records to statements about whole clients.
    joint = hashlib.sha256("\n".join([*(["of clients"] if of_clients else []), *ids]).encode()).hexdigest()[:32]
    return Training(joint, kind=f"{len(ids)} clients", releases=joined)
