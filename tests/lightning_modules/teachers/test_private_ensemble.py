"""Private teachers together: votes and logits of each, refused before a charge where of no use, and never written."""

from __future__ import annotations

from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from support.sessions import session_of
from support.variants import MoodyTeacher
from torch import nn

from datamodules import Digits
from lightning_modules.losses.functional import logits_and_statistics
from lightning_modules.networks import SmallCNN, TwoConvNet
from lightning_modules.teachers import config
from lightning_modules.teachers.config import TeacherConfig
from lightning_modules.teachers.ensemble_networks import NetworkStack
from lightning_modules.teachers.files import TeacherError
from lightning_modules.teachers.private_teacher import PrivateEnsemble
from privacy.mechanisms import NoisyVotes, Shape

SHAPE = (1, 8, 8)


@pytest.fixture
def images() -> torch.Tensor:
    return Digits().read("test").__getitems__(list(range(100)))[0]


def load(path: Path, **given: Any) -> PrivateEnsemble:
    return TeacherConfig(path=str(path), **given).load_ensemble(num_classes=10, image_shape=SHAPE)


def test_a_teacher_that_breaks_on_an_image_still_has_one_vote(images: torch.Tensor) -> None:
    """It neither stops the run, which would be an answer, nor moves more than two counts."""
    torch.manual_seed(0)
    healthy: list[nn.Module] = [nn.Sequential(nn.Flatten(), nn.Linear(64, 10)) for _ in range(3)]
    stacks = [NetworkStack([*healthy[:2], last]) for last in (healthy[2], MoodyTeacher())]
    before, after = (PrivateEnsemble(stack, private_data="digits") for stack in stacks)
    assert torch.equal(after.each(images)[2], torch.zeros(100, 10))
    moved = after.votes(images) - before.votes(images)
    assert int(moved.abs().max()) == 1 and set(moved.abs().sum(dim=1).tolist()) <= {0, 2}
    after.require_usable(num_classes=10, image_shape=SHAPE)


def test_a_teacher_itself_is_charged_first(trained_ensemble: Path) -> None:
    ensemble, session = load(trained_ensemble), session_of(NoisyVotes, Shape(8, 10))
    images = torch.randn(8, *SHAPE, requires_grad=True)
    network = ensemble.unprotected(session, teacher=2, reason="statistics")
    assert "statistics" in session.account.unbounded()
    _, distance = logits_and_statistics(network, images)
    distance.backward()
    assert images.grad is not None and float(images.grad.abs().max()) > 0
    assert all(weight.grad is None for weight in network.parameters())


def test_files_that_hold_no_ensemble_of_this_kind(trained_ensemble: Path, tmp_path: Path) -> None:
    content = torch.load(trained_ensemble, weights_only=True)
    content["ensemble"]["done"] = 2
    torch.save(content, tmp_path / "unfinished.ckpt")
    given: list[tuple[Path, dict[str, Any], str]] = [
        (tmp_path / "teachers/none.ckpt", {}, "does not exist.*LightningCLI fit --config sweeps/"),
        (tmp_path / "unfinished.ckpt", {}, r"unfinished ensemble, 2 of 3 teachers.*--ckpt_path"),
        (trained_ensemble, {"network": TwoConvNet}, r"do not fit the architecture TwoConvNet"),
    ]
    for path, settings, message in given:
        with pytest.raises(TeacherError, match=message):
            load(path, **settings)


@pytest.mark.parametrize("frozen", [False, True])
def test_teachers_that_share_what_they_learnt_are_refused(frozen: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One record would move the answers of all of them."""
    body = nn.Sequential(nn.Flatten(), nn.Linear(64, 8)).requires_grad_(not frozen)
    heads = nn.ModuleList([nn.Sequential(body, nn.Linear(8, 10)) for _ in range(3)])
    with nullcontext() if frozen else pytest.raises(TeacherError, match=r"teachers 0 and 1 both have .*'0\.1\.weight'"):
        TeacherConfig(path=heads).load_ensemble(num_classes=10, image_shape=SHAPE)
    one = SmallCNN(image_shape=SHAPE, width=4, hidden=8)
    copies = TeacherConfig(path=nn.ModuleList([one, deepcopy(one)]))
    with pytest.raises(TeacherError, match="each must be trained by itself"):
        copies.held()
    monkeypatch.setattr(config, "require_own_weights", lambda networks: ())
    assert copies.load_ensemble(num_classes=10, image_shape=SHAPE).num_teachers == 2


def test_a_network_that_is_frozen_whole_is_one_teacher(images: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who only queries a network often freezes all of it: that says of no weight that it is public."""

    def ensemble(*networks: nn.Module) -> PrivateEnsemble:
        given = nn.ModuleList([deepcopy(network).requires_grad_(False) for network in networks])
        return TeacherConfig(path=given).load_ensemble(num_classes=10, image_shape=SHAPE)

    body = nn.Sequential(nn.Flatten(), nn.Linear(64, 8))
    one, another = (nn.Sequential(body, nn.Linear(8, 10)) for _ in range(2))
    with pytest.raises(TeacherError, match=r"teachers 0 and 2 both have .* and not be all of a teacher"):
        ensemble(one, another, one)
    (said,) = ensemble(one, another).assumptions
    assert said == "the 2 frozen weights that teachers have in common, 0.1.weight first, are public"
    assert ensemble(one, SmallCNN(image_shape=SHAPE, width=4, hidden=8)).assumptions == ()
    # The control: unrefused, one record that changes the network moves more votes than the two that are charged for.
    monkeypatch.setattr(config, "require_own_weights", lambda networks: ())
    moved = ensemble(one, one, one).votes(images) - ensemble(another, another, another).votes(images)
    assert int(moved.abs().sum(dim=1).max()) == 6
