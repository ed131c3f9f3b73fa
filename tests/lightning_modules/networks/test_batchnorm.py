"""The distance to batch-normalisation statistics: right, differentiable, and without a trace in the network."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lightning_modules.networks import DataLensClassifier, ResNet18, SmallCNN, logits_and_statistics


def _hooks(model: nn.Module) -> int:
    return sum(len(module._forward_pre_hooks) for module in model.modules())


def test_one_layer_by_hand() -> None:
    layer = nn.BatchNorm2d(2).eval()
    assert layer.running_mean is not None and layer.running_var is not None
    layer.running_mean += torch.tensor([1.0, -2.0])
    layer.running_var *= torch.tensor([3.0, 0.5])
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(8, 3)).eval()
    images = torch.randn(5, 2, 2, 2)
    channels = images.transpose(0, 1).flatten(1)
    expected = (channels.mean(1) - layer.running_mean).norm() + (channels.var(1) - layer.running_var).norm()
    logits, distance = logits_and_statistics(model, images)
    assert torch.equal(logits, model(images))
    assert float(distance.detach()) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("factory", [SmallCNN, pytest.param(ResNet18, marks=pytest.mark.slow)])
def test_images_of_the_remembered_kind_are_near(factory: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model = factory(num_classes=3, image_shape=(1, 8, 8)).train()
    images = torch.randn(64, 1, 8, 8)
    for _ in range(60):
        model(images)
    model.eval()
    near, far = (float(logits_and_statistics(model, x)[1].detach()) for x in (images, 3 * images + 1))
    assert near < far / 3


def test_gradients_reach_the_images_and_hooks_are_removed() -> None:
    model = SmallCNN(num_classes=3, image_shape=(1, 8, 8)).eval().requires_grad_(False)
    images = torch.randn(4, 1, 8, 8, requires_grad=True)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    _, distance = logits_and_statistics(model, images)
    (gradient,) = torch.autograd.grad(distance, images)
    assert float(gradient.abs().max()) > 0
    assert _hooks(model) == 0
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in before.items())


@pytest.mark.parametrize(
    "model",
    [
        DataLensClassifier(num_classes=3, image_shape=(1, 28, 28)),
        nn.Sequential(nn.BatchNorm2d(1, track_running_stats=False), nn.Flatten(), nn.Linear(784, 3)),
    ],
    ids=["none", "without statistics"],
)
def test_a_network_without_statistics_is_told_what_is_missing(model: nn.Module) -> None:
    with pytest.raises(ValueError, match="has no BatchNorm layer to compare"):
        logits_and_statistics(model, torch.randn(2, 1, 28, 28))
