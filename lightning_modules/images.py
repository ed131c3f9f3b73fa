"""Sources of a run's images: a generator, a procedural prior, both, or a public pool.

None of them reads private data; only queries cost privacy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import update_bn

from datamodules import ImageDataModule, ImageDataset
from datamodules.pictures import (
    PictureDataModule,
    PictureFiles,
    Preparation,
    pictures_below,
    read_pictures,
    require_outside,
)
from datamodules.records import Partition, require_partition, same_data
from lightning_modules import priors
from lightning_modules.losses.functional import informativeness
from lightning_modules.networks import DAFLGenerator, ImageGenerator
from lightning_modules.networks.network import GeneratorCallable, built, evaluating, frozen_statistics, network_of
from lightning_modules.priors import PRIORS, ImagePrior, StrokePrior
from lightning_modules.training.randomness import Draws, full_float32, key, stream
from lightning_modules.training.run import innermost
from privacy.checks import check_choice, check_count
from privacy.processes import ProcessesError, share_size

_STATISTICS_IMAGES = 512
#: Least standard deviation, for a prior with a constant channel.
_SMALLEST_STD = 1e-3
NEVER_RESET = (
    "images.reset_every is null, and a generator trained for long collapses to a few kinds of images: settings that "
    "work are in docs/generators.md"
)
_JUDGED = "accuracy on it is of images that the student was trained on"

_Source = Literal["generator", "prior", "both", "pool"]


@dataclass(frozen=True, kw_only=True)
class Images:
    """Settings of the image source.

    Attributes:
        source: `generator`, `prior`, `both` (half of each batch), or `pool`.
        prior: Procedural images, for `prior` and `both`. Default: those for the data, by their class (`priors.PRIORS`):
            strokes for the digits and MNIST, silhouettes for FashionMNIST, `BroadPrior` for a folder of pictures and
            data of your own, else `GeneralPrior`. A generator takes the statistics of strokes.
        generator: Builds the generator. Pixels of DAFL's get the mean and standard deviation of the prior's images.
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
        check_choice("images.pool_part", self.pool_part, ("test", "train"))
        check_count("images.reset_every", self.reset_every, minimum=1, null="never")
        if (self.pool is not None) != (self.source == "pool"):
            raise ValueError(
                f"images.pool must be given for images.source='pool', and for no other, got {self.source!r}"
            )
        if self.pool is not None and self.prior is not None:
            raise ValueError(f"prior must be left out with a pool, got {type(self.prior).__name__}")
        if self.source in ("prior", "pool") and self.reset_every is not None:
            raise ValueError(f"images.reset_every must be null for source {self.source!r}, got {self.reset_every}")

    def build(self, *, image_shape: tuple[int, int, int], batch_size: int) -> ImageSource:
        """Builds the source, for images (C, H, W) in batches of `batch_size`."""
        kind = SyntheticSource if self.pool is None else PoolSource
        return kind(self, image_shape=image_shape, batch_size=batch_size)


#: Student steps until the images' informativeness is reported, how many of them it is measured on, and its least value
#: for suitable ones: on digits cropped to 16x16 pixels 0.23 with strokes (51 % right), 0.42 and 0.46 with broader
#: priors (79 and 95 %).
_STEPS_UNTIL_TOLD, _IMAGES_TOLD, _INFORMATIVE = 250, 1024, 0.3


class ImageSource(ABC):
    """Base class for sources of the images of each step of a run.

    A method registers `generator` as its own submodule, so that it is trained, moved and saved with the method.

    Attributes:
        kind: `images.source` in the settings.
        rows: Number of images of each batch that this process makes: all, or its share of several processes.
        generator: The generator, or None.
        covered: Names of the parts that a guarantee covers.
        is_private: Whether the images are the private data themselves; then `grid` shows none of them.
        reset_every: Steps after which the generator is reset; None is never.
        prior: Procedural images, or None.
        told: Whether it was said how informative the images are.
    """

    kind: str
    rows: int
    generator: nn.Module | None = None
    covered: tuple[str, ...] = ()
    is_private: bool = False
    reset_every: int | None = None
    prior: ImagePrior | None = None
    told: bool = False

    @property
    def generated(self) -> int:
        """Number of images of a batch that the generator makes."""
        return 0

    def share(self, batch_size: int, processes: int) -> None:
        """Sets the number of images of a batch that this process makes.

        Raises:
            ProcessesError: The processes cannot share a batch, or the generated half of it, evenly.
        """
        self.rows = share_size(batch_size, processes)
        if self.kind == "both" and (batch_size // 2) % processes:
            raise ProcessesError(
                f"data.batch_size must be a multiple of 2 x {processes} processes for images.source='both', got "
                f"{batch_size}"
            )

    @property
    def latent_dim(self) -> int:
        """Width of the generator's input."""
        return int(getattr(self.generator, "latent_dim"))  # noqa: B009 - nn.Module types every attribute as a tensor

    def latents(self, step: int, draws: Draws) -> Tensor | None:
        """Latent inputs of the generator for a step; None without a generator."""
        return None

    @abstractmethod
    def images(self, step: int, latents: Tensor | None, draws: Draws) -> Tensor:
        """Returns a batch of images, shape (rows, C, H, W), generated ones first; a prior's are in [-1, 1]."""

    def generate(self, latents: Tensor | None) -> Tensor:
        """Generates images from latents, with their graph."""
        assert self.generator is not None and latents is not None
        images: Tensor = self.generator(latents)
        return images.contiguous()  # networks may flatten them by `view`

    @abstractmethod
    def grid(self, count: int, *, seed: int, device: torch.device) -> Tensor:
        """Images for display, shape (n, C, H, W) with n at most `count`, determined by the seed."""

    def reset(self, step: int, draws: Draws) -> None:
        """Reset the generator to random weights, determined by seed and step and equal in all processes."""
        raise NotImplementedError(f"{type(self).__name__} has no generator to reset")

    def assumptions(self) -> list[str]:
        """Assumptions that a guarantee makes about this source."""
        return []

    @torch.no_grad()
    def tell(self, student: nn.Module, *, steps: int, draw: Callable[[int], Tensor]) -> None:
        """Says once how informative the images are, by a student that has begun to learn.

        Asking a private teacher would be a query. The student is computed from releases, so this costs nothing. A
        generator's images are made for the student, and say nothing.

        Args:
            student: The student.
            steps: Steps that it has taken.
            draw: Draws this many images, or fewer.
        """
        if self.told or self.generator is not None or steps < _STEPS_UNTIL_TOLD:
            return
        self.told = True
        if len(images := draw(_IMAGES_TOLD)):
            with evaluating(student):
                tell_informativeness(self, student(images).float(), whose="the student", least=_INFORMATIVE)

    @abstractmethod
    def open(self, *, private: set[str], partitions: Sequence[Partition | None], data: Any = None) -> None:
        """Begins a fit: reads a pool's images, see `PoolSource.open`, or takes the prior for the data if none is given.

        Args:
            private: Names of the private data. Renaming them must not make them public.
            partitions: Partitions of the private data according to files and the data module, whatever the name.
            data: The data module; pictures of a folder are prepared like its own.
        """


class SyntheticSource(ImageSource):
    """Synthetic images from a generator, a procedural prior, or both."""

    def __init__(self, settings: Images, *, image_shape: tuple[int, int, int], batch_size: int) -> None:
        if settings.source == "both" and batch_size < 2:
            raise ValueError(f"images.source='both' needs a batch_size of 2 or more, got {batch_size}")
        self.kind = settings.source
        self.image_shape = image_shape
        self.rows = batch_size
        self._settings = settings
        self.prior: ImagePrior = settings.prior or StrokePrior()
        self.generator = None if self.kind == "prior" else self._built()
        if isinstance(self.generator, DAFLGenerator):  # has the statistics of the prior's images, the same in every run
            images = self._drawn(_STATISTICS_IMAGES, None, stream(0, 0, 0, "statistics"), torch.device("cpu")).double()
            self.generator.scale.copy_(images.std(dim=(0, 2, 3)).clamp_min(_SMALLEST_STD)[:, None, None])
            self.generator.shift.copy_(images.mean(dim=(0, 2, 3))[:, None, None])
        self.reset_every = settings.reset_every
        self.covered = (*(["generator"] if self.generator is not None else []), "synthetic images")

    def open(self, *, private: set[str], partitions: Sequence[Partition | None], data: Any = None) -> None:
        if self._settings.prior is not None or data is None:
            return
        kinds = type(innermost(data)).__mro__
        other = "GeneralPrior" if kinds[0].__module__.startswith("datamodules.") else "BroadPrior"
        name = next((PRIORS[kind.__name__] for kind in kinds if kind.__name__ in PRIORS), other)
        self.prior = getattr(priors, name)()

    def _built(self) -> ImageGenerator:
        factory = network_of(self._settings.generator, GeneratorCallable)
        generator = built(factory, self.image_shape, name="model.images.generator")
        if not isinstance(generator, ImageGenerator):
            raise ValueError(f"images.generator must build an ImageGenerator, got {type(generator).__name__}")
        return generator

    @property
    def generated(self) -> int:
        return self._generated_of(self.rows)

    def _generated_of(self, count: int) -> int:
        return 0 if self.generator is None else count // 2 if self.kind == "both" else count

    def latents(self, step: int, draws: Draws) -> Tensor | None:
        """Draws z, shape (n, latent_dim), where n is `generated`; None without a generator."""
        if self.generator is None:
            return None
        draw = draws.stream(step, "latents")
        return torch.randn(self.generated, self.latent_dim, generator=draw).to(draws.device)

    def images(self, step: int, latents: Tensor | None, draws: Draws) -> Tensor:
        return self._drawn(self.rows, latents, draws.stream(step, "prior"), draws.device)

    @torch.no_grad()
    def grid(self, count: int, *, seed: int, device: torch.device) -> Tensor:
        """Draws images for display, shape (count, C, H, W), from the same latents each time."""
        draw = stream(seed, 0, 0, "grid")
        if self.generator is None:
            return self._drawn(count, None, draw, device)
        latents = torch.randn(self._generated_of(count), self.latent_dim, generator=draw).to(device)
        with frozen_statistics(self.generator):
            return self._drawn(count, latents, draw, device)

    def _drawn(self, count: int, latents: Tensor | None, draw: torch.Generator, device: torch.device) -> Tensor:
        """Images of the generator from latents, if any, and the prior's for the rest."""
        parts = [] if latents is None else [self.generate(latents).float()]
        if left := count - sum(map(len, parts)):
            parts.append(self.prior.sample(left, image_shape=self.image_shape, generator=draw, device=device))
        return torch.cat(parts)

    def reset(self, step: int, draws: Draws) -> None:
        assert self.generator is not None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(key(draws.seed, step, 0, "reset"))
            self.generator.load_state_dict(self._built().state_dict())
            # BatchNorm's initial statistics last for dozens of steps and would make images flat in eval mode.
            update_bn([self.latents(step, draws.common)], self.generator)

    def assumptions(self) -> list[str]:
        """State the assumption that priors from outside this project do not depend on private records."""
        kinds = map(type, _parts(self.prior))
        external = {kind.__qualname__ for kind in kinds if not kind.__module__.startswith("lightning_modules.")}
        return [f"images of {name} depend on no private record" for name in sorted(external)]


def _parts(prior: ImagePrior) -> Iterator[ImagePrior]:
    """A prior and those that it is a mixture of, at any depth."""
    yield prior
    for part in getattr(prior, "priors", ()):
        yield from _parts(part)


class PoolSource(ImageSource):
    """Batches drawn with replacement from a public pool, whose labels are never read; for the settings see `Images`.

    Raises:
        ValueError: The pool's images have another shape.

    Attributes:
        records: All images, empty until `open`.
        is_judged: Whether the student is evaluated on the pool's images.
    """

    kind = "pool"

    def __init__(self, settings: Images, *, image_shape: tuple[int, int, int], batch_size: int) -> None:
        assert settings.pool is not None
        self.pool, self.part, self.varied = settings.pool, settings.pool_part, settings.pool_varied
        if isinstance(pool := self.pool, ImageDataModule) and tuple(pool.image_shape) != image_shape:
            raise ValueError(f"images.pool must have images of shape {image_shape}, {pool.name} has {pool.image_shape}")
        self.rows = batch_size
        self.records = _unlabelled(torch.empty(0, *image_shape, dtype=torch.uint8))
        self.is_judged = False

    def open(self, *, private: set[str], partitions: Sequence[Partition | None], data: Any = None) -> None:
        """Reads the images; see `ImageSource.open`.

        Raises:
            PartitionError: The pool is partitioned otherwise than the private data, or inside their folder.
            ValueError: The folder has no pictures, or is used for images that are not square.
        """
        pool, data = self.pool, innermost(data)
        if isinstance(pool, str):
            self.records = self._read(Path(pool).expanduser(), partitions, data)
            return
        require_partition(partitions, pool, whose="the teacher's file, or data.dataset,")
        same = any(one and same_data(one, pool.partition) for one in partitions)
        if pool.download:
            pool.fetch(self.part)
        if not same and isinstance(pictures := innermost(pool), PictureDataModule):
            require_outside(partitions, pictures_below(pictures.folder), private=_folder_of(data))
        pool.setup("fit" if self.part == "train" else "test")
        self.records = pool.train_records if self.part == "train" else pool.test_records
        self.is_private = self.is_of(private, partitions)
        judged = isinstance(data, ImageDataModule) and same_data(data.partition, pool.partition)
        self.is_judged = self.part == "test" and judged
        if self.is_judged:
            rank_zero_warn(f"images.pool is the test split: {_JUDGED}")

    def is_of(self, private: set[str], partitions: Sequence[Partition | None]) -> bool:
        """Whether the pool is private data with one of these names or partitions."""
        pool = self.pool
        if self.part != "train" or isinstance(pool, str):
            return False
        return pool.private_data in private or any(one and same_data(one, pool.partition) for one in partitions)

    def _read(self, folder: Path, partitions: Sequence[Partition | None], data: Any) -> ImageDataset:
        files = pictures_below(folder)
        _, channels, height, width = self.records.images.shape
        if not files or height != width:
            raise ValueError(f"images.pool must be a data set or pictures for square images: {folder} has {len(files)}")
        require_outside(partitions, files, private=_folder_of(data))
        prepare = getattr(data, "preparation", None) or Preparation(size=height, channels=channels)
        return _unlabelled(read_pictures(files, prepare))

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, rows: Tensor | slice) -> Tensor:
        """Images (n, C, H, W) of the pool."""
        return self.records.__getitems__(torch.arange(len(self))[rows])[0]

    def images(self, step: int, latents: Tensor | None, draws: Draws) -> Tensor:
        draw = draws.stream(step, "pool")
        images = self[torch.randint(len(self), (self.rows,), generator=draw)].to(draws.device)
        return varied(images, draw=draw) if self.varied else images

    def grid(self, count: int, *, seed: int, device: torch.device) -> Tensor:
        return self[: 0 if self.is_private else count]

    def assumptions(self) -> list[str]:
        pool = self.pool
        what = f"a folder {Path(pool).name}" if isinstance(pool, str) else f"the {self.part} part of {pool.name}"
        told = f"the pool of unlabelled images, {what}, is public and existed independently of the private data"
        return [] if self.is_private else [f"{told} ({_JUDGED})" if self.is_judged else told]


def _unlabelled(images: Tensor | PictureFiles) -> ImageDataset:
    count = len(images)
    return ImageDataset(images=images, labels=torch.zeros(count, dtype=torch.int64), ids=torch.arange(count))


def _folder_of(data: Any) -> Path | None:
    return data.folder if isinstance(data, PictureDataModule) else None


def tell_informativeness(source: ImageSource, logits: Tensor, *, whose: str, least: float) -> None:
    """Says how informative a source's images are to a network with these logits (N, c) on them, and what to try.

    Args:
        source: The source.
        logits: Released, or computed from released values only: what is said here is not charged.
        whose: `the teacher` or `the student`.
        least: Least informativeness of suitable images, below which alternatives are named.
    """
    share = informativeness(logits)
    sure = float(logits.softmax(dim=1).amax(dim=1).mean())
    shares = torch.bincount(logits.argmax(dim=1), minlength=logits.shape[1]) / len(logits)
    rank_zero_info(
        f"Informativeness of the images: {share:.2f} of 1. The mean confidence of {whose} is {100 * sure:.0f} %; its "
        f"rarest class has {100 * float(shares.min()):.1f} % of the images."
    )
    if round(share, 2) < least:
        name = type(source.prior).__name__ if source.prior is not None else f"the {source.kind}"
        rank_zero_warn(
            f"Images of {name} say little to {whose}: {share:.2f} of 1, where suitable ones have {least} or more, and "
            "the student may be much less accurate. Use public pictures like the teacher's (images.pool), GlyphPrior "
            "for ink, or BroadPrior, and compare this figure: docs/choosing.md"
        )


def shifted(images: Tensor) -> Tensor:
    """Mirrors half of images (N, C, H, W), at random, and shifts each by up to an eighth of its height, reflected."""
    count, _, height, width = images.shape
    border = max(1, height // 8)
    padded = functional.pad(images, (border,) * 4, mode="reflect")
    down, right = torch.randint(2 * border + 1, (2, count, 1), device=images.device)
    columns = torch.arange(width, device=images.device)
    columns = torch.where(torch.rand_like(right, dtype=torch.float) < 0.5, columns, columns.flip(0)) + right
    rows = torch.arange(height, device=images.device) + down
    each = torch.arange(count, device=images.device)[:, None, None]
    return padded.permute(0, 2, 3, 1)[each, rows[:, :, None], columns[:, None]].permute(0, 3, 1, 2)


def varied(images: Tensor, *, draw: torch.Generator | None) -> Tensor:
    """Randomly rotates, scales, shifts and mirrors images (N, C, H, W) in [-1, 1]; changes brightness and contrast.

    7 in 10 then get up to half of the next image (mixup, Zhang et al. 2018).
    """
    # torchvision's transforms draw once per batch and use the global generator.
    numbers = (2 * torch.rand(len(images), 9, generator=draw) - 1).to(images.device)
    with torch.autocast(images.device.type, enabled=False), full_float32():
        turn, size, right, down = (0.15 * numbers[:, :4]).unbind(1)
        mirror = torch.where(numbers[:, 4] < 0, -1.0, 1.0)
        along, across = (1 + size) * turn.cos(), (1 + size) * turn.sin()
        moves = torch.stack([mirror * along, -across, right, mirror * across, along, down], 1).reshape(-1, 2, 3)
        grid = functional.affine_grid(moves, list(images.shape), align_corners=False)
        moved = functional.grid_sample(images, grid, padding_mode="border", align_corners=False)
        contrast, brightness, share, chance = numbers[:, 5:, None, None, None].unbind(1)
        moved = ((1 + 0.2 * contrast) * moved + 0.2 * brightness).clamp(-1, 1)
        return moved.lerp(moved.roll(1, 0), torch.where(chance < 0.4, (1 + share) / 4, 0.0))
