"""`LightningCLI calibrate --config FILE`: shows a configuration's ε, and settings that meet target ε."""

from __future__ import annotations

import argparse
import copy
import math
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from lightning_modules.base import DataFreeDistillation
from lightning_modules.images import PoolSource
from lightning_modules.training.run import steps_planned
from privacy.account import Accounting, void_delta
from privacy.accounting.calibration import NO_LIMIT, calibrate_count, calibrate_noise
from privacy.accounting.composition import known_epsilon
from privacy.checks import round_down, round_up
from privacy.ledger import RECORDS, Ledger
from privacy.published import published_epsilon
from privacy.session import OWN, PrivacySession

TARGETS = (0.1, 1.0, 2.0, 5.0, 10.0)
_BY_TRAINING = "which nothing but that teacher's own training bounds"
ACCOUNTINGS: tuple[Accounting, ...] = ("record", "published")


def epsilon_of(session: PrivacySession, calls: int, accounting: Accounting) -> float:
    """ε of `calls` calls of a session's mechanism alone, under either accounting."""
    charge, budget = session.cost, session.budget
    if accounting == "record":
        return known_epsilon({charge.release: calls}, budget.delta, adaptive=budget.fully_adaptive)
    return math.inf if charge.claim is None else published_epsilon({charge.claim: calls}, budget.delta)


def calibration_table(session: PrivacySession, *, calls: int, targets: Sequence[float]) -> Table:
    """Tabulate per target ε the calls allowed at the configured noise, and the noise needed for the planned calls."""
    mechanism, setting = session.mechanism, session.mechanism.noise_setting

    def spent(noise: float, accounting: Accounting) -> float:
        trial, changed = copy.copy(session), {setting: noise if mechanism.more_is_noisier else 1 / noise}
        trial.mechanism = replace(mechanism, **changed)  # type: ignore[arg-type]
        return epsilon_of(trial, calls, accounting)

    table = Table(box=box.SIMPLE_HEAD)
    counts, noises = f"calls at {setting}={getattr(mechanism, setting):g}", f"{setting} for {calls:,} calls"
    for heading in ("target ε", "accounting", counts, "ε", noises, "ε"):
        table.add_column(heading, justify="right")
    for target in targets:
        for accounting in ACCOUNTINGS:
            cells = ["none", "–", "none", "–"]
            if math.isfinite(epsilon_of(session, 1, accounting)):
                count = calibrate_count(partial(epsilon_of, session, accounting=accounting), target)
                most = "no limit" if count.value == NO_LIMIT else f"{int(count.value):,}"
                cells[:2] = most, round_up(count.epsilon, digits=5)
                with suppress(ValueError):  # no noise is enough
                    found = calibrate_noise(partial(spent, accounting=accounting), target)
                    # Never round to less noise or to a smaller ε.
                    noise = round_up(found.value) if mechanism.more_is_noisier else round_down(1 / found.value)
                    cells[2:] = noise, round_up(found.epsilon)
            table.add_row(f"{target:g}", accounting, *cells)
    return table


def calibrate(args: Sequence[str], *, build: Callable[[Sequence[str]], Any]) -> None:
    """The command.

    Raises:
        ValueError: The configuration queries no teacher, or does not say how many steps are planned.
    """
    # The rest is for the parser of `fit`, which knows every setting.
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="LightningCLI calibrate", description=__doc__)
    parser.add_argument("--targets", type=float, nargs="+", default=None, help="Targets for epsilon.")
    options, rest = parser.parse_known_args(list(args))
    cli = build(rest)
    console = Console(width=118, highlight=False)
    console.print(*planned_cost(cli), sep="\n")
    teacher = cli.model.teacher_config.path
    uncounted = f"{teacher} does not exist: the ledger of its data is not counted."
    console.print(cost_in_ledger(cli) if Path(str(teacher)).is_file() else uncounted)
    session, calls = cli.model.session, planned_calls(cli)
    if not hasattr(session.mechanism, session.mechanism.noise_setting):
        return
    chosen = options.targets or ([session.budget.target_epsilon] if session.budget.target_epsilon else TARGETS)
    console.print(calibration_table(session, calls=calls, targets=chosen))


def planned_cost(cli: Any) -> list[str]:
    """Releases and costs of a configuration, as lines of text; nothing is run and no teacher is read.

    Raises:
        ValueError: The configuration queries no teacher, or does not say how many steps are planned.
    """
    if not isinstance(cli.model, DataFreeDistillation):
        raise ValueError(f"calibrate prices queries to a teacher; a fit of {type(cli.model).__name__} states its own ε")
    session, calls = cli.model.session, planned_calls(cli)
    words, reason = session.mechanism.describe(session.shape), _without_noise(cli)
    void = void_delta(session.budget.delta, cli.datamodule.num_records, cli.datamodule.private_data)
    meant = "the least target that allows it" if session.budget.fully_adaptive else "a bound"
    record, published = (epsilon_of(session, calls, accounting) for accounting in ACCOUNTINGS)
    claim = "; no theorem of the papers is about it"
    if words.published_source:
        claim = f"; published ε = {published:.6g} (a claim of {words.published_source}, which bounds no record)"
    return [
        f"{words.mechanism}.",
        f"Unit: {words.unit}; relation: {words.relation}; δ = {session.budget.delta:g}.",
        f"As configured, {calls:,} call{'s' * (calls != 1)}: record-level ε = {round_up(record)} "
        f"({'of its noisy releases alone' if reason else meant}){claim if session.budget.published else ''}.",
        *([f"It also uses, without noise, {reason[0]}."] if reason else []),
        *([f"If the teacher is of these data, no record-level ε holds: {void}."] if void else []),
    ]


def cost_in_ledger(cli: Any) -> str:
    """State the ε of the plan alone, and together with everything in the ledger of its data, which is only read.

    Raises:
        TeacherError: The teacher's file is missing or unusable.
        LedgerError: The ledger cannot be read.
    """
    teacher, given = cli.model.read_teacher(), cli.model.session
    filters = given.budget.filters
    budget = replace(given.budget, ledger=None, target_epsilon=filters and math.inf)  # in memory
    session = PrivacySession(given.mechanism, given.shape, budget=budget, unit=given.unit)
    session.open(private_data=teacher.private_data, num_records=teacher.num_records, training=teacher.training)
    if reason := _without_noise(cli):
        session.charge_nonprivate_access(reason[0], training=reason[1] or OWN)
    account = session.account
    planned = Counter({session.cost: planned_calls(cli)}) + account.counts(scope="run")
    own = account.epsilon(counts=planned)
    account.ledger.restore(planned)
    path, renamed = teacher.ledger_place(cli.datamodule).file(chosen=given.budget.ledger, training=teacher.training)
    there = path if path is not None and path.exists() else None
    known = Ledger(path=there, private_data=teacher.private_data, run="reader", renamed=renamed)
    if filters is not None:
        known.require_filters(filters)
    unit = account.neighbours(counts=planned)[0].value
    return (
        f"Of this teacher: {unit}-level ε = {round_up(own)} by this run; with all else in the ledger {path}: "
        f"{round_up(account.epsilon_of_ledger(known))}."
    )


def _without_noise(cli: Any) -> tuple[str, str | None] | None:
    """Returns a noiseless access of the run, if any, and the training that bounds it (None: the teacher's)."""
    model, data = cli.model, cli.datamodule
    if isinstance(model.images, PoolSource) and model.images.is_of({data.private_data}, [data.partition]):
        return "the private records themselves (images.pool), which nothing bounds", RECORDS
    if model.needs_gradients_of_teacher:
        return f"a teacher ({model.needs_gradients_of_teacher}), {_BY_TRAINING}", None
    baseline = getattr(getattr(model, "generator_phase", None), "baseline", None)
    return None if baseline in (None, "student") else (f"a teacher (generator_phase.baseline), {_BY_TRAINING}", RECORDS)


def planned_calls(cli: Any) -> int:
    """Number of calls of the mechanism in a whole fit.

    Raises:
        ValueError: The configuration does not say how many steps are planned, or makes no calls.
    """
    steps = steps_planned(cli.trainer, length=len(cli.datamodule.train_dataloader()))
    if cli.trainer.max_steps != -1 or not 1 <= steps < math.inf:
        raise ValueError("set trainer.max_epochs, and leave out trainer.max_steps: what is priced is a whole fit")
    calls: int = cli.model.calls_of(int(steps))
    if calls < 1:
        raise ValueError(f"{type(cli.model).__name__} does not query its teacher: its epsilon is the teacher's own")
    return calls
