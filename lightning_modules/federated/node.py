"""A client's process: it connects to the server, checks its messages and answers them until the run ends.

Every answer has passed the client's own privacy session. flwr is only imported when needed.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch.utilities import rank_zero_info

from lightning_modules.federated.client import FederatedClient
from lightning_modules.federated.connection import FederationError
from lightning_modules.federated.messages import (
    ClientRefusal,
    Scalar,
    pack,
    read,
    read_question,
    read_terms,
    to_bytes,
    unpack,
)
from lightning_modules.networks import NetworkCallable
from lightning_modules.teachers.config import TeacherConfig
from privacy.account import BudgetExceeded
from privacy.checks import round_up

_log = logging.getLogger(__name__)


class Node:
    """Answers a server's messages with a `FederatedClient`, whose settings it takes."""

    def __init__(
        self,
        *,
        name: str,
        teacher: str,
        folder: Path,
        teacher_network: NetworkCallable | None = None,
        **settings: Any,
    ) -> None:
        self.name = name
        self.teacher = teacher
        self.folder = folder
        self.teacher_network = teacher_network
        self._settings = settings
        self._client: FederatedClient | None = None
        self._made_for: Mapping[str, Any] | None = None

    def answer(self, arrays: Sequence[bytes], config: Mapping[str, Scalar]) -> tuple[list[bytes], dict[str, Scalar]]:
        """Answer a message: `introduce`, `begin`, `ask` or `end`.

        It never raises: failures are answered with a refusal. Unless the error is about the run's terms or the budget,
        the server only learns that there was one, and the client's log has the details.
        """
        try:
            kind, values = unpack(config)
            if kind == "introduce":
                client = self._client_for(read(values, ["num_classes", "image_shape"]))
                return [], pack("introduction", **client.introduction().to_dict())
            if kind == "ask":
                question = read_question(arrays, values, self._known().agreed[0])
                return [to_bytes(self._known().answer(question))], pack("answer", number=question.number)
            if kind == "begin":
                self._begin(values)
            elif kind == "end":
                self.end()
            else:
                raise ClientRefusal(f"a message must be introduce, begin, ask or end, got {kind[:40]!r}")
            return [], pack("done")
        except Exception as error:
            expected = isinstance(error, ClientRefusal | BudgetExceeded)
            _log.warning("%s does not answer: %s", self.name, error, exc_info=not expected)
            reason = f"{self.name} met an error, which its own log names"
            if isinstance(error, ClientRefusal):  # only about the run's terms
                reason = str(error)[:1000]
            elif isinstance(error, BudgetExceeded):  # its text tells what other runs have spent
                reason = f"the target_epsilon of {self.name} leaves no room for an answer"
            return [], pack("refusal", reason=reason)

    def end(self) -> None:
        """Settle the ledger and write the client's guarantee. It may be called more than once."""
        if self._client is not None:
            self._client.end()

    def _client_for(self, given: Mapping[str, Any]) -> FederatedClient:
        if self._client is not None and self._client.starts and self._made_for != given:
            raise ClientRefusal(f"{self.name} has begun a run of other images or classes: start it anew for these")
        if self._client is None or self._made_for != given:
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
        # `read_terms` only accepts hexadecimal digits, so no other folder can be reached.
        folder = self.folder / terms.run
        client.begin(terms, folder=folder)
        said = client.guarantee()
        rank_zero_info(
            f"{self.name} takes part in run {terms.run} (start {client.starts} of at most {client.max_starts}): "
            f"{said.level}-level ε = {round_up(said.epsilon)} at "
            f"δ = {client.session.budget.delta:g} for all that is planned, see {folder / 'guarantee.md'}"
        )

    def _known(self) -> FederatedClient:
        if self._client is None:
            raise ClientRefusal(f"{self.name} was asked before it was introduced")
        return self._client

    # --- Flower's client interface: it needs only this method, and no subclass ---

    #: Time of the server's last message.
    heard = 0.0

    def fit(self, ins: Any) -> Any:
        from flwr.common import Code, FitRes, Parameters, Status

        self.heard = time.monotonic()
        arrays, said = self.answer(ins.parameters.tensors, ins.config)
        answer = Parameters(tensors=arrays, tensor_type="")
        return FitRes(status=Status(code=Code.OK, message=""), parameters=answer, num_examples=0, metrics=dict(said))


def serve(
    node: Node,
    *,
    server: str,
    root_certificates: str | None = None,
    insecure: bool = False,
    patience: float = 600.0,
    pause: float = 1.0,
) -> None:
    """Answer a server at HOST:PORT until the run is over; for the settings see `LightningCLI client`.

    Unless it is killed by SIGKILL, the client's ledger is settled and its guarantee written at the end.

    Raises:
        FederationError: flwr is not installed, or no server was reached for `patience` seconds.
    """
    require_flower("LightningCLI client")
    import grpc
    from flwr.client import start_client

    logging.getLogger("flwr").setLevel(logging.ERROR)  # it logs three lines for each message
    certificates = None if root_certificates is None else Path(root_certificates).read_bytes()
    client: Any = node
    node.heard = time.monotonic()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        while True:
            try:
                start_client(server_address=server, client=client, root_certificates=certificates, insecure=insecure)
                return
            except grpc.RpcError as error:
                details = getattr(error, "details", str)()
                _log.warning("%s has no connection to %s: %s", node.name, server, details or type(error).__name__)
            if time.monotonic() - node.heard > patience:
                raise FederationError(f"no server was reached at {server} for {patience:g} s")
            time.sleep(pause)
    finally:
        node.end()


def require_flower(whose: str) -> None:
    """Import Flower with its telemetry switched off.

    Raises:
        FederationError: It is not installed; the error says that `whose` needs it and how to install it.
    """
    # Read when flwr is imported: third parties must not learn who takes part in a federation of private data.
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    try:
        import flwr  # noqa: F401
    except ImportError as error:
        raise FederationError(
            f"{whose} needs the package flwr, which is not installed: pip install 'private-model-transcription[flower]'"
        ) from error
