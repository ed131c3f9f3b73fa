"""Terms of images that are optimised against the clients' models, and where they are kept."""

from __future__ import annotations

import math

import pytest
import torch

from lightning_modules.federated.fed_distillation import ImagePool, boundary_support, jensen_shannon, total_variation

SHAPE = (1, 8, 8)


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
