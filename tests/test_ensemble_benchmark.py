"""The benchmark compares like with like: both ways end at the same bits, and it says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from lightning import seed_everything

from benchmarks.ensemble import main, one_after_another, same_bits, table
from datamodules import Digits, Shards
from lightning_modules import TeacherEnsemble
from lightning_modules.networks import SmallCNN

SMALL = ["--dataset", "Digits", "--teachers", "2", "3", "--steps", "3", "--batch-size", "16"]


def test_a_small_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([*SMALL, "--teachers-at-once", "2", "--output", str(tmp_path / "deep" / "ensemble.json")])
    result = json.loads((tmp_path / "deep" / "ensemble.json").read_text())
    assert [row["teachers"] for row in result["rows"]] == [2, 3]
    for row in result["rows"]:
        assert row["same_bits"] and row["together_vote_accuracy"] == row["one_after_another_vote_accuracy"]
        assert row["ratio"] == row["one_after_another_seconds"] / row["together_seconds"] > 0
    assert capsys.readouterr().out.strip() == table(result).strip()


def test_other_bits_are_noticed() -> None:
    data = Shards(dataset=Digits(), num_teachers=2, batch_size=16)
    data.setup("fit")
    seed_everything(0, verbose=False)
    module = TeacherEnsemble(num_classes=10, image_shape=(1, 8, 8), network=SmallCNN, steps=2)
    module.draw_seed = 1
    first, _ = one_after_another(module, data, device=torch.device("cpu"), threads=1)
    module.draw_seed = 2
    second, _ = one_after_another(module, data, device=torch.device("cpu"), threads=1)
    assert same_bits(first, first) and not same_bits(first, second)
