"""Fits in two processes: the same charges as one, the same weights in both, one ledger; and what is refused."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from support.ensembles import ensemble_file
from support.processes import TWO, in_processes, result
from support.runs import checkpoint, configuration, fit

STEPS = 2
SMALL = {"class_path": "SmallCNN", "init_args": {"width": 4, "hidden": 16}}
LABELS = {"class_path": "LabelAnnotator", "init_args": {}}
VOTES = {"class_path": "VoteAnnotator", "init_args": {}}
MEANS = {"class_path": "MeanResponseAnnotator", "init_args": {"noise_multiplier": 10.0}}
STROKES = {"class_path": "StrokePrior"}

METHODS: dict[str, dict[str, Any]] = {
    "DPDFD": {"class_path": "DPDFD", "model": {"images": "both"}},
    "DPSD": {"class_path": "DPSD", "model": {"annotator": {**LABELS, "init_args": {"smallest": 3}}}},
    "LabelDP": {"class_path": "LabelDP", "model": {"annotator": LABELS, "pretraining_steps": 1}},
    "DGD": {
        "class_path": "DGD",
        "model": {
            "teacher": "teachers/ensemble.ckpt",
            "images": "prior",
            "vae": {"class_path": "ConvVAE", "init_args": {"width": 4, "latent_dim": 8}},
            "queries": 12,  # of which the second batch is half full
            "vae_steps": 1,
            "annotator": VOTES,
        },
        "epochs": 2,
    },
    "Distillation": {
        "class_path": "Distillation",
        "model": {"teacher": "teachers/ensemble.ckpt", "annotator": MEANS, "pool_size": 12, "queries": 20},
    },
}
SLOW: dict[str, dict[str, Any]] = {
    "DPDFD mean": {"class_path": "DPDFD", "annotator": {"release": "batch_mean_rows"}, "model": {"images": "prior"}},
    "DPDFD ensemble": {
        "class_path": "DPDFD",
        "model": {"teacher": "teachers/ensemble.ckpt"},
        "annotator": {"release": "ensemble"},
    },
    "DPSD data": {"class_path": "DPSD", "annotator": {"top_k": 3}},
    "DPSD refined": {"class_path": "DPSD", "annotator": {"top_k": 3}, "model": {"images": "refined"}},
    "DPSD teacher": {"class_path": "DPSD", "annotator": {"top_k": 3}, "model": {"discriminator": "teacher"}},
    "LabelDP union": {
        "class_path": "LabelDP",
        "model": {"annotator": LABELS, "train_on": "union", "images": "prior"},
        "epochs": 2,
    },
    "DGD confident": {
        "class_path": "DGD",
        "model": {
            **METHODS["DGD"]["model"],
            "annotator": {
                "class_path": "VoteAnnotator",
                "init_args": {"mechanism": "confident", "scale": 1.0, "threshold": 1.0, "threshold_scale": 1.0},
            },
            "selection": "spread",
        },
        "epochs": 2,
    },
    "DGD baseline": {
        "class_path": "DGD",
        "model": {
            **METHODS["DGD"]["model"],
            "images": "generator",
            "baseline": "teachers/digits.ckpt",
            "generator_steps": 1,
        },
        "epochs": 2,
    },
    "Distillation of one": {
        "class_path": "Distillation",
        "model": {"annotator": {"class_path": "ResponseAnnotator", "init_args": {}}, "pool_size": 20},
    },
    "BatchNorm": {"class_path": "DPDFD", "model": {"student": {"class_path": "resnet18_small"}}},
}


def settings(name: str, folder: str, **changes: Any) -> dict[str, Any]:
    """Of one of the methods, with the callback that leaves what each process has."""
    chosen: dict[str, Any] = {**(METHODS | SLOW)[name], **changes}
    config = configuration(folder, steps=STEPS, **chosen)
    if chosen["class_path"] == "Distillation":
        config["model"]["init_args"] = {
            key: value for key, value in config["model"]["init_args"].items() if key != "generator"
        } | {"prior": STROKES}
    config["trainer"]["callbacks"] = [{"class_path": "support.processes.StateOfEach"}]
    return config


def charges(folder: str, path: Path) -> Counter[str]:
    """What a run of a ledger was charged for: releases, claims, queries, and how often."""
    run = checkpoint(folder)["distillation"]["annotator"]["run"]
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    used = {line["block"]: line["used"] for line in lines if line["event"] == "settle"}
    found: Counter[str] = Counter()
    for line in lines:
        if line["event"] == "reserve" and line["run"] == run:
            what = json.dumps([line["release"], line["claim"], line["queries"]])
            found[what] += used.get(line["block"], line["count"])
    return +found


@pytest.fixture(scope="module")
def trained_ensemble(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ensemble of the digits, trained once."""
    return ensemble_file(tmp_path_factory.mktemp("ensemble"), network=SMALL, num_teachers=3, steps=2)


@pytest.fixture
def place(folder: Path, trained_ensemble: Path) -> Path:
    """A working folder with `teachers/digits.ckpt` and `teachers/ensemble.ckpt`."""
    shutil.copyfile(trained_ensemble, folder / "teachers" / "ensemble.ckpt")
    return folder


def differing(states: list[dict[str, Any]]) -> list[str]:
    """Weights and buffers that two processes do not have in common."""
    first, second = (state["weights"] for state in states)
    assert first.keys() == second.keys()
    return [name for name, value in first.items() if not torch.equal(value, second[name])]


def one_and_two(place: Path, names: list[str]) -> None:
    """Fits of each method by one process and by two, one after another in the same processes; and what is to hold."""

    def fits() -> None:
        for name in names:
            os.environ["TRANSCRIPTION_LEDGERS"] = str(Path("ledgers", name, "two").resolve())
            fit(settings(name, f"{name} in two"), *TWO)
            rank = os.environ["LOCAL_RANK"]
            os.replace(f"process{rank}.pt", f"{name} {rank}.pt")

    in_processes(fits, seconds=150)
    for name in names:
        states = [torch.load(place / f"{name} {rank}.pt", weights_only=True) for rank in range(2)]
        assert not differing(states), name
        assert [state["ledger"] for state in states] == ["Ledger", "FollowedLedger"]
        for figure in ("epsilon", "queries", "steps"):
            assert states[0][figure] == states[1][figure], (name, figure)


def compare(place: Path, monkeypatch: pytest.MonkeyPatch, names: list[str]) -> None:
    one_and_two(place, names)
    for name in names:
        monkeypatch.setenv("TRANSCRIPTION_LEDGERS", str(Path("ledgers", name, "one").resolve()))
        fit(settings(name, f"{name} in one"))
        one, two = (
            charges(f"{name} in {count}", Path("ledgers", name, count, "Digits-train.jsonl"))
            for count in ("one", "two")
        )
        assert one == two, name
        records = [result(f"{name} in {count}") for count in ("one", "two")]
        for figure in ("epsilon_record", "epsilon_published", "queries", "steps", "published_claim", "unit"):
            assert records[0][figure] == records[1][figure], (name, figure)


def test_two_processes_are_charged_as_one_and_end_alike(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compare(place, monkeypatch, list(METHODS))


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_two_processes_are_one_whatever_is_set(place: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    compare(place, monkeypatch, [name])
