"""What holds for all features of procedural images: of public images alone, found once, each image by itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.features import linear
from torch import Tensor, nn

from lightning_modules.networks import Kernels, LinearOnFeatures, Patches, Scattering
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
