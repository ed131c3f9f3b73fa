"""The server's view of its clients' teachers: their descriptions, and no network."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import torch
from torch import nn

from datamodules.partition import Partition
from lightning_modules.federated.messages import Introduction
from lightning_modules.teachers.files import TeacherError
from lightning_modules.teachers.private_teacher import PrivateEnsemble, PrivateModel
from privacy.events import OneOf, Release
from privacy.identity import Training, UnnamedTraining
from privacy.ledger import ledger_file
from privacy.neighbours import Unit


class Federation(PrivateModel):
    """The teachers of all clients as the server's ledger knows them. It answers nothing: clients do.

    A record is at one client, so that what bounds every client's training bounds it: the largest of their figures,
    where each of them states one.

    Args:
        introductions: Of all clients.
        private_data: Public name of what they hold together.
        num_records: Number of their records together; None: the sum of what they state.
        of_clients: Whether figures are about whole clients, of which no training by DP-SGD says anything.
        ensemble: The file that all teachers came from, where it is one.
    """

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
        self._stated = tuple(one.partition and {**one.partition, "share": None} for one in introductions)
        self.assumptions = _assumptions(introductions) if ensemble is None else ensemble.assumptions

    @property
    def ledger(self) -> Path | None:
        """Ledger of the server: of the ensemble's data if one file holds all teachers, else of the federation."""
        if self.path is not None:
            return super().ledger
        return ledger_file(self.private_data)

    @property
    def partitions(self) -> tuple[Partition | None, ...]:
        return self._stated if any(self._stated) else super().partitions

    @property
    def num_teachers(self) -> int:
        return len(self.names)

    @property
    def is_external(self) -> bool:
        """False: no network is at hand that could be tried."""
        return False

    def require_unlike(self, networks: Mapping[str, nn.Module]) -> list[str]:
        """Nothing: no weight is at hand."""
        return []

    def logits(self, images: torch.Tensor) -> torch.Tensor:
        """None: clients answer, and their annotators release.

        Raises:
            TeacherError: Always.
        """
        return self._network_of(0)

    def each(self, images: torch.Tensor) -> torch.Tensor:
        return self._network_of(0)

    def _network_of(self, teacher: int) -> NoReturn:
        raise TeacherError("the server of a federation holds no teacher: ask the clients")


_OWN_LEDGER = (
    "no run asked a single client, or other clients together, about the same records: such runs are counted in ledgers "
    "of their own, and not together with this one"
)


def _assumptions(introductions: Sequence[Introduction]) -> tuple[str, ...]:
    """Assumptions that the clients state for their teachers, each once, with the clients that state it."""
    said: dict[str, list[str]] = {}
    for introduction in introductions:
        for text in dict.fromkeys(introduction.assumptions):
            said.setdefault(text, []).append(introduction.name)
    stated = (f"of the teacher of {', '.join(names)}, as stated there: {text}" for text, names in said.items())
    return (*stated, _OWN_LEDGER)


def _training(introductions: Sequence[Introduction], of_clients: bool) -> Training | UnnamedTraining | None:
    """One training in the place of all clients': the same for the same clients, bounded where all of them are.

    A record lies at one client. A person may be at several, so that what bounds one at each bounds none over all.
    """
    ids = sorted(introduction.training for introduction in introductions)
    if "" in ids:
        return None
    stated = [introduction.releases for introduction in introductions]
    bounds: list[Mapping[Release, int]] = [
        releases for releases in stated if releases and all(one.unit is not Unit.PERSON for one in releases)
    ]
    joined: Mapping[Release, int] | None = None
    if len(bounds) == len(stated) and not of_clients:
        # Not the worst client's: which one that is depends on what else is composed.
        joined = {OneOf.of(bounds): 1}
    # A ledger that knows these clients by a bound on records must not apply it to statements about whole clients.
    joint = hashlib.sha256("\n".join([*(["of clients"] if of_clients else []), *ids]).encode()).hexdigest()[:32]
    return Training(joint, kind=f"{len(ids)} clients", releases=joined)
