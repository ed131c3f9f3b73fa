"""`LightningCLI client --server HOST:PORT ...`: one client of a federation, on the machine that holds its data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jsonargparse import ArgumentParser

from lightning_modules.federated import Node, serve
from lightning_modules.networks import NetworkCallable
from lightning_modules.setting_checks import check_number
from privacy.checks import check_delta


def client(args: Sequence[str]) -> None:
    """The command, which answers the server until the run ends.

    Raises:
        ValueError: A setting is invalid.
        FederationError: No server was reached.
    """
    parser = ArgumentParser(prog="LightningCLI client", description=__doc__, allow_abbrev=False)
    parser.add_argument("--config", action="config", help="File that holds these settings.")
    parser.add_function_arguments(_client)
    chosen = parser.instantiate(parser.parse_args(list(args)))
    _client(**{name: value for name, value in chosen.as_dict().items() if name != "config"})


def _client(
    *,
    server: str,
    name: str,
    teacher: str,
    target_epsilon: float | None,
    teacher_network: NetworkCallable | None = None,
    folder: str = "clients",
    delta: float = 1e-5,
    fully_adaptive: bool = False,
    max_starts: int = 10,
    trusts_server: bool = False,
    num_records: int | None = None,
    ledger: str | None = None,
    root_certificates: str | None = None,
    insecure: bool = False,
    patience: float = 600.0,
) -> None:
    """One client.

    Args:
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
        root_certificates: PEM file with certificates to verify the server's. Default: the system's.
        insecure: Do without TLS, for tests on the loopback interface or inside an encrypted network.
        patience: Seconds without a server after which to give up.
    """
    check_number("target_epsilon", target_epsilon, above=0, null="no limit")
    check_number("patience", patience, above=0)
    if insecure and root_certificates is not None:
        raise ValueError("root_certificates are for TLS, which insecure does without: leave one of the two out")
    node = Node(
        name=name,
        teacher=teacher,
        folder=Path(folder) / name,
        teacher_network=teacher_network,
        target_epsilon=target_epsilon,
        delta=check_delta(delta),
        fully_adaptive=fully_adaptive,
        max_starts=max_starts,
        trusts_server=trusts_server,
        ledger=ledger,
        num_records=num_records,
    )
    serve(node, server=server, root_certificates=root_certificates, insecure=insecure, patience=patience)
