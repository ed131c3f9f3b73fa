"""The stroke prior: deterministic, in range, in its box, and nothing but its settings and its generator."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lightning_modules.priors import ImagePrior, StrokePrior

SHAPES = [(1, 8, 8), (1, 28, 28), (3, 32, 32), (1, 64, 64), (1, 30, 20), (1, 1, 1)]


def draw(prior: ImagePrior, rows: int = 64, shape: tuple[int, int, int] = (1, 28, 28), seed: int = 0) -> Tensor:
    return prior.sample(rows, image_shape=shape, generator=torch.Generator().manual_seed(seed), device="cpu")


def spans(images: Tensor) -> tuple[Tensor, Tensor]:
    """Height and width in pixels of each image's ink, counted where it is at least half."""
    ink = images[:, 0] >= 0
    rows, columns = ink.any(2).float(), ink.any(1).float()

    def span(hit: Tensor) -> Tensor:
        at = torch.arange(hit.shape[1]).expand_as(hit)
        return at.masked_fill(hit == 0, -1).amax(1) - at.masked_fill(hit == 0, hit.shape[1]).amin(1) + 1

    return span(rows), span(columns)


@pytest.mark.parametrize("shape", SHAPES)
def test_images_are_finite_in_range_and_of_the_shape(shape: tuple[int, int, int]) -> None:
    images = draw(StrokePrior(), shape=shape)
    assert images.shape == (64, *shape) and images.dtype == torch.float32
    assert images.isfinite().all() and images.amin() >= -1 and images.amax() <= 1
    assert images.is_contiguous() and not images.requires_grad
    if shape != (1, 1, 1):
        assert images.amin() == -1 and images.amax() > 0.9
        assert (images.flatten(1).amax(1) > 0).all()
    assert all(torch.equal(images[:, 0], images[:, channel]) for channel in range(shape[0]))


def test_equal_generators_draw_equal_images_whatever_the_global_seed() -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    one = draw(StrokePrior(), seed=7)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert torch.equal(one, draw(StrokePrior(), seed=7))
    assert not torch.equal(one, draw(StrokePrior(), seed=8))
    assert torch.equal(one[:10], draw(StrokePrior(), rows=10, seed=7))


def test_images_within_and_between_batches_differ() -> None:
    generator = torch.Generator().manual_seed(0)
    batches = [StrokePrior().sample(64, image_shape=(1, 28, 28), generator=generator, device="cpu") for _ in range(2)]
    assert len(torch.unique(torch.cat(batches).flatten(1), dim=0)) == 128


@pytest.mark.parametrize(("shape", "side"), [((1, 28, 28), 20), ((1, 56, 56), 40), ((1, 8, 8), 8)])
def test_ink_fills_the_box_of_the_data_sets(shape: tuple[int, int, int], side: int) -> None:
    height, width = spans(draw(StrokePrior(), rows=300, shape=shape))
    slack = max(1.5, 0.12 * side)  # soft ends fall short, crossings of a pen at the rim reach over
    tallest = torch.maximum(height, width).float()
    assert (tallest <= side + slack).all()
    assert (tallest >= side - slack).float().mean() > 0.8
    assert tallest.median().item() == pytest.approx(side, abs=max(1, 0.08 * side))


def test_the_box_can_be_set_and_the_test_above_would_notice() -> None:
    height, width = spans(draw(StrokePrior(box=0.4), rows=300))
    assert torch.maximum(height, width).float().median().item() == pytest.approx(0.4 * 28, abs=1.5)


def test_ink_is_centred_by_mass() -> None:
    def offset(prior: StrokePrior) -> Tensor:
        ink = (draw(prior, rows=300)[:, 0] + 1) / 2
        at = torch.arange(28) + 0.5
        total = ink.sum((1, 2))
        return (
            torch.stack([(ink.sum(2) * at).sum(1) / total - 14, (ink.sum(1) * at).sum(1) / total - 14], 1).abs().amax(1)
        )

    assert offset(StrokePrior()).median() < 1
    # In a box as large as the image there is no room to move in: the ink's own lopsidedness shows.
    assert offset(StrokePrior(box=1.0)).median() > 1


def test_settings_do_what_they_say() -> None:
    def ink(**settings: object) -> float:
        return ((draw(StrokePrior(**settings), rows=300) + 1) / 2).mean().item()  # type: ignore[arg-type]

    assert ink(pen_width=(0.15, 0.15)) > 1.5 * ink(pen_width=(0.07, 0.07))
    assert ink(max_curves=5) > 1.2 * ink(max_curves=1)
    height, width = spans(draw(StrokePrior(aspect=(0.5, 0.5), pen_width=(0.07, 0.07)), rows=300))
    assert (width / height).median().item() == pytest.approx(0.5, abs=0.07)
    soft, sharp = (
        (draw(StrokePrior(blur=(edge, edge), pen_width=(0.16, 0.16))).abs() < 0.8).float().mean()
        for edge in (0.12, 0.02)
    )
    assert soft > 1.5 * sharp


def test_slant_leans_both_ways_and_can_be_switched_off() -> None:
    upright, slanted = (draw(StrokePrior(slant=slant, aspect=None), rows=64) for slant in (0.0, 1.0))
    assert not torch.allclose(upright, slanted)


def test_a_join_probability_of_one_draws_one_connected_line() -> None:
    """Counted by flood filling: joined curves leave one piece of ink per image, free ones sometimes several."""

    def pieces(images: Tensor) -> Tensor:
        ink = images[:, 0] > -0.5
        label = torch.arange(1.0, ink[0].numel() + 1).view(1, *ink.shape[1:]) * ink
        for _ in range(400):
            label = torch.nn.functional.max_pool2d(label, 3, 1, 1) * ink
        return torch.tensor([len(row.unique()) - 1 for row in label])

    joined, free = (
        pieces(draw(StrokePrior(join_probability=p, pen_width=(0.1, 0.1)), rows=40, shape=(1, 40, 40)))
        for p in (1.0, 0.0)
    )
    assert (joined == 1).all()
    assert (free > 1).float().mean() > 0.1


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"max_curves": 0}, "max_curves"),
        ({"max_curves": 2.5}, "max_curves"),
        ({"join_probability": 1.1}, "join_probability"),
        ({"pen_width": (0.2, 0.1)}, "pen_width"),
        ({"pen_width": (0.0, 0.1)}, "pen_width"),
        ({"pen_width": (float("nan"), 0.1)}, "pen_width"),
        ({"blur": (0.1, 0.9)}, "blur"),
        ({"slant": -0.1}, "slant"),
        ({"slant": float("nan")}, "slant"),
        ({"aspect": (0.0, 1.0)}, "aspect"),
        ({"box": 1.2}, "box"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        StrokePrior(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(("rows", "shape", "named"), [(0, (1, 8, 8), "batch_size"), (1, (1, 0, 8), "image_shape")])
def test_bad_requests_are_named(rows: int, shape: tuple[int, int, int], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        draw(StrokePrior(), rows=rows, shape=shape)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_cpu_generator_draws_the_same_images_on_a_gpu() -> None:
    prior = StrokePrior()
    there = prior.sample(64, image_shape=(1, 28, 28), generator=torch.Generator().manual_seed(0), device="cuda")
    assert there.device.type == "cuda"
    torch.testing.assert_close(there.cpu(), draw(prior), rtol=0, atol=1e-3)
