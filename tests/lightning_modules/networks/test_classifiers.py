"""Shapes, sizes and parameter counts of the classifiers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lightning_modules.networks import (
    DataLensClassifier,
    ImageClassifier,
    ResNet18,
    ResNet34,
    SmallCNN,
    TanhCNN,
    TwoConvNet,
)

SHAPES = [(1, 8, 8), (3, 32, 32), (1, 28, 20)]
SMALL = [DataLensClassifier, SmallCNN, TwoConvNet, ResNet18]


def parameters(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize("image_shape", SHAPES)
@pytest.mark.parametrize("net", SMALL)
def test_logits_are_the_head_of_the_features(net: type[ImageClassifier], image_shape: tuple[int, int, int]) -> None:
    network = net(num_classes=7, image_shape=image_shape).eval()
    images = torch.randn(2, *image_shape)
    features = network.forward_features(images)
    assert features.shape == (2, network.head.in_features)
    logits = network(images)
    assert logits.shape == (2, 7)
    assert torch.equal(logits, network.head(features))
    logits.sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


def test_parameter_counts_are_the_published_ones() -> None:
    assert parameters(DataLensClassifier()) == 515_146
    assert parameters(TanhCNN()) == 26_010
    assert parameters(TwoConvNet()) == 64 * 10 + 128 * (64 * 9 + 1) + 10 * (128 * 49 + 1)
    two = 9 * (1 * 4 + 4 * 4 + 4 * 8 + 8 * 8) + 2 * (4 + 4 + 8 + 8) + 10 * (8 * 49 + 1)
    assert parameters(SmallCNN(width=4, convolutions=2, hidden=0)) == two
    dense = 384 * (128 * 49 + 1) + 192 * 385 + 10 * 193
    assert parameters(TwoConvNet(hidden=[384, 192])) == 64 * 10 + 128 * (64 * 9 + 1) + dense
    # torchvision's counts for 1000 classes and its 7x7 stem, with both exchanged.
    ours = (10 - 1000) * 513 + 64 * 3 * (9 - 49)
    assert parameters(ResNet18(image_shape=(3, 32, 32))) == 11_689_512 + ours
    assert parameters(ResNet34(image_shape=(3, 32, 32))) == 21_797_672 + ours
