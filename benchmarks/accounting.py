"""Cost of a charge and of a reading of epsilon, against Opacus's RDP and PRV accountants.

``python -m benchmarks.accounting`` charges a million DP-SGD steps to every accountant, reads epsilon, prints a table of
ratios and writes it as JSON. A training loop that shows epsilon at every step pays one charge and one reading per step.
"""

from __future__ import annotations

import argparse
import platform
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from opacus.accountants import create_accountant

from benchmarks.reporting import report
from privacy import Gaussian, Release, compose
from privacy.accountants import ExactAccountant, RDPAccountant

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
    "privacy RDPAccountant": RDPAccountant,
    "privacy ExactAccountant": ExactAccountant,
    "privacy compose, Gaussian releases": GaussianLedger,
}


def time_charges(accountant: Any, steps: int) -> float:
    """Seconds per charge over ``steps`` equal steps."""
    start = time.perf_counter()
    for _ in range(steps):
        accountant.step(noise_multiplier=NOISE, sample_rate=RATE)
    return (time.perf_counter() - start) / steps


def time_readings(accountant: Any, *, seconds: float, most: int = 2000) -> tuple[float, float, int]:
    """Seconds per reading, each after one more charge so that no cache of results answers; first epsilon; readings."""
    epsilon = accountant.get_epsilon(DELTA)
    spent, readings = 0.0, 0
    while readings < most and (spent < seconds or readings == 0):
        accountant.step(noise_multiplier=NOISE, sample_rate=RATE)
        start = time.perf_counter()
        accountant.get_epsilon(DELTA)
        spent += time.perf_counter() - start
        readings += 1
    return spent / readings, float(epsilon), readings


def measure(steps: int, seconds: float) -> dict[str, Any]:
    """Time every accountant.

    Args:
        steps: charges before the first reading.
        seconds: time to spend on the readings of each accountant.
    """
    rows: list[dict[str, Any]] = []
    for name, make in ACCOUNTANTS.items():
        accountant = make()
        charge = time_charges(accountant, steps)
        reading, epsilon, readings = time_readings(accountant, seconds=seconds)
        rows.append(
            {
                "accountant": name,
                "charge_us": 1e6 * charge,
                "reading_us": 1e6 * reading,
                "readings": readings,
                "epsilon": epsilon,
            }
        )
    for row in rows:
        for base in ("opacus rdp", "opacus prv"):
            other = next(r for r in rows if r["accountant"] == base)
            key = base.replace(" ", "_")
            row[f"charge_ratio_{key}"] = other["charge_us"] / row["charge_us"]
            row[f"reading_ratio_{key}"] = other["reading_us"] / row["reading_us"]
            row[f"step_ratio_{key}"] = (other["charge_us"] + other["reading_us"]) / (
                row["charge_us"] + row["reading_us"]
            )
    return {
        "steps": steps,
        "noise_multiplier": NOISE,
        "sample_rate": RATE,
        "delta": DELTA,
        "rows": rows,
        "hardware": f"{platform.machine()}, {platform.system()}, one thread",
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("opacus", "numpy", "scipy")},
        },
    }


def table(result: dict[str, Any]) -> str:
    """The measurement as text; a ratio above 1 means that Opacus takes that many times as long."""
    head = f"{'accountant':36}{'charge us':>11}{'reading us':>13}{'vs rdp':>10}{'vs prv':>10}{'epsilon':>13}"
    lines = [
        f"{result['steps']} steps, noise {NOISE}, rate {RATE}, delta {DELTA:g}; ratios of a charge and a reading",
        head,
    ]
    lines += [
        f"{row['accountant']:36}{row['charge_us']:11.3f}{row['reading_us']:13.1f}{row['step_ratio_opacus_rdp']:10.1f}"
        f"{row['step_ratio_opacus_prv']:10.1f}{row['epsilon']:13.4f}"
        for row in result["rows"]
    ]
    return "\n".join(lines)


def main(args: list[str] | None = None) -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=2.0, help="time for the readings of each accountant")
    parser.add_argument("--output", type=Path, default=Path("results/benchmarks/accounting.json"))
    options = parser.parse_args(args)
    warnings.simplefilter("ignore")
    result = measure(options.steps, options.seconds)
    report(result, table(result), output=options.output)


if __name__ == "__main__":
    main()
