"""A client's side of every message: what arrives is checked, what is answered has passed the client's own annotator."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from lightning.pytorch.utilities import rank_zero_info
from torch import nn

from lightning_modules.federated.client import ClientRefusal, FederatedClient
from lightning_modules.federated.flower.records import (
    RecordError,
    Scalar,
    array_of,
    config_of,
    kind_of,
    message_of,
    question_from,
    read_shape,
    read_terms,
)
from lightning_modules.teachers.private_teacher import PrivateTeacher
from privacy.account import BudgetExceeded
from privacy.formatting import round_up

__all__ = ["Node"]

_log = logging.getLogger(__name__)

# Their messages are about the run's terms alone. All others may be about the teacher or the machine.
_SAID = (ClientRefusal, RecordError)


class Node:
    """One client of a federation on a machine of its own, as it answers messages.

    It raises nothing: an answer that cannot be given is a refusal with its reason, and of errors that are not about the
    run's terms the server is told that there was one, while the client's own log says which.

    Args:
        name: By which the server knows it.
        teacher: File of the classifier that was trained on this client's records.
        folder: Where guarantees are written, in a folder for each run.
        teacher_network: Builds the classifier where the file holds nothing but weights.
        target_epsilon: Record-level ε that all runs together may spend of this client's records; None for no limit.
        delta: δ of its figures, which is not for the server to choose.
        trusts_server: Whether it may send gradients without noise, for the server to add it to the sum.
        ledger: Its ledger's file; None is the private data's own.
        num_records: Number of its records, where the teacher's file does not say.
    """

    def __init__(
        self,
        *,
        name: str,
        teacher: str,
        folder: Path,
        teacher_network: Callable[..., nn.Module] | None = None,
        target_epsilon: float | None = None,
        delta: float = 1e-5,
        trusts_server: bool = False,
        ledger: str | None = None,
        num_records: int | None = None,
    ) -> None:
        self.name = name
        self.teacher = teacher
        self.folder = folder
        self.teacher_network = teacher_network
        self.target_epsilon = target_epsilon
        self.delta = delta
        self.trusts_server = trusts_server
        self.ledger = ledger
        self.num_records = num_records
        self._client: FederatedClient | None = None
        self._made_for: tuple[int, tuple[int, int, int]] | None = None

    def tell(self, config: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """Answers a message without tensors: `introduce`, `begin` or `end`."""
        try:
            kind = kind_of(config)
            if kind == "introduce":
                client = self._client_for(*read_shape(config))
                return config_of("introduction", **client.introduction().to_dict())
            if kind == "begin":
                self._begin(config)
            elif kind == "end":
                self.end()
            else:
                raise RecordError(f"a message must be introduce, begin or end, got {kind[:40]!r}")
            return config_of("done")
        except Exception as error:
            return self._refusal(error)

    def ask(self, arrays: Sequence[bytes], config: Mapping[str, Scalar]) -> tuple[list[bytes], dict[str, Scalar]]:
        """Answers one round's question: the answer alone, or none and why."""
        try:
            question = question_from(arrays, config)
            return [array_of(self._known().answer(question))], config_of("answer", number=question.number)
        except Exception as error:
            return [], self._refusal(error)

    def end(self) -> None:
        """Settles the ledger, and writes what left this client. It may be called more than once."""
        if self._client is not None:
            self._client.end()

    def _client_for(self, num_classes: int, image_shape: tuple[int, int, int]) -> FederatedClient:
        if self._client is None or self._made_for != (num_classes, image_shape):
            self.end()
            self._client = FederatedClient(
                name=self.name,
                teacher=PrivateTeacher.load(
                    self.teacher, num_classes=num_classes, image_shape=image_shape, network=self.teacher_network
                ),
                target_epsilon=self.target_epsilon,
                delta=self.delta,
                trusts_server=self.trusts_server,
                ledger=self.ledger,
                num_records=self.num_records,
            )
            self._made_for = (num_classes, image_shape)
        return self._client

    def _begin(self, config: Mapping[str, Scalar]) -> None:
        terms = read_terms(message_of(config, kind="begin"))
        client = self._known()
        if self._made_for != (terms.num_classes, terms.image_shape):
            raise ClientRefusal(f"{self.name} was introduced for other images or classes than the run is of")
        client.end()  # what an earlier run reserved
        # The identity is hexadecimal digits, see `read_terms`: no other folder can be named by it.
        folder = self.folder / terms.run
        client.begin(terms, folder=folder)
        rank_zero_info(
            f"{self.name} takes part in run {terms.run}: record-level ε = {round_up(client.guarantee().epsilon)} at "
            f"δ = {client.annotator.delta:g} for all that is planned, see {folder / 'guarantee.md'}"
        )

    def _known(self) -> FederatedClient:
        if self._client is None:
            raise ClientRefusal(f"{self.name} was asked before it was introduced")
        return self._client

    def _refusal(self, error: Exception) -> dict[str, Scalar]:
        if isinstance(error, BudgetExceeded):
            _log.warning("%s refuses: %s", self.name, error)
            # What other runs have spent, and on what, is not for this one's server.
            return config_of("refusal", reason=f"the target_epsilon of {self.name} leaves no room for an answer")
        if isinstance(error, _SAID):
            _log.warning("%s refuses: %s", self.name, error)
            return config_of("refusal", reason=str(error)[:1000])
        _log.error("%s cannot answer", self.name, exc_info=error)
        return config_of("refusal", reason=f"{self.name} met an error, which its own log names")
