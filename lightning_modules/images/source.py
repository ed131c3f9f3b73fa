"""Sources of a run's synthetic images: a generator, a procedural prior, both, or a refined prior.

None of it reads private data: only queries about an image cost privacy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import nn

from lightning_modules.networks import Network, ScaledOutput
from lightning_modules.networks.batchnorm import frozen_statistics
from lightning_modules.networks.generators import check_refiner
from lightning_modules.priors import ImagePrior, StrokePrior
from lightning_modules.runtime.randomness import Draws, key, stream
from lightning_modules.setting_checks import check_number, check_whole_number
from privacy.processes import ProcessesError, share_size

__all__ = ["ImageSettings", "ImageSource", "Images", "SyntheticSource", "require_no_pixel_statistics"]

_STATISTICS_IMAGES = 512
#: For a prior whose pixels are all alike in a channel.
_SMALLEST_STD = 1e-3
#: Far beyond the images' range of [-1, 1]; nothing that float32 cannot hold follows from it.
_LARGEST_PIXEL = 1e3

_Source = Literal["generator", "prior", "both", "refined"]


@dataclass(frozen=True, kw_only=True)
class Images:
    """Source of synthetic images; a string stands for the `source`.

    Attributes:
        source: `generator`, `prior`, `both` (half of each batch), or `refined` (images of the prior, changed by a small
            network that is trained in the generator's place).
        prior: Procedural images, for `prior`, `both` and `refined`. Default: `StrokePrior`.
        generator: The generator, see `Network`. Default: `DAFLGenerator`; for `refined` `Refiner`.
        reset_every: The generator, or the refiner, is reset to new random weights after every so many steps; null is
            never. A generator that is trained for long collapses to a few kinds of images, and a sequence of new ones
            shows the student many. The state of its optimizer is cleared; its learning-rate schedule continues.
        pixel_mean: Mean that the generator's pixels are shifted to, one number or a list of one for each channel; null
            is the mean of the prior's images. DAFL's generator ends in BatchNorm without weights, so its own is 0.
        pixel_std: Standard deviation that they are scaled to, in the same form; null is that of the prior's images.
            DAFL's own is 1. A refiner, and a generator without an attribute `standardised`, keep the statistics that
            they have where both settings are null; else their images are standardised first. Neither number is noised
            or charged for: take those of the public pre-processing, and do not measure them on the private data. The
            guarantee says that this is assumed.
        generator_steps: Updates of the generator for each of the student's. Those after the first are on images not
            sent to the teacher: they cost nothing, and their loss is without the student's loss on released targets.
            Against a private teacher they are further gradients of it without noise, as the first is.
        optimizer: Builds the optimizer of the generator or the refiner; null is Adam at 1e-3.
        lr_scheduler: Builds its schedule, stepped once for each of the student's steps; null is none.
    """

    source: _Source = "generator"
    prior: ImagePrior | None = None
    generator: Network | str | None = None
    reset_every: int | None = None
    pixel_mean: float | list[float] | None = None
    pixel_std: float | list[float] | None = None
    generator_steps: int = 1
    optimizer: OptimizerCallable | None = None
    lr_scheduler: LRSchedulerCallable | None = None

    def build(self, *, image_shape: tuple[int, int, int], batch_size: int) -> ImageSource:
        """The source that these settings describe, for images (C, H, W) in batches of `batch_size`.

        Raises:
            ValueError: An invalid setting.
        """
        return SyntheticSource(self, image_shape=image_shape, batch_size=batch_size)


def require_no_pixel_statistics(settings: Any) -> None:
    """Refuses `pixel_mean` and `pixel_std` in settings of images that no generator makes.

    Raises:
        ValueError: One of them is given.
    """
    for name in ("pixel_mean", "pixel_std"):
        if (given := getattr(settings, name)) is not None:
            raise ValueError(
                f"images.{name} must be null for images.source={settings.source!r}, which has no generator, got {given}"
            )


class ImageSettings(Protocol):
    """Settings of some source of images, see `Images`."""

    @property
    def generator_steps(self) -> int:
        """Updates of the generator for each of the student's."""
        ...

    @property
    def optimizer(self) -> OptimizerCallable | None:
        """Of the generator."""
        ...

    @property
    def lr_scheduler(self) -> LRSchedulerCallable | None:
        """Of the generator."""
        ...

    def build(self, *, image_shape: tuple[int, int, int], batch_size: int) -> ImageSource:
        """The source."""
        ...


class ImageSource(ABC):
    """Gives the images of each step of a run.

    It holds its networks without owning them: a method registers `generator` as its own submodule, so that it is
    trained, moved and saved with the method.

    Attributes:
        kind: In one word, as in the settings.
        rows: Images of each batch that this process makes: all of them, or its share where there are several.
        generator: What makes or changes images; None where there is none.
        published: What of it a student's owner may publish, in words.
        reset_every: Steps after which the generator is reset; None is never.
        assumptions: What a guarantee of its images rests on.
        prior: Procedural images; None where none are drawn.
    """

    kind: str
    rows: int
    generator: nn.Module | None = None
    published: tuple[str, ...] = ()
    reset_every: int | None = None
    assumptions: tuple[str, ...] = ()
    prior: ImagePrior | None = None

    @property
    def generated(self) -> int:
        """How many images of a batch the generator makes, or the refiner changes."""
        return 0

    def share(self, batch_size: int, processes: int) -> None:
        """Fixes how many images of a batch this process makes.

        Raises:
            ProcessesError: A batch, or the generated half of one, that the processes cannot share evenly.
        """
        self.rows = share_size(batch_size, processes)
        if self.kind == "both" and (batch_size // 2) % processes:
            raise ProcessesError(
                "half of data.batch_size is generated for images.source='both', and each process makes an equal share "
                f"of it: it must be a multiple of 2 x {processes} processes, got {batch_size}"
            )

    @property
    def latent_dim(self) -> int:
        """Width of the generator's input."""
        return int(getattr(self.generator, "latent_dim"))  # noqa: B009 - nn.Module types every attribute as a tensor

    def latents(self, step: int, draws: Draws) -> torch.Tensor | None:
        """What the generator makes the images of this step from; None without a generator."""
        return None

    @abstractmethod
    def images(self, step: int, latents: torch.Tensor | None, draws: Draws) -> torch.Tensor:
        """A batch of images, shape (rows, C, H, W), generated ones first; a prior's are in [-1, 1]."""

    @abstractmethod
    def grid(self, count: int, *, seed: int, device: torch.device) -> torch.Tensor:
        """Images to look at, shape (n, C, H, W) with n at most `count`; the same ones for one seed."""

    def reset(self, step: int, draws: Draws) -> None:
        """Gives the generator new weights, which follow from the seed and the step: the same ones in each process."""
        raise NotImplementedError(f"{type(self).__name__} has no generator to reset")

    def networks(self) -> dict[str, nn.Module]:
        """Networks of it that are published, by name."""
        return {}


class SyntheticSource(ImageSource):
    """Synthetic images: of a generator, of a procedural prior, or of both.

    Args:
        settings: What is wanted.
        image_shape: (C, H, W).
        batch_size: B.

    Raises:
        ValueError: An invalid setting.

    Attributes:
        prior: Procedural images; None where none are drawn.
    """

    def __init__(self, settings: Images, *, image_shape: tuple[int, int, int], batch_size: int) -> None:
        if settings.source not in get_args(_Source):
            raise ValueError(f"images.source must be one of {', '.join(get_args(_Source))}, got {settings.source!r}")
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
        self._check_reset()
        self._check_steps(settings.generator_steps)
        given = [f"images.{name}" for name in ("pixel_mean", "pixel_std") if getattr(settings, name) is not None]
        if given:
            self.assumptions = (
                f"{' and '.join(given)} {'was' if len(given) == 1 else 'were'} not measured on the private data",
            )
        made = {"refined": ("refiner",), "prior": ()}.get(self.kind, ("generator",))
        self.published: tuple[str, ...] = (*made, "synthetic images")

    def _build_generator(self) -> nn.Module | None:
        """What makes or changes images, checked before anything is spent on it."""
        if self.kind == "prior":
            require_no_pixel_statistics(self._settings)
            return None
        if self.kind == "refined":
            refiner = self._built()
            check_refiner(refiner, image_shape=self.image_shape)
            return self._with_statistics(refiner)
        generator = self._built()
        if not hasattr(generator, "latent_dim"):
            raise ValueError(
                f"images.generator must have a latent_dim for images.source={self.kind!r}, {type(generator).__name__} "
                "has none"
            )
        return self._with_statistics(generator)

    def _built(self) -> nn.Module:
        given = self._settings.generator or ("Refiner" if self.kind == "refined" else "DAFLGenerator")
        return Network.of(given).build(setting="model.images.generator", image_shape=self.image_shape)

    def _with_statistics(self, network: nn.Module) -> nn.Module:
        """The network, whose images have the statistics that are wanted."""
        settings = self._settings
        # No layer of that name, which would be true as well.
        standardised = getattr(network, "standardised", False) is True
        if settings.pixel_mean is None and settings.pixel_std is None and not standardised:
            return network
        mean = self._per_channel("images.pixel_mean", settings.pixel_mean)
        std = self._per_channel("images.pixel_std", settings.pixel_std, least=_SMALLEST_STD)
        if mean is None or std is None:
            of_prior = self._prior_statistics()
            mean, std = mean or of_prior[0], std or of_prior[1]
        return ScaledOutput(network, scale=std, shift=mean, standardise=not standardised)

    def _prior_statistics(self) -> tuple[list[float], list[float]]:
        """Mean and standard deviation of the prior's pixels in each channel: the same ones in every run."""
        images = self._public_prior.sample(
            _STATISTICS_IMAGES,
            image_shape=self.image_shape,
            generator=stream(0, 0, 0, "statistics"),
            device=torch.device("cpu"),
        ).double()
        std = images.std(dim=(0, 2, 3)).clamp_min(_SMALLEST_STD)
        return images.mean(dim=(0, 2, 3)).tolist(), std.tolist()

    def _per_channel(self, name: str, given: Any, *, least: float = -_LARGEST_PIXEL) -> list[float] | None:
        if given is None:
            return None
        channels = self.image_shape[0]
        values = list(given) if isinstance(given, (list, tuple)) else [given]
        if len(values) not in (1, channels):
            raise ValueError(f"{name} must be one number, or one for each of {channels} channels, got {given!r}")
        for value in values:
            check_number(name, value, least=least, most=_LARGEST_PIXEL)
        return [float(value) for value in values] * (channels if len(values) == 1 else 1)

    def _check_reset(self) -> None:
        every = self.reset_every
        check_whole_number("images.reset_every", every, least=1, null="never")
        if every is not None and self.generator is None:
            raise ValueError(f"images.reset_every must be null for images.source='prior', got {every}")

    def _check_steps(self, steps: int) -> None:
        check_whole_number("images.generator_steps", steps, least=1)
        if steps > 1 and self.generator is None:
            raise ValueError(
                f"images.generator_steps must be 1 for images.source={self.kind!r}, which has no generator, got {steps}"
            )

    @property
    def generated(self) -> int:
        """How many images of a batch the generator makes, or the refiner changes."""
        if self.generator is None:
            return 0
        return self.rows // 2 if self.kind == "both" else self.rows

    def latents(self, step: int, draws: Draws) -> torch.Tensor | None:
        """z, shape (n, latent_dim), where n is B, or B/2 for `both`; None without a generator.

        For `refined` those images of the prior, shape (B, C, H, W), that `prior` would have in this step.
        """
        if self.generator is None:
            return None
        draw = draws.stream(step, "prior" if self.kind == "refined" else "latents")
        return self._latents(self.generated, draw, draws.device)

    def images(self, step: int, latents: torch.Tensor | None, draws: Draws) -> torch.Tensor:
        """A batch of synthetic images, shape (B, C, H, W), generated ones first."""
        parts = []
        if self.generator is not None and latents is not None:
            parts.append(self.generator(latents).float())
        left = self.rows - sum(len(part) for part in parts)
        if left:
            parts.append(self._prior_images(left, draws.stream(step, "prior"), draws.device))
        return torch.cat(parts)

    def grid(self, count: int, *, seed: int, device: torch.device) -> torch.Tensor:
        """Images to look at, shape (count, C, H, W): the same latents each time."""
        draw = stream(seed, 0, 0, "grid")
        parts = []
        if self.generator is not None:
            latents = self._latents(count // 2 if self.kind == "both" else count, draw, device)
            with torch.no_grad(), frozen_statistics(self.generator):
                parts.append(self.generator(latents).float())
        left = count - sum(len(part) for part in parts)
        if left and self.prior is not None:
            parts.append(self._prior_images(left, draw, device))
        return torch.cat(parts)

    def reset(self, step: int, draws: Draws) -> None:
        """See `ImageSource.reset`."""
        assert self.generator is not None
        network = self.generator.network if isinstance(self.generator, ScaledOutput) else self.generator
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(key(draws.seed, step, 0, "reset"))
            fresh = self._built()
        network.load_state_dict(fresh.state_dict())

    def networks(self) -> dict[str, nn.Module]:
        """Networks of it that are published, by name."""
        if self.generator is None:
            return {}
        return {"refiner" if self.kind == "refined" else "generator": self.generator}

    def _latents(self, count: int, draw: torch.Generator, device: torch.device) -> torch.Tensor:
        if self.kind == "refined":
            return self._prior_images(count, draw, device)
        return torch.randn(count, self.latent_dim, generator=draw).to(device)

    def _prior_images(self, count: int, draw: torch.Generator, device: torch.device) -> torch.Tensor:
        assert self.prior is not None
        return self.prior.sample(count, image_shape=self.image_shape, generator=draw, device=device)
