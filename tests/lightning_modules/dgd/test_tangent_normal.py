"""Directions: orthogonal, of the asked length, and those in which predictions change fastest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from lightning_modules.dgd import tangent_normal
from lightning_modules.dgd.tangent_normal import (
    Directions,
    find_directions,
    with_length,
)
from lightning_modules.losses.functional import class_balance, kd
from lightning_modules.networks import SmallCNN
from lightning_modules.networks.generators import ConvVAE


def networks() -> tuple[SmallCNN, ConvVAE]:
    torch.manual_seed(0)
    shape = (1, 8, 8)
    return SmallCNN(image_shape=shape, width=4, hidden=16).eval(), ConvVAE(image_shape=shape, width=4).eval()


def found(rows: int = 16, seed: int = 1, **settings: Any) -> Directions:
    student, vae = networks()
    codes = torch.randn(rows, 32, generator=torch.Generator().manual_seed(3))
    draw = torch.Generator().manual_seed(seed)
    return find_directions(student, vae.decode, codes, draw=draw, **settings)


def cosines(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    return F.cosine_similarity(first.flatten(1), second.flatten(1)).abs()


def test_directions_are_orthogonal_and_of_length_one(monkeypatch: pytest.MonkeyPatch) -> None:
    tangent, displacement, normal = found()
    assert torch.allclose(tangent.norm(dim=1), torch.tensor(1.0), atol=1e-5)
    assert torch.allclose(normal.flatten(1).norm(dim=1), torch.tensor(1.0), atol=1e-5)
    assert float(cosines(normal, displacement).max()) < 1e-5
    assert not tangent.requires_grad and not normal.requires_grad
    # The negative control: without the projection they are not orthogonal.
    monkeypatch.setattr(tangent_normal, "project_out", lambda vectors, directions: vectors)
    _, displacement, normal = found()
    assert float(cosines(normal, displacement).max()) > 0.05


def test_predictions_change_more_than_along_random_directions() -> None:
    student, vae = networks()
    draw = torch.Generator().manual_seed(3)
    codes = torch.randn(64, 32, generator=draw)  # those of `found`
    tangent, _, normal = found(64)
    with torch.no_grad():
        images = vae.decode(codes)
        logits = student(images)

        def changed(tangent: torch.Tensor, normal: torch.Tensor) -> list[float]:
            seen = (vae.decode(codes + tangent), images + normal)
            return [float(kd(student(given), logits).mean()) for given in seen]

        random = (with_length(torch.randn(given.shape, generator=draw), 1.0) for given in (tangent, normal))
        for sought, by_chance in zip(changed(tangent, normal), changed(*random), strict=True):
            assert sought > 1.5 * by_chance
        # Normals of the code change them more than a code that moves by chance.
        by_chance = vae.decode(codes + with_length(torch.randn(codes.shape, generator=draw), 1.0))
        sought_of_code, chance = (
            float(kd(student(given), logits).mean()) for given in (images + found(64, normals="code").normal, by_chance)
        )
        assert sought_of_code > 1.2 * chance


def descended(loss: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    logits = torch.tensor([[0.5, 0.0, -0.5]], requires_grad=True)
    for _ in range(200):
        (gradient,) = torch.autograd.grad(loss(logits), logits)
        logits = (logits - 0.5 * gradient).detach().requires_grad_()
    return logits.softmax(1).detach()


def test_the_entropy_makes_outputs_determinate_and_as_printed_uniform() -> None:
    assert float(descended(lambda logits: -class_balance(logits, of="image")).max()) > 0.95
    assert float(descended(lambda logits: class_balance(logits, of="image")).max()) < 0.34  # DGD Eq. 6 as printed
