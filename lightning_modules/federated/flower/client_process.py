"""The process of a client: it connects to the server, answers until the run ends, and comes back if it is cut off."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
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
                    _log.warning("%s has no connection to %s: %s", node.name, server, _reason(error))
                if time.monotonic() - client.heard > patience:
                    raise FederationError(f"no server was reached at {server} for {patience:g} s")
                time.sleep(pause)
        finally:
            node.end()


class _FlowerClient:
    """A node as Flower calls its clients; no subclass of Flower's, which needs nothing but these methods."""

    def __init__(self, node: Node) -> None:
        from flwr.common import Code, Status

        self._node = node
        self._done = Status(code=Code.OK, message="")
        #: When the server was last heard of.
        self.heard = time.monotonic()

    def get_properties(self, ins: Any) -> Any:
        """A message without tensors, and what is said to it."""
        from flwr.common import GetPropertiesRes

        self.heard = time.monotonic()
        return GetPropertiesRes(status=self._done, properties=dict(self._node.tell(ins.config)))

    def fit(self, ins: Any) -> Any:
        """A question, and its answer."""
        from flwr.common import FitRes, Parameters

        self.heard = time.monotonic()
        arrays, said = self._node.ask(ins.parameters.tensors, ins.config)
        answer = Parameters(tensors=arrays, tensor_type="numpy.ndarray")
        return FitRes(status=self._done, parameters=answer, num_examples=0, metrics=dict(said))


def _reason(error: Exception) -> str:
    details: Callable[[], str | None] | None = getattr(error, "details", None)
    return (details() if details is not None else None) or type(error).__name__


class _ended_by_sigterm:  # noqa: N801
    """Makes SIGTERM an exception, so that what has to be written is written."""

    def __enter__(self) -> None:
        self._before: Any = None
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._end)

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)

    @staticmethod
    def _end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)
