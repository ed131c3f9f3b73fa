"""A network with BatchNorm folded away answers as before."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lightning_modules.networks import ResNet18, SmallCNN
from lightning_modules.networks.batchnorm import folded


def trained(kind: type[nn.Module], **settings: object) -> nn.Module:
    """A network whose BatchNorm has seen images, and whose scales are not those that it begins with."""
    torch.manual_seed(0)
    network = kind(num_classes=4, image_shape=(1, 16, 16), **settings)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 2.0)
            nn.init.uniform_(module.bias, -1.0, 1.0)
    for _ in range(3):
        network(torch.randn(32, 1, 16, 16) * 2 + 1)
    return network.eval()


def norms(network: nn.Module) -> int:
    return sum(isinstance(module, nn.BatchNorm2d) for module in network.modules())


@pytest.mark.parametrize("depth", [1, 3])
def test_it_gives_the_same_logits(depth: int) -> None:
    network = trained(SmallCNN, depth=depth)
    images = torch.randn(16, 1, 16, 16)
    found = folded(network)
    assert norms(network) == depth and norms(found) == 0 and not found.training
    assert torch.allclose(found(images), network(images), atol=1e-5)
    # The control: without the statistics the logits are others.
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
    assert not torch.allclose(folded(network)(images), found(images), atol=5e-3)


def test_what_it_was_made_from_is_left_as_it_is() -> None:
    network = trained(SmallCNN)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    folded(network)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert any(parameter.requires_grad for parameter in network.parameters())


@pytest.mark.parametrize("network", [trained(SmallCNN, norm="group"), trained(ResNet18)], ids=["group", "residual"])
def test_where_nothing_can_be_folded_it_is_the_same_object(network: nn.Module) -> None:
    sequential = [module for module in network.modules() if isinstance(module, nn.Sequential)]
    found = folded(network)
    images = torch.randn(4, 1, 16, 16)
    assert torch.allclose(found(images), network(images), atol=1e-5)
    assert (found is network) == (norms(found) == norms(network)) and sequential


def test_a_layer_that_somebody_listens_to_is_left() -> None:
    network = trained(SmallCNN, depth=1)
    heard: list[int] = []
    next(module for module in network.modules() if isinstance(module, nn.BatchNorm2d)).register_forward_hook(
        lambda *given: heard.append(1)
    )
    folded(network)(torch.randn(2, 1, 16, 16))
    assert heard == [1]
