"""Each kind of network is exported, takes batches of any size, and gives the logits that it gives here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.features import linear
from torch import nn

from lightning_modules.networks import Kernels, Patches, ResNet18, Scattering, SmallCNN
from lightning_modules.publishing import ExportError
from lightning_modules.publishing.onnx import portable, require_agreement, write_onnx

pytestmark = pytest.mark.usefixtures("with_onnx")
GREY = (1, 8, 8)


#: Each kind of features, plain or whitened.
FEATURES: dict[str, dict[str, Any]] = {
    "plain": {"features": Scattering},
    "scattering": {"features": Scattering, "whitened": True, "images": 20},
    "patches": {
        **{"features": Patches, "filters": 30, "patch": 4},
        **{"whitened": True, "images": 20, "mirrored": True, "shifts": 1},
    },
    "kernels": {
        **{"features": Kernels, "first_anchors": 8, "anchors": 30, "cells": 1},
        **{"whitened": True, "images": 20, "mirrored": True},
    },
}


def network(kind: type[nn.Module] | str, shape: tuple[int, int, int]) -> nn.Module:
    torch.manual_seed(0)
    if isinstance(kind, str):
        made: nn.Module = linear(num_classes=4, image_shape=shape, **FEATURES[kind])
    else:
        made = kind(num_classes=4, image_shape=shape)
    # Statistics and weights as after a training.
    for name, value in made.state_dict().items():
        if name.endswith("running_mean"):
            value.normal_()
    return made.eval()


def test_scattering_is_computed_in_another_way_there() -> None:
    """The slow test writes all kinds. The mutant: wavelets of one scale in another order."""
    plain = network("plain", GREY)
    other = portable(plain)
    scattering = next(module for module in other.modules() if isinstance(module, Scattering))
    require_agreement(other, plain, image_shape=GREY, name="it")
    scattering.wavelets0 = scattering.get_buffer("wavelets0").flip(0)
    with pytest.raises(ExportError, match="logits of it differ"):
        require_agreement(other, plain, image_shape=GREY, name="it")


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)])
@pytest.mark.parametrize("kind", [SmallCNN, ResNet18, *FEATURES])
def test_all_kinds_at_their_sizes(
    tmp_path: Path, quick_whitening: None, kind: type[nn.Module] | str, shape: tuple[int, int, int]
) -> None:
    write_onnx(network(kind, shape), tmp_path, image_shape=shape)


def test_logits_that_differ_are_refused() -> None:
    made = network(SmallCNN, GREY)
    with torch.no_grad():
        least = float(made(torch.zeros(1, *GREY)).abs().max())
    assert least < 1  # so that the tolerance is absolute
    assert require_agreement(made, made, image_shape=GREY, name="it") == 0
    assert require_agreement(lambda x: made(x) + 0.9e-4, made, image_shape=GREY, name="it") == pytest.approx(9e-5, 0.1)
    for wrong in (1e-2, float("nan")):
        with pytest.raises(ExportError, match="logits of it differ"):
            require_agreement(lambda x, wrong=wrong: made(x) + wrong, made, image_shape=GREY, name="it")  # type: ignore[misc]

    def of_two(images: torch.Tensor) -> torch.Tensor:
        if len(images) != 2:
            raise RuntimeError("batch size must be 2")
        logits: torch.Tensor = made(images)
        return logits

    with pytest.raises(ExportError, match="does not take 1 images"):
        require_agreement(of_two, made, image_shape=GREY, name="it")
