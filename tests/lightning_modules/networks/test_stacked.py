"""Networks asked together answer as each does by itself; their weights come back whole; hooks fire."""

from __future__ import annotations

import copy
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torchvision.models import VisionTransformer

from datamodules import ShardedRecords
from datamodules.mapped import MappedRecords
from lightning_modules.networks import DataLensClassifier, SmallCNN, TwoConvNet, logits_and_statistics
from lightning_modules.networks.stacked import NetworkStack, in_threads
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
