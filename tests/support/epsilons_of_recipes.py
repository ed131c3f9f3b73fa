"""Every ε that this project states for its own recipes, computed without training anything.

`python -m support.epsilons_of_recipes` (in `tests/`) computes those of the JSON file anew.
`tests/test_epsilons_of_recipes.py` holds them against those that were written at an earlier commit: a change that
moves one has to say so.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch

from datamodules import PoissonSampled
from datamodules.records import id_fraction
from lightning_modules import DPSGDTeacher
from lightning_modules.base import DataFreeDistillation
from lightning_modules.cli.calibrate import ACCOUNTINGS, epsilon_of
from lightning_modules.cli.fit import TranscriptionCLI
from lightning_modules.teachers.dp_sgd_steps import PlannedSteps
from privacy import SampledGaussian, compose
from privacy.checks import json_number

SWEEPS = Path(__file__).parents[2] / "sweeps"


def arguments(recipe: str) -> list[str]:
    """Those of `fit` for a recipe: names of files in `sweeps/`, and options."""
    return [word if word.startswith("--") else f"--config={SWEEPS / word}.yaml" for word in recipe.split()]


def epsilons(recipe: str) -> dict[str, float]:
    """What a recipe costs: the ε of its plan, and how many calls a target of it allows."""
    cli = TranscriptionCLI([*arguments(recipe), "--trainer.accelerator=cpu", "--trainer.logger=false"], run=False)
    epochs = int(cli.trainer.max_epochs or 0)
    if isinstance(cli.model, DPSGDTeacher):
        return _of_dp_sgd(cli.model, cli.datamodule, epochs=epochs)
    if not isinstance(cli.model, DataFreeDistillation):
        return {}
    calls = cli.model.calls_of(epochs * len(cli.datamodule.train_dataloader()))
    session = cli.model.session
    found = {accounting: epsilon_of(session, calls, accounting) for accounting in ACCOUNTINGS}
    return {"calls": calls, "target_epsilon": session.budget.target_epsilon or math.inf, **found}


def _of_dp_sgd(teacher: DPSGDTeacher, data: Any, *, epochs: int) -> dict[str, float]:
    assert isinstance(data, PoissonSampled)
    records = data.num_records
    if data.name == "Digits":
        data.setup("fit")
        records = len(data.dataset.train_records)
    else:
        # Ids are positions in the official file: how many are left for training follows without it.
        held_out = id_fraction(torch.arange(records), purpose="validation") < data.dataset.val_fraction
        records = int((~held_out).sum())
    rate = data.batch_size / records
    steps = epochs * (data.steps_per_epoch or max(1, round(1 / rate)))
    planned = PlannedSteps(delta=teacher.delta, target_epsilon=teacher.target_epsilon)
    noise = teacher.noise_multiplier or planned.calibrated(rate=rate, steps=steps)
    epsilon = compose({SampledGaussian(noise, rate): steps}, teacher.delta).epsilon
    return {"steps": steps, "noise_multiplier": noise, "record": epsilon}


if __name__ == "__main__":
    file = Path(__file__).with_suffix(".json")
    found = {recipe: epsilons(recipe) for recipe in json.loads(file.read_text(encoding="utf-8"))["recipes"]}
    plain = {name: {key: json_number(value) for key, value in made.items()} for name, made in found.items()}
    file.write_text(json.dumps({"recipes": plain}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
