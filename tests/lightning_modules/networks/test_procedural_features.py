"""Features of procedural images: of public images alone, each image by itself, and what their definitions say."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from support.features import linear
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_modules.networks import Kernels, LinearOnFeatures, Patches, Scattering, kernels, patches
from lightning_modules.priors import FractalPrior

SHAPE = (3, 14, 12)
KINDS: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
    "kernels": (Kernels, {"first_anchors": 6, "anchors": 8, "cells": 2}),
    "patches": (Patches, {"filters": 12, "patch": 4, "stride": 1}),
    "scattering": (Scattering, {}),
}
each_kind = pytest.mark.parametrize("kind", KINDS)


def build(kind: str, *, whitened: bool = True, **settings: Any) -> LinearOnFeatures:
    torch.manual_seed(0)
    features, own = KINDS[kind]
    if whitened:
        settings = {"images": 20, **settings}
    return linear(features, whitened=whitened, **{"image_shape": SHAPE, **own, **settings})


def images(count: int = 5) -> Tensor:
    return 2 * torch.rand(count, *SHAPE, generator=torch.Generator().manual_seed(0)) - 1


@each_kind
def test_features_are_the_priors_and_come_back_from_a_checkpoint(kind: str) -> None:
    leaves, again, fractals = build(kind), build(kind), build(kind, prior=FractalPrior())
    given = images()
    assert torch.equal(leaves.feature_extractor(given), again.feature_extractor(given))
    assert not torch.allclose(leaves.feature_extractor(given), fractals.feature_extractor(given), atol=1e-2)
    assert torch.equal(leaves.forward_extracted(leaves.feature_extractor(given)), leaves(given))
    assert torch.equal(leaves.head(leaves.forward_features(given)), leaves(given))
    assert {name for name, _ in leaves.named_parameters()} == {"head.weight", "head.bias"}
    assert {f"feature_extractor.{name}" for name in ("mean", "directions", "gains", "scale")} <= {*leaves.state_dict()}
    fractals.load_state_dict(leaves.state_dict())
    assert torch.equal(fractals(given), leaves(given))


@each_kind
@pytest.mark.parametrize("whitened", [False, True])
def test_features_of_an_image_do_not_depend_on_its_neighbours(kind: str, whitened: bool) -> None:
    extractor, given = build(kind, whitened=whitened).feature_extractor, images(70)
    alone = torch.cat([extractor(image[None]) for image in given])
    assert torch.allclose(extractor(given), alone, rtol=1e-4, atol=1e-4)
    assert extractor(given[:0]).shape == (0, *extractor.output_shape)


@each_kind
@pytest.mark.parametrize("mirrored", [False, True])
def test_mirrored_features_do_not_tell_an_image_from_its_mirror_image(kind: str, mirrored: bool) -> None:
    extractor, given = build(kind, mirrored=mirrored).feature_extractor, images()
    assert torch.allclose(extractor(given), extractor(given.flip(-1)), atol=1e-4) is mirrored


def of_kernels(network: Kernels, picture: Tensor) -> Tensor:
    """Features of `Kernels` by their definition, patch by patch, in float64."""
    side, step, cells = 3, 2, network.cells
    first, second = (anchors.double().flatten(1) for anchors in (network.first, network.second))
    factors = network.first_factor.double(), network.second_factor.double()

    def layer(maps: Tensor, anchors: Tensor, factor: Tensor, *, centred: bool) -> Tensor:
        patches = F.unfold(maps[None], side)[0]
        if centred:
            patches = patches - patches.mean(dim=0)
            patches = patches / (patches.square().sum(dim=0) + len(patches) * 0.1**2).sqrt()
        lengths = patches.norm(dim=0)
        return (factor @ torch.exp((anchors @ patches / lengths - 1) / 0.6**2) * lengths).unflatten(
            1, (maps.shape[1] - side + 1, -1)
        )

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


def of_patches(network: Patches, pictures: Tensor) -> Tensor:
    """Those of `Patches`, likewise."""
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


@pytest.mark.parametrize("settings", [{}, {"cells": 1}])
def test_kernels_are_what_their_definition_says(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    network, given = build("kernels", whitened=False, **settings).feature_extractor, images(3)
    expected = torch.stack([of_kernels(network, picture) for picture in given])
    assert network(given).shape == (3, *network.output_shape)
    assert torch.allclose(network(given).double(), expected, atol=1e-4)
    monkeypatch.setattr(kernels, "_BANDWIDTH", 0.7)  # the mutant: another kernel than the factors are of
    assert not torch.allclose(network(given).double(), expected, atol=1e-3)


@pytest.mark.parametrize("settings", [{}, {"stride": 2, "cells": 3}])
def test_patches_are_what_their_definition_says(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    network, given = build("patches", whitened=False, **settings).feature_extractor, images()
    expected, state = of_patches(network, given), copy.deepcopy(network.state_dict())
    assert network(given).shape == (5, *network.output_shape)
    assert torch.allclose(network(given).double(), expected, atol=1e-4)
    monkeypatch.setattr(patches, "_MAPS", 5 * len(network.average))  # 5 of the 12 filters at once
    assert torch.allclose(network(given).double(), expected, atol=1e-4)
    for mutant in ("contrast", "power"):
        network.load_state_dict({**state, mutant: torch.tensor(0.5)})
        assert not torch.allclose(network(given).double(), expected, atol=1e-3)
