"""Sources of a run's images: a generator, a procedural prior, both, or a public pool.

None of them reads private data; only queries cost privacy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import nn
from torch.optim.swa_utils import update_bn

from datamodules import ImageDataModule
from lightning_modules.images.base import ImageSource
from lightning_modules.images.pool import PoolSource
from lightning_modules.networks import DAFLGenerator, ImageGenerator, ScaledOutput
from lightning_modules.networks.batchnorm import frozen_statistics
from lightning_modules.networks.network import GeneratorCallable, built, factory_of
from lightning_modules.priors import ImagePrior, StrokePrior
from lightning_modules.runtime.randomness import Draws, key, stream
from lightning_modules.setting_checks import check_choice, check_whole_number

_STATISTICS_IMAGES = 512
#: Least standard deviation, for a prior with a constant channel.
_SMALLEST_STD = 1e-3

_Source = Literal["generator", "prior", "both", "pool"]


@dataclass(frozen=True, kw_only=True)
class Images:
    """Settings of the image source.

    Attributes:
        source: `generator`, `prior`, `both` (half of each batch), or `pool`.
        prior: Procedural images, for `prior` and `both`. Default: `StrokePrior`.
        generator: Builds the generator. If it is `standardised`, its pixels get the mean and standard deviation of the
            prior's images.
        reset_every: Number of steps after which the generator is reset to new random weights; null is never. A
            generator trained for long collapses to a few kinds of images; fresh ones show the student more. The
            optimizer's state is cleared; the learning-rate schedule continues.
        optimizer: Builds the optimizer of the generator; null is Adam at 1e-3.
        lr_scheduler: Builds its schedule, stepped once per student step; null is none.
        pool: Images for `pool`, declared public: a data set, whose labels are never read, or a folder of pictures in
            any layout, prepared like those of the data.
        pool_part: Part of the data set, `test` or `train`. The train part of the private data itself is refused, except
            by DGD, where it stands in for public data and voids the guarantee.
        pool_varied: Draw random variations of the pool's images (`varied`), with which a few hundred images teach the
            student much more. DGD queries the images unchanged.
    """

    source: _Source = "generator"
    prior: ImagePrior | None = None
    generator: GeneratorCallable = DAFLGenerator
    reset_every: int | None = None
    optimizer: OptimizerCallable | None = None
    lr_scheduler: LRSchedulerCallable | None = None
    pool: ImageDataModule | str | None = None
    pool_part: Literal["test", "train"] = "test"
    pool_varied: bool = False

    def __post_init__(self) -> None:
        if self.prior is not None and not isinstance(self.prior, ImagePrior):
            raise ValueError(f"images.prior must be an ImagePrior, got {self.prior!r}")
        check_choice("images.source", self.source, get_args(_Source))
        check_whole_number("images.reset_every", self.reset_every, least=1, null="never")
        if (self.pool is not None) != (self.source == "pool"):
            raise ValueError(
                "images.pool must be given for images.source='pool', and for no other, got "
                f"pool={self.pool!r} with source={self.source!r}"
            )
        if self.pool is not None and self.prior is not None:
            raise ValueError(f"prior must be left out with a pool, got {type(self.prior).__name__}")
        if self.source in ("prior", "pool") and self.reset_every is not None:
            raise ValueError(f"images.reset_every must be null for source {self.source!r}, got {self.reset_every}")

    def build(self, *, image_shape: tuple[int, int, int], batch_size: int) -> ImageSource:
        """Build the source, for images (C, H, W) in batches of `batch_size`."""
        if self.pool is not None:
            drawn: dict[str, Any] = {"part": self.pool_part, "varied": self.pool_varied}
            return PoolSource(self.pool, **drawn, image_shape=image_shape, batch_size=batch_size)
        return SyntheticSource(self, image_shape=image_shape, batch_size=batch_size)


class SyntheticSource(ImageSource):
    """Synthetic images from a generator, a procedural prior, or both."""

    def __init__(self, settings: Images, *, image_shape: tuple[int, int, int], batch_size: int) -> None:
        if settings.source == "both" and batch_size < 2:
            raise ValueError(f"images.source='both' needs a batch_size of 2 or more, got {batch_size}")
        self.kind = settings.source
        self.image_shape = image_shape
        self.batch_size = self.rows = batch_size
        self._settings = settings
        self._public_prior = settings.prior or StrokePrior()
        self.prior = self._public_prior if self.kind != "generator" else None
        self.generator = self._build_generator()
        self.reset_every = settings.reset_every
        self.published = (*self.networks(), "synthetic images")

    def _build_generator(self) -> nn.Module | None:
        """Build and check the generator; scale its images to the prior's statistics if it is `standardised`."""
        if self.kind == "prior":
            return None
        generator = self._built()
        if not generator.standardised:
            return generator
        mean, std = self._prior_statistics()
        return ScaledOutput(generator, scale=std, shift=mean)

    def _built(self) -> ImageGenerator:
        factory = factory_of(self._settings.generator, GeneratorCallable)
        generator = built(factory, self.image_shape, name="model.images.generator")
        if not isinstance(generator, ImageGenerator):
            raise ValueError(f"images.generator must build an ImageGenerator, got {type(generator).__name__}")
        return generator

    def _prior_statistics(self) -> tuple[list[float], list[float]]:
        """Mean and standard deviation of the prior's pixels per channel, the same in every run."""
        draw = stream(0, 0, 0, "statistics")
        images = self._prior_images(_STATISTICS_IMAGES, draw, torch.device("cpu")).double()
        std = images.std(dim=(0, 2, 3)).clamp_min(_SMALLEST_STD)
        return images.mean(dim=(0, 2, 3)).tolist(), std.tolist()

    @property
    def generated(self) -> int:
        if self.generator is None:
            return 0
        return self.rows // 2 if self.kind == "both" else self.rows

    def latents(self, step: int, draws: Draws) -> torch.Tensor | None:
        """Draw z, shape (n, latent_dim), where n is `generated`; None without a generator."""
        if self.generator is None:
            return None
        return self._latents(self.generated, draws.stream(step, "latents"), draws.device)

    def images(self, step: int, latents: torch.Tensor | None, draws: Draws) -> torch.Tensor:
        parts = []
        if self.generator is not None and latents is not None:
            parts.append(self.generator(latents).float())
        left = self.rows - sum(len(part) for part in parts)
        if left:
            parts.append(self._prior_images(left, draws.stream(step, "prior"), draws.device))
        return torch.cat(parts)

    def grid(self, count: int, *, seed: int, device: torch.device) -> torch.Tensor:
        """Draw images for display, shape (count, C, H, W), from the same latents each time."""
        draw = stream(seed, 0, 0, "grid")
        parts = []
        if self.generator is not None:
            latents = self._latents(count // 2 if self.kind == "both" else count, draw, device)
            with torch.no_grad(), frozen_statistics(self.generator):
                parts.append(self.generator(latents).float())
        left = count - sum(len(part) for part in parts)
        if left:
            parts.append(self._prior_images(left, draw, device))
        return torch.cat(parts)

    def reset(self, step: int, draws: Draws) -> None:
        assert self.generator is not None
        network = self.generator.network if isinstance(self.generator, ScaledOutput) else self.generator
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(key(draws.seed, step, 0, "reset"))
            network.load_state_dict(self._built().state_dict())
            # BatchNorm's initial statistics last for dozens of steps and would make images flat in eval mode.
            update_bn([self.latents(step, draws.common)], network)

    def assumptions(self) -> list[str]:
        """State the assumption that priors from outside this project do not depend on private records."""
        parts = {type(part) for part in _parts(self._public_prior)}
        external = sorted(kind.__qualname__ for kind in parts if not kind.__module__.startswith("lightning_modules."))
        return [f"images of {name} depend on no private record" for name in external]

    def networks(self) -> dict[str, nn.Module]:
        return {} if self.generator is None else {"generator": self.generator}

    def _latents(self, count: int, draw: torch.Generator, device: torch.device) -> torch.Tensor:
        return torch.randn(count, self.latent_dim, generator=draw).to(device)

    def _prior_images(self, count: int, draw: torch.Generator, device: torch.device) -> torch.Tensor:
        return self._public_prior.sample(count, image_shape=self.image_shape, generator=draw, device=device)


def _parts(prior: ImagePrior) -> Iterator[ImagePrior]:
    """A prior and those that it is a mixture of, at any depth."""
    yield prior
    for part in getattr(prior, "priors", ()):
        yield from _parts(part)
