"""Digests that change where outcomes do not: records and folders follow, those that were out of date do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.sweep_fits import SPEC, Fits

from lightning_modules.cli import main
from sweeps.runner.store import Store
from sweeps.runner.tables.digests import current_digests, replace_digests
from sweeps.runner.tables.records import run_table
from sweeps.runner.tables.spec import TableSpec

RECORDS = Path("results/tables/t/smoke/records")


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TableSpec:
    monkeypatch.chdir(tmp_path)
    Path("teacher.yaml").write_text("a: 1")
    Path("student.yaml").write_text("a: 2")
    Path("sweeps/tables").mkdir(parents=True)
    Path("sweeps/tables/t.yaml").write_text(yaml.safe_dump(SPEC, sort_keys=False))
    return TableSpec.read("t")


def measured(**options: Any) -> tuple[Fits, list[str]]:
    fits, said = Fits(), []
    run_table(TableSpec.read("t"), preset="smoke", run=fits, say=said.append, **options)
    return fits, said


def digests() -> dict[str, str]:
    return {path.name: json.loads(path.read_text())["digest"] for path in RECORDS.iterdir()}


def rename_a_setting() -> None:
    Path("student.yaml").write_text("b: 2")


def test_records_and_folders_follow_a_setting_that_is_renamed(spec: TableSpec) -> None:
    measured()
    main(["tables", "digests", "cells.json"])
    before = digests()
    rename_a_setting()
    assert current_digests(Path("results/tables")) == []
    main(["tables", "migrate", "cells.json"])
    after = digests()
    assert not set(before.values()) & set(after.values())
    assert after == {f"{cell.name}.json": cell.fit.digest for cell in TableSpec.read("t").cells("smoke")}
    assert len(current_digests(Path("results/tables"))) == 3
    assert measured()[0].asked == []


def test_without_it_all_would_be_made_again_and_named(spec: TableSpec) -> None:
    measured()
    rename_a_setting()
    fits, said = measured()
    assert fits.sizes == ["1", "2", "3"]
    named = [line for line in said if "charged again" in line]
    assert len(named) == 3 and "student (size 1): made before, of another configuration, as student-" in named[0]


def test_a_record_that_was_out_of_date_stays_so(spec: TableSpec) -> None:
    measured()
    stale = RECORDS / "2_seed0.json"
    stale.write_text(json.dumps({**json.loads(stale.read_text()), "digest": "of something else"}))
    before = current_digests(Path("results/tables"))
    assert [entry["cell"]["size"] for entry in before] == ["1", "3"]
    rename_a_setting()
    assert replace_digests(before, results=Path("results/tables"), store=Store("runs/tables")) == 2
    assert digests()["2_seed0.json"] == "of something else"


def test_a_record_that_was_measured_since_is_not_touched(spec: TableSpec) -> None:
    measured()
    before = current_digests(Path("results/tables"))
    newer = RECORDS / "1_seed0.json"
    newer.write_text(json.dumps({**json.loads(newer.read_text()), "digest": "newer"}))
    rename_a_setting()
    replace_digests(before, results=Path("results/tables"), store=Store("runs/tables"))
    assert digests()["1_seed0.json"] == "newer"


def test_a_cell_that_is_gone_is_named_before_anything_is_written(spec: TableSpec) -> None:
    measured()
    before = current_digests(Path("results/tables"))
    kept = digests()
    (RECORDS / "3_seed0.json").unlink()
    rename_a_setting()
    with pytest.raises(ValueError, match="1 of them have no cell and record"):
        replace_digests(before, results=Path("results/tables"), store=Store("runs/tables"))
    assert digests() == {name: digest for name, digest in kept.items() if name != "3_seed0.json"}


def as_version_1(spec: TableSpec) -> None:
    """The folders as the runner of version 1 left them."""
    measured()
    for cell in spec.cells("smoke"):
        for fit in cell.fit.lineage():
            new, old = (Path("runs/tables") / name for name in (fit.folder_name, fit.former_folder_name))
            if new.exists():
                new.rename(old)
                note = {"time": 1.0, "table": "t", "preset": "smoke", "fit": fit.fit.name, "labels": dict(fit.labels)}
                (old / "done.json").write_text(json.dumps({**note, "digest": fit.former_digest, "seconds": 8.0}))
    for path in Path("runs/tables/claims").iterdir():
        path.unlink()


def test_what_version_1_made_is_found_again(spec: TableSpec) -> None:
    as_version_1(spec)
    fits, said = measured()
    assert fits.asked == [] and said[0] == "[t smoke] 4 done, 0 running, 0 left"
    assert not any("charged again" in line for line in said)
    # A changed value is another fit as ever, of the teacher that is there.
    Path("student.yaml").write_text("a: 3")
    assert measured()[0].sizes == ["1", "2", "3"]


def test_unless_it_were_sought_it_would_be_made_again(spec: TableSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    as_version_1(spec)
    monkeypatch.setattr(Store, "adopt", lambda *_, **__: False)
    assert len(measured()[0].asked) == 4


def test_what_version_1_began_goes_on_and_its_claim_counts(spec: TableSpec) -> None:
    as_version_1(spec)
    cell = spec.cells("smoke")[0]
    (Path("runs/tables") / cell.fit.former_folder_name / "done.json").unlink()
    fits, _ = measured()
    assert fits.sizes == ["1"] and "ckpt_path" in fits.asked[0]
    store = Store("runs/tables")
    with store.claim(cell.fit.former_folder_name) as first, store.claim(cell.fit.folder_name) as second:
        assert first and not second
