"""Clients on other machines, reached by Flower (https://flower.ai, package flwr, the extra `flower`)."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout  # the built-in one from Python 3.11 on
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from lightning_modules.federated.client import ClientRefusal
from lightning_modules.federated.connection import ClientConnection, FederationError, Reached, answer_or_absence
from lightning_modules.federated.messages import (
    Absence,
    Introduction,
    Question,
    Scalar,
    Terms,
    WireError,
    pack,
    pack_question,
    read_answer,
    read_introduction,
    unpack,
)
from lightning_modules.federated.node import require_flower
from lightning_modules.setting_checks import check_number, check_whole_number

__all__ = ["FlowerClients"]

_T = TypeVar("_T")


class _Remote:
    """A client at the other end of a connection of Flower's; each method sends a message, and waits for its answer."""

    def __init__(self, proxy: Any, *, timeout: float, name: str = "") -> None:
        self.proxy = proxy
        self.timeout = timeout
        self.name = name

    def introduction(self, *, num_classes: int, image_shape: tuple[int, int, int]) -> Introduction:
        """Who it says it is."""
        values, _ = self._send(pack("introduce", num_classes=num_classes, image_shape=list(image_shape)))
        try:
            return read_introduction(values)
        except WireError as error:
            raise ClientRefusal(str(error)) from error

    def begin(self, terms: Terms, *, folder: Path | None) -> None:
        """See `Reached.begin`. It writes its guarantee where its owner says."""
        self._send(pack("begin", **asdict(terms)))

    def answer(self, question: Question) -> torch.Tensor:
        """See `Reached.answer`."""
        arrays, message = pack_question(question)
        values, answers = self._send(message, arrays)
        try:
            return read_answer(answers, values, question)
        except WireError as error:
            raise ClientRefusal(f"its answer cannot be used: {error}") from error

    def end(self) -> None:
        """Ends its process as well, once it has written what left it."""
        from flwr.common import ReconnectIns

        try:
            self._send(pack("end"))
        finally:
            with suppress(Exception):
                self.proxy.reconnect(ReconnectIns(seconds=None), timeout=5.0, group_id=None)

    def _send(self, message: dict[str, Scalar], arrays: Sequence[bytes] = ()) -> tuple[dict[str, Any], list[bytes]]:
        """Values and arrays of the answer to a message."""
        from flwr.common import FitIns, Parameters
        from flwr.server.superlink.fleet.grpc_bidi.grpc_bridge import GrpcBridgeClosed

        instruction = FitIns(Parameters(tensors=list(arrays), tensor_type=""), dict(message))
        begun = time.monotonic()
        try:
            reply = self.proxy.fit(instruction, timeout=self.timeout, group_id=None)
            kind, values = unpack(reply.metrics)
        except GrpcBridgeClosed as error:
            late = time.monotonic() - begun >= 0.99 * self.timeout
            reason = f"no answer within {self.timeout:g} s" if late else "its connection was lost"
            raise ClientRefusal(reason) from error
        except Exception as error:  # Flower's own have no common class
            raise ClientRefusal(f"its answer cannot be read: {str(error)[:200] or type(error).__name__}") from error
        if kind == "refusal":
            raise ClientRefusal(str(values.get("reason", "it gave no reason"))[:1000])
        return values, list(reply.parameters.tensors)


class FlowerClients(ClientConnection):
    """Clients that connect to this process, each a `LightningCLI client` on the machine where its data are.

    It listens from the beginning of a fit to its end. A client whose connection breaks, or that is started anew, may
    come back under its name: its own ledger knows what it has answered.

    Flower's long-lived connection is used (`start_grpc_server`, `start_client`) and not its SuperLink, on which the
    server would send the code that a client runs beside its teacher, in a new process for each question.

    Args:
        num_clients: How many clients the federation is made of.
        address: `HOST:PORT` that is listened on.
        timeout: Seconds that a client is given for one message. One that takes longer is left out of the round and
            disconnected, and may come back.
        wait: Seconds that all clients are given to connect.
        certificates: Files of the CA's certificate, of this server's and of its private key, all PEM, for TLS.
        insecure: Whether to do without TLS: for tests on the loopback interface, or inside an encrypted network.

    Raises:
        ValueError: A setting that has no meaning, or neither certificates nor `insecure`.
    """

    def __init__(
        self,
        *,
        num_clients: int,
        address: str = "127.0.0.1:8080",
        timeout: float = 60.0,
        wait: float = 600.0,
        certificates: Sequence[str] | None = None,
        insecure: bool = False,
    ) -> None:
        super().__init__()
        check_whole_number("clients.num_clients", num_clients, least=1)
        check_number("clients.timeout", timeout, above=0)
        check_number("clients.wait", wait, above=0)
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError(f"clients.address must be HOST:PORT, got {address!r}")
        if certificates is not None and (isinstance(certificates, str) or len(certificates) != 3):
            raise ValueError(
                "clients.certificates must be three files, of the CA's certificate, the server's and its private key, "
                f"got {certificates!r}"
            )
        if (certificates is None) is not insecure:
            raise ValueError(
                "clients needs either certificates, for TLS, or insecure: true, which is for tests on the loopback "
                "interface"
            )
        self.num_clients = num_clients
        self.address = address
        self.timeout = float(timeout)
        self.wait = float(wait)
        self.certificates = None if certificates is None else list(certificates)
        self.insecure = insecure
        self._service: Any = None
        self._manager: Any = None
        self._workers: ThreadPoolExecutor | None = None
        self._shape: dict[str, Any] = {}
        self._terms: Terms | None = None
        self._forget()

    def _forget(self) -> None:
        self._known: dict[str, Introduction] = {}
        #: Flower's identity of each client's connection.
        self._connections: dict[str, str] = {}
        #: Connections that are of no client of this federation.
        self._strangers: set[str] = set()
        self._terms, self._out = None, {}

    def introductions(self, *, num_classes: int, image_shape: tuple[int, int, int]) -> list[Introduction]:
        """See `ClientConnection.introductions`."""
        require_flower("FlowerClients")
        self._shape = {"num_classes": num_classes, "image_shape": image_shape}
        self._listen()
        end = time.monotonic() + self.wait
        try:
            while len(self._present()) < self.num_clients:
                if time.monotonic() > end:
                    raise FederationError(
                        f"{len(self._present())} of {self.num_clients} clients have connected to {self.address} within "
                        f"clients.wait={self.wait:g} s ({', '.join(sorted(self._present())) or 'none'})"
                    )
                self._meet()
                time.sleep(0.05)
        except BaseException:
            self.end()
            raise
        return [self._known[name] for name in sorted(self._known)]

    def _listen(self) -> None:
        if self._service is not None:
            return
        from flwr.server import SimpleClientManager
        from flwr.server.superlink.fleet.grpc_bidi.grpc_server import start_grpc_server

        host = self.address.rpartition(":")[0].strip("[]")
        if self.insecure and not _is_loopback(host):
            rank_zero_warn(f"Without TLS everybody between {self.address} and a client reads what they send each other")
        files: Any = None  # bytes of each
        if self.certificates is not None:
            files = tuple(Path(file).read_bytes() for file in self.certificates)
        self._manager = SimpleClientManager()
        try:
            self._service = start_grpc_server(self._manager, self.address, certificates=files)
        except (OSError, RuntimeError, SystemExit) as error:  # Flower exits where the address is taken
            raise FederationError(f"clients.address {self.address} cannot be listened on: {error}") from error
        self._workers = ThreadPoolExecutor(max_workers=2 * self.num_clients + 8, thread_name_prefix="client")
        rank_zero_info(f"Waiting for {self.num_clients} clients on {self.address}.")

    def _present(self) -> list[str]:
        """Names of clients that are connected."""
        live = set(self._manager.all())
        return [name for name, connection in self._connections.items() if connection in live]

    def reached(self) -> Mapping[str, Reached | Absence]:
        """See `ClientConnection.reached`."""
        live = dict(self._manager.all()) if self._service is not None else {}
        found: dict[str, Reached | Absence] = dict.fromkeys(self._known, Absence("it is not connected"))
        for name, connection in self._connections.items():
            if connection in live:
                found[name] = _Remote(live[connection], timeout=self.timeout, name=name)
        return found

    def each(self, clients: Mapping[str, Any], act: Callable[[Any], _T]) -> dict[str, _T | Absence]:
        """See `ClientConnection.each`; all at the same time."""
        assert self._workers is not None
        futures = {name: self._workers.submit(answer_or_absence, client, act) for name, client in clients.items()}
        found: dict[str, _T | Absence] = {}
        for name, future in futures.items():
            try:
                # Flower ends a message by itself after `timeout`.
                found[name] = future.result(timeout=self.timeout + 30)
            except FutureTimeout:
                found[name] = Absence(f"no answer within {self.timeout:g} s")
        return found

    def _meet(self) -> None:
        """Asks all new connections who they are, and sends the run's terms to those that come back during it."""
        live = dict(self._manager.all())
        met = {*self._connections.values(), *self._strangers}
        new = {one: _Remote(proxy, timeout=self.timeout) for one, proxy in live.items() if one not in met}
        for connection, who in self.each(new, lambda client: client.introduction(**self._shape)).items():
            problem = self._take(connection, who, live=set(live))
            if problem is not None:
                self._strangers.add(connection)
                rank_zero_warn(problem)

    def _take(self, connection: str, who: Introduction | Absence, *, live: set[str]) -> str | None:
        """Takes a new connection for what it says it is; gives the reason where it does not."""
        if isinstance(who, Absence):
            return f"A client that has connected is of no use: {who.reason}"
        if self._connections.get(who.name) in live:
            return f"A second client named {who.name} has connected, and is not asked: names must differ"
        if self._known.get(who.name, who) != who:
            return f"{who.name} came back as another client (its training or its records changed), and is not asked"
        if who.name not in self._known and len(self._known) >= self.num_clients:
            return f"{who.name} has connected besides the {self.num_clients} clients of this run, and is not asked"
        self._known[who.name] = who
        self._connections[who.name] = connection
        if self._terms is not None:
            self._out.pop(who.name, None)
            self._out.update(self._begin([who.name], self._terms, None))
        return None

    def begin(self, terms: Terms, *, folder: Path | None) -> Mapping[str, Absence]:
        """See `ClientConnection.begin`. Guarantees are written at the clients, and `folder` is not used."""
        self._terms = terms
        return super().begin(terms, folder=None)

    def ask(self, question: Question) -> Mapping[str, torch.Tensor | Absence]:
        """See `ClientConnection.ask`."""
        self._meet()
        return super().ask(question)

    def end(self) -> None:
        """See `ClientConnection.end`. Clients end as well, and so do connections that are of none."""
        service, workers = self._service, self._workers
        if service is None or workers is None:
            return
        live = {one: _Remote(proxy, timeout=self.timeout) for one, proxy in self._manager.all().items()}
        self.each(live, lambda client: client.end())
        service.stop(grace=1).wait(5)
        workers.shutdown(wait=False, cancel_futures=True)
        self._service = self._workers = None
        self._forget()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
