"""The examples run, and are as short as they say."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 60


def test_dpdfd_from_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.spec_from_file_location("example", next(path for path in EXAMPLES if path.stem == "dpdfd"))
    assert spec is not None and spec.loader is not None
    example: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    student = example.main(tmp_path / "run", teacher_epochs=1, steps=2)
    assert student.steps_done == 2
    stated = json.loads((tmp_path / "run" / "public" / "guarantee.json").read_text())["guarantee"]
    assert stated["epsilon"] == student.guarantee().epsilon > 1000
