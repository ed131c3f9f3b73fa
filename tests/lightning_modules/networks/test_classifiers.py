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
    dense = 384 * (128 * 49 + 1) + 192 * 385 + 10 * 193
    assert parameters(TwoConvNet(hidden=[384, 192])) == 64 * 10 + 128 * (64 * 9 + 1) + dense
    # torchvision's counts for 1000 classes and its 7x7 stem, with both exchanged.
    assert (
        parameters(ResNet18(image_shape=(3, 32, 32))) == 11_689_512 - 1000 * 513 - 64 * 3 * 49 + 10 * 513 + 64 * 3 * 9
    )
    assert (
        parameters(ResNet34(image_shape=(3, 32, 32))) == 21_797_672 - 1000 * 513 - 64 * 3 * 49 + 10 * 513 + 64 * 3 * 9
    )


@pytest.mark.parametrize("norm", ["batch", "group", "none"])
def test_only_batch_norm_mixes_the_rows(norm: str) -> None:
    """What DP-SGD needs of a network, and that the check notices a network that lacks it."""
    network = SmallCNN(norm=norm).train()  # type: ignore[arg-type]
    images = torch.randn(4, 1, 28, 28)
    other = images.clone()
    other[3] = 1.0
    apart = torch.allclose(network(images)[0], network(other)[0], atol=1e-6)
    assert apart == (norm != "batch")
