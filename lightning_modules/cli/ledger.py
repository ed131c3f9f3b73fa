"""`LightningCLI ledger show FILE`: shows a ledger of private data."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from privacy.account import Budget, PrivacyAccount
from privacy.checks import round_up
from privacy.events.base import Unit
from privacy.guarantee import ONE_PERSON
from privacy.journal import LedgerError
from privacy.ledger import RECORDS, Ledger
from privacy.ledger_place import ledger_at


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
    if (file := ledger_at(options.file)) is None:
        raise LedgerError(f"{options.file} is not a ledger")
    book = Ledger(path=file, private_data="", run="reader", renamed=True)
    account = PrivacyAccount(ledger=book, budget=Budget(delta=options.delta))
    title = f"{book.private_data}, epsilon at delta = {options.delta:g} for one record, unless it says otherwise"
    table = Table("training", box=box.SIMPLE_HEAD, title=title)
    for heading in ("training ε", "queries", "total ε"):
        table.add_column(heading, justify="right")
    releases, made, unmade = book.releases_by_training(), book.counts(), book.unmade()
    names, whose = {None: "not known", RECORDS: "records themselves"}, ""
    for training in dict.fromkeys([*releases, *(charge.training for charge in [*made, *unmade])]):
        own = releases.get(training or "")
        planned = Counter({charge: count for charge, count in (made + unmade).items() if charge.training == training})
        queries = sum(charge.queries * count for charge, count in made.items() if charge.training == training)
        by_person = any(release.unit is Unit.PERSON for release in own or ())
        whose = f" ({ONE_PERSON})" if by_person else whose  # also for the total, which is infinite with any other unit
        table.add_row(
            f"{names.get(training, training)}{whose if by_person else ''}",
            round_up(account.epsilon_of(own)) if own else "-",
            f"{queries:,}",
            round_up(account.epsilon_of(own) if own else account.epsilon(counts=planned)),
        )
    console = Console(width=118)
    console.print(table)
    lines = (
        f"Total ε in the ledger{whose}: {round_up(account.epsilon_of_ledger())} (trainings: {len(releases)}, runs: "
        f"{len(book.runs())}). Queries of a teacher by DP-SGD are post-processing of its training; of a run that was "
        "stopped early its whole plan counts.",
        f"Each ε holds for fewer than 1/delta = {1 / options.delta:,.0f} private records, whose number no ledger has: "
        "of more, one may be published outright at this delta. Then give a smaller --delta.",
        f"It lies in {book.path}.",
    )
    console.print(*lines, sep="\n", highlight=False, soft_wrap=True)
