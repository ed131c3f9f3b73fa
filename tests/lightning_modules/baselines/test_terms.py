"""What the baselines compute of the clients' models: means, BatchNorm statistics that are really compared, terms."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from lightning_modules.baselines.clients import mean_logits, mean_logits_and_features, mean_logits_and_statistics
from lightning_modules.baselines.image_terms import ImagePool, boundary_support, jensen_shannon, total_variation
from lightning_modules.networks import SmallCNN
from lightning_modules.networks.batchnorm import logits_and_statistics

SHAPE = (1, 8, 8)


@pytest.fixture
def clients() -> list[nn.Module]:
    """Three networks whose BatchNorm remembers images of different brightness."""
    torch.manual_seed(0)
    networks: list[nn.Module] = [SmallCNN(image_shape=SHAPE, width=4, hidden=8) for _ in range(3)]
    for shift, network in enumerate(networks):
        for _ in range(30):
            network(0.3 * torch.randn(64, *SHAPE) + shift / 2)
    return [network.eval().requires_grad_(False) for network in networks]


def test_means_are_of_every_client(clients: list[nn.Module]) -> None:
    images = torch.randn(5, *SHAPE)
    expected = torch.stack([network(images) for network in clients]).mean(0)
    logits, features = mean_logits_and_features(clients, images)
    assert torch.allclose(mean_logits(clients, images), expected) and torch.allclose(logits, expected)
    assert features.shape == (5, 24)
    assert torch.allclose(mean_logits_and_statistics(clients, images)[0], expected)


def test_statistics_are_those_of_every_client_and_have_gradients(clients: list[nn.Module]) -> None:
    images = (0.3 * torch.randn(256, *SHAPE)).requires_grad_()
    _, distance = mean_logits_and_statistics(clients, images)
    each = [logits_and_statistics(network, images)[1] for network in clients]
    assert torch.allclose(distance, torch.stack(each).mean())
    # Such images are what the first client remembers, and none of the others.
    assert float(each[0]) < 0.8 * float(each[1]) and float(each[0]) < 0.8 * float(each[2])
    (gradient,) = torch.autograd.grad(distance, [images])
    assert float(gradient.abs().amax(dim=(1, 2, 3)).min()) > 0
    for client in range(3):
        assert float(torch.autograd.grad(each[client], [images])[0].abs().sum()) > 0


def test_boundary_support_is_of_images_that_are_decided_differently() -> None:
    ensemble = torch.tensor([[2.0, 0.0], [2.0, 0.0]], requires_grad=True)
    student = torch.tensor([[1.0, 0.0], [0.0, 1.0]], requires_grad=True)
    p = torch.tensor([2.0, 0.0]).softmax(0)
    q = torch.tensor([0.0, 1.0]).softmax(0)
    loss = boundary_support(ensemble, student)
    assert float(loss) == pytest.approx(float((p * (p / q).log()).sum()) / 2)
    (gradient,) = torch.autograd.grad(loss, [student])
    assert gradient[0].abs().sum() == 0 and gradient[1].abs().sum() > 0
    assert float(boundary_support(ensemble, ensemble)) == 0


def test_jensen_shannon_is_symmetric_and_ends_at_one() -> None:
    first, second = torch.randn(7, 4), torch.randn(7, 4)
    assert float(jensen_shannon(first, second)) == pytest.approx(float(jensen_shannon(second, first)))
    assert float(jensen_shannon(first, first)) == pytest.approx(0, abs=1e-6)
    apart = torch.tensor([[100.0, 0.0], [0.0, 100.0]])
    assert float(jensen_shannon(apart, apart.flip(1))) == pytest.approx(1)
    p, q = (logits.softmax(1).double() for logits in (first, second))
    middle = (p + q) / 2
    by_hand = ((p * (p / middle).log()).sum(1) + (q * (q / middle).log()).sum(1)) / (2 * math.log(2))
    assert float(jensen_shannon(first, second)) == pytest.approx(float(by_hand.mean()), rel=1e-5)


def test_total_variation_is_of_edges_alone() -> None:
    assert float(total_variation(torch.full((3, 1, 8, 8), 0.4))) == 0
    edge = torch.zeros(2, 1, 4, 4)
    edge[..., 2:] = 1.0
    # 4 differences of 1 to the right, none below, 3 on each diagonal.
    assert float(total_variation(edge)) == pytest.approx(2 + 2 * math.sqrt(3))
    noise = torch.randn(2, 1, 8, 8)
    assert float(total_variation(noise)) > float(total_variation(0.5 * noise)) > 0


def test_the_pool_keeps_the_newest() -> None:
    pool, draw = ImagePool(most=3, image_shape=SHAPE), torch.Generator().manual_seed(0)
    for value in range(5):
        pool.add(torch.full((1, *SHAPE), float(value)))
    drawn = pool.draw(100, generator=draw, device=torch.device("cpu"))
    assert drawn.dtype == torch.float32 and set(drawn.flatten().tolist()) == {2.0, 3.0, 4.0}
