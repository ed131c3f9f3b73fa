"""`LightningCLI client --server HOST:PORT ...`: one client of a federation, on the machine that holds its data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jsonargparse import ArgumentParser

from lightning_modules.federated import Node, serve
from lightning_modules.networks import NetworkCallable
from lightning_modules.setting_checks import check_number
from privacy.checks import check_delta


@dataclass(frozen=True, kw_only=True)
class ClientSettings:
    """One client.

    Attributes:
        server: HOST:PORT of the server.
        name: Name of this client in the federation, which must be unique.
        teacher: File of the classifier that was trained on this client's records.
        target_epsilon: Epsilon, for the unit of this client's guarantee, that all runs together may spend; null for no
            limit, which is required if the server adds the noise.
        teacher_network: Builds the classifier that the file is of, if it does not say.
        folder: Folder for guarantees, which are written to NAME/RUN in it.
        delta: Delta of this client's guarantees, below one over the number of its records.
        fully_adaptive: Let target_epsilon hold also against a server that chooses later runs by earlier answers.
        max_starts: How often the server may begin a run, or go on with one after a restart.
        trusts_server: Send gradients without noise, for the server to add noise to their sum.
        num_records: Number of records, if the teacher's file does not say.
        ledger: The ledger file. Default: the one of the private data.
        root_certificates: PEM file with certificates to verify the server's. Default: those that gRPC brings.
        insecure: Do without TLS, for tests on the loopback interface or inside an encrypted network.
        patience: Seconds without a server after which to give up.
    """

    server: str
    name: str
    teacher: str
    target_epsilon: float | None
    teacher_network: NetworkCallable | None = None
    folder: str = "clients"
    delta: float = 1e-5
    fully_adaptive: bool = False
    max_starts: int = 10
    trusts_server: bool = False
    num_records: int | None = None
    ledger: str | None = None
    root_certificates: str | None = None
    insecure: bool = False
    patience: float = 600.0

    def __post_init__(self) -> None:
        check_number("target_epsilon", self.target_epsilon, above=0, null="no limit")
        check_number("patience", self.patience, above=0)
        check_delta(self.delta)
        if self.insecure and self.root_certificates is not None:
            raise ValueError("root_certificates are for TLS, which insecure does without: leave one of the two out")


def client(args: Sequence[str]) -> None:
    """The command, which answers the server until the run ends.

    Raises:
        ValueError: A setting is invalid.
        FederationError: No server was reached.
    """
    parser = ArgumentParser(prog="LightningCLI client", description=__doc__, allow_abbrev=False)
    parser.add_argument("--config", action="config", help="File that holds these settings.")
    parser.add_class_arguments(ClientSettings)
    given = parser.instantiate(parser.parse_args(list(args))).as_dict()
    settings = dict(vars(ClientSettings(**{name: value for name, value in given.items() if name != "config"})))
    connection = {name: settings.pop(name) for name in ("server", "root_certificates", "insecure", "patience")}
    serve(Node(folder=Path(settings.pop("folder")) / settings["name"], **settings), **connection)
