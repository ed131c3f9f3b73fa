"""Settings of a generator's images: the statistics of its pixels, which are the prior's, and resets."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from jsonargparse import ArgumentParser
from torch import Tensor, nn

from lightning_modules import images as source_module
from lightning_modules.cli.distill import prior_for
from lightning_modules.images import Images, SyntheticSource
from lightning_modules.networks import DAFLGenerator, ImageGenerator, ScaledOutput
from lightning_modules.priors import DeadLeavesPrior, ImagePrior, MixturePrior, StrokePrior
from lightning_modules.training.randomness import Draws

GRAY = (1, 28, 28)


def _source(shape: tuple[int, int, int] = GRAY, **settings: Any) -> SyntheticSource:
    settings.setdefault("generator", partial(DAFLGenerator, width=4, latent_dim=8))
    return SyntheticSource(Images(**settings), image_shape=shape, batch_size=8)


def _pixels(source: SyntheticSource) -> Tensor:
    assert source.generator is not None
    with torch.no_grad():
        images: Tensor = source.generator(torch.randn(64, source.latent_dim))
    return images


@pytest.mark.parametrize("kind", ["generator", "both"])
def test_a_generator_has_the_statistics_of_the_prior(kind: Any) -> None:
    images = _pixels(_source(source=kind))
    drawn = StrokePrior().sample(1024, image_shape=GRAY, generator=torch.Generator().manual_seed(7), device="cpu")
    assert float(images.mean()) == pytest.approx(float(drawn.mean()), abs=0.02)
    assert float(images.std()) == pytest.approx(float(drawn.std()), rel=0.05)
    assert float(images.mean()) < -0.5  # and not the 0 that DAFL's last layer gives


def test_each_channel_has_its_own_and_they_are_the_same_in_each_run() -> None:
    prior = DeadLeavesPrior()
    one, other = (_source((3, 16, 16), source="generator", prior=prior).generator for _ in range(2))
    assert isinstance(one, ScaledOutput) and isinstance(other, ScaledOutput)
    assert one.scale.shape == (3, 1, 1) and torch.equal(one.scale, other.scale) and torch.equal(one.shift, other.shift)


@pytest.mark.parametrize("name", ["MNIST", "ImageFolder"])
def test_a_configuration_reads_the_prior_that_distill_chooses(name: str) -> None:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(Images, "images")
    given = {"images": {"source": "prior", "prior": prior_for(name)}}
    made = parser.instantiate(parser.parse_object(given)).images.prior
    assert isinstance(made, StrokePrior if name == "MNIST" else MixturePrior)


class _Own(ImageGenerator):
    """A generator that says nothing of its output."""

    latent_dim = 8

    def __init__(self, image_shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.image_shape = image_shape

    def forward(self, latents: Tensor) -> Tensor:
        """Constant images, but for noise."""
        return 0.9 + 0.1 * torch.randn(len(latents), *self.image_shape)


def test_a_generator_of_ones_own_is_left_as_it_is() -> None:
    assert isinstance(_source(source="generator", generator=_Own).generator, _Own)


def _weights(network: nn.Module | None) -> Tensor:
    assert network is not None
    return torch.cat([value.flatten() for value in network.parameters()]).detach().clone()


def test_a_reset_gives_new_weights_that_follow_from_the_step() -> None:
    source = _source(source="generator", reset_every=5)
    assert isinstance(source.generator, ScaledOutput)
    shift, state = source.generator.shift.clone(), torch.get_rng_state()
    drawn = []
    for step, rank in ((5, 0), (10, 0), (5, 1)):
        with torch.no_grad():
            next(source.generator.parameters()).fill_(7.0)
        source.reset(step, Draws(1, rank, torch.device("cpu")))
        drawn.append(_weights(source.generator))
    assert torch.equal(drawn[0], drawn[2]) and not torch.equal(drawn[0], drawn[1])
    assert torch.equal(source.generator.shift, shift)
    assert torch.equal(torch.get_rng_state(), state)
    source.generator.eval()  # as it is published
    assert float(_pixels(source).std()) == pytest.approx(float(source.generator.scale), rel=0.3)


def test_a_prior_is_never_reset() -> None:
    with pytest.raises(ValueError, match="reset_every must be null"):
        _source(source="prior", reset_every=5)


class _OfAHospital(StrokePrior):
    """Might draw whatever it likes."""


@pytest.mark.parametrize("broken", [False, True])
def test_a_prior_from_elsewhere_is_an_assumption(monkeypatch: pytest.MonkeyPatch, broken: bool) -> None:
    if broken:
        monkeypatch.setattr(source_module, "_parts", lambda prior: (prior, *getattr(prior, "priors", ())))
    assert _source(source="prior", prior=MixturePrior(priors=[DeadLeavesPrior(), StrokePrior()])).assumptions() == []
    prior: ImagePrior = _OfAHospital()
    for depth in range(4):
        own = _source(source="prior", prior=prior).assumptions()
        assert own == ([] if broken and depth > 1 else ["images of _OfAHospital depend on no private record"])
        prior = MixturePrior(priors=[DeadLeavesPrior(), prior])
