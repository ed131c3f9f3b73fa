"""What a validation's accuracy is called says what it is of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.runs import configuration, distil, fit

TEST_SPLIT, KEPT_APART = "test_split/accuracy", "val/accuracy"


def stopped_by(monitor: str) -> dict[str, Any]:
    return {
        "callbacks": [
            {"class_path": "EarlyStopping", "init_args": {"monitor": monitor, "mode": "max", "stopping_threshold": 0}}
        ]
    }


def selecting(**settings: Any) -> dict[str, Any]:
    config = configuration(model={"images": "prior", "generator": None}, **settings)
    config["data"]["init_args"]["evaluation"] = "selection"
    return config


def test_of_the_test_split_it_says_so(folder: Path) -> None:
    cli = distil(model={"images": "prior", "generator": None})
    metrics = cli.trainer.callback_metrics
    assert TEST_SPLIT in metrics and KEPT_APART not in metrics
    record = json.loads(Path("run/result.json").read_text())
    assert record["curve_metric"] == TEST_SPLIT
    # The last point of the curve and the figure that is reported are one measurement.
    assert record["curve"][-1]["accuracy"] == pytest.approx(record["accuracy"], abs=1e-6)


def test_of_what_is_kept_apart_it_is_val(folder: Path) -> None:
    cli = fit(selecting())
    metrics = cli.trainer.callback_metrics
    assert KEPT_APART in metrics and TEST_SPLIT not in metrics
    record = json.loads(Path("run/result.json").read_text())
    assert record["curve_metric"] == KEPT_APART and len(record["curve"]) == 1
    assert record["config"]["data"]["init_args"]["evaluation"] == "selection"


@pytest.mark.slow
def test_a_metric_that_is_not_logged_cannot_be_monitored(folder: Path) -> None:
    with pytest.raises(RuntimeError, match="which is not available"):
        distil(model={"images": "prior", "generator": None}, epochs=3, trainer=stopped_by(KEPT_APART))
    cli = fit(selecting(epochs=3, trainer=stopped_by(KEPT_APART)))  # it is where it is logged
    assert cli.trainer.current_epoch == 1
