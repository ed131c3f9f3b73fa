"""Clients on other machines, reached by Flower (https://flower.ai, package flwr, the extra `flower`)."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout  # the built-in one from Python 3.11 on
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import torch
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from lightning_modules.federated.connection import ClientConnection, FederationError
from lightning_modules.federated.flower.extra import require_flower
from lightning_modules.federated.flower.wire import (
    Scalar,
    WireError,
    pack,
    pack_question,
    read_answer,
    read_introduction,
    unpack,
)
from lightning_modules.federated.messages import Absence, Introduction, Question, Terms
from lightning_modules.setting_checks import check_number, check_whole_number

__all__ = ["FlowerClients"]

_T = TypeVar("_T")


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
        self._known: dict[str, Introduction] = {}
        #: Flower's identity of each client's connection; None of those that are not connected.
        self._reached: dict[str, str | None] = {}
        #: Connections that are of no client of this federation.
        self._strangers: set[str] = set()
        self._asked: tuple[int, tuple[int, int, int]] | None = None
        self._terms: Terms | None = None
        self._out: dict[str, Absence] = {}

    # --- the connection ---

    def introductions(self, *, num_classes: int, image_shape: tuple[int, int, int]) -> list[Introduction]:
        """See `ClientConnection.introductions`."""
        require_flower("FlowerClients")
        self._asked = (num_classes, image_shape)
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
        return [name for name, connection in self._reached.items() if connection in live]

    def _meet(self) -> None:
        """Asks all new connections who they are, and sends the run's terms to those that come back during it."""
        live = dict(self._manager.all())
        met = {connection for connection in self._reached.values() if connection is not None} | self._strangers
        new = {connection: proxy for connection, proxy in live.items() if connection not in met}
        if not new:
            return
        assert self._asked is not None
        classes, shape = self._asked
        message = pack("introduce", num_classes=classes, image_shape=list(shape))
        for connection, said in self._at_once(new, lambda proxy: self._tell(proxy, message)).items():
            problem = self._take(connection, said, live=set(live))
            if problem is not None:
                self._strangers.add(connection)
                rank_zero_warn(problem)

    def _take(self, connection: str, said: dict[str, Any] | Absence, *, live: set[str]) -> str | None:
        """Takes a new connection for what it says it is; gives the reason where it does not."""
        if isinstance(said, Absence):
            return f"A client that has connected is of no use: {said.reason}"
        try:
            who = read_introduction(said)
        except WireError as error:
            return f"A client that has connected is of no use: {error}"
        if self._reached.get(who.name) in live:
            return f"A second client named {who.name} has connected, and is not asked: names must differ"
        if who.name in self._known and self._known[who.name] != who:
            return f"{who.name} came back as another client (its training or its records changed), and is not asked"
        if who.name not in self._known and len(self._known) >= self.num_clients:
            return f"{who.name} has connected besides the {self.num_clients} clients of this run, and is not asked"
        self._known[who.name] = who
        self._reached[who.name] = connection
        if self._terms is not None:
            self._out.pop(who.name, None)
            self._out.update(self._begin([who.name], self._terms))
        return None

    # --- the run ---

    def begin(self, terms: Terms, *, folder: Path | None) -> Mapping[str, Absence]:
        """See `ClientConnection.begin`. Guarantees are written at the clients, and `folder` is not used."""
        self._terms = terms
        self._out = self._begin(sorted(self._known), terms)
        return dict(self._out)

    def _begin(self, names: Sequence[str], terms: Terms) -> dict[str, Absence]:
        message = pack("begin", **terms.to_dict())
        found = self._of_each(names, lambda proxy: self._tell(proxy, message))
        out = {name: said for name, said in found.items() if isinstance(said, Absence)}
        for name, absence in out.items():
            rank_zero_warn(f"{name} takes no part: {absence.reason}")
        return out

    def ask(self, question: Question) -> Mapping[str, torch.Tensor | Absence]:
        """See `ClientConnection.ask`. All clients are queried at the same time."""
        self._meet()
        arrays, config = pack_question(question)
        taking_part = [name for name in sorted(self._known) if name not in self._out]
        found = self._of_each(taking_part, lambda proxy: self._answer(proxy, arrays, config, question))
        return {**self._out, **found}

    def _answer(
        self, proxy: Any, arrays: list[bytes], config: dict[str, Scalar], question: Question
    ) -> torch.Tensor | Absence:
        said = self._send(proxy, config, arrays)
        if isinstance(said, Absence):
            return said
        try:
            return read_answer(said[1], said[0], question)
        except WireError as error:
            return Absence(f"its answer cannot be used: {error}")

    def end(self) -> None:
        """See `ClientConnection.end`. Clients end as well, once they have written what left them."""
        service, workers = self._service, self._workers
        if service is None or workers is None:
            return
        self._service = None
        live = dict(self._manager.all())
        message = pack("end")
        self._at_once(live, lambda proxy: self._tell(proxy, message))
        self._at_once(live, self._dismiss)
        service.stop(grace=1).wait(5)
        workers.shutdown(wait=False, cancel_futures=True)
        self._workers = None
        self._known, self._reached, self._strangers, self._terms, self._out = {}, {}, set(), None, {}

    # --- messages ---

    def _tell(self, proxy: Any, config: dict[str, Scalar]) -> dict[str, Any] | Absence:
        said = self._send(proxy, config, [])
        return said if isinstance(said, Absence) else said[0]

    def _send(
        self, proxy: Any, config: dict[str, Scalar], arrays: list[bytes]
    ) -> tuple[dict[str, Any], list[bytes]] | Absence:
        """Sends a message to a client, and gives values and arrays of its answer."""
        from flwr.common import FitIns, Parameters
        from flwr.server.superlink.fleet.grpc_bidi.grpc_bridge import GrpcBridgeClosed

        instruction = FitIns(Parameters(tensors=arrays, tensor_type=""), dict(config))
        begun = time.monotonic()
        try:
            reply = proxy.fit(instruction, timeout=self.timeout, group_id=None)
            kind, values = unpack(reply.metrics)
        except GrpcBridgeClosed:
            late = time.monotonic() - begun >= 0.99 * self.timeout
            return Absence(f"no answer within {self.timeout:g} s" if late else "its connection was lost")
        except Exception as error:  # Flower's own have no common class
            return Absence(f"its answer cannot be read: {str(error)[:200] or type(error).__name__}")
        if kind == "refusal":
            return Absence(str(values.get("reason", "it gave no reason"))[:1000])
        return values, list(reply.parameters.tensors)

    def _dismiss(self, proxy: Any) -> None:
        from flwr.common import ReconnectIns

        with suppress(Exception):
            proxy.reconnect(ReconnectIns(seconds=None), timeout=5.0, group_id=None)

    def _of_each(self, names: Sequence[str], act: Callable[[Any], _T]) -> dict[str, _T | Absence]:
        """What `act` gives for each of these clients that is connected, all at the same time."""
        live = dict(self._manager.all())
        connected = {name: live[self._reached[name] or ""] for name in names if self._reached[name] in live}
        found = self._at_once(connected, act)
        return {name: found.get(name, Absence("it is not connected")) for name in names}

    def _at_once(self, proxies: Mapping[str, Any], act: Callable[[Any], _T]) -> dict[str, _T | Absence]:
        assert self._workers is not None
        futures = {name: self._workers.submit(act, proxy) for name, proxy in proxies.items()}
        found: dict[str, _T | Absence] = {}
        for name, future in futures.items():
            try:
                # Flower ends a message by itself after `timeout`.
                found[name] = future.result(timeout=self.timeout + 30)
            except FutureTimeout:
                found[name] = Absence(f"no answer within {self.timeout:g} s")
        return found


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
