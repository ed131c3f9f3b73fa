"""Compiled students: the same weights' names, the same charges, and a refusal where it cannot hold."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from support.ensembles import ensemble_file
from support.runs import checkpoint, configuration, distil, fit

from lightning_modules.callbacks.compiled import Compile, CompileError

SMALL = {"class_path": "SmallCNN", "init_args": {"width": 4, "hidden": 16}}
LABELS = {"class_path": "LabelAnnotator", "init_args": {}}
DGD: dict[str, Any] = {
    "teacher": "teachers/ensemble.ckpt",
    "images": "prior",
    "queries": 8,
    "annotator": {"class_path": "VoteAnnotator", "init_args": {}},
    "vae": {"class_path": "ConvVAE", "init_args": {"width": 4, "latent_dim": 8}},
    "vae_steps": 1,
}
METHODS: dict[str, dict[str, Any]] = {
    "DPDFD": {"class_path": "DPDFD"},
    "DPSD": {"class_path": "DPSD", "model": {"annotator": {**LABELS, "init_args": {"smallest": 3}}}},
    "LabelDP": {"class_path": "LabelDP", "model": {"annotator": LABELS, "pretraining_steps": 1}},
    "DGD": {"class_path": "DGD", "model": DGD, "epochs": 2},
    "Distillation": {
        "class_path": "Distillation",
        "model": {"annotator": {"class_path": "ResponseAnnotator", "init_args": {}}, "pool_size": 16},
    },
}


def settings(name: str, folder: str, callback: dict[str, Any] | None = None) -> dict[str, Any]:
    config = configuration(folder, steps=2, **METHODS[name])
    if name == "Distillation":
        config["model"]["init_args"] = {k: v for k, v in config["model"]["init_args"].items() if k != "generator"}
    if callback is not None:
        config["trainer"]["callbacks"] = [{"class_path": "Compile", "init_args": callback}]
    return config


@pytest.fixture
def place(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with a teacher and an ensemble."""
    made = ensemble_file(tmp_path_factory.mktemp("ensemble"), network=SMALL, num_teachers=3, steps=2)
    shutil.copyfile(made, folder / "teachers" / "ensemble.ckpt")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_a_compiled_student_is_the_same_student(place: Path, name: str) -> None:
    """Traced, and run by PyTorch itself: kernels take minutes to compile on a small machine."""
    plain = fit(settings(name, "plain")).model
    model = fit(settings(name, "compiled", {"backend": "aot_eager"})).model
    assert getattr(model.student, "_compiled_call_impl", None) is not None or name == "DGD"
    before, after = checkpoint("plain"), checkpoint("compiled")
    assert before["state_dict"].keys() == after["state_dict"].keys()
    assert model.annotator.account.ledger.counts(run=model.annotator.account.ledger.run) == (
        plain.annotator.account.ledger.counts(run=plain.annotator.account.ledger.run)
    )


@pytest.mark.slow
def test_a_compiled_student_learns_the_same(place: Path) -> None:
    """Noise has no seed, so that it is the noiseless method whose weights are compared."""
    settings_ = {"annotator": {"noise_multiplier": 0.0}, "steps": 4}
    plain = distil("plain", **settings_).model
    compiled = {"callbacks": [{"class_path": "Compile", "init_args": {"backend": "aot_eager"}}]}
    model = distil("compiled", trainer=compiled, **settings_).model
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-2, atol=1e-3, msg=name)


def test_what_cannot_be_compiled_is_refused(folder: Path) -> None:
    model = distil(steps=1).model
    with pytest.raises(CompileError, match="must be of student, generator here, got 'teacher'"):
        Compile(networks=["teacher"])._chosen(model)
    assert Compile()._chosen(model) == [model.student, model.generator]
    model.tangent_normal = type("Terms", (), {"switched_on": True})()
    assert Compile()._chosen(model) == [model.generator]
    with pytest.raises(CompileError, match="derived twice"):
        Compile(networks=["student"])._chosen(model)
    with pytest.raises(CompileError, match="single records"):
        Compile()._chosen(torch.nn.Module())  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_bfloat16_costs_the_same(place: Path, name: str) -> None:
    plain = fit(settings(name, "plain")).model.annotator.account
    config = settings(name, "half")
    config["trainer"]["precision"] = "bf16-mixed"
    model = fit(config).model
    account = model.annotator.account
    assert account.counts(scope="run") == plain.counts(scope="run")
    assert all(value.dtype != torch.bfloat16 for value in model.state_dict().values())
