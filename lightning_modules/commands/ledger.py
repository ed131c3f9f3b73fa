"""`LightningCLI ledger`: what a ledger of private data holds, and taking over one of an earlier version."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser
from rich import box
from rich.console import Console
from rich.table import Table

from privacy.account import PrivacyAccount
from privacy.formatting import round_up
from privacy.ledger import RECORDS, Ledger, LedgerError

__all__ = ["ledger"]


def ledger(args: Sequence[str]) -> None:
    """The command: `show FILE`, or `take-over OLD NEW [--training ID]`.

    Args:
        args: What follows the command.

    Raises:
        LedgerError: A file that is missing, damaged or about other data.
    """
    show = ArgumentParser(
        description="Show what was spent on a private data set, training by training.", allow_abbrev=False
    )
    show.add_argument("file", type=str, help="A ledger.")
    show.add_argument("--delta", type=float, default=1e-5, help="Delta of every figure.")
    take_over = ArgumentParser(
        allow_abbrev=False,
        description="Copy the charges of a ledger of version 1 into a new one. They do not say which training of a "
        "teacher they are about, so that no teacher's guarantee is applied to them.",
    )
    take_over.add_argument("old", type=str, help="The ledger of version 1; it stays as it is.")
    take_over.add_argument("new", type=str, help="The ledger to copy into, made where it is missing.")
    take_over.add_argument(
        "--training",
        type=str,
        default=None,
        help="Identity of the one training that ALL its charges are about, where you know that the teacher's file was "
        "never exchanged (`ledger show` and guarantee.md name identities).",
    )
    parser = ArgumentParser(prog="LightningCLI ledger", description=__doc__, allow_abbrev=False)
    commands = parser.add_subcommands(dest="command")
    commands.add_subcommand("show", show)
    commands.add_subcommand("take-over", take_over)
    chosen = parser.parse_args(list(args))
    options = chosen[chosen.command]
    if chosen.command == "show":
        _show(Path(options.file), delta=options.delta)
    else:
        _take_over(Path(options.old), Path(options.new), training=options.training)


def _show(file: Path, *, delta: float) -> None:
    book = Ledger(path=file, private_data=_header(file, version=2)["private_data"], run="reader")
    account = PrivacyAccount(ledger=book, delta=delta)
    table = Table(box=box.SIMPLE_HEAD, title=f"{book.private_data}, record-level epsilon at delta = {delta:g}")
    for heading in ("training", "of itself", "queries of it", "together"):
        table.add_column(heading, justify="left" if heading == "training" else "right")
    trained = book.trained()
    charges: dict[str | None, Counter[Any]] = {training: Counter() for training in trained}
    planned: dict[str | None, Counter[Any]] = {}
    for charge, count in book.counts().items():
        charges.setdefault(charge.training, Counter())[charge] += count
    for charge, count in book.unmade().items():
        charges.setdefault(charge.training, Counter())
        planned.setdefault(charge.training, Counter())[charge] += count
    for training, counts in charges.items():
        own = trained.get(training or "")
        name = {None: "not known", RECORDS: "records themselves"}.get(training, training)
        table.add_row(
            name,
            round_up(account.epsilon_of(own)) if own else "-",
            f"{sum(charge.queries * count for charge, count in counts.items()):,}",
            round_up(
                account.epsilon_of(own) if own else account.epsilon(counts=counts + planned.get(training, Counter()))
            ),
        )
    console = Console(width=118)
    console.print(table)
    console.print(
        f"All of it together: {round_up(account.epsilon_of_ledger())} ({len(trained)} trainings, {len(book.runs())} "
        "runs). Queries of a teacher by DP-SGD are post-processing of its training; of a run that was stopped "
        "early its whole plan counts.",
        highlight=False,
    )


def _take_over(old: Path, new: Path, *, training: str | None) -> None:
    book = Ledger(path=new, private_data=_header(old, version=1)["private_data"], run="take-over")
    if training is not None and training not in book.trained():
        raise LedgerError(
            f"training must be one that {new} knows ({', '.join(book.trained()) or 'none yet'}), got {training!r}: "
            "begin a run with that teacher and this ledger first"
        )
    count = book.take_over(old, training=training)
    Console(width=118).print(f"{count} block(s) of {old} taken over into {new}.", highlight=False)


def _header(file: Path, *, version: int) -> dict[str, Any]:
    try:
        with file.open(encoding="utf-8") as lines:
            header: dict[str, Any] = json.loads(lines.readline())
        if header["version"] != version or not isinstance(header["private_data"], str):
            raise ValueError(f"its version is {header['version']}, wanted is {version}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LedgerError(f"{file} is no ledger of version {version} ({error})") from error
    return header
