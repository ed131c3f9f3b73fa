"""A checkpoint of a script keeps what is plain, and no default takes the place of the script's objects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lightning_modules import DGD
from lightning_modules.dgd.phases import VAEPhase
from lightning_modules.images import Images
from lightning_modules.networks import SmallCNN
from lightning_modules.priors import StrokePrior
from lightning_modules.student import StudentConfig
from lightning_modules.teachers.config import TeacherConfig
from privacy import Budget
from privacy.identity import CheckpointError
from privacy.mechanisms import NoisyVotes

SHAPE: dict[str, Any] = {"num_classes": 10, "image_shape": (1, 8, 8), "batch_size": 8}
IMAGES = Images(source="prior", prior=StrokePrior())


def small() -> SmallCNN:
    return SmallCNN(num_classes=10, image_shape=(1, 8, 8), width=2, hidden=4)


def saved(module: Any, file: Path) -> Path:
    content = {
        "state_dict": module.state_dict(),
        "hyper_parameters": dict(module.hparams),
        "pytorch-lightning_version": "2.5.0",
    }
    module.on_save_checkpoint(content)
    torch.save(content, file)
    return file


STUDENT = StudentConfig(network=lambda *_: small())


@pytest.fixture
def of_script(tmp_path: Path) -> Path:
    module = DGD(
        **SHAPE,
        teacher=TeacherConfig(path=nn.ModuleList([small(), small()])),
        mechanism=NoisyVotes(kind="gaussian", scale=200.0),
        budget=Budget(target_epsilon=0.5),
        student=STUDENT,
        images=IMAGES,
        vae_phase=VAEPhase(steps=0),
    )
    return saved(module, tmp_path / "dgd.ckpt")


def loaded(file: Path, **given: Any) -> DGD:
    teachers = TeacherConfig(path=nn.ModuleList([small(), small()]))
    module: DGD = DGD.load_from_checkpoint(file, teacher=teachers, weights_only=True, **given)
    return module


def test_what_is_not_given_again_is_refused_by_name(of_script: Path) -> None:
    with pytest.raises(CheckpointError, match=r"images\.prior.*student\.network.*mechanism|mechanism.*student"):
        loaded(of_script)
    with pytest.raises(CheckpointError, match=r"gave mechanism as objects.*\(mechanism=\.\.\.\)"):
        loaded(of_script, images=IMAGES, student=STUDENT)
    again = NoisyVotes(kind="gaussian", scale=200.0)
    module = loaded(of_script, images=IMAGES, student=STUDENT, mechanism=again)
    assert module.mechanism is again and module.session.budget.target_epsilon == 0.5 and module.vae is None
    with of_script.open("rb") as file, pytest.raises(CheckpointError, match="mechanism"):
        DGD.load_from_checkpoint(file)


def test_without_that_the_noise_is_lost(of_script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: Laplace noise of scale 40 in the place of Gaussian 200. A budget is plain and stays."""
    monkeypatch.setattr("lightning_modules.training.evaluation.require_given", lambda *_, **__: None)
    session = loaded(of_script, images=IMAGES, student=STUDENT).session
    assert session.mechanism == NoisyVotes(kind="laplace", scale=40.0) and session.budget.target_epsilon == 0.5
