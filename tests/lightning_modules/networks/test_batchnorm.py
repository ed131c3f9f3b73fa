"""The distance to batch-normalisation statistics: right, differentiable, and without a trace in the network."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lightning_modules.networks import DataLensClassifier, logits_and_statistics


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
