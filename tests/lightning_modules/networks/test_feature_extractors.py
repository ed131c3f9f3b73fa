"""Fixed features computed once for many networks: the logits of whole networks, and no part of any weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_modules.networks import LinearOnFeatures, SmallCNN
from lightning_modules.networks.stacked import (
    NetworkStack,
    stack_states,
    with_feature_extractor,
    without_feature_extractor,
)

SHAPE = (1, 8, 8)


class Edges(nn.Module):
    """Fixed differences; counts how often it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kernel", torch.tensor([[[[0.0, -1.0], [1.0, 0.5]]]]), persistent=False)
        self.asked = 0

    def forward(self, images: Tensor) -> Tensor:
        self.asked += 1
        return nn.functional.conv2d(images, self.get_buffer("kernel"))


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
    """A mutant whose feature extractor learns."""

    def __init__(self) -> None:
        super().__init__()
        self.feature_extractor.scale = nn.Parameter(torch.ones(()))


class Kept(OnEdges):
    """A mutant whose feature extractor has a buffer in its `state_dict`, so that it may differ between networks."""

    def __init__(self) -> None:
        super().__init__()
        self.feature_extractor.register_buffer("shift", torch.zeros(()))


def scattering() -> nn.Module:
    return LinearOnFeatures(image_shape=SHAPE)


FACTORIES = [OnEdges, scattering]


def networks(factory: Any, count: int = 5) -> list[nn.Module]:
    torch.manual_seed(0)
    made: list[nn.Module] = []
    for number in range(count):
        network = factory().train()
        network(torch.randn(16, *SHAPE) * (number + 1))  # BatchNorm statistics of its own
        made.append(network.eval().requires_grad_(False))
    return made


def stripped(whole: list[nn.Module]) -> tuple[list[nn.Module], nn.Module]:
    pairs = [without_feature_extractor(network) for network in whole]
    extractor = pairs[0][1]
    assert extractor is not None
    return [network for network, _ in pairs], extractor


@pytest.fixture
def images() -> Tensor:
    return torch.randn(20, *SHAPE, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("factory", FACTORIES)
def test_logits_are_those_of_whole_networks(factory: Any, images: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning_modules.networks.stacked._IMAGES_AT_ONCE", 7)
    whole = networks(factory)
    with torch.no_grad():
        alone = torch.stack([network(images) for network in whole])
    parts, extractor = stripped(whole)
    stack = NetworkStack(parts, feature_extractor=extractor)
    found = stack.logits(images)
    assert found.shape == (5, 20, 10) and torch.allclose(found, alone, atol=1e-5)
    assert not torch.allclose(found, alone.roll(1, dims=0), atol=1e-3)
    # A feature extractor that is another one is noticed.
    mutant = NetworkStack(parts, feature_extractor=nn.Sequential(Negative(), extractor))
    assert not torch.allclose(mutant.logits(images), alone, atol=1e-3)
    for number in (0, 4):
        assert torch.allclose(stack.network(number)(images), alone[number], atol=1e-5)


class Negative(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return -images


def test_the_feature_extractor_is_asked_once_for_all_networks(images: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning_modules.networks.stacked._IMAGES_AT_ONCE", 7)
    parts, extractor = stripped(networks(OnEdges))
    extractor.asked = 0  # type: ignore[assignment]
    NetworkStack(parts, feature_extractor=extractor).logits(images)
    assert extractor.asked == 3
    # Whole networks ask it each.
    whole = networks(OnEdges)
    for network in whole:
        network.feature_extractor.asked = 0  # type: ignore[union-attr, assignment]
    NetworkStack(whole).logits(images)
    assert sum(network.feature_extractor.asked for network in whole) == 15  # type: ignore[union-attr, misc]


@pytest.mark.parametrize("factory", FACTORIES)
def test_taken_out_and_put_back(factory: Any, images: Tensor) -> None:
    (network,) = networks(factory, 1)
    names = list(network.state_dict())
    with torch.no_grad():
        before = network(images)
    part, extractor = without_feature_extractor(network)
    assert part is network and isinstance(extractor, nn.Module) and isinstance(part.feature_extractor, nn.Identity)
    assert not any(name.startswith("feature_extractor") for name in part.state_dict())
    assert without_feature_extractor(part) == (part, None)
    whole = with_feature_extractor(part, extractor)
    assert list(whole.state_dict()) == names and torch.equal(whole(images), before)
    # The part stays what it was, and the weights are shared: what is learnt is learnt by both.
    assert isinstance(part.feature_extractor, nn.Identity) and whole is not part and whole.head is part.head
    assert torch.allclose(part(extractor(images)), before, atol=1e-6)
    with torch.no_grad():
        part.head.bias.add_(1)  # type: ignore[union-attr, operator]
    assert torch.allclose(whole(images), before + 1, atol=1e-6)
    assert with_feature_extractor(part, None) is part


def test_a_front_that_learns_stays(images: Tensor) -> None:
    for network in (Learning(), Kept(), SmallCNN(image_shape=SHAPE, width=4, hidden=8)):
        before = list(network.state_dict())
        assert without_feature_extractor(network) == (network, None)
        assert list(network.state_dict()) == before and network(images).shape == (20, 10)


@pytest.mark.parametrize("factory", FACTORIES)
def test_states_come_back_without_the_front(factory: Any, images: Tensor) -> None:
    parts, extractor = stripped(networks(factory))
    stack = NetworkStack(parts, feature_extractor=extractor)
    states = stack_states(parts)
    assert states and not any(name.startswith("feature_extractor") for name in states)
    template = factory()
    again = NetworkStack.from_states(template, states)
    assert torch.equal(again.logits(images), stack.logits(images)) and len(again) == 5
    # The template is left as it was.
    assert not isinstance(template.feature_extractor, nn.Identity)
    swapped = {name: values.roll(1, dims=0) for name, values in states.items()}
    other = NetworkStack.from_states(template, swapped).logits(images)
    assert torch.equal(other, stack.logits(images).roll(1, dims=0)) and not torch.equal(other, stack.logits(images))


def test_a_front_that_a_state_holds_comes_back_with_each_network(images: Tensor) -> None:
    whole = networks(Kept, 2)
    for number, network in enumerate(whole):
        network.get_submodule("feature_extractor").get_buffer("shift").fill_(float(number))
        assert without_feature_extractor(network) == (network, None)
    again = NetworkStack.from_states(Kept(), stack_states(whole))
    shifts = [again.network(number).get_buffer("feature_extractor.shift") for number in range(2)]
    assert [float(shift) for shift in shifts] == [0.0, 1.0]
