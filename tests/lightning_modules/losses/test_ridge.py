"""A linear classifier in closed form: the minimum of what it says it minimises, for a linear head and for no other."""

from __future__ import annotations

import pytest
import torch
from sklearn.linear_model import Ridge
from torch import Tensor, nn

from lightning_modules.losses.regression import solve_head, solve_ridge
from lightning_modules.networks import LinearOnFeatures, SmallCNN

SHAPE = (1, 8, 8)


def data(count: int, features: int = 12, *, classes: int = 3) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(count)
    return torch.randn(count, features, generator=draw) + 0.5, torch.randint(classes, (count,), generator=draw)


def scale(rows: Tensor, penalty: float) -> float:
    """λ itself: the penalty in units of the mean squared norm of a row with its constant 1."""
    return penalty * float((rows.double().square().sum(dim=1) + 1).mean())


@pytest.mark.parametrize("count", [1, 13, 200])
@pytest.mark.parametrize("penalty", [0.1, 10.0])
def test_it_is_ridge_regression_to_centred_labels_with_a_penalised_bias(count: int, penalty: float) -> None:
    rows, labels = data(count)
    weight, bias = solve_ridge(rows, labels, num_classes=3, penalty=penalty)
    assert weight.shape == (3, 12) and bias.shape == (3,) and weight.dtype == bias.dtype == torch.float32
    padded = torch.cat([rows, torch.ones(count, 1)], dim=1).double().numpy()
    targets = nn.functional.one_hot(labels, 3).double().numpy() - 1 / 3
    solved = Ridge(alpha=scale(rows, penalty), fit_intercept=False).fit(padded, targets).coef_
    found = torch.cat([weight, bias[:, None]], dim=1).double()
    assert torch.allclose(found, torch.from_numpy(solved).double().view(3, 13), atol=1e-5)
    # Negative controls: a bias that costs nothing; labels that are not centred; twice the penalty.
    free = Ridge(alpha=scale(rows, penalty)).fit(rows.double().numpy(), targets)
    if count > 1 and penalty >= 0.1:
        assert not torch.allclose(weight.double(), torch.from_numpy(free.coef_).double(), atol=1e-5)
    uncentred = Ridge(alpha=scale(rows, penalty), fit_intercept=False).fit(padded, targets + 1 / 3).coef_
    twice = Ridge(alpha=scale(rows, 2 * penalty), fit_intercept=False).fit(padded, targets).coef_
    for mutant in (uncentred, twice):
        assert not torch.allclose(found, torch.from_numpy(mutant).double().view(3, 13), atol=1e-5)


def test_a_class_that_is_missing_is_answered_least() -> None:
    rows, labels = data(50)
    weight, bias = solve_ridge(rows, labels, num_classes=5, penalty=0.1)
    assert weight.shape == (5, 12)
    assert float((rows @ weight.T + bias).mean(dim=0)[3:].max()) < float((rows @ weight.T + bias).mean(dim=0)[:3].min())
    # Centred labels have the sum 0, and so has what is fitted to them in all but missing rounding.
    assert float((rows @ weight.T + bias).sum(dim=1).abs().max()) < 1e-5


def test_a_head_is_set_on_the_networks_own_features() -> None:
    network = LinearOnFeatures(image_shape=SHAPE, num_classes=3)
    images, labels = torch.rand(30, *SHAPE, generator=torch.Generator().manual_seed(0)), torch.arange(30) % 3
    before = network.head.weight.clone()
    assert solve_head(network, images, labels, penalty=0.1) is network
    weight, bias = solve_ridge(network.forward_features(images), labels, num_classes=3, penalty=0.1)
    assert torch.equal(network.head.weight, 8 * weight) and torch.equal(network.head.bias, 8 * bias)
    assert not torch.equal(before, weight) and network.head.weight.requires_grad
    # It learnt, and surely enough: of 30 random images with 324 features each, nearly all come out as labelled.
    logits = network(images)
    assert float((logits.argmax(dim=1) == labels).float().mean()) > 0.9
    sure, unsure = (float(each.softmax(dim=1).amax(dim=1).mean()) for each in (logits, logits / 8))
    assert sure > 0.8 > unsure


class NoBias(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 3, bias=False)

    def forward_features(self, images: Tensor) -> Tensor:
        return images.flatten(1)


@pytest.mark.parametrize(
    "network", [SmallCNN(image_shape=SHAPE, width=4, hidden=8), nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), NoBias()]
)
def test_networks_that_learn_anything_else_are_refused(network: nn.Module) -> None:
    before = {name: values.clone() for name, values in network.state_dict().items()}
    with pytest.raises(ValueError, match=f"linear head on fixed features.*got {type(network).__name__}"):
        solve_head(network, torch.zeros(3, *SHAPE), torch.arange(3), penalty=0.1)
    assert all(torch.equal(values, before[name]) for name, values in network.state_dict().items())
