"""What holds for all features of procedural images: of public images alone, found once, each image by itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.features import linear
from torch import Tensor, nn

from lightning_modules.networks import Kernels, LinearOnFeatures, Patches, Scattering, feature_cache
from lightning_modules.priors import DeadLeavesPrior, FractalPrior, ImagePrior, MixturePrior, StrokePrior

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


class FewLeaves(DeadLeavesPrior):
    texture = 0.9


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


CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("kernels", {"first_anchors": 7}),
    ("kernels", {"anchors": 9}),
    ("patches", {"filters": 13}),
    ("patches", {"patch": 3}),
    ("patches", {"contrast": 0.1}),
    *(("patches", {"prior": prior}) for prior in (FewLeaves(), FractalPrior())),
    *(("scattering", change) for change in ({"image_shape": (3, 12, 14)}, {"power": 0.5}, {"images": 21})),
]


@pytest.mark.parametrize(("kind", "change"), CHANGES, ids=lambda value: str(value)[:40])
def test_what_one_network_found_is_found_for_the_next_and_for_no_other(
    kind: str, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kept in the process, as if it were found anew; what is written into one network changes no other."""
    drawn: list[ImagePrior] = []
    for prior in (DeadLeavesPrior, FractalPrior):
        sample = prior.sample

        def counted(self: ImagePrior, *given: Any, sample: Any = sample, **settings: Any) -> Tensor:
            drawn.append(self)
            found: Tensor = sample(self, *given, **settings)
            return found

        monkeypatch.setattr(prior, "sample", counted)
    monkeypatch.setattr(feature_cache, "_cache", {})
    first = build(kind)
    after, anew = torch.rand(1), {name: value.clone() for name, value in first.state_dict().items()}
    with torch.no_grad():
        for value in first.state_dict().values():
            value.zero_()
    drawn.clear()
    again = build(kind)
    assert torch.equal(torch.rand(1), after)  # weights that are drawn afterwards do not depend on what was kept
    assert not drawn and all(torch.equal(value, anew[name]) for name, value in again.state_dict().items())
    other = build(kind, **change).state_dict()
    assert drawn and any(
        value.shape != anew[name].shape or not torch.equal(value, anew[name])
        for name, value in other.items()
        if not name.startswith("head")
    )


def test_settings_that_may_change_in_place_are_looked_at_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_cache, "_cache", {})
    build("scattering", prior=MixturePrior(priors=[StrokePrior(), DeadLeavesPrior()]))
    assert not feature_cache._cache
