"""How the server reaches its clients: the protocol, and clients in its own process. FedDPSD knows no more of either."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol, TypeVar

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import nn

from lightning_modules.federated.client import ClientRefusal, FederatedClient
from lightning_modules.federated.messages import Absence, Introduction, Question, Terms
from lightning_modules.networks import Network
from lightning_modules.teachers.config import TeacherConfig
from lightning_modules.teachers.private_teacher import PrivateEnsemble, PrivateTeacher, TeacherError
from privacy.account import BudgetExceeded
from privacy.identity import UnnamedTraining
from privacy.mechanisms.noise import NoiseSource

__all__ = ["ClientConnection", "FederationError", "LocalClients", "Reached"]

_T = TypeVar("_T")
_Held = Callable[[], nn.Module]


class FederationError(RuntimeError):
    """Clients with which a federation cannot begin or continue."""


class Reached(Protocol):
    """A client as the server reaches it: in this process, or by messages. Each method may raise a `ClientRefusal`."""

    name: str

    def begin(self, terms: Terms, *, folder: Path | None) -> None:
        """Agrees to a run's terms."""

    def answer(self, question: Question) -> torch.Tensor:
        """Gradients of shape (B, c), float32, or classes of shape (B,), int64; on the CPU."""

    def end(self) -> None:
        """Settles its ledger and writes what left it. It may be called more than once."""


class ClientConnection(ABC):
    """A way to the clients: in the same process (`LocalClients`), or on other machines (`FlowerClients`).

    What a client does not answer in time, or answers in a way that cannot be used, is an `Absence` and no error: the
    round continues with the others.
    """

    #: The file that all teachers came from, where it is one.
    ensemble: PrivateEnsemble | None = None

    def __init__(self) -> None:
        #: Clients that take no part in the run.
        self._out: dict[str, Absence] = {}

    @abstractmethod
    def introductions(self, *, num_classes: int, image_shape: tuple[int, int, int]) -> list[Introduction]:
        """Reaches all clients, which say who they are; names differ from each other.

        Args:
            num_classes: c that their teachers must have.
            image_shape: (C, H, W) that their teachers must take.

        Raises:
            FederationError: A client is missing.
            TeacherError: A client's teacher is of no use here.
        """

    @abstractmethod
    def reached(self) -> Mapping[str, Reached | Absence]:
        """All clients of the federation by name."""

    def each(self, clients: Mapping[str, Reached], act: Callable[[Reached], _T]) -> dict[str, _T | Absence]:
        """What `act` gives for each of these clients."""
        return {name: answer_or_absence(client, act) for name, client in clients.items()}

    def _of_all(self, names: Sequence[str], act: Callable[[Reached], _T]) -> dict[str, _T | Absence]:
        reached = {name: client for name, client in self.reached().items() if name in names}
        absent = {name: client for name, client in reached.items() if isinstance(client, Absence)}
        there = {name: client for name, client in reached.items() if not isinstance(client, Absence)}
        return {**absent, **self.each(there, act)}

    def begin(self, terms: Terms, *, folder: Path | None) -> Mapping[str, Absence]:
        """Sends all clients the terms of a run.

        Args:
            terms: What.
            folder: Where clients in the same process write their guarantees; None: nowhere.

        Returns:
            Clients that do not take part, by name.
        """
        self._out = self._begin(sorted(self.reached()), terms, folder)
        return dict(self._out)

    def _begin(self, names: Sequence[str], terms: Terms, folder: Path | None) -> dict[str, Absence]:
        found = self._of_all(names, lambda client: client.begin(terms, folder=folder and folder / client.name))
        out = {name: said for name, said in found.items() if isinstance(said, Absence)}
        for name, absence in out.items():
            rank_zero_warn(f"{name} takes no part: {absence.reason}")
        return out

    def ask(self, question: Question) -> Mapping[str, torch.Tensor | Absence]:
        """One round: what each client answers, by name."""
        names = [name for name in sorted(self.reached()) if name not in self._out]
        return {**self._out, **self._of_all(names, lambda client: client.answer(question))}

    def end(self) -> None:
        """Lets clients settle their ledgers and write what left them. It may be called more than once."""
        self._of_all(sorted(self.reached()), lambda client: client.end())


def answer_or_absence(client: Reached, act: Callable[[Reached], _T]) -> _T | Absence:
    """What `act` gives for a client, or why it refuses."""
    try:
        return act(client)
    except (BudgetExceeded, ClientRefusal) as refusal:
        return Absence(str(refusal))


class LocalClients(ClientConnection):
    """All clients in the server's own process, each with its own teacher, annotator and ledger: for research.

    The server's part of the process still sees nothing but their answers. It is trusted, of course, not to look: a
    guarantee against it is only meaningful where clients run on separate machines.

    Args:
        teachers: A file for each client, or the one file of a `TeacherEnsemble` that was trained on `Clients`; networks
            in a script.
        names: Of the clients, in the order of their teachers. Default: client-0, client-1, ...
        teacher_network: Builds the teachers where their files hold nothing but weights.
        target_epsilon: Record-level ε that each client lets all runs spend; null for no limit.
        noise: Gives each client's source of noise by its number; null is the operating system's generator.

    Raises:
        ValueError: No teachers, or names that are not one for each.
    """

    def __init__(
        self,
        *,
        teachers: str | Sequence[str] | Sequence[nn.Module],
        names: Sequence[str] | None = None,
        teacher_network: Network | str | None = None,
        target_epsilon: float | None = None,
        noise: Callable[[int], NoiseSource] | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(teachers, str) and not len(teachers):
            raise ValueError("teachers must be a file for each client, or the file of a TeacherEnsemble, got none")
        if names is not None and len(set(names)) != len(names):
            raise ValueError(f"names must differ from each other, got {list(names)}")
        # Networks in functions, see `PrivateTeacher`.
        self._given: str | list[str | _Held] = _hidden(teachers)
        self.names = None if names is None else list(names)
        if not isinstance(teachers, str):
            self._names_of(len(teachers))
        self.teacher_network = teacher_network
        self.target_epsilon = target_epsilon
        self.noise = noise
        self.clients: list[FederatedClient] = []
        #: Whether all teachers are heads on one fixed extractor, whose features are then computed once for all.
        self._share_features = False

    def _names_of(self, teachers: int) -> list[str]:
        names = self.names or [f"client-{index}" for index in range(teachers)]
        if len(names) != teachers:
            raise ValueError(f"names must be one for each of {teachers} teachers, got {len(names)}")
        return names

    def introductions(self, *, num_classes: int, image_shape: tuple[int, int, int]) -> list[Introduction]:
        """See `ClientConnection.introductions`."""
        if not self.clients:
            teachers = self._teachers(num_classes=num_classes, image_shape=image_shape)
            names = self._names_of(len(teachers))
            _require_apart(names, teachers)
            self.clients = [
                FederatedClient(
                    name=name,
                    teacher=teacher,
                    target_epsilon=self.target_epsilon,
                    trusts_server=True,
                    noise=None if self.noise is None else self.noise(index),
                )
                for index, (name, teacher) in enumerate(zip(names, teachers, strict=True))
            ]
            self._share_features = all(teacher.shares_features(teachers[0]) for teacher in teachers)
        return [client.introduction() for client in self.clients]

    def _teachers(self, *, num_classes: int, image_shape: tuple[int, int, int]) -> list[PrivateTeacher]:
        if isinstance(self._given, str):
            config = TeacherConfig(path=self._given, network=self.teacher_network)
            self.ensemble = config.load_ensemble(num_classes=num_classes, image_shape=image_shape)
            return self.ensemble.apart()
        found: list[PrivateTeacher] = []
        for index, given in enumerate(self._given):
            config = (
                TeacherConfig(path=given, network=self.teacher_network)
                if isinstance(given, str)
                else TeacherConfig(path=given(), private_data=f"training data of client {index} of a script")
            )
            found.append(config.load(num_classes=num_classes, image_shape=image_shape))
        return found

    def reached(self) -> Mapping[str, Reached | Absence]:
        """See `ClientConnection.reached`."""
        return {client.name: client for client in self.clients}

    def ask(self, question: Question) -> Mapping[str, torch.Tensor | Absence]:
        """See `ClientConnection.ask`."""
        if self._share_features:
            question = replace(question, features=self.clients[0].teacher.features(question.images))
        return super().ask(question)


def _require_apart(names: Sequence[str], teachers: Sequence[PrivateTeacher]) -> None:
    """Refuses clients that share records as far as their files say: one record would then move several answers.

    Raises:
        TeacherError: Two have the same private data, or the same weights.
    """
    of: dict[str | bytes, str] = {}
    for name, teacher in zip(names, teachers, strict=True):
        known: list[str | bytes] = [teacher.private_data]
        if isinstance(teacher.training, UnnamedTraining):
            known.append(teacher.training.digest)
        for each in known:
            if (other := of.setdefault(each, name)) != name:
                what = f"the same private data, {each}" if isinstance(each, str) else "the same teacher"
                raise TeacherError(
                    f"{other} and {name} have {what}: a record of theirs would move both answers, and be charged for "
                    "one. Give each client a teacher that was trained on its own records (data: ClientRecords)"
                )


def _hidden(teachers: str | Sequence[str] | Sequence[nn.Module]) -> str | list[str | _Held]:
    if isinstance(teachers, str):
        return teachers
    kinds = {isinstance(given, str) for given in teachers}
    if len(kinds) > 1 or not all(isinstance(given, str | nn.Module) for given in teachers):
        raise ValueError("teachers must be files, or networks of a script, and not some of each")
    return [given if isinstance(given, str) else _held(given) for given in teachers]


def _held(network: nn.Module) -> _Held:
    return lambda: network
