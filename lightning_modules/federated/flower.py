"""Clients on other machines, connected by Flower (https://flower.ai, package flwr, the extra `flower`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from lightning_modules.federated.connection import ClientConnection, FederationError, answer_or_absence
from lightning_modules.federated.messages import (
    Absence,
    ClientRefusal,
    Introduction,
    Question,
    Scalar,
    Terms,
    pack,
    pack_question,
    read_answer,
    read_introduction,
    unpack,
)
from lightning_modules.federated.node import require_flower
from lightning_modules.setting_checks import check_number, check_whole_number

_T = TypeVar("_T")


class _Remote:
    """A client behind a Flower connection. Each method sends a message and waits for the answer."""

    def __init__(self, proxy: Any, *, timeout: float, name: str = "") -> None:
        self.proxy = proxy
        self.timeout = timeout
        self.name = name

    def introduction(self, *, num_classes: int, image_shape: tuple[int, int, int]) -> Introduction:
        values, _ = self._send(pack("introduce", num_classes=num_classes, image_shape=list(image_shape)))
        return read_introduction(values)

    def begin(self, terms: Terms, *, folder: Path | None) -> None:
        """See `FederatedClient.begin`; the guarantee is written to the folder that the client's owner has set."""
        self._send(pack("begin", **asdict(terms)))

    def answer(self, question: Question) -> torch.Tensor:
        arrays, message = pack_question(question)
        values, answers = self._send(message, arrays)
        return read_answer(answers, values, question)

    def end(self) -> None:
        """End the client, which writes its guarantee, and then its process."""
        from flwr.common import ReconnectIns

        with suppress(ClientRefusal):
            self._send(pack("end"))
        with suppress(Exception):
            self.proxy.reconnect(ReconnectIns(seconds=None), timeout=5.0, group_id=None)

    def _send(self, message: dict[str, Scalar], arrays: Sequence[bytes] = ()) -> tuple[dict[str, Any], list[bytes]]:
        """Send a message and return the values and arrays of its answer."""
        from flwr.common import FitIns, Parameters

        if self.proxy is None:
            raise ClientRefusal("it is not connected")
        instruction = FitIns(Parameters(tensors=list(arrays), tensor_type=""), dict(message))
        try:
            reply = self.proxy.fit(instruction, timeout=self.timeout, group_id=None)
        except Exception as error:  # Flower's errors have no common class and say little
            raise ClientRefusal(f"no answer within {self.timeout:g} s, or its connection was lost") from error
        kind, values = unpack(reply.metrics)
        if kind == "refusal":
            raise ClientRefusal(str(values.get("reason", "it gave no reason"))[:1000])
        return values, list(reply.parameters.tensors)


class FlowerClients(ClientConnection):
    """Clients that connect over the network, each a `LightningCLI client` on the machine that holds its data.

    It listens from the start of a fit to its end. A client that loses its connection or is restarted may reconnect
    under its name: its own ledger records its answers.

    It uses Flower's long-lived connection (`start_grpc_server`, `start_client`) instead of SuperLink, through which the
    server would send code for the client to run next to its teacher, in a new process for each question.

    Args:
        num_clients: Number of clients in the federation.
        address: `HOST:PORT` to listen on.
        timeout: Seconds that a client has to answer a message. A slower client is left out of the round and
            disconnected, and may reconnect.
        wait: Seconds that all clients have to connect.
        certificates: PEM files for TLS: the CA's certificate, this server's certificate and its private key.
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
        certificates: tuple[str, str, str] | None = None,
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
        self._service: Any = None
        self._manager: Any = None
        self._forget()

    def _forget(self) -> None:
        self._known: dict[str, Introduction] = {}
        #: Client name of each Flower connection; None if it is not part of this federation.
        self._names: dict[str, str | None] = {}
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
        if self._service is not None:
            return
        require_flower("FlowerClients")
        from flwr.server import SimpleClientManager
        from flwr.server.superlink.fleet.grpc_bidi.grpc_server import start_grpc_server

        files: Any = None if self.certificates is None else tuple(Path(file).read_bytes() for file in self.certificates)
        self._manager = SimpleClientManager()
        try:
            self._service = start_grpc_server(self._manager, self.address, certificates=files)
        except (OSError, RuntimeError, SystemExit) as error:  # Flower exits if the address is in use
            raise FederationError(f"clients.address {self.address} cannot be listened on: {error}") from error
        rank_zero_info(f"Waiting for {self.num_clients} clients on {self.address}.")

    def _present(self) -> dict[str, _Remote]:
        """Return the connected clients by name."""
        live = {} if self._service is None else dict(self._manager.all())
        named = [(name, live[one]) for one, name in self._names.items() if name is not None and one in live]
        return {name: _Remote(proxy, timeout=self.timeout, name=name) for name, proxy in named}

    def reached(self) -> Mapping[str, Any]:
        gone = {name: _Remote(None, timeout=self.timeout, name=name) for name in self._known}
        return {**gone, **self._present()}

    def each(self, clients: Mapping[str, Any], act: Callable[[Any], _T]) -> dict[str, _T | Absence]:
        """See `ClientConnection.each`; clients run concurrently, and Flower enforces `timeout`."""
        with ThreadPoolExecutor(max_workers=max(1, len(clients))) as workers:
            answers = workers.map(lambda client: answer_or_absence(client, act), clients.values())
            return dict(zip(clients, answers, strict=True))

    def _meet(self) -> None:
        """Introduce new connections, and send the run's terms to clients that connect during it."""
        live = dict(self._manager.all())
        new = {one: _Remote(proxy, timeout=self.timeout) for one, proxy in live.items() if one not in self._names}
        for connection, who in self.each(new, lambda client: client.introduction(**self._shape)).items():
            self._names[connection] = None
            problem = self._problem_of(who)
            if problem is not None or isinstance(who, Absence):
                rank_zero_warn(f"A client has connected and is not asked: {problem}")
                continue
            self._known[who.name] = who
            self._names[connection] = who.name
            if self._terms is not None:
                self._out.pop(who.name, None)
                self._out.update(self._begin({who.name: new[connection]}, self._terms, None))

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
        if self._service is None:
            return
        live = {one: _Remote(proxy, timeout=self.timeout) for one, proxy in self._manager.all().items()}
        self.each(live, lambda client: client.end())
        self._service.stop(grace=1).wait(5)
        self._service = None
        self._forget()
