"""DGD's tables and the ablation of image sources: shared fits, and matching steps, schedules and budgets."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.short_names import budgeted

from lightning_modules.runtime.paths import find_config
from privacy.annotators.votes import VoteAnnotator
from privacy.published import published_dpdfd_epsilon
from sweeps.runner.queue import Task
from sweeps.runner.spec import Cell, Spec

OF_B = ("dgd-table1", "dgd-table2", "dgd-fig3", "dgd-fig6", "dgd-fig7", "dgd-fig8")
MEASURED = ("cpu", "paper")  # smoke runs learn nothing, whatever their schedule


@cache
def spec(name: str) -> Spec:
    return Spec.read(name)


def cells(name: str, preset: str) -> list[Cell]:
    return spec(name).cells(preset, seeds=[0])


def settings(fit: Task) -> dict[str, Any]:
    """Dotted settings of a fit as the command line will have them, classes with their arguments beside the class."""
    found: dict[str, Any] = {"data.steps_per_epoch": 100, "data.batch_size": 256}  # as the code has them

    def flatten(values: Mapping[str, Any], prefix: str) -> None:
        for key, value in values.items():
            if isinstance(value, Mapping):
                flatten(value, prefix if key == "init_args" else f"{prefix}{key}.")
            else:
                found[f"{prefix}{key}".removesuffix(".class_path")] = value

    for config in fit.fit.config:
        flatten(yaml.safe_load(Path(find_config(config)).read_text()), "")
    for name, value in fit.fit.set.items():
        for stale in [key for key in found if key == name or key.startswith(f"{name}.")]:
            del found[stale]
        flatten({name: value}, "")
    return found


def students(name: str, preset: str) -> list[tuple[Cell, dict[str, Any]]]:
    measured = [(cell, settings(cell.task)) for cell in cells(name, preset)]
    found = [(cell, values) for cell, values in measured if values["model"] == "DGD"]
    assert found
    return found


def affordable(found: Mapping[str, Any]) -> int:
    """Queries of a run: those of its setting that its target allows."""
    prefix = "model.annotator."
    given = {
        key.removeprefix(prefix).removeprefix("budget."): value
        for key, value in found.items()
        if key.startswith(prefix)
    }
    annotator = VoteAnnotator(**budgeted(given))
    annotator.bind(batch_size=int(found["data.batch_size"]), num_classes=10, paper="DGD")
    annotator.open(private_data="nothing")
    return annotator.affordable(limit=int(found["model.query_phase.queries"]))


def student_steps(found: Mapping[str, Any]) -> int:
    """Steps that are left for the student after generator, VAE and queries."""
    total = found["trainer.max_epochs"] * found["data.steps_per_epoch"]
    queries = math.ceil(affordable(found) / found["data.batch_size"])
    generator = found["model.generator_phase.steps"] if found["model.images.source"] == "generator" else 0
    return int(total - generator - found["model.vae_phase.steps"] - queries)


def schedule(found: Mapping[str, Any]) -> tuple[str, int]:
    """Its class, and the steps after which it is at its lowest."""
    kind = found["model.student.lr_scheduler"].rsplit(".", 1)[1]
    key = {"CosineAnnealingLR": "T_max", "LinearLR": "total_iters"}[kind]
    return kind, int(found[f"model.student.lr_scheduler.{key}"])


def fits_of(tables: Iterable[tuple[str, str]], name: str) -> list[tuple[Cell, Task]]:
    made = [cell for table, preset in tables for cell in cells(table, preset)]
    return [(cell, fit) for cell in made for fit in cell.tasks if fit.fit.name == name]


@pytest.mark.parametrize("preset", ["smoke", *MEASURED])
def test_one_ensemble_and_one_baseline_for_each_data_set(preset: str) -> None:
    tables = [(name, preset) for name in OF_B]
    teachers = {
        fit.name: cell.labels["dataset"]
        for cell, fit in fits_of(tables, "ensemble")
        if cell.labels.get("teachers", "250") in ("250", "16")
    }
    baselines = {fit.name: cell.labels["dataset"] for cell, fit in fits_of(tables, "baseline")}
    known = ["Digits"] if preset == "smoke" else ["FashionMNIST", "MNIST"]
    assert sorted(teachers.values()) == known and sorted(baselines.values()) == known


@pytest.mark.parametrize("preset", MEASURED)
@pytest.mark.parametrize("name", OF_B)
def test_the_student_steps_as_long_as_its_rate_falls(name: str, preset: str) -> None:
    for cell, found in students(name, preset):
        steps, (kind, lowest) = student_steps(found), schedule(found)
        assert steps >= 0.98 * lowest, (cell.labels, steps, lowest)
        # A cosine rises again after its lowest point, a linear rate stays at 0.
        assert steps <= (1.04 * lowest if kind == "CosineAnnealingLR" else 2 * lowest), (cell.labels, steps, lowest)


def test_a_run_that_is_too_short_or_too_long_for_its_schedule_is_noticed() -> None:
    _, found = students("dgd-table1", "cpu")[0]
    shares = [student_steps({**found, "trainer.max_epochs": epochs}) / schedule(found)[1] for epochs in (9, 11)]
    assert shares[0] < 0.98 and shares[1] > 1.04


def test_as_printed_no_query_is_distorted() -> None:
    for name in OF_B:
        for _, found in students(name, "paper"):
            assert found.get("model.student_phase.query_distortion", 0.0) == 0.0
    assert any(found.get("model.student_phase.query_distortion") == 0.5 for _, found in students("dgd-table1", "cpu"))


@pytest.mark.parametrize("name", ["dgd-table2", "dgd-fig7", "dgd-fig8"])
def test_the_budgets_allow_what_the_notes_say(name: str) -> None:
    told = {"1": (57, 59), "3": (413, 418), "10": (3000, 3000)}
    for cell, found in students(name, "cpu"):
        assert affordable(found) in told[cell.labels["epsilon"]]


def test_amounts_of_images_are_the_batches_of_vae_and_student() -> None:
    for preset in MEASURED:
        for cell, found in students("dgd-fig6", preset):
            images, batch = int(cell.labels["images"]), found["data.batch_size"]
            assert images == batch * found["model.vae_phase.steps"] == batch * schedule(found)[1]
            assert student_steps(found) * batch == images


@pytest.mark.parametrize("preset", MEASURED)
def test_the_ablation_draws_as_many_images_as_it_says_and_no_budget_ends_it(preset: str) -> None:
    for cell in cells("priors", preset):
        found = settings(cell.task)
        steps = found["trainer.max_epochs"] * found["data.steps_per_epoch"]
        assert steps * found["data.batch_size"] == int(cell.labels["number"])
        assert schedule(found)[1] == steps and found["model.annotator.release"] == "per_sample"
        sigma, bound = (found[f"model.annotator.{key}"] for key in ("noise_multiplier", "norm_bound"))
        spent = published_dpdfd_epsilon(bound, 10, found["data.batch_size"], steps, sigma, 1e-5)
        assert spent < found["model.annotator.budget.target_epsilon"]
