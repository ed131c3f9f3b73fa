"""Features of foreign networks, and networks built from a user's factory."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torchvision
from torch import Tensor, nn

from lightning_modules.networks import SmallCNN, build_network, logits_and_features

MNIST = (1, 28, 28)


def hooks_of(model: nn.Module) -> int:
    return sum(len(module._forward_pre_hooks) for module in model.modules())


def test_features_of_own_and_foreign_networks() -> None:
    images = torch.randn(2, 3, 32, 32)
    for model in (SmallCNN(image_shape=(3, 32, 32)), torchvision.models.resnet18(num_classes=10)):
        model.eval()
        logits, features = logits_and_features(model, images)
        last = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
        assert torch.equal(logits, last(features))
        assert torch.equal(logits, model(images))
        assert hooks_of(model) == 0


def test_features_carry_gradients_to_the_images() -> None:
    images = torch.randn(2, 3, 32, 32, requires_grad=True)
    _, features = logits_and_features(torchvision.models.resnet18(num_classes=10), images)
    features.sum().backward()
    assert images.grad is not None and images.grad.abs().sum() > 0


def test_a_network_without_features_is_refused_and_left_without_hooks() -> None:
    with pytest.raises(ValueError, match=r"Sequential has no nn\.Linear"):
        logits_and_features(nn.Sequential(nn.Conv2d(1, 10, 28), nn.Flatten()), torch.zeros(2, *MNIST))
    per_pixel = nn.Sequential(nn.Linear(28, 10))
    with pytest.raises(ValueError, match=r"was given \[\(2, 1, 28, 28\)\]"):
        logits_and_features(per_pixel, torch.zeros(2, *MNIST))
    assert hooks_of(per_pixel) == 0
    failing = nn.Sequential(nn.Flatten(), nn.Linear(3, 10))
    with pytest.raises(RuntimeError):
        logits_and_features(failing, torch.zeros(2, *MNIST))
    assert hooks_of(failing) == 0


def test_a_network_gets_what_it_accepts() -> None:
    shape: Any = {"num_classes": 3, "image_shape": (1, 8, 8), "name": "network"}
    for given in ("SmallCNN", SmallCNN, partial(SmallCNN, width=4), {"name": "SmallCNN", "arguments": {"width": 4}}):
        built = build_network(given, **shape)
        assert built.training and built(torch.zeros(2, 1, 8, 8)).shape == (2, 3)
    build_network(torchvision.models.resnet18, **{**shape, "image_shape": (3, 32, 32)})
    build_network(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), **shape)
    with pytest.raises(ValueError, match="network: Sequential must give logits, got probabilities"):
        build_network(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 3), nn.Softmax(dim=1)), **shape)


def test_the_check_leaves_no_trace() -> None:
    torch.manual_seed(0)
    expected = SmallCNN()
    state = torch.get_rng_state()
    torch.manual_seed(0)
    built = build_network(SmallCNN, num_classes=10, image_shape=MNIST, name="network")
    assert torch.equal(torch.get_rng_state(), state)
    assert all(
        torch.equal(a, b) for a, b in zip(built.state_dict().values(), expected.state_dict().values(), strict=True)
    )
    assert all(module.training for module in built.modules())


class NotFinite(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return torch.full((len(images), 10), float("nan"))


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (partial(torchvision.models.resnet18), r"teacher: ResNet cannot take images of shape \(1, 28, 28\)"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 9)), r"teacher: Sequential must give .* got \(2, 9\)"),
        (NotFinite, "teacher: NotFinite gives logits that are not finite"),
        (lambda: 3, r"teacher must build a torch\.nn\.Module, got int"),
    ],
)
def test_networks_that_do_not_fit_are_named(factory: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_network(factory, num_classes=10, image_shape=MNIST, name="teacher")  # type: ignore[arg-type]
