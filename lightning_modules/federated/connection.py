"""Connections from the server to its clients: the base class that FedDPSD uses, and clients in the same process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import nn

from datamodules.records import disjoint
from lightning_modules.federated.client import Absence, ClientRefusal, FederatedClient, Introduction, Question, Terms
from lightning_modules.teachers.config import TeacherConfig
from lightning_modules.teachers.files import TeacherError
from lightning_modules.teachers.private_teacher import PrivateEnsemble, PrivateTeacher, require_own_weights
from privacy.account import BudgetExceeded
from privacy.identity import UnnamedTraining
from privacy.mechanisms.base import NoiseSource


class FederationError(RuntimeError):
    """A federation cannot begin or continue with its clients."""


class ClientConnection(ABC):
    """Base class of connections to clients: in the same process (`LocalClients`), or by a transport of your own.

    A client is a `FederatedClient`, or an object that forwards its calls to one. A late or unusable answer is an
    `Absence`, not an error: the round continues with the other clients.
    """

    #: The ensemble that all teachers were loaded from, if they are from one file.
    ensemble: PrivateEnsemble | None = None

    def __init__(self) -> None:
        #: Clients that take no part in the run.
        self._out: dict[str, Absence] = {}

    @abstractmethod
    def introductions(self, *, num_classes: int, image_shape: tuple[int, int, int]) -> list[Introduction]:
        """Reach all clients and return their introductions, with unique names.

        Raises:
            FederationError: A client is missing.
            TeacherError: A client's teacher cannot be used.
        """

    @abstractmethod
    def reached(self) -> Mapping[str, Any]:
        """All clients of the federation by name."""

    def begin(self, terms: Terms, *, folder: Path | None) -> Mapping[str, Absence]:
        """Sends all clients the terms of a run and returns those that do not take part, by name."""
        self._out = {}
        found = self._replies(lambda client: client.begin(terms, folder=folder and folder / client.name))
        self._out = {name: said for name, said in found.items() if isinstance(said, Absence)}
        for name, absence in self._out.items():
            rank_zero_warn(f"{name} takes no part: {absence.reason}")
        return dict(self._out)

    def ask(self, question: Question) -> Mapping[str, torch.Tensor | Absence]:
        """Asks all clients one round's question and returns their answers by name."""
        return self._out | self._replies(lambda client: client.answer(question))

    def _replies(self, act: Callable[[Any], Any]) -> dict[str, Any]:
        """Results of `act` for the clients that take part, by name; an `Absence` where a client refuses."""
        replies = {}
        for name, client in self.reached().items():
            if name not in self._out:
                try:
                    replies[name] = act(client)
                except (BudgetExceeded, ClientRefusal) as refusal:
                    replies[name] = Absence(str(refusal))
        return replies

    def end(self) -> None:
        """Has clients settle their ledgers and write their guarantees. It may be called more than once."""
        for client in self.reached().values():
            client.end()


class LocalClients(ClientConnection):
    """All clients in the server's own process, each with its own teacher, session and ledger: for research.

    The server only uses their answers, but nothing stops it from reading their memory: a guarantee against the server
    is only meaningful if clients run on separate machines.

    Args:
        teachers: One file per client, or the file of a `TeacherEnsemble` that was trained on `Clients`; networks in a
            script.
        target_epsilon: ε, for the unit of its guarantee, that each client lets all runs spend; null for no limit.
        noise: Returns a client's noise source, given its index; null is the operating system's generator.

    Raises:
        TeacherError: Networks share a trainable weight, or all of their weights.
    """

    def __init__(
        self,
        *,
        teachers: str | Sequence[str] | Sequence[nn.Module],
        target_epsilon: float | None = None,
        noise: Callable[[int], NoiseSource] | None = None,
    ) -> None:
        super().__init__()
        self._of_ensemble = isinstance(teachers, str)
        every: Sequence[Any] = [teachers] if isinstance(teachers, str) else teachers
        require_own_weights(given for given in every if isinstance(given, nn.Module))
        configs = [
            TeacherConfig(path=given)
            if isinstance(given, str)
            else TeacherConfig(path=given, private_data=f"training data of client {index} of a script").held()
            for index, given in enumerate(every)
        ]
        # In a function, see `PrivateTeacher`.
        self._configs: Callable[[], list[TeacherConfig]] = lambda: list(configs)
        self.target_epsilon = target_epsilon
        self.noise = noise
        self.clients: list[FederatedClient] = []
        #: Whether all teachers are heads on one fixed feature extractor, which is then computed once for all.
        self._share_features = False

    def introductions(self, *, num_classes: int, image_shape: tuple[int, int, int]) -> list[Introduction]:
        if not self.clients:
            shape: Any = {"num_classes": num_classes, "image_shape": image_shape}
            if self._of_ensemble:
                self.ensemble = self._configs()[0].load_ensemble(**shape)
                teachers = self.ensemble.per_client()
            else:
                teachers = [config.load(**shape) for config in self._configs()]
            names = [f"client-{index}" for index in range(len(teachers))]
            _require_apart(names, teachers)
            self.clients = [
                FederatedClient(
                    name=name,
                    teacher=teacher,
                    target_epsilon=self.target_epsilon,
                    delta=None,
                    trusts_server=True,
                    noise=None if self.noise is None else self.noise(index),
                )
                for index, (name, teacher) in enumerate(zip(names, teachers, strict=True))
            ]
            self._share_features = all(teacher.shares_features(teachers[0]) for teacher in teachers)
        return [client.introduction() for client in self.clients]

    def reached(self) -> Mapping[str, Any]:
        return {client.name: client for client in self.clients}

    def ask(self, question: Question) -> Mapping[str, torch.Tensor | Absence]:
        if self._share_features:
            question = replace(question, features=self.clients[0].teacher.features(question.images))
        return super().ask(question)


def _require_apart(names: Sequence[str], teachers: Sequence[PrivateTeacher]) -> None:
    """Refuses clients whose files say that they share records: one record would then affect several answers.

    Raises:
        TeacherError: Two clients have the same private data, under any name, or the same teacher.
    """
    of: dict[str | bytes, str] = {}
    for name, teacher in zip(names, teachers, strict=True):
        known: list[str | bytes] = [teacher.private_data]
        if isinstance(teacher.training, UnnamedTraining):
            known.append(teacher.training.digest)
        for each in known:
            if (other := of.setdefault(each, name)) != name:
                what = f"the same private data, {each}" if isinstance(each, str) else "the same teacher"
                raise TeacherError(f"{other} and {name} have {what}: each needs its own (data: ClientRecords)")
    for (one, mine), (other, others) in combinations(zip(names, teachers, strict=True), 2):
        for first, second in product(filter(None, mine.partitions), filter(None, others.partitions)):
            if first["place"] == second["place"] is not None and not disjoint(first, second):
                raise TeacherError(
                    f"{one} and {other} were trained on records of one folder, {first['data']} and {second['data']}: "
                    "each needs its own (data: ClientRecords)"
                )
