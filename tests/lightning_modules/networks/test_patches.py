"""Patch features: filters of public patches alone, checked against their definition patch by patch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_modules.networks import patches
from lightning_modules.networks.patches import Patches
from lightning_modules.priors import DeadLeavesPrior

SHAPE = (3, 12, 10)
SMALL: dict[str, Any] = {"filters": 12, "patch": 4, "stride": 1}


def images(count: int = 5, seed: int = 0) -> Tensor:
    return 2 * torch.rand(count, *SHAPE, generator=torch.Generator().manual_seed(seed)) - 1


def features(**settings: Any) -> Patches:
    return Patches(**{"image_shape": SHAPE, "prior": DeadLeavesPrior(), **SMALL, **settings})


def one_by_one(network: Patches, picture: Tensor) -> Tensor:
    """The same by its definition: each patch by itself, in float64."""
    picture, side, stride, cells = picture.double(), network.patch, network.stride, network.cells
    filters = network.filters.double().flatten(1)
    rows, columns = ((length - side) // stride + 1 for length in picture.shape[1:])
    sums = torch.zeros(2, len(filters), cells, cells, dtype=torch.float64)
    weights = torch.zeros(cells, cells, dtype=torch.float64)
    centres, deviation = (torch.arange(cells).double() + 0.5) / cells, 0.5 / cells
    for row in range(rows):
        for column in range(columns):
            patch = picture[:, row * stride : row * stride + side, column * stride : column * stride + side].flatten()
            centred = patch - patch.mean()
            normalised = centred / (centred.square().mean() + network.contrast.double() ** 2).sqrt()
            response = filters @ normalised + network.offsets.double().flatten()
            down = torch.exp(-(((row + 0.5) / rows - centres) ** 2) / (2 * deviation**2))
            right = torch.exp(-(((column + 0.5) / columns - centres) ** 2) / (2 * deviation**2))
            weight = down[:, None] * right
            sums += weight * torch.stack([response - 0.25, -response - 0.25]).clamp_min(0)[:, :, None, None]
            weights += weight
    return (sums / weights).pow(network.power.double()).flatten()


@pytest.mark.parametrize("settings", [{}, {"stride": 2, "cells": 3}])
def test_features_are_what_their_definition_says(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    network = features(**settings)
    given = images()
    expected = torch.stack([one_by_one(network, picture) for picture in given])
    assert given.shape[0] == 5 and network(given).shape == (5, *network.output_shape)
    assert torch.allclose(network(given).double(), expected, atol=1e-4)
    monkeypatch.setattr(patches, "_MAPS", 5 * len(network.average))  # 5 of the 12 filters at once
    assert torch.allclose(network(given).double(), expected, atol=1e-4)
    for mutant in ("contrast", "power"):
        network.load_state_dict({**network.state_dict(), mutant: torch.tensor(0.5)})
        assert not torch.allclose(network(given).double(), expected, atol=1e-3)
        network = features(**settings)
