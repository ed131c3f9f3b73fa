"""Clients on other machines, by gRPC: the server's connections, and a client's process that answers them.

A client connects to the server and keeps one stream open, on which messages and answers alternate. Nothing else of the
client can be reached. grpc is only imported when needed.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import torch
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from lightning_modules.federated.client import FederatedClient
from lightning_modules.federated.connection import ClientConnection, FederationError, answer_or_absence
from lightning_modules.federated.messages import (
    Absence,
    ClientRefusal,
    Introduction,
    Question,
    Terms,
    pack,
    pack_question,
    read,
    read_answer,
    read_introduction,
    read_question,
    read_terms,
    unpack,
)
from lightning_modules.networks import NetworkCallable
from lightning_modules.setting_checks import check_number, check_whole_number
from lightning_modules.teachers.config import TeacherConfig
from privacy.account import BudgetExceeded
from privacy.checks import round_up

_T = TypeVar("_T")
_log = logging.getLogger(__name__)

_SERVICE, _METHOD = "transcription.Federation", "Attend"
_SPARE = 16
"""Connections besides the federation's clients: of clients that come back, and of ones that are not asked."""
_OPTIONS = [
    ("grpc.max_send_message_length", 2**29),
    ("grpc.max_receive_message_length", 2**29),
    ("grpc.keepalive_time_ms", 120_000),  # a connection may be idle for as long as a round takes
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 60_000),
    ("grpc.so_reuseport", 0),  # an address in use is an error
]


class _Remote:
    """A client's connection, as the server sees it. Each method sends a message and waits for the answer."""

    def __init__(self, context: Any, *, timeout: float) -> None:
        self.timeout = timeout
        #: Name of the client; None before it is introduced, or if it is not part of the federation.
        self.name: str | None = None
        self.connected = True
        self._context = context
        self._asked: SimpleQueue[bytes | None] = SimpleQueue()
        self._answered: SimpleQueue[bytes | None] = SimpleQueue()

    def messages(self, answers: Iterator[bytes]) -> Iterator[bytes]:
        """Yields what is sent on this connection until it ends, for grpc, and takes the answers."""
        while (message := self._asked.get()) is not None:
            yield message
            self._answered.put(next(answers, None))

    def close(self) -> None:
        """End the stream; the client's process ends if it was the server that closed it."""
        self.connected = False
        self._asked.put(None)
        self._answered.put(None)

    def introduction(self, *, num_classes: int, image_shape: tuple[int, int, int]) -> Introduction:
        return read_introduction(self._send(pack("introduce", num_classes=num_classes, image_shape=image_shape))[0])

    def begin(self, terms: Terms, *, folder: Path | None) -> None:
        """See `FederatedClient.begin`; the guarantee is written to the folder that the client's owner has set."""
        self._send(pack("begin", **asdict(terms)))

    def answer(self, question: Question) -> torch.Tensor:
        return read_answer(*self._send(pack_question(question)), question)

    def end(self) -> None:
        """End the client, which writes its guarantee, and then its process."""
        with suppress(ClientRefusal):
            self._send(pack("end"))
        self.close()

    def _send(self, message: bytes) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """Send a message and return the values and tensors of its answer."""
        if not self.connected:
            raise ClientRefusal("it is not connected")
        self._asked.put(message)
        try:
            reply = self._answered.get(timeout=self.timeout)
        except Empty:
            reply = None
        if reply is None:
            self._context.cancel()  # the client is free to connect again
            self.close()
            raise ClientRefusal(f"no answer within {self.timeout:g} s, or its connection was lost")
        kind, values, tensors = unpack(reply)
        if kind == "refusal":
            raise ClientRefusal(str(values.get("reason", "it gave no reason"))[:1000])
        return values, tensors


class RemoteClients(ClientConnection):
    """Clients that connect over the network, each a `LightningCLI client` on the machine that holds its data.

    It listens from the start of a fit to its end. A client that loses its connection or is restarted may reconnect
    under its name: its own ledger records its answers.

    Args:
        num_clients: Number of clients in the federation.
        address: `HOST:PORT` to listen on.
        timeout: Seconds that a client has to answer a message. A slower client is left out of the round and
            disconnected, and may reconnect.
        wait: Seconds that all clients have to connect.
        certificates: PEM files for TLS: this server's certificate and its private key.
        insecure: Do without TLS, for tests on the loopback interface or inside an encrypted network.

    Raises:
        ValueError: A setting is invalid, or not exactly one of `certificates` and `insecure` is given.
    """

    def __init__(
        self,
        *,
        num_clients: int,
        address: str = "127.0.0.1:8080",
        timeout: float = 60.0,
        wait: float = 600.0,
        certificates: tuple[str, str] | None = None,
        insecure: bool = False,
    ) -> None:
        super().__init__()
        check_whole_number("clients.num_clients", num_clients, least=1)
        check_number("clients.timeout", timeout, above=0)
        check_number("clients.wait", wait, above=0)
        if (certificates is None) is not insecure:
            raise ValueError("clients needs either certificates, for TLS, or insecure: true, for loopback interfaces")
        self.num_clients = num_clients
        self.address = address
        self.timeout = float(timeout)
        self.wait = float(wait)
        self.certificates = certificates
        self._server: Any = None
        self._forget()

    def _forget(self) -> None:
        #: Connections that have not been introduced, and those that have.
        self._new: list[_Remote] = []
        self._met: list[_Remote] = []
        self._known: dict[str, Introduction] = {}
        self._terms: Terms | None = None
        self._out = {}

    def introductions(self, *, num_classes: int, image_shape: tuple[int, int, int]) -> list[Introduction]:
        self._shape: dict[str, Any] = {"num_classes": num_classes, "image_shape": image_shape}
        self._listen()
        end = time.monotonic() + self.wait
        try:
            while len(present := self._present()) < self.num_clients:
                if time.monotonic() > end:
                    raise FederationError(
                        f"{len(present)} of {self.num_clients} clients have connected to {self.address} within "
                        f"clients.wait={self.wait:g} s ({', '.join(sorted(present)) or 'none'})"
                    )
                self._meet()
                time.sleep(0.05)
        except BaseException:
            self.end()
            raise
        return [self._known[name] for name in sorted(self._known)]

    def _listen(self) -> None:
        if self._server is not None:
            return
        import grpc

        def attend(answers: Iterator[bytes], context: Any) -> Iterator[bytes]:
            client = _Remote(context, timeout=self.timeout)
            context.add_callback(client.close)
            self._new.append(client)
            return client.messages(answers)

        most = self.num_clients + _SPARE
        service = {_METHOD: grpc.stream_stream_rpc_method_handler(attend)}
        server = grpc.server(
            ThreadPoolExecutor(most),
            handlers=[grpc.method_handlers_generic_handler(_SERVICE, service)],
            options=_OPTIONS,
            maximum_concurrent_rpcs=most,
        )
        try:
            if self.certificates is None:
                server.add_insecure_port(self.address)
            else:
                certificate, key = (Path(file).read_bytes() for file in self.certificates)
                server.add_secure_port(self.address, grpc.ssl_server_credentials([(key, certificate)]))
        except (OSError, RuntimeError) as error:
            raise FederationError(f"clients.address {self.address} cannot be listened on: {error}") from error
        server.start()
        self._server = server
        rank_zero_info(f"Waiting for {self.num_clients} clients on {self.address}.")

    def _present(self) -> dict[str, _Remote]:
        """Return the connected clients by name."""
        return {client.name: client for client in self._met if client.name is not None and client.connected}

    def reached(self) -> Mapping[str, Any]:
        return {client.name: client for client in self._met if client.name is not None}  # the newest of a name

    def each(self, clients: Mapping[str, Any], act: Callable[[Any], _T]) -> dict[str, _T | Absence]:
        """See `ClientConnection.each`; clients run concurrently."""
        with ThreadPoolExecutor(max_workers=max(1, len(clients))) as workers:
            answers = workers.map(lambda client: answer_or_absence(client, act), clients.values())
            return dict(zip(clients, answers, strict=True))

    def _meet(self) -> None:
        """Introduce new connections, and send the run's terms to clients that connect during it."""
        new = {str(number): self._new.pop(0) for number in range(len(self._new))}
        for connection, who in self.each(new, lambda client: client.introduction(**self._shape)).items():
            client = new[connection]
            problem = self._problem_of(who)
            self._met.append(client)
            if problem is not None or isinstance(who, Absence):
                rank_zero_warn(f"A client has connected and is not asked: {problem}")
                continue
            self._known[who.name] = who
            client.name = who.name
            if self._terms is not None:
                self._out.pop(who.name, None)
                self._out.update(self._begin({who.name: client}, self._terms, None))

    def _problem_of(self, who: Introduction | Absence) -> str | None:
        """Return why a new connection is not accepted as a client of this federation, or None if it is."""
        if isinstance(who, Absence):
            return who.reason
        if who.name in self._present():
            return f"there is one named {who.name}, and names must differ"
        if self._known.get(who.name, who) != who:
            return f"{who.name} came back as another (its training or its records changed)"
        if who.name not in self._known and len(self._known) >= self.num_clients:
            return f"{who.name} comes besides the {self.num_clients} clients of this run"
        return None

    def begin(self, terms: Terms, *, folder: Path | None) -> Mapping[str, Absence]:
        """See `ClientConnection.begin`. Clients write their own guarantees, and `folder` is not used."""
        self._terms = terms
        return super().begin(terms, folder=None)

    def ask(self, question: Question) -> Mapping[str, torch.Tensor | Absence]:
        self._meet()
        return super().ask(question)

    def end(self) -> None:
        """See `ClientConnection.end`. It also ends the clients' processes and any other connection."""
        if self._server is None:
            return
        self.each(
            {str(number): one for number, one in enumerate([*self._new, *self._met])}, lambda client: client.end()
        )
        self._server.stop(grace=1).wait(5)
        self._server = None
        self._forget()


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
        self.teacher = TeacherConfig(path=str(teacher), network=teacher_network)
        self.folder = folder
        self._settings = settings
        self._client: FederatedClient | None = None
        self._made_for: Mapping[str, Any] | None = None

    def answer(self, message: bytes) -> bytes:
        """Answer a message: `introduce`, `begin`, `ask` or `end`.

        It never raises: failures are answered with a refusal. Unless the error is about the run's terms or the budget,
        the server only learns that there was one, and the client's log has the details.
        """
        try:
            kind, values, tensors = unpack(message)
            if kind == "introduce":
                client = self._client_for(read(values, ["num_classes", "image_shape"]))
                return pack("introduction", **client.introduction().to_dict())
            if kind == "ask":
                question = read_question(values, tensors, self._known().agreed[0])
                return pack("answer", {"answer": self._known().answer(question)}, number=question.number)
            if kind == "begin":
                self._begin(values)
            elif kind == "end":
                self.end()
            else:
                raise ClientRefusal(f"a message must be introduce, begin, ask or end, got {kind[:40]!r}")
            return pack("done")
        except Exception as error:
            expected = isinstance(error, ClientRefusal | BudgetExceeded)
            _log.warning("%s does not answer: %s", self.name, error, exc_info=not expected)
            reason = f"{self.name} met an error, which its own log names"
            if isinstance(error, ClientRefusal):  # only about the run's terms
                reason = str(error)[:1000]
            elif isinstance(error, BudgetExceeded):  # its text tells what other runs have spent
                reason = f"the target_epsilon of {self.name} leaves no room for an answer"
            return pack("refusal", reason=reason)

    def end(self) -> None:
        """Settle the ledger and write the client's guarantee. It may be called more than once."""
        if self._client is not None:
            self._client.end()

    def _client_for(self, given: Mapping[str, Any]) -> FederatedClient:
        if self._client is None:
            teacher = self.teacher.load(num_classes=given["num_classes"], image_shape=tuple(given["image_shape"]))
            self._client, self._made_for = FederatedClient(name=self.name, teacher=teacher, **self._settings), given
        elif self._made_for != given:
            raise ClientRefusal(f"{self.name} was introduced for other images or classes: start it anew for these")
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
        FederationError: No server was reached for `patience` seconds.
    """
    import grpc

    roots = None if root_certificates is None else Path(root_certificates).read_bytes()
    credentials = None if insecure else grpc.ssl_channel_credentials(roots)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    heard = time.monotonic()
    try:
        while True:
            answers: SimpleQueue[bytes | None] = SimpleQueue()
            to = (server, _OPTIONS)
            channel = (
                grpc.insecure_channel(*to) if credentials is None else grpc.secure_channel(to[0], credentials, to[1])
            )
            try:
                for message in channel.stream_stream(f"/{_SERVICE}/{_METHOD}")(iter(answers.get, None)):
                    heard = time.monotonic()
                    answers.put(node.answer(message))
                return
            except grpc.RpcError as error:
                _log.warning("%s has no connection to %s: %s", node.name, server, error.details())
            finally:
                answers.put(None)
                channel.close()
            if time.monotonic() - heard > patience:
                raise FederationError(f"no server was reached at {server} for {patience:g} s")
            time.sleep(pause)
    finally:
        node.end()
