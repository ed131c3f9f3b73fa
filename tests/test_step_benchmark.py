"""The benchmark of a step pairs what it compares and counts every phase once; how fast anything is, no test says."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from benchmarks import step
from benchmarks.step import Checkout, in_turns, main, ratio, seconds, table

REPOSITORY = Path(__file__).parents[1]


def test_a_quick_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--quick", "--output", str(tmp_path / "deep" / "step.json")])
    result = json.loads((tmp_path / "deep" / "step.json").read_text())
    assert capsys.readouterr().out.strip() == table(result).strip()
    rows = {row["step"]: row for row in result["methods"]}
    assert {name for name, row in rows.items() if "ratio_plain" in row} == {"DPDFD", "DPSD, gradients", "DPSD, labels"}
    assert {name for name, row in rows.items() if "ratio_opacus" in row} == {"DPDFD, group norm"}
    assert [(row["setting"], row["value"]) for row in result["growth"]] == [
        ("batch_size", 2),
        ("batch_size", 4),
        ("teachers", 2),
    ]
    for shares in result["phases"].values():
        # A busy machine takes the processor away between phases as well as in them.
        assert sum(shares.values()) == pytest.approx(1, abs=0.1)
        assert {"images", "teacher forward", "student forward", "backward", "privacy", "loop"} <= set(shares)


def test_the_document_shows_what_was_measured() -> None:
    result = json.loads((REPOSITORY / "results" / "benchmarks" / "step.json").read_text())
    document = (REPOSITORY / "docs" / "speed.md").read_text()
    assert table(result) in document
    result["methods"][0]["ms"] += 1
    assert table(result) not in document


def test_ratios_are_of_the_same_turn() -> None:
    # A machine that becomes ten times as slow in the middle of it.
    slow = iter([1.0, 1.0, 1.0, 10.0, 10.0, 10.0, 10.0, 10.0])
    speed = {"one": 2.0, "other": 1.0}
    found = in_turns({name: lambda name=name: speed[name] * next(slow) for name in speed}, 4)  # type: ignore[misc]
    assert found["one"] == [2.0, 20.0, 20.0, 20.0]
    assert ratio(found, "one", "other") == 2.0


@pytest.mark.slow
def test_another_checkout_is_measured(tmp_path: Path) -> None:
    options = argparse.Namespace(steps=1, warm_up=1, batch_size=4, classes=3, side=8, teachers=2)
    other = Checkout(REPOSITORY, threads=1)
    try:
        assert other.seconds("DPDFD", options) > 0
        with pytest.raises(RuntimeError, match="ended"):
            other.seconds("nothing of the kind", options)
    finally:
        other.close()
    assert seconds(step.OPACUS, options, folder=tmp_path) > 0
