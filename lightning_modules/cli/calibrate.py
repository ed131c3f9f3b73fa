"""`LightningCLI calibrate --config FILE`: what a configuration costs, and what would meet a target."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from lightning_modules.base import DataFreeDistillation
from lightning_modules.cli.parsers import OptionParser
from privacy.account import Accounting
from privacy.accounting.calibration import Calibration, calibrate_count, calibrate_noise
from privacy.accounting.composition import compose
from privacy.annotators import Annotator
from privacy.published.claims import published_epsilon

__all__ = ["calibrate", "calibration_table", "planned_cost", "planned_epsilon"]

TARGETS = (0.1, 1.0, 2.0, 5.0, 10.0)
ACCOUNTINGS: tuple[Accounting, ...] = ("record", "published")


def epsilon_of(annotator: Annotator, calls: int, accounting: Accounting) -> float:
    """ε of `calls` calls of a bound annotator under either accounting, with no other release."""
    charge = annotator.charge
    if accounting == "record":
        return compose({charge.release: calls}, annotator.budget.delta).epsilon
    return math.inf if charge.claim is None else published_epsilon({charge.claim: calls}, annotator.budget.delta)


def calibration_table(annotator: Annotator, *, calls: int, targets: Sequence[float]) -> Table:
    """For each target: how many calls fit at the configured noise, and which noise the planned calls would need.

    Args:
        annotator: Bound to its batch size and class count; neither teacher nor data is needed.
        calls: Planned calls.
        targets: Targets for ε.
    """
    setting = annotator.noise_setting
    noise = getattr(annotator, setting)
    table = Table(box=box.SIMPLE_HEAD)
    for heading in (
        "target ε",
        "accounting",
        f"calls at {setting}={noise:g}",
        "ε",
        f"{setting} for {calls:,} calls",
        "ε",
    ):
        table.add_column(heading, justify="right")
    for target in targets:
        for accounting in ACCOUNTINGS:
            if math.isinf(epsilon_of(annotator, 1, accounting)):
                table.add_row(f"{target:g}", accounting, "none", "–", "none", "–")
                continue
            count = calibrate_count(lambda n: epsilon_of(annotator, n, accounting), target)  # noqa: B023 - used at once
            table.add_row(
                f"{target:g}",
                accounting,
                f"{int(count.value):,}",
                f"{count.epsilon:.5g}",
                *_noise(annotator, calls, target, accounting),
            )
    return table


def _noise(annotator: Annotator, calls: int, target: float, accounting: Accounting) -> tuple[str, str]:
    def spent(value: float) -> float:
        trial = copy.copy(annotator)
        setattr(trial, annotator.noise_setting, value if annotator.more_is_noisier else 1 / value)
        return epsilon_of(trial, calls, accounting)

    try:
        found: Calibration = calibrate_noise(spent, target)
    except ValueError:
        return "none", "–"
    setting = found.value if annotator.more_is_noisier else 1 / found.value
    return f"{setting:.6g}", f"{found.epsilon:.5g}"


def calibrate(args: Sequence[str], *, build: Callable[[Sequence[str]], Any]) -> None:
    """The command.

    Args:
        args: `--config FILE` and overrides as for `fit`, and optionally `--targets 0.5 1 2`.
        build: Turns the arguments of `fit` into the model and the data without running anything.

    Raises:
        ValueError: The configuration has no annotator, or does not say how many steps are planned.
    """
    # The rest is for the parser of `fit`, which knows every setting.
    parser = OptionParser(prog="LightningCLI calibrate", description=__doc__)
    parser.add_argument("--targets", type=float, nargs="+", default=None, help="Targets for epsilon.")
    options, rest = parser.parse_known_args(list(args))
    cli = build(rest)
    console = Console(width=118)
    for line in planned_cost(cli):
        console.print(line, highlight=False)
    annotator, calls = cli.model.annotator, _planned_calls(cli)
    chosen = options.targets or ([annotator.budget.target_epsilon] if annotator.budget.target_epsilon else TARGETS)
    console.print(calibration_table(annotator, calls=calls, targets=chosen))


def planned_cost(cli: Any) -> list[str]:
    """Releases and costs of a configuration, as lines of text; nothing is run and no teacher is read.

    Args:
        cli: Its model and data, built.

    Raises:
        ValueError: The configuration has no annotator, or does not say how many steps are planned.
    """
    if not isinstance(cli.model, DataFreeDistillation):
        raise ValueError(f"calibrate needs a model with an annotator, got {type(cli.model).__name__}")
    annotator, calls = cli.model.annotator, _planned_calls(cli)
    words = annotator.describe()
    record, published = (epsilon_of(annotator, calls, accounting) for accounting in ACCOUNTINGS)
    return [
        f"{words.mechanism}.",
        f"Unit: {words.unit}; relation: {words.relation}; δ = {annotator.budget.delta:g}.",
        f"As configured, {calls:,} calls: record-level ε = {record:.6g} (a bound); published ε = {published:.6g} "
        f"({_claim(words.published_source)}).",
    ]


def planned_epsilon(cli: Any) -> float:
    """Record-level ε of only what is planned, regardless of earlier queries to the same private data.

    Args:
        cli: See `planned_cost`.
    """
    return epsilon_of(cli.model.annotator, _planned_calls(cli), "record")


def _planned_calls(cli: Any) -> int:
    calls: int = cli.model.calls_of(int(cli.trainer.max_epochs) * len(cli.datamodule.train_dataloader()))
    if calls < 1:
        raise ValueError("trainer.max_epochs must be set, so that the number of planned steps is known")
    return calls


def _claim(source: str) -> str:
    return f"a claim of {source}, which bounds no record" if source else "no theorem of the papers is about it"
