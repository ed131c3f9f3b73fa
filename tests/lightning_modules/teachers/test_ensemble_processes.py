"""An ensemble in two processes: the same teachers, to the last bit, whoever trained them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.dp_teachers import SMALL
from support.ensembles import of_shards
from support.processes import fit_in_processes, saved_by
from support.runs import checkpoint, fit

from lightning_modules import TeacherEnsemble


def configuration(folder: str, *, epochs: int = -1, at_once: int = 3, **model: Any) -> dict[str, Any]:
    settings = {"network": SMALL, "steps": 4, "teachers_at_once": at_once, **model}
    data = {"num_teachers": 4, "batch_size": 16, "steps_per_epoch": 2}
    return of_shards(folder, epochs, data=data, trainer={"callbacks": []}, **settings)


def teachers(folder: str) -> dict[str, torch.Tensor]:
    found = checkpoint(folder)["ensemble"]
    assert found["done"] == 4
    weights: dict[str, torch.Tensor] = found["weights"]
    return weights


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_two_processes_train_the_same_teachers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last chunk is of one teacher, so that a process has none."""
    fit(configuration("one"))
    one = teachers("one")
    fit_in_processes(configuration("part", epochs=2))
    assert checkpoint("part")["ensemble"]["done"] == 3
    fit_in_processes(configuration("part"), "--ckpt_path=part/checkpoints/last.ckpt")
    assert same(teachers("part"), one)
    assert not saved_by(0)["error"] and not any("anchor" in name for name in checkpoint("part")["state_dict"])
    # Negative control: a process numbers its own teachers from 0.
    monkeypatch.setattr(TeacherEnsemble, "own_chunk", property(lambda self: range(len(_own(self)))))
    fit_in_processes(configuration("broken"))
    assert not same(teachers("broken"), one)


_own: Any = TeacherEnsemble.own_chunk.fget
