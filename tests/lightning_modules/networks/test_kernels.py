"""Convolutional kernel networks: anchors of public images alone, and features that are what their definition says."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from lightning_modules.networks import kernels
from lightning_modules.networks.kernels import Kernels
from lightning_modules.priors import DeadLeavesPrior

SHAPE = (3, 14, 12)
SMALL: dict[str, Any] = {"first_anchors": 6, "anchors": 8, "cells": 2}


def images(count: int = 5, seed: int = 0) -> Tensor:
    return 2 * torch.rand(count, *SHAPE, generator=torch.Generator().manual_seed(seed)) - 1


def features(**settings: Any) -> Kernels:
    given = {"image_shape": SHAPE, "prior": DeadLeavesPrior(), **SMALL, **settings}
    return Kernels(**given)


def kappa(cosines: Tensor, bandwidth: float) -> Tensor:
    return torch.exp((cosines - 1) / bandwidth**2)


def one_by_one(network: Kernels, picture: Tensor) -> Tensor:
    """The same patch by patch, in float64."""
    side, step, cells = 3, 2, network.cells
    first, second = (anchors.double().flatten(1) for anchors in (network.first, network.second))
    factors = network.first_factor.double(), network.second_factor.double()

    def layer(maps: Tensor, anchors: Tensor, factor: Tensor, *, centred: bool) -> Tensor:
        patches = F.unfold(maps[None], side)[0]
        if centred:
            patches = patches - patches.mean(dim=0)
            patches = patches / (patches.square().sum(dim=0) + len(patches) * 0.1**2).sqrt()
        lengths = patches.norm(dim=0)
        return (factor @ kappa(anchors @ patches / lengths, 0.6) * lengths).unflatten(1, (maps.shape[1] - side + 1, -1))

    maps = layer(picture.double(), first, factors[0], centred=True)
    kept = []
    for length in maps.shape[1:]:
        number = (length - 1) // step + 1
        begin = (length - 1 - step * (number - 1)) / 2
        places = torch.arange(length).double()
        weights = [(-((places - begin - step * place) ** 2) / step**2).exp() for place in range(number)]
        kept.append(torch.stack([row / row.sum() for row in weights]))
    maps = layer(torch.einsum("kij,ri,cj->krc", maps, *kept), second, factors[1], centred=False)
    rows, columns = maps.shape[1:]
    sums, counts = torch.zeros(len(second), cells, cells).double(), torch.zeros(cells, cells)
    for row in range(rows):
        for column in range(columns):
            sums[:, row * cells // rows, column * cells // columns] += maps[:, row, column]
            counts[row * cells // rows, column * cells // columns] += 1
    return (sums / counts).flatten()


@pytest.mark.parametrize("settings", [{}, {"cells": 1}])
def test_features_are_what_their_definition_says(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    network, given = features(**settings), images(3)
    expected = torch.stack([one_by_one(network, picture) for picture in given])
    assert network(given).shape == (3, *network.output_shape)
    assert torch.allclose(network(given).double(), expected, atol=1e-4)
    monkeypatch.setattr(kernels, "_BANDWIDTH", 0.7)  # the mutant: another kernel than the factors are of
    assert not torch.allclose(network(given).double(), expected, atol=1e-3)
