"""`LightningCLI ledger`: shows a ledger of private data."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from privacy.account import Budget, PrivacyAccount
from privacy.checks import round_up
from privacy.guarantee import ONE_PERSON
from privacy.journal import LedgerError
from privacy.ledger import RECORDS, Ledger
from privacy.neighbours import Unit
from privacy.statement import about_place


def ledger(args: Sequence[str]) -> None:
    """The command: `show FILE`.

    Raises:
        LedgerError: The file is missing, damaged or of other data.
    """
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="LightningCLI ledger", description=__doc__)
    parser.add_argument("show", choices=["show"], help="Show what was spent, training by training.")
    parser.add_argument("file", type=Path, metavar="FILE", help="A ledger.")
    parser.add_argument("--delta", type=float, default=1e-5, help="Delta of every epsilon.")
    options = parser.parse_args(list(args))
    file, delta = options.file, options.delta
    book = Ledger(path=file, private_data=_private_data(file), run="reader")
    account = PrivacyAccount(ledger=book, budget=Budget(delta=delta))
    title = f"{book.private_data}, epsilon at delta = {delta:g} for one record, unless it says otherwise"
    table = Table(box=box.SIMPLE_HEAD, title=title)
    for heading in ("training", "of itself", "queries of it", "together"):
        table.add_column(heading, justify="left" if heading == "training" else "right")
    releases = book.releases_by_training()
    made, unmade = book.counts(), book.unmade()
    whose = ""
    for training in dict.fromkeys([*releases, *(charge.training for charge in [*made, *unmade])]):
        own = releases.get(training or "")
        counts, planned = (
            Counter({charge: count for charge, count in counted.items() if charge.training == training})
            for counted in (made, unmade)
        )
        name = {None: "not known", RECORDS: "records themselves"}.get(training, str(training))
        if any(release.unit is Unit.PERSON for release in own or ()):
            whose = f" ({ONE_PERSON})"  # also for the total, which is infinite with any other unit
            name += whose
        table.add_row(
            name,
            round_up(account.epsilon_of(own)) if own else "-",
            f"{sum(charge.queries * count for charge, count in counts.items()):,}",
            round_up(account.epsilon_of(own) if own else account.epsilon(counts=counts + planned)),
        )
    console = Console(width=118)
    console.print(table)
    console.print(
        f"All of it together{whose}: {round_up(account.epsilon_of_ledger())} (trainings: {len(releases)}, runs: "
        f"{len(book.runs())}). Queries of a teacher by DP-SGD are post-processing of its training; of a run that was "
        "stopped early its whole plan counts.",
        highlight=False,
    )
    for text in (
        f"It lies in {book.path}.",
        *(f"It counts what {path} held." for path in book.absorbed),
        *about_place(book),
    ):
        console.print(text, highlight=False, soft_wrap=True)


def _private_data(file: Path) -> str:
    try:
        with file.open(encoding="utf-8") as lines:
            header: dict[str, Any] = json.loads(lines.readline())
        return str(header["private_data"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LedgerError(f"{file} is not a ledger ({error})") from error
