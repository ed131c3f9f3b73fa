"""Cost of a charge and of a reading of epsilon, against Opacus's RDP and PRV accountants.

``python -m benchmarks.accounting`` charges a million DP-SGD steps to every accountant, reads epsilon, prints a table of
ratios and writes it as JSON. A training loop that shows epsilon at every step pays one charge and one reading per step.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from opacus.accountants import create_accountant

from benchmarks.reporting import report
from privacy import Gaussian, Release, compose
from privacy.accountants import ExactAccountant

NOISE, RATE, DELTA = 1.1, 0.01, 1e-5


class GaussianLedger:
    """The counting that annotators do: releases to counts, read through ``compose``."""

    def __init__(self) -> None:
        self.counts: dict[Release, int] = {}

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        release = Gaussian(1.0 / noise_multiplier)
        self.counts[release] = self.counts.get(release, 0) + 1

    def get_epsilon(self, delta: float) -> float:
        return compose(self.counts, delta).epsilon


ACCOUNTANTS: dict[str, Callable[[], Any]] = {
    "opacus rdp": lambda: create_accountant("rdp"),
    "opacus prv": lambda: create_accountant("prv"),
    "privacy ExactAccountant": ExactAccountant,
    "privacy compose, Gaussian releases": GaussianLedger,
}


def measure(make: Callable[[], Any], steps: int, seconds: float) -> dict[str, Any]:
    """Microseconds per charge and per reading of one accountant, and its first epsilon.

    Args:
        make: Makes it.
        steps: Charges before the first reading.
        seconds: Time for the readings, each after one more charge so that no cache of results answers.
    """
    accountant = make()
    start = time.perf_counter()
    for _ in range(steps):
        accountant.step(noise_multiplier=NOISE, sample_rate=RATE)
    charge = (time.perf_counter() - start) / steps
    epsilon = accountant.get_epsilon(DELTA)
    spent, readings = 0.0, 0
    while readings < 2000 and (spent < seconds or readings == 0):
        accountant.step(noise_multiplier=NOISE, sample_rate=RATE)
        start = time.perf_counter()
        accountant.get_epsilon(DELTA)
        spent += time.perf_counter() - start
        readings += 1
    return {"charge_us": 1e6 * charge, "reading_us": 1e6 * spent / readings, "epsilon": float(epsilon)}


def table(result: dict[str, Any]) -> str:
    """The measurement as text; a ratio above 1 means that Opacus takes that many times as long."""
    title = f"{result['steps']} steps, noise {NOISE}, rate {RATE}, delta {DELTA:g}; ratios of a charge and a reading"
    head = f"{'accountant':36}{'charge us':>11}{'reading us':>13}{'vs rdp':>10}{'vs prv':>10}{'epsilon':>13}"
    rows = (
        f"{row['accountant']:36}{row['charge_us']:11.3f}{row['reading_us']:13.1f}{row['step_ratio_opacus_rdp']:10.1f}"
        f"{row['step_ratio_opacus_prv']:10.1f}{row['epsilon']:13.4f}"
        for row in result["rows"]
    )
    return "\n".join([title, head, *rows])


def main(args: list[str] | None = None) -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=2.0, help="time for the readings of each accountant")
    parser.add_argument("--output", type=Path, default=Path("results/benchmarks/accounting.json"))
    options = parser.parse_args(args)
    warnings.simplefilter("ignore")
    rows = [{"accountant": name, **measure(make, options.steps, options.seconds)} for name, make in ACCOUNTANTS.items()]
    cost = {row["accountant"]: row["charge_us"] + row["reading_us"] for row in rows}
    for row in rows:
        for base in ("opacus rdp", "opacus prv"):
            row[f"step_ratio_{base.replace(' ', '_')}"] = cost[base] / cost[row["accountant"]]
    report({"steps": options.steps, "rows": rows}, table, output=options.output)


if __name__ == "__main__":
    main()
