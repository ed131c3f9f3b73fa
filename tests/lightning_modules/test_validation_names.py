"""What a validation's accuracy is called says what it is of, and the former name is still followed."""

from __future__ import annotations

import json
import warnings
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


@pytest.mark.parametrize("monitor", [TEST_SPLIT, KEPT_APART])
def test_either_name_may_be_monitored_for_now(folder: Path, monitor: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cli = distil(model={"images": "prior", "generator": None}, epochs=3, trainer=stopped_by(monitor))
    assert cli.trainer.current_epoch == 1  # the threshold of 0 is met at once
    told = [str(entry.message) for entry in caught if "is called now" in str(entry.message)]
    assert bool(told) is (monitor == KEPT_APART)
    # In the files it has its own name alone.
    assert KEPT_APART not in Path("run/metrics.csv").read_text()


def test_without_the_alias_an_old_monitor_would_fail(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning_modules.runtime.validation.callbacks_of", lambda _: [])
    with pytest.raises(RuntimeError, match="which is not available"):
        distil(model={"images": "prior", "generator": None}, epochs=3, trainer=stopped_by(KEPT_APART))


def test_what_monitors_the_half_that_is_kept_apart_is_told_nothing(folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*is called now")
        cli = fit(selecting(epochs=3, trainer=stopped_by(KEPT_APART)))
    assert cli.trainer.current_epoch == 1
