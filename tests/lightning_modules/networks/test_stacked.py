"""Many networks asked together answer as each does by itself, fixed features computed once; weights come back whole."""

from __future__ import annotations

import copy
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models import VisionTransformer

from datamodules import ShardedRecords
from datamodules.mapped import MappedRecords
from lightning_modules.networks import DataLensClassifier, LinearOnFeatures, SmallCNN, TwoConvNet, logits_and_statistics
from lightning_modules.networks.stacked import (
    NetworkStack,
    in_threads,
    stack_states,
    with_feature_extractor,
    without_feature_extractor,
)
from lightning_modules.teachers.joint_training import JointTraining

SHAPE = (1, 8, 8)


def networks(count: int = 5) -> list[nn.Module]:
    torch.manual_seed(0)
    made: list[nn.Module] = []
    for _ in range(count):
        network = SmallCNN(image_shape=SHAPE, width=4, hidden=8).train()
        for _ in range(3):
            network(torch.randn(16, *SHAPE) * (len(made) + 1))  # BatchNorm statistics of its own
        made.append(network)
    return made


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randn(20, *SHAPE, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("factory", [SmallCNN, TwoConvNet, DataLensClassifier])
def test_logits_are_those_of_each_network(factory: type[nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning_modules.networks.stacked._IMAGES_AT_ONCE", 7)
    torch.manual_seed(0)
    many = [factory(image_shape=SHAPE) for _ in range(5)]
    images = torch.randn(20, *SHAPE)
    stack = NetworkStack(many)
    alone = torch.stack([network.eval()(images) for network in many])
    found = stack.logits(images)
    assert found.shape == (5, 20, 10) and not found.requires_grad
    assert torch.allclose(found, alone, atol=1e-5)
    assert torch.equal(found.argmax(dim=2), alone.argmax(dim=2))
    assert not torch.allclose(found, alone.roll(1, dims=0), atol=1e-5)


def test_transformers_are_asked_and_trained_like_any_other_network() -> None:
    """DGD's teachers of CIFAR10: torchvision has them."""
    torch.manual_seed(0)
    size = {"image_size": 16, "patch_size": 8, "num_layers": 2, "num_heads": 2, "hidden_dim": 8, "mlp_dim": 16}
    many: list[nn.Module] = [VisionTransformer(**size, num_classes=10) for _ in range(3)]
    for network in many:
        nn.init.normal_(network.heads.head.weight)  # torchvision's own begins at zero
    images, labels = torch.randn(3, 6, 3, 16, 16), torch.randint(10, (3, 6))
    alone = torch.stack([network.eval()(images[0]) for network in many])
    assert torch.allclose(NetworkStack(copy.deepcopy(many)).logits(images[0]), alone, atol=1e-5)
    expected = [
        float(F.cross_entropy(network(rows), own)) for network, rows, own in zip(many, images, labels, strict=True)
    ]
    shards = ShardedRecords(MappedRecords(images.flatten(0, 1), labels.flatten()), torch.tensor([0, 6, 12, 18]))
    adam = partial(torch.optim.Adam, lr=1e-2)
    training = JointTraining(many, records=shards, teachers=range(3), batch_size=6, make_optimizer=adam)
    losses = [training.step(1.0) for _ in range(20)]
    assert losses[0].tolist() == pytest.approx(expected, rel=1e-4)
    assert bool((losses[-1] < 0.8 * losses[0]).all())


def test_the_number_of_threads_does_not_change_a_bit(images: torch.Tensor) -> None:
    before, found = torch.get_num_threads(), []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        found.append(NetworkStack(networks()).logits(images))
        assert torch.get_num_threads() == threads
    torch.set_num_threads(before)
    assert torch.equal(*found)


def test_hooks_fire_on_one_network_and_see_its_own_statistics(images: torch.Tensor) -> None:
    many = networks()
    stack = NetworkStack(many)
    distances = []
    for index in range(len(stack)):
        logits, distance = logits_and_statistics(stack.network(index), images)
        assert torch.allclose(logits, stack.logits(images)[index], atol=1e-5)
        distances.append(float(distance.detach()))
    assert len(set(distances)) == len(stack)


def test_the_others_are_brought_to_their_end_where_one_fails() -> None:
    done: list[int] = []

    def work(item: int) -> None:
        if item == 0:
            raise ValueError("first")
        time.sleep(0.01)
        done.append(item)

    with ThreadPoolExecutor(2) as pool, pytest.raises(ValueError, match="first"):
        in_threads(work, [0, 1, 2, 3], pool=pool)
    assert sorted(done) == [1, 2, 3]


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


def one_front(factory: Any, count: int = 5) -> list[nn.Module]:
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


@pytest.mark.parametrize("factory", FACTORIES)
def test_logits_are_those_of_whole_networks(factory: Any, images: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning_modules.networks.stacked._IMAGES_AT_ONCE", 7)
    whole = one_front(factory)
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
    parts, extractor = stripped(one_front(OnEdges))
    extractor.asked = 0  # type: ignore[assignment]
    NetworkStack(parts, feature_extractor=extractor).logits(images)
    assert extractor.asked == 3
    # Whole networks ask it each.
    whole = one_front(OnEdges)
    for network in whole:
        network.feature_extractor.asked = 0  # type: ignore[union-attr, assignment]
    NetworkStack(whole).logits(images)
    assert sum(network.feature_extractor.asked for network in whole) == 15  # type: ignore[union-attr, misc]


@pytest.mark.parametrize("factory", FACTORIES)
def test_taken_out_and_put_back(factory: Any, images: Tensor) -> None:
    (network,) = one_front(factory, 1)
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
    parts, extractor = stripped(one_front(factory))
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
    whole = one_front(Kept, 2)
    for number, network in enumerate(whole):
        network.get_submodule("feature_extractor").get_buffer("shift").fill_(float(number))
        assert without_feature_extractor(network) == (network, None)
    again = NetworkStack.from_states(Kept(), stack_states(whole))
    shifts = [again.network(number).get_buffer("feature_extractor.shift") for number in range(2)]
    assert [float(shift) for shift in shifts] == [0.0, 1.0]
