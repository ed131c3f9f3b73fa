"""Many networks asked together answer as each does by itself, fixed features computed once; weights come back whole."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from sklearn.linear_model import Ridge
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_modules.networks import DataLensClassifier, LinearOnFeatures, SmallCNN
from lightning_modules.teachers.ensemble_networks import (
    NetworkStack,
    restored,
    solve_ridge,
    stacked,
    without_feature_extractor,
)

SHAPE = (1, 8, 8)


@pytest.fixture
def images(monkeypatch: pytest.MonkeyPatch) -> Tensor:
    monkeypatch.setattr("lightning_modules.teachers.ensemble_networks._IMAGES_AT_ONCE", 7)
    return torch.randn(20, *SHAPE, generator=torch.Generator().manual_seed(1))


class Edges(nn.Module):
    """Fixed differences."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kernel", torch.tensor([[[[0.0, -1.0], [1.0, 0.5]]]]), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        return F.conv2d(images, self.get_buffer("kernel"))


class OnEdges(nn.Module):
    """A small classifier with BatchNorm on a fixed feature extractor."""

    def __init__(self) -> None:
        super().__init__()
        self.feature_extractor = Edges()
        self.norm = nn.BatchNorm1d(49)
        self.head = nn.Linear(49, 10)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(self.feature_extractor(images).flatten(1)))
        return logits


class Learning(OnEdges):
    def __init__(self) -> None:
        super().__init__()
        self.feature_extractor.scale = nn.Parameter(torch.ones(()))


class Kept(OnEdges):
    """Its feature extractor has a buffer in its `state_dict`, so that it may differ between networks."""

    def __init__(self) -> None:
        super().__init__()
        self.feature_extractor.register_buffer("shift", torch.zeros(()))


small = partial(SmallCNN, image_shape=SHAPE, width=4, hidden=8)
FACTORIES: list[Any] = [small, partial(DataLensClassifier, image_shape=SHAPE), OnEdges, Kept]
FACTORIES += [partial(LinearOnFeatures, image_shape=SHAPE)]


def networks(factory: Any = small, count: int = 5) -> list[nn.Module]:
    torch.manual_seed(0)
    made: list[nn.Module] = []
    for number in range(count):
        network = factory().train()
        network(torch.randn(16, *SHAPE) * (number + 1))  # BatchNorm statistics of its own
        made.append(network.eval().requires_grad_(False))
    return made


@pytest.mark.parametrize("factory", FACTORIES)
def test_networks_asked_together_or_restored_answer_as_each_by_itself(factory: Any, images: Tensor) -> None:
    whole = networks(factory)
    alone = torch.stack([network(images) for network in whole])
    parts, extractors = zip(*map(without_feature_extractor, whole), strict=True)
    template, extractor = without_feature_extractor(factory())
    stack = NetworkStack(parts, feature_extractor=extractors[0])
    again = NetworkStack(
        restored(template, stacked([part.state_dict() for part in parts])), feature_extractor=extractor
    )
    for one in (stack, again):
        found = one.logits(images)
        assert found.shape == (5, 20, 10) and torch.allclose(found, alone, atol=1e-5)
        assert not torch.allclose(found, alone.roll(1, dims=0), atol=1e-5)
        assert torch.allclose(one.network(4)(images), alone[4], atol=1e-5)
    if extractor is not None:  # another one is noticed
        mutant = NetworkStack(parts, feature_extractor=nn.Sequential(nn.Tanh(), extractor))
        assert not torch.allclose(mutant.logits(images), alone, atol=1e-3)


@pytest.mark.parametrize("factory", [Learning, Kept, small])
def test_a_front_that_learns_or_has_a_state_stays(factory: Any) -> None:
    network = factory()
    before = list(network.state_dict())
    assert without_feature_extractor(network) == (network, None) and list(network.state_dict()) == before


# In closed form.


@pytest.mark.parametrize("count", [1, 13, 200])
@pytest.mark.parametrize("penalty", [0.1, 10.0])
def test_it_is_ridge_regression_to_centred_labels_with_a_penalised_bias(count: int, penalty: float) -> None:
    draw = torch.Generator().manual_seed(count)
    rows, labels = torch.randn(count, 12, generator=draw) + 0.5, torch.randint(3, (count,), generator=draw)
    weight, bias = solve_ridge(rows, labels, num_classes=3, penalty=penalty)
    found = torch.cat([weight, bias[:, None]], dim=1).double()
    padded = F.pad(rows.double(), (0, 1), value=1.0)
    targets = F.one_hot(labels, 3).double() - 1 / 3
    scale = penalty * float(padded.square().sum(dim=1).mean())

    def ridge(alpha: float, targets: Tensor) -> Tensor:
        solved = Ridge(alpha=alpha, fit_intercept=False).fit(padded.numpy(), targets.numpy()).coef_
        return torch.from_numpy(solved).double().view(3, 13)

    assert torch.allclose(found, ridge(scale, targets), atol=1e-5)
    # Negative controls: labels that are not centred; twice the penalty.
    assert not torch.allclose(found, ridge(scale, targets + 1 / 3), atol=1e-5)
    assert not torch.allclose(found, ridge(2 * scale, targets), atol=1e-5)
