"""Patch features: filters of public patches alone, checked against their definition patch by patch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from lightning_modules.networks import patches
from lightning_modules.networks.patches import Patches
from lightning_modules.priors import DeadLeavesPrior

SHAPE = (3, 12, 10)
SMALL: dict[str, Any] = {"filters": 12, "patch": 4, "stride": 1}


def images(count: int = 5, seed: int = 0) -> Tensor:
    return 2 * torch.rand(count, *SHAPE, generator=torch.Generator().manual_seed(seed)) - 1


def features(**settings: Any) -> Patches:
    return Patches(**{"image_shape": SHAPE, "prior": DeadLeavesPrior(), **SMALL, **settings})


def by_definition(network: Patches, pictures: Tensor) -> Tensor:
    """The same patch by patch, in float64."""
    side, stride, cells = network.patch, network.stride, network.cells
    patches = F.unfold(pictures.double(), side, stride=stride)
    centred = patches - patches.mean(dim=1, keepdim=True)
    normalised = centred / (centred.square().mean(dim=1, keepdim=True) + network.contrast.double() ** 2).sqrt()
    responses = network.filters.double().flatten(1) @ normalised + network.offsets.double()[:, 0]
    centres, deviation, windows = (torch.arange(cells).double() + 0.5) / cells, 0.5 / cells, []
    for length in pictures.shape[2:]:
        places = (torch.arange((length - side) // stride + 1).double() + 0.5) / ((length - side) // stride + 1)
        windows.append(torch.exp(-((places[:, None] - centres) ** 2) / (2 * deviation**2)))
    weights = torch.kron(*windows)
    found = torch.cat([responses - 0.25, -responses - 0.25], dim=1).clamp_min(0) @ weights / weights.sum(dim=0)
    return found.pow(network.power.double()).flatten(1)


@pytest.mark.parametrize("settings", [{}, {"stride": 2, "cells": 3}])
def test_features_are_what_their_definition_says(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    network = features(**settings)
    given = images()
    expected = by_definition(network, given)
    assert network(given).shape == (5, *network.output_shape)
    assert torch.allclose(network(given).double(), expected, atol=1e-4)
    monkeypatch.setattr(patches, "_MAPS", 5 * len(network.average))  # 5 of the 12 filters at once
    assert torch.allclose(network(given).double(), expected, atol=1e-4)
    for mutant in ("contrast", "power"):
        network.load_state_dict({**network.state_dict(), mutant: torch.tensor(0.5)})
        assert not torch.allclose(network(given).double(), expected, atol=1e-3)
        network = features(**settings)
