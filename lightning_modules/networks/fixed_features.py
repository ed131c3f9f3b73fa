"""A linear classifier on fixed features, plain or whitened with procedural images, which cost no privacy."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any, cast

import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn

from lightning_modules.networks.classifiers import ImageClassifier
from lightning_modules.networks.feature_cache import compute_once, digest_of, remembered_features
from lightning_modules.networks.scattering import Scattering
from lightning_modules.priors import DeadLeavesPrior, ImagePrior, StrokePrior
from lightning_modules.training.randomness import full_float32
from privacy.checks import check_count, check_number

#: Mean norm of whitened features other than scattering's. It is that of normalised scattering features at 28 pixels, so
#: that learning rates carry over.
_LENGTH = 64.0
#: See `whitening_of`. Up to 2,001 images, all directions are kept.
_FLOOR, _DIRECTIONS = 0.01, 2000
#: See `leading_eigenvectors`.
_ROUNDS, _MORE = 3, 600


@dataclass(frozen=True, kw_only=True)
class Whitening:
    """Settings for whitening features with a prior's images.

    Attributes:
        power: Strength of the whitening, at least 0; 0.5 is full whitening. See `whitening_of`.
        images: Number of procedural images to estimate the statistics from.
        mirrored: Average the features of an image and of its mirror image, so that a classifier cannot tell them apart.
            For images whose class does not depend on left and right; there it doubles what a record teaches.
        shifts: Average the features over the image and its shifts by 1 to `shifts` pixels up, down, left and right, the
            edge repeated. It multiplies the computation by 4 `shifts` + 1 and costs no privacy. 0 turns it off.
    """

    power: float = 0.25
    images: int = 2000
    mirrored: bool = False
    shifts: int = 0

    def __post_init__(self) -> None:
        check_number("whitening.power", self.power, least=0)
        check_count("whitening.images", self.images, minimum=2)
        check_count("whitening.shifts", self.shifts, minimum=0)


def whitening_of(
    features: Tensor, *, power: float, floor: float = _FLOOR, directions: int = _DIRECTIONS
) -> tuple[Tensor, Tensor, Tensor]:
    """Computes the mean, principal directions and gains that equalise the variances of features.

    A direction of variance v is scaled by (v + f)^-power, where f is `floor` times the mean variance; v = 0 for
    directions in which the features do not vary. Power 0.5 without a floor is full whitening; lower powers keep some of
    the differences in variance, which carry signal.

    At most `directions` are kept, those of the largest variances. All others share the average of their variances
    (probabilistic principal components, Tipping and Bishop 1999).

    Args:
        features: (N, F), of public images.
        power: at least 0.
        floor: above 0.
        directions: maximum number of directions; each adds F numbers to a checkpoint.

    Returns:
        Mean (F,); orthonormal directions (F, k), k = min(N - 1, F, directions), some of them zero; and gains (k,)
        relative to that of all other directions, which is 1. float32.
    """
    number, size = features.shape
    rows = features.to(torch.float64, copy=True)
    middle = rows.mean(dim=0)
    rows.sub_(middle).div_(max(1, number) ** 0.5)
    # Both products have the same eigenvalues above zero: take the smaller one.
    small = size < number
    total = rows.norm().square()
    least = floor * total / size
    # The count does not depend on the prior, so that any checkpoint's buffers fit.
    count = min(number - 1, size, directions)
    known = min(number - 1, size)
    squares, vectors = leading_eigenvectors(rows.T @ rows if small else rows @ rows.T, count=count)
    # A variance below a hundredth of the floor counts as zero.
    kept = squares > 0.01 * least
    found = vectors if small else rows.T @ vectors / squares.clamp_min(1e-300).sqrt()
    found = torch.where(kept, found, torch.zeros(()).double())
    gains = (1 + squares / least) ** -power
    if count < known:
        others = (total - squares.sum()).clamp_min(0) / (size - count)
        gains = gains * (1 + others / least) ** power
    gains = torch.where(kept, gains, torch.ones(()).double())
    return middle.float(), found.float(), gains.float()


def leading_eigenvectors(matrix: Tensor, *, count: int) -> tuple[Tensor, Tensor]:
    """Largest eigenvalues (count,) of a positive semidefinite matrix (N, N), and their eigenvectors (N, count).

    A few eigenvectors of a large matrix are found by subspace iteration (Halko, Martinsson and Tropp 2011, Algorithm
    4.4), in less than half of the time. For patch features of 8,000 images the span of 2,000 overlaps the exact one by
    99.5 %, and whitened features of other images change by 1.4 %.
    """
    size, width = len(matrix), count + _MORE
    if 2 * width >= size:
        values, vectors = torch.linalg.eigh(matrix)
    else:
        draw = torch.Generator().manual_seed(0)
        basis = torch.randn(size, width, generator=draw, dtype=matrix.dtype).to(matrix.device)
        for _ in range(_ROUNDS):
            basis = torch.linalg.qr(matrix @ basis).Q
        values, vectors = torch.linalg.eigh(basis.T @ matrix @ basis)
        vectors = basis @ vectors
    return values.flip(0)[:count], vectors.flip(1)[:, :count]


class WhitenedFeatures(nn.Module):
    """Fixed features of an image, whitened with a prior's images.

    The statistics come from procedural images, so training by DP-SGD on whitened features costs no more privacy than
    on plain ones, and its noise falls on directions of similar variance. The statistics are buffers, so that a
    checkpoint stays valid if a later version of the prior draws other images.

    Args:
        plain: Maps images (N, C, H, W) to features (N, *output_shape), each image by itself.
        whitening: The settings.
        image_shape: channels, height, width.
        prior: images similar to those to be classified.
    """

    mean: Tensor
    directions: Tensor
    gains: Tensor
    scale: Tensor

    def __init__(
        self, plain: nn.Module, whitening: Whitening, *, image_shape: tuple[int, int, int], prior: ImagePrior
    ) -> None:
        super().__init__()
        self.plain = plain
        self.whitening = whitening
        self.output_shape = (math.prod(cast(tuple[int, ...], plain.output_shape)),)
        statistics = compute_once(
            prior,
            *("whitening", digest_of(plain), *image_shape, whitening),
            compute=lambda: self._statistics_of(prior, image_shape, whitening.images),
        )
        for name, value in zip(("mean", "directions", "gains", "scale"), statistics, strict=True):
            self.register_buffer(name, value)

    def _statistics_of(
        self, prior: ImagePrior, image_shape: tuple[int, int, int], count: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Computes the buffers, on a GPU if there is one: thousands of patch filters take a CPU many minutes."""
        size, source = self.output_shape[0], type(prior).__name__
        rank_zero_info(f"{size:,} features are whitened by {count:,} images of {source}, found once.")
        gpu = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        device = gpu if torch.cuda.is_available() else torch.device("cpu")
        draw = torch.Generator().manual_seed(0)
        pieces = [min(500, count - start) for start in range(0, count, 500)]
        drawn = [prior.sample(n, image_shape=image_shape, generator=draw, device=torch.device("cpu")) for n in pieces]
        self.plain.to(device)
        with full_float32():
            features = torch.cat([self.before_whitening(images.to(device)) for images in drawn])
            mean, directions, gains = whitening_of(features, power=self.whitening.power)
            # Scattering features keep their mean norm.
            own = isinstance(self.plain, Scattering)
            wanted = features.norm(dim=1).mean() if own else features.new_tensor(_LENGTH)
            scale = wanted / _whitened(features, mean, directions, gains).norm(dim=1).mean()
        self.plain.cpu()
        return mean.cpu(), directions.cpu(), gains.cpu(), scale.cpu()

    @torch.no_grad()
    def before_whitening(self, images: Tensor) -> Tensor:
        """Maps images (N, C, H, W) to plain features (N, F), averaged over shifts and mirror images."""
        views = [images, *moved_each_way(images, self.whitening.shifts)]
        if self.whitening.mirrored:
            views += [view.flip(-1) for view in views]
        total: Tensor = reduce(torch.add, (self.plain(view).flatten(1) for view in views))
        return total / len(views)

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """Maps images (N, C, H, W) to features (N, F)."""
        return remembered_features(self, images, self._computed)

    def _computed(self, images: Tensor) -> Tensor:
        return self.scale * _whitened(self.before_whitening(images), self.mean, self.directions, self.gains)


def moved_each_way(images: Tensor, shifts: int) -> list[Tensor]:
    """Shifts images (N, C, H, W) by 1 to `shifts` pixels up, down, left and right, repeating the edge.

    Returns:
        4 `shifts` tensors of the same shape, smallest shifts first.
    """
    height, width = images.shape[2:]
    padded = nn.functional.pad(images, (shifts,) * 4, mode="replicate") if shifts else images
    moves = [
        (rows * step, columns * step)
        for step in range(1, shifts + 1)
        for rows, columns in ((1, 0), (-1, 0), (0, 1), (0, -1))
    ]
    return [
        padded[..., shifts + rows :, shifts + columns :][..., :height, :width].contiguous() for rows, columns in moves
    ]


def _whitened(features: Tensor, mean: Tensor, directions: Tensor, gains: Tensor) -> Tensor:
    centred = features - mean
    along = centred @ directions
    return centred + (along * (gains - 1)) @ directions.T


class LinearOnFeatures(ImageClassifier):
    """A linear classifier on fixed features, for training by DP-SGD and for students of such teachers.

    Only the head is learnt from real data; filters, anchors and whitening come from procedural images.
    docs/features.md compares the features.

    Args:
        num_classes: number of classes c.
        image_shape: channels, height, width.
        features: Builds the feature extractor: `Scattering` (the default), `Patches`, `Kernels`, or your own module
            that takes `image_shape` and `prior`, has an `output_shape` and maps each image by itself.
        whitening: Whitens the features with the prior's images; null leaves them as they are.
        prior: Procedural images for patches, anchors and whitening. Default: `StrokePrior` for one channel, otherwise
            `DeadLeavesPrior`.

    Raises:
        ValueError: A `prior` is given that nothing uses, or another setting does not fit.
    """

    def __init__(
        self,
        num_classes: int = 10,
        image_shape: tuple[int, int, int] = (1, 28, 28),
        *,
        features: Callable[[tuple[int, int, int], ImagePrior], nn.Module] | None = None,
        whitening: Whitening | None = None,
        prior: ImagePrior | None = None,
    ) -> None:
        super().__init__()
        chosen = prior or (StrokePrior() if image_shape[0] == 1 else DeadLeavesPrior())
        extractor = (features or Scattering)(image_shape, chosen)
        if whitening is not None:
            extractor = WhitenedFeatures(extractor, whitening, image_shape=image_shape, prior=chosen)
        elif prior is not None and isinstance(extractor, Scattering):
            raise ValueError(f"prior must be null for Scattering without whitening, got {type(prior).__name__}")
        self.feature_extractor = extractor
        self.head = nn.Linear(math.prod(cast(tuple[int, ...], extractor.output_shape)), num_classes)

    def forward_features(self, images: Tensor) -> Tensor:
        """Maps images (N, C, H, W) to the head's input (N, F)."""
        features: Tensor = self.feature_extractor(images).flatten(1)
        return features

    def forward_extracted(self, features: Tensor) -> Tensor:
        """Maps the outputs of `feature_extractor` to logits (N, c)."""
        logits: Tensor = self.head(features.flatten(1))
        return logits


def fixed_extractor(network: Any) -> nn.Module | None:
    """Returns the network's `feature_extractor` if no parameter of it is trained and there is a `forward_extracted`.

    Other networks may have a part of that name that is trained with the rest.
    """
    extractor = getattr(network, "feature_extractor", None)
    if not isinstance(extractor, nn.Module) or not hasattr(network, "forward_extracted"):
        return None
    return None if any(parameter.requires_grad for parameter in extractor.parameters()) else extractor
