"""What is said of the papers' claims follows from records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sweeps.runner.findings import Finding, findings, holds
from sweeps.runner.fit import RunnerError
from sweeps.runner.rows import RECORDS, write_records

VALUES = {"a": [90.0], "b": [91.5], "k 2": [88.0, 95.0], "c": [float("inf")]}


@pytest.mark.parametrize(
    ("relation", "held"),
    [
        ("a < b", True),
        ("b < a", False),
        ("a = b", False),
        ("a <= b", True),
        ("b <= a", False),
        ("a = 90.9", True),
        ("a <= 89.5", True),  # within the margin
        ("a > 50 < b; a < b", True),
        ("a > 50 < b; b < a", False),
        ("k 2 > a", None),  # above it by 1.5, and its own seeds differ by more
        ("k 2 > a; b < a", False),
        ("c <= 10", False),
        ("c > a", True),
    ],
)
def test_a_relation_is_of_means_beyond_margin_and_spread(relation: str, held: bool | None) -> None:
    assert holds(relation, VALUES, margin=1.0) is held


@pytest.mark.parametrize("relation", ["a", "a < d", "a < b; d > a", ""])
def test_a_relation_that_compares_nothing_known_is_refused(relation: str) -> None:
    with pytest.raises(RunnerError, match="compares numbers and"):
        holds(relation, VALUES)


CELLS = {"clipped": {"bounding": "clip"}, "normalised": {"bounding": "normalize"}}


def claim(**changes: Any) -> Finding:
    values = {"table": "dpdfd-fig2", "over": {"C": ["1e-5", "1e-4"]}, "cells": CELLS, "holds": "clipped < normalised"}
    return Finding(paper="DPDFD", where="Fig. 2", claim="x", **{**values, **changes})


def test_a_verdict_follows_from_the_records_of_all_cases(tmp_path: Path) -> None:
    def verdict(*clipped: float) -> tuple[str, str]:
        cells = [("normalize", "1e-5", 0.95), ("normalize", "1e-4", 0.95)]
        cells += [("clip", C, value) for C, value in zip(("1e-5", "1e-4"), clipped, strict=False)]
        records = [
            {"cell": {"dataset": "MNIST", "bounding": bounding, "C": C}, "accuracy": value, "seed": 0}
            for bounding, C, value in cells
        ]
        write_records(tmp_path / "dpdfd-fig2" / "cpu" / RECORDS, records)
        return claim().decide(tmp_path)

    assert verdict()[0] == "untested"
    assert verdict(0.5) == ("holds", "[dpdfd-fig2](tables/dpdfd-fig2.md): 1e-5: clipped 50 (1), "
                            "normalised 95 (1); 1e-4: normalised 95 (1)")  # fmt: skip
    assert verdict(0.5, 0.6)[0] == "holds" and verdict(0.5, 0.949)[0] == "in part"
    assert verdict(0.96, 0.949)[0] == "does not hold"


def test_a_claim_names_one_row_for_each_cell(tmp_path: Path) -> None:
    for over in ({}, {"C": ["3"]}):
        with pytest.raises(RunnerError, match="must name one row of dpdfd-fig2"):
            claim(over=over).decide(tmp_path)


def test_no_verdict_is_typed_where_a_record_decides() -> None:
    for one in findings():
        assert bool(one.verdict) != bool(one.holds) and bool(one.verdict) == bool(one.because)
