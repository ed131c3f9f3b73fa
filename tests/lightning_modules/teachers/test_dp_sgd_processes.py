"""DP-SGD in two processes: one sample, one noise and one plan, whatever their number."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from support.dp_teachers import SMALL, dp_sgd
from support.features import linear_spec
from support.processes import fit_in_processes, saved_by
from support.runs import checkpoint, fit

from datamodules import Digits
from datamodules.base import Part
from datamodules.records import ImageDataset
from lightning_modules.teachers.record_clipping import Clipping
from privacy.mechanisms.base import ReproducibleNoise


def configuration(folder: str, *, epochs: int = 1, **model: Any) -> dict[str, Any]:
    again = {"class_path": "ReproducibleNoise", "init_args": {"seed": 5}}
    settings = {"network": linear_spec(), "noise": again, "noise_multiplier": 1.0, **model}
    return dp_sgd(folder, epochs, data={"noise": again}, trainer={"callbacks": []}, **settings)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(ReproducibleNoise, "secure", True)  # charged as if it could not be drawn again
    return tmp_path


def parameters(state: dict[str, Any]) -> torch.Tensor:
    return torch.cat([values.flatten() for name, values in sorted(state.items()) if name.startswith("network.")])


@pytest.mark.parametrize(
    "model",
    [
        pytest.param({}, id="linear"),
        pytest.param({"network": SMALL, "clipping": {"physical_batch_size": 17}}, id="flat", marks=pytest.mark.slow),
    ],
)
def test_two_processes_train_and_are_charged_as_one(folder: Path, model: dict[str, Any]) -> None:
    fit_in_processes(configuration("two", **model))
    first, second = (parameters(saved_by(rank)["weights"]) for rank in range(2))
    assert torch.equal(first, second)
    fit(configuration("one", **model))
    one, two = checkpoint("one"), checkpoint("two")
    assert torch.allclose(parameters(one["state_dict"]), first, atol=1e-5)
    assert one["dp_sgd"] == two["dp_sgd"] and one["training"]["releases"] == two["training"]["releases"]
    assert one["dp_sgd"]["plan"]["planned_calls"] == 3
    # Charges do not depend on the number of processes, so that it may change on resuming.
    fit(configuration("two", epochs=2, **model), "--ckpt_path=two/checkpoints/last.ckpt")
    ((release, count),) = checkpoint("two")["training"]["releases"]
    assert (release["noise_multiplier"], release["sample_rate"], count) == (1.0, pytest.approx(128 / 1275), 6)


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("stale", ["records", "settings"])
def test_a_stale_copy_of_records_or_settings_is_refused(
    stale: str, broken: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, both = Digits.read, Digits(val_fraction=0.1)
    both.setup("fit")
    ids = both.train_records.ids
    # Shares are every other record: of a copy that lacks the first one, half of all are in the other process's as well.
    assert torch.isin(ids[0::2], ids[1:][1::2]).sum() > len(ids) // 2 - 2

    def without_one(self: Digits, part: Part) -> ImageDataset:
        records = read(self, part)
        return records.select(records.ids != ids[0]) if os.environ.get("LOCAL_RANK") == "1" else records

    def another(kind: type, given: Any, *, name: str) -> Clipping:  # ten times the norm that the noise is for
        return Clipping(max_grad_norm=1.0 if os.environ.get("LOCAL_RANK") == "1" else 0.1)

    if stale == "records":
        monkeypatch.setattr(Digits, "read", without_one)
    else:
        monkeypatch.setattr("lightning_modules.teachers.dp_sgd.settings_of", another)
    if broken:
        monkeypatch.setattr("lightning_modules.teachers.dp_sgd.require_same", lambda *given: None)
    ended = fit_in_processes(configuration("two"), check=False)
    assert [end.code == 0 for end in ended] == [broken, broken]
    assert any("the processes have different private records or settings" in end.printed for end in ended) is not broken
