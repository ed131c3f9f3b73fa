"""Clients in the server's own process: for research, and for owners of several teachers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import nn

from lightning_modules.federated.client import ClientRefusal, FederatedClient
from lightning_modules.federated.connection import ClientConnection
from lightning_modules.federated.messages import Absence, Introduction, Question, Terms
from lightning_modules.teachers.config import TeacherConfig
from lightning_modules.teachers.private_teacher import PrivateEnsemble, PrivateTeacher, TeacherError
from privacy.account import BudgetExceeded
from privacy.identity import UnnamedTraining
from privacy.mechanisms.noise import NoiseSource

__all__ = ["LocalClients"]

_Held = Callable[[], nn.Module]


class LocalClients(ClientConnection):
    """All clients in one process, each with its own teacher, annotator and ledger.

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
        teacher_network: Callable[..., nn.Module] | None = None,
        target_epsilon: float | None = None,
        noise: Callable[[int], NoiseSource] | None = None,
    ) -> None:
        if not isinstance(teachers, str) and not len(teachers):
            raise ValueError("teachers must be a file for each client, or the file of a TeacherEnsemble, got none")
        if names is not None and len(set(names)) != len(names):
            raise ValueError(f"names must differ from each other, got {list(names)}")
        if names is not None and not isinstance(teachers, str) and len(names) != len(teachers):
            raise ValueError(f"names must be one for each of {len(teachers)} teachers, got {len(names)}")
        # Networks in functions, see `PrivateTeacher`.
        self._given: str | list[str | _Held] = _hidden(teachers)
        self.names = None if names is None else list(names)
        self.teacher_network = teacher_network
        self.target_epsilon = target_epsilon
        self.noise = noise
        self.clients: list[FederatedClient] = []
        #: The file that all teachers came from, where it is one.
        self.ensemble: PrivateEnsemble | None = None
        self._out: dict[str, Absence] = {}
        #: Whether all teachers are heads on one fixed extractor, whose features are then computed once for all.
        self._share_features = False

    def introductions(self, *, num_classes: int, image_shape: tuple[int, int, int]) -> list[Introduction]:
        """See `ClientConnection.introductions`."""
        if not self.clients:
            teachers = self._teachers(num_classes=num_classes, image_shape=image_shape)
            names = self.names or [f"client-{index}" for index in range(len(teachers))]
            if len(names) != len(teachers):
                raise TeacherError(f"names must be one for each of {len(teachers)} teachers, got {len(names)}")
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

    def begin(self, terms: Terms, *, folder: Path | None) -> Mapping[str, Absence]:
        """See `ClientConnection.begin`."""
        self._out = {}
        for client in self.clients:
            try:
                client.begin(terms, folder=None if folder is None else folder / client.name)
            except (BudgetExceeded, ClientRefusal) as refusal:
                self._out[client.name] = Absence(str(refusal))
                rank_zero_warn(f"{client.name} takes no part: {refusal}")
        return dict(self._out)

    def ask(self, question: Question) -> Mapping[str, torch.Tensor | Absence]:
        """See `ClientConnection.ask`."""
        answers: dict[str, torch.Tensor | Absence] = {}
        features = self.clients[0].teacher.features(question.images) if self._share_features else None
        for client in self.clients:
            if client.name in self._out:
                answers[client.name] = self._out[client.name]
                continue
            try:
                answers[client.name] = client.answer(question, features=features)
            except (BudgetExceeded, ClientRefusal) as refusal:
                answers[client.name] = Absence(str(refusal))
        return answers

    def end(self) -> None:
        """See `ClientConnection.end`."""
        for client in self.clients:
            client.end()


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
