"""Refined prior images: the identity at first, then what the student's generator terms ask for, at a prior's price."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.runs import BATCH_SIZE, distil
from torch import nn

from lightning_modules import DPDFD
from lightning_modules.networks import Refiner
from lightning_modules.networks.generators import check_refiner
from lightning_modules.priors import StrokePrior

METHODS: list[tuple[str, dict[str, Any]]] = [
    ("DPDFD", {}),
    ("DPSD", {"annotator": {"class_path": "LabelAnnotator"}}),
    ("LabelDP", {"annotator": {"class_path": "LabelAnnotator"}, "discriminator": "student"}),
]
REFINER = {"name": "Refiner", "arguments": {"width": 4}}


def _images(rows: int = 16, shape: tuple[int, int, int] = (1, 12, 12)) -> torch.Tensor:
    draw = torch.Generator().manual_seed(0)
    return StrokePrior().sample(rows, image_shape=shape, generator=draw, device="cpu")


def _run(folder: str, method: str, settings: dict[str, Any], *arguments: str, images: str = "refined") -> Any:
    return distil(folder, *arguments, class_path=method, model={"images": images, "generator": REFINER, **settings})


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32), (1, 20, 36)])
def test_a_refiner_starts_as_the_identity(shape: tuple[int, int, int]) -> None:
    images = _images(shape=shape)
    assert torch.equal(Refiner(image_shape=shape)(images), images)


@pytest.mark.parametrize("reach", [0.2, 0.5, 1.0])
def test_no_pixel_moves_farther_than_the_refiner_reaches(reach: float) -> None:
    torch.manual_seed(0)
    images, refiner = _images(), Refiner(image_shape=(1, 12, 12), reach=reach)
    nn.init.normal_(refiner.layers[-1].weight, std=5.0)  # type: ignore[arg-type]
    moved = refiner(images) - images
    room = torch.where(moved > 0, 1 - images, 1 + images)
    assert (moved.abs() <= reach * room + 1e-6).all()
    assert moved.abs().amax() > 0.9 * reach * 2


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), r"gives \(2, 3\)"),
        (nn.Linear(5, 64), "Linear cannot"),
    ],
)
def test_a_network_that_is_no_refiner_is_refused(network: nn.Module, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_refiner(network, image_shape=(1, 8, 8))
    assert network.training


@pytest.mark.parametrize("settings", [{"width": 0}, {"image_shape": (1, 0, 8)}, {"reach": 0.0}, {"reach": 1.5}])
def test_bad_settings_are_named(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        Refiner(**settings)


@pytest.mark.parametrize(("method", "settings"), METHODS)
def test_every_method_trains_the_refiner_and_nothing_else_makes_images(
    folder: Path, monkeypatch: pytest.MonkeyPatch, method: str, settings: dict[str, Any]
) -> None:
    drawn: dict[str, list[torch.Tensor]] = {"prior": [], "refined": []}
    draw = DPDFD.draw_images

    def recording(self: DPDFD, step: int, latents: torch.Tensor | None) -> torch.Tensor:
        images = draw(self, step, latents)
        drawn[self.images.kind].append(images)
        return images

    monkeypatch.setattr("lightning_modules.base.DataFreeDistillation.draw_images", recording)
    prior = _run("prior", method, settings, images="prior").model
    cli = _run("run", method, settings)
    refined = cli.model
    # The first step is on the prior's own images, a later one no longer is, unless a stage was drawn at its start.
    assert torch.equal(drawn["prior"][0], drawn["refined"][0]) and len(drawn["refined"][0]) == BATCH_SIZE
    assert all(len(images) == BATCH_SIZE for images in drawn["refined"])
    if method != "LabelDP":
        assert not torch.equal(drawn["prior"][-1], drawn["refined"][-1])
        torch.testing.assert_close(drawn["prior"][-1], drawn["refined"][-1], rtol=0, atol=0.3)
    assert any(bool(value.any()) for value in refined.generator.layers[-1].parameters())
    assert refined.published_artefacts == ("student", "refiner", "synthetic images")
    assert prior.published_artefacts == ("student", "synthetic images") and prior.generator is None
    # Post-processing of what was released: the price is the prior's.
    first, second = prior.guarantee(), refined.guarantee()
    assert (first.epsilon, first.claimed_epsilon) == (second.epsilon, second.claimed_epsilon)
    assert first.epsilon < float("inf")
    grid = refined.synthetic_grid(6)
    assert grid.shape == (6, 1, 8, 8) and grid.amin() >= -1 and grid.amax() <= 1
    assert torch.equal(grid, refined.synthetic_grid(6))
    assert not torch.equal(grid, prior.synthetic_grid(6))


@pytest.mark.parametrize("method", ["DPSD", "LabelDP"])
def test_a_refiner_against_the_private_teacher_is_refused(folder: Path, method: str) -> None:
    settings = dict(next(settings for name, settings in METHODS[::-1] if name == method))
    with pytest.raises(ValueError, match=r"images\.source='refined' needs .*discriminator='student'"):
        _run("run", method, {**settings, "discriminator": "teacher"})


def test_a_generator_is_no_refiner_and_a_refiner_no_generator(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"generator must take images .* DAFLGenerator cannot"):
        distil(model={"images": "refined"})
    with pytest.raises(ValueError, match=r"must have a latent_dim for images\.source='generator', Refiner has none"):
        distil(model={"images": "generator", "generator": REFINER})
