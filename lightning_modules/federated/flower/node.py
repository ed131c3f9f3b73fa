"""A client's side of every message: what arrives is checked, what is answered has passed the client's own annotator."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch.utilities import rank_zero_info
from torch import nn

from lightning_modules.federated.client import ClientRefusal, FederatedClient
from lightning_modules.federated.flower.wire import (
    INTRODUCE,
    Scalar,
    WireError,
    pack,
    read,
    read_question,
    read_terms,
    to_bytes,
    unpack,
)
from lightning_modules.teachers.config import TeacherConfig
from privacy.account import BudgetExceeded
from privacy.formatting import round_up

__all__ = ["Node"]

_log = logging.getLogger(__name__)

Reply = tuple[list[bytes], dict[str, Scalar]]


class Node:
    """One client of a federation on its own machine, as it answers messages.

    Args:
        name: By which the server knows it.
        teacher: File of the classifier that was trained on this client's records.
        folder: Where guarantees are written, in a folder for each run.
        teacher_network: Builds the classifier where the file holds nothing but weights.
        settings: Others of `FederatedClient`, which are its owner's to set.
    """

    def __init__(
        self,
        *,
        name: str,
        teacher: str,
        folder: Path,
        teacher_network: Callable[..., nn.Module] | None = None,
        **settings: Any,
    ) -> None:
        self.name = name
        self.teacher = teacher
        self.folder = folder
        self.teacher_network = teacher_network
        self._settings = settings
        self._client: FederatedClient | None = None
        self._made_for: Mapping[str, Any] | None = None

    def answer(self, arrays: Sequence[bytes], config: Mapping[str, Scalar]) -> Reply:
        """Answers a message: `introduce`, `begin`, `ask` or `end`.

        It raises nothing: an answer that cannot be given is a refusal with its reason, and of errors that are not about
        the run's terms the server learns only that there was one; the client's own log says which.
        """
        try:
            kind, values = unpack(config)
            if kind == "introduce":
                client = self._client_for(read(values, INTRODUCE, dict))
                return [], pack("introduction", **client.introduction().to_dict())
            if kind == "ask":
                question = read_question(arrays, values, self._known().terms)
                return [to_bytes(self._known().answer(question))], pack("answer", number=question.number)
            if kind == "begin":
                self._begin(values)
            elif kind == "end":
                self.end()
            else:
                raise WireError(f"a message must be introduce, begin, ask or end, got {kind[:40]!r}")
            return [], pack("done")
        except (ClientRefusal, WireError) as error:  # only about the run's terms
            _log.warning("%s refuses: %s", self.name, error)
            return [], pack("refusal", reason=str(error)[:1000])
        except BudgetExceeded as error:
            _log.warning("%s refuses: %s", self.name, error)
            # What other runs have spent, and on what, is not for this one's server.
            return [], pack("refusal", reason=f"the target_epsilon of {self.name} leaves no room for an answer")
        except Exception as error:
            _log.error("%s cannot answer", self.name, exc_info=error)
            return [], pack("refusal", reason=f"{self.name} met an error, which its own log names")

    def end(self) -> None:
        """Settles the ledger, and writes what left this client. It may be called more than once."""
        if self._client is not None:
            self._client.end()

    def _client_for(self, given: Mapping[str, Any]) -> FederatedClient:
        if self._client is None or self._made_for != given:
            self.end()
            config = TeacherConfig(path=str(self.teacher), network=self.teacher_network)
            teacher = config.load(num_classes=given["num_classes"], image_shape=tuple(given["image_shape"]))
            self._client = FederatedClient(name=self.name, teacher=teacher, **self._settings)
            self._made_for = given
        return self._client

    def _begin(self, values: Mapping[str, Any]) -> None:
        terms, client = read_terms(values), self._known()
        if self._made_for != {"num_classes": terms.num_classes, "image_shape": list(terms.image_shape)}:
            raise ClientRefusal(f"{self.name} was introduced for other images or classes than the run is of")
        client.end()  # what an earlier run reserved
        # The identity is hexadecimal digits, see `read_terms`: no other folder can be named by it.
        folder = self.folder / terms.run
        client.begin(terms, folder=folder)
        rank_zero_info(
            f"{self.name} takes part in run {terms.run}: record-level ε = {round_up(client.guarantee().epsilon)} at "
            f"δ = {client.annotator.budget.delta:g} for all that is planned, see {folder / 'guarantee.md'}"
        )

    def _known(self) -> FederatedClient:
        if self._client is None:
            raise ClientRefusal(f"{self.name} was asked before it was introduced")
        return self._client
