"""A federation on the loopback interface: clients in processes or threads of their own, the server in this one."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from support.federations import small_network
from support.runs import configuration

from lightning_modules.federated import Node, serve

ROOT = Path(__file__).resolve().parents[2]
NETWORK = {"class_path": "SmallCNN", "init_args": {"width": 4, "hidden": 16}}
TRUSTING = ("--target_epsilon", "null", "--trusts_server", "true")


def free_port() -> int:
    """One that nothing listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


def teacher_files(count: int) -> list[str]:
    """Files of small classifiers that say what they are."""
    files = []
    for number in range(count):
        content = {
            "state_dict": small_network(number).state_dict(),
            "hyper_parameters": {"network": NETWORK},
            "private_data": f"records of {number}",
        }
        torch.save(content, f"teacher{number}.pt")
        files.append(f"teacher{number}.pt")
    return files


def federation(clients: dict[str, Any], *, rounds: int, **model: Any) -> dict[str, Any]:
    """Configuration of a small fit whose clients are reached so."""
    whole = configuration("run", steps=rounds, class_path="FedDPSD")
    whole["model"]["init_args"] = {
        "clients": clients,
        "student": {"network": NETWORK},
        "images": {"source": "prior"},
        "mechanism": {"release": "ensemble", "noise_multiplier": 0.0},
        **model,
    }
    return whole


def remote(port: int, *, count: int = 2, timeout: float = 30.0) -> dict[str, Any]:
    """The clients of `federation`, on this port."""
    settings = {"num_clients": count, "address": f"127.0.0.1:{port}", "insecure": True, "timeout": timeout, "wait": 120}
    return {"class_path": "RemoteClients", "init_args": settings}


class Client:
    """`LightningCLI client` in a new process, in a group of its own."""

    def __init__(self, name: str, teacher: str, port: int, *options: str) -> None:
        self.name = name
        self.log = Path(f"{name}.txt")
        self.ledgers = Path(f"ledgers-{name}").resolve()
        arguments = [
            *("client", "--server", f"127.0.0.1:{port}", "--name", name, "--teacher", teacher, "--insecure", "true"),
            *("--num_records", "300", "--patience", "60", *(options or TRUSTING)),
        ]
        environment = {
            **os.environ,
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}",
            "OMP_NUM_THREADS": "1",
            "TRANSCRIPTION_LEDGERS": str(self.ledgers),
        }
        with self.log.open("a", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "lightning_modules", *arguments],
                env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    @property
    def said(self) -> str:
        """All that it has said."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def kill(self) -> None:
        """Ends it and whatever it started, at once."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def status(self, *, seconds: float = 60) -> int:
        """Its exit status."""
        return self._process.wait(timeout=seconds)

    def guarantee(self) -> dict[str, Any]:
        """The one that it wrote."""
        (file,) = Path("clients", self.name).glob("*/guarantee.json")
        said: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))["guarantee"]
        return said

    def charged(self) -> int:
        """Calls that its ledger counts, whole blocks where it was killed."""
        from privacy.ledger import Ledger

        (file,) = self.ledgers.glob("*.jsonl")
        header = json.loads(file.read_text(encoding="utf-8").splitlines()[0])
        book = Ledger(path=file, private_data=header["private_data"], run="reader")
        return sum(book.counts().values())


class InThread:
    """A client's whole process but for the process: answers in a thread of this one, and ends with the run."""

    def __init__(self, node: Node, port: int, **settings: Any) -> None:
        self.node = node
        self.error: Exception | None = None
        self._settings = {"server": f"127.0.0.1:{port}", "insecure": True, "patience": 20.0, "pause": 0.1, **settings}
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        try:
            serve(self.node, **self._settings)
        except Exception as error:
            self.error = error

    def ended(self, *, seconds: float = 20) -> bool:
        """Whether it ends within this time."""
        self._thread.join(seconds)
        return not self._thread.is_alive()


def certificates(folder: Path) -> tuple[str, str]:
    """Files of a server on the loopback interface: its certificate, by which clients check it, and its key."""
    certificate, key = str(folder / "server.pem"), str(folder / "server.key")
    made = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key, "-out", certificate]
    named = ["-days", "1", "-subj", "/CN=loopback", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(["openssl", "req", "-x509", *made, *named], check=True, capture_output=True)
    return certificate, key


@contextmanager
def started(make: Sequence[Callable[[], Client]]) -> Iterator[list[Client]]:
    """Clients that are ended whatever happens."""
    clients: list[Client] = []
    try:
        for one in make:
            clients.append(one())
        yield clients
    finally:
        for client in clients:
            client.kill()


def wait_until(condition: Callable[[], bool], *, seconds: float = 60) -> None:
    """Waits for something that another process does."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {seconds} s")
        time.sleep(0.02)
