"""The process of a client: it connects to the server, answers until the run ends, and comes back if it is cut off."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightning_modules.federated.connection import FederationError
from lightning_modules.federated.flower.extra import require_flower
from lightning_modules.federated.flower.node import Node

__all__ = ["serve"]

_log = logging.getLogger(__name__)


def serve(
    node: Node,
    *,
    server: str,
    root_certificates: str | None = None,
    insecure: bool = False,
    patience: float = 600.0,
    pause: float = 1.0,
) -> None:
    """Answers a server until it says that the run is over.

    However it ends but by SIGKILL, the client's ledger is settled and its guarantee written.

    Args:
        node: Who answers.
        server: `HOST:PORT`.
        root_certificates: File of the certificates that the server's is checked by, PEM; None is the system's.
        insecure: Whether to do without TLS.
        patience: Seconds without a connection after which it gives up.
        pause: Seconds between two attempts.

    Raises:
        FederationError: flwr is not installed, or no server was reached for so long.
    """
    require_flower("LightningCLI client")
    import grpc
    from flwr.client import start_client

    logging.getLogger("flwr").setLevel(logging.ERROR)  # it says three lines for each message
    client: Any = _FlowerClient(node)
    certificates = None if root_certificates is None else Path(root_certificates).read_bytes()
    with _ended_by_sigterm():
        try:
            while True:
                try:
                    start_client(
                        server_address=server, client=client, root_certificates=certificates, insecure=insecure
                    )
                    return
                except grpc.RpcError as error:
                    details = getattr(error, "details", str)()
                    _log.warning("%s has no connection to %s: %s", node.name, server, details or type(error).__name__)
                if time.monotonic() - client.heard > patience:
                    raise FederationError(f"no server was reached at {server} for {patience:g} s")
                time.sleep(pause)
        finally:
            node.end()


class _FlowerClient:
    """A node as Flower calls its clients; no subclass of Flower's, which needs nothing but this method."""

    def __init__(self, node: Node) -> None:
        self._node = node
        #: When the server was last heard of.
        self.heard = time.monotonic()

    def fit(self, ins: Any) -> Any:
        """A message, and its answer."""
        from flwr.common import Code, FitRes, Parameters, Status

        self.heard = time.monotonic()
        arrays, said = self._node.answer(ins.parameters.tensors, ins.config)
        answer = Parameters(tensors=arrays, tensor_type="")
        return FitRes(status=Status(code=Code.OK, message=""), parameters=answer, num_examples=0, metrics=dict(said))


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Makes SIGTERM an exception, so that what has to be written is written."""

    def end(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
