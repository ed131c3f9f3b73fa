"""The benchmark of a step pairs what it compares; how fast anything is, no test says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.step import main, table

REPOSITORY = Path(__file__).parents[1]


def test_a_quick_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--quick", "--output", str(tmp_path / "deep" / "step.json")])
    result = json.loads((tmp_path / "deep" / "step.json").read_text())
    assert capsys.readouterr().out.strip() == table(result).strip()
    rows = {row["step"]: row for row in result["methods"]}
    assert {name for name, row in rows.items() if "ratio_plain" in row} == {"DPDFD", "DPSD, gradients", "DPSD, labels"}
    assert {name for name, row in rows.items() if "ratio_opacus" in row} == {"DPDFD, group norm"}


def test_the_document_shows_what_was_measured() -> None:
    result = json.loads((REPOSITORY / "results" / "benchmarks" / "step.json").read_text())
    document = (REPOSITORY / "docs" / "speed.md").read_text()
    assert table(result) in document
    result["methods"][0]["ms"] += 1
    assert table(result) not in document
