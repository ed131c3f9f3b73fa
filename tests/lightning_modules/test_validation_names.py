"""What a validation's accuracy is called says what it is of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.runs import configuration, distil, fit

TEST_SPLIT, KEPT_APART = "test_split/accuracy", "val/accuracy"


def test_of_the_test_split_it_says_so(folder: Path) -> None:
    cli = distil(model={"images": "prior", "generator": None})
    metrics = cli.trainer.callback_metrics
    assert TEST_SPLIT in metrics and KEPT_APART not in metrics
    record = json.loads(Path("run/result.json").read_text())
    assert record["curve_metric"] == TEST_SPLIT
    # The last point of the curve and the figure that is reported are one measurement.
    assert record["curve"][-1]["accuracy"] == pytest.approx(record["accuracy"], abs=1e-6)


def test_of_what_is_kept_apart_it_is_val(folder: Path) -> None:
    config = configuration(model={"images": "prior", "generator": None})
    config["data"]["init_args"]["evaluation"] = "selection"
    cli = fit(config)
    metrics = cli.trainer.callback_metrics
    assert KEPT_APART in metrics and TEST_SPLIT not in metrics
    record = json.loads(Path("run/result.json").read_text())
    assert record["curve_metric"] == KEPT_APART and len(record["curve"]) == 1
    assert record["config"]["data"]["init_args"]["evaluation"] == "selection"
