"""The benchmark compares like with like: all ways end at the same weights, and it says how far they are apart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import records
from benchmarks.records import main, table


@pytest.mark.parametrize("broken", [False, True])
def test_a_small_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    if broken:  # no steps
        monkeypatch.setattr(records, "steps_of_ours", lambda *given, **sizes: None)
    sizes = ["--sizes", "300x20x100", "--steps", "1", "--repeats", "1", "--physical", "32"]
    main([*sizes, "--output", str(tmp_path / "deep" / "records.json")])
    result = json.loads((tmp_path / "deep" / "records.json").read_text())
    (row,) = result["rows"]
    assert (row["records"], row["features"], row["batch"]) == (300, 20, 100)
    assert row["ratio_opacus"] == row["opacus_seconds"] / row["linear_seconds"] > 0
    assert (row["relative_difference"] < 1e-4) is not broken
    assert capsys.readouterr().out.strip() == table(result).strip()
