"""Fixed features, whitened by statistics of procedural images: free of charge."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor, nn

from lightning_modules.networks.classifiers import ImageClassifier
from lightning_modules.networks.comparing import digest_of
from lightning_modules.networks.feature_memory import remembered_features
from lightning_modules.networks.remembered import Remembered
from lightning_modules.networks.scattering import Scattering2d, scattering_norm
from lightning_modules.priors import ImagePrior, StrokePrior

__all__ = [
    "DIRECTIONS",
    "LENGTH",
    "NormalisedScattering",
    "WhitenedFeatures",
    "WhitenedScatteringClassifier",
    "moved_each_way",
    "whitening_of",
]

#: What whitening takes from a prior's images.
_FOUND = Remembered()


#: Length of whitened features, where no other is wanted: that of normalised scattering features at 28 pixels, so that
#: rates mean about the same.
LENGTH = 64.0
#: Directions that whitening keeps where no setting says so: all that 2,001 images have.
DIRECTIONS = 2000


def whitening_of(
    features: Tensor, *, power: float, floor: float, directions: int = DIRECTIONS
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, directions and gains that even the features' variances out.

    A direction of variance v is multiplied by (v + f)^-power, f = floor times the mean variance; directions that no
    feature vector has a part in count as v = 0. With power 0.5 and no floor that is whitening; less leaves some of the
    difference, which is where the signal is.

    Of more directions than may be kept, those of the largest variances are, and all others count as one: as of the
    variance that they have on the average (probabilistic principal components, Tipping and Bishop 1999).

    Args:
        features: (N, F), of public images.
        power: at least 0.
        floor: above 0.
        directions: at most so many are kept; each takes F numbers of a checkpoint.

    Returns:
        Mean (F,); orthonormal directions (F, k), k = min(N - 1, F, directions), some of them zero; and gains (k,)
        relative to that of all other directions, which is 1. float32.
    """
    number, size = features.shape
    rows = features.to(torch.float64, copy=True)
    middle = rows.mean(dim=0)
    rows.sub_(middle).div_(max(1, number) ** 0.5)
    # The smaller of the two products has all the eigenvalues above zero.
    small = size < number
    squares, vectors = torch.linalg.eigh(rows.T @ rows if small else rows @ rows.T)
    total = squares.sum()
    least = floor * total / size
    # As many for every prior, so that any state fits; largest first.
    count = min(number - 1, size, directions)
    known = min(number - 1, size)
    squares, vectors = squares.flip(0)[:count], vectors.flip(1)[:, :count]
    # Below a hundredth of the floor a direction is like those that no image has a part in.
    kept = squares > 0.01 * least
    found = vectors if small else rows.T @ vectors / squares.clamp_min(1e-300).sqrt()
    found = torch.where(kept, found, torch.zeros(()).double())
    gains = (1 + squares / least) ** -power
    if count < known:
        others = (total - squares.sum()).clamp_min(0) / (size - count)
        gains = gains * (1 + others / least) ** power
    gains = torch.where(kept, gains, torch.ones(()).double())
    return middle.float(), found.float(), gains.float()


class WhitenedFeatures(nn.Module):
    """Fixed features of an image, whitened by a prior's statistics.

    What whitening needs is taken from images that nobody owns, so a teacher by DP-SGD on these features costs what it
    costs on plain ones, and its noise is spent on directions that have been made alike. The statistics are buffers: a
    checkpoint holds them, whatever later versions of the prior draw.

    Args:
        plain: Maps images (N, C, H, W) to features (N, *output_shape), each image by itself.
        image_shape: channels, height, width.
        prior: images of about the kind that will be classified.
        power: see `whitening_of`.
        floor: see `whitening_of`.
        images: how many of the prior's are taken.
        directions: see `whitening_of`.
        length: mean length of the features of the prior's images; None is that of the plain ones.
        mirrored: Take the mean of an image's features and of its mirror image's, so that both are one to a classifier.
            For pictures whose class does not depend on left and right; of those it doubles what a record teaches.
        shifts: Take the mean over the image and the same image moved by 1 to so many pixels up, down, left and right,
            its edge repeated: 4 `shifts` + 1 times the work, and no gradient and no privacy. 0 is the image alone.

    Raises:
        ValueError: a setting that has no meaning.
    """

    mean: Tensor
    directions: Tensor
    gains: Tensor
    scale: Tensor

    def __init__(
        self,
        plain: nn.Module,
        *,
        image_shape: tuple[int, int, int],
        prior: ImagePrior,
        power: float,
        floor: float,
        images: int,
        directions: int = DIRECTIONS,
        length: float | None = None,
        mirrored: bool = False,
        shifts: int = 0,
    ) -> None:
        super().__init__()
        self.plain = plain
        self.mirrored = mirrored
        self.shifts = shifts
        if not power >= 0 or not floor > 0 or images < 2:
            raise ValueError(
                f"power must be 0 or more, floor above 0 and images 2 or more, got {power}, {floor} and {images}"
            )
        if directions < 1:
            raise ValueError(f"directions must be at least 1, got {directions!r}")
        if shifts not in range(min(image_shape[1:])):
            raise ValueError(
                f"shifts must be 0 to {min(image_shape[1:]) - 1}, less than the image's side, got {shifts}"
            )
        self.output_shape = (math.prod(cast(tuple[int, ...], plain.output_shape)),)
        settings = (digest_of(plain), *image_shape, power, floor, images, directions, length, mirrored, shifts)
        found = _FOUND.of(
            prior,
            *settings,
            compute=lambda: self._statistics_of(
                prior, image_shape, images, power=power, floor=floor, most=directions, length=length
            ),
        )
        for name, value in zip(("mean", "directions", "gains", "scale"), found, strict=True):
            self.register_buffer(name, value)

    def extra_repr(self) -> str:
        """What no submodule or buffer says."""
        return f"mirrored={self.mirrored}, shifts={self.shifts}"

    def _statistics_of(
        self,
        prior: ImagePrior,
        image_shape: tuple[int, int, int],
        count: int,
        *,
        power: float,
        floor: float,
        most: int,
        length: float | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What the buffers are to hold, of the prior's first images."""
        draw = torch.Generator().manual_seed(0)
        pieces = [min(500, count - start) for start in range(0, count, 500)]
        size, device = (image_shape[0], image_shape[1], image_shape[2]), torch.device("cpu")
        drawn = [prior.sample(n, image_shape=size, generator=draw, device=device) for n in pieces]
        features = torch.cat([self.before_whitening(images) for images in drawn])
        mean, directions, gains = whitening_of(features, power=power, floor=floor, directions=most)
        # As long as the plain features of these images are on the average, so that rates mean about the same.
        wanted = features.norm(dim=1).mean() if length is None else features.new_tensor(length)
        return mean, directions, gains, wanted / _whitened(features, mean, directions, gains).norm(dim=1).mean()

    @torch.no_grad()
    def before_whitening(self, images: Tensor) -> Tensor:
        """Map images (N, C, H, W) to plain features (N, F)."""
        views = [images, *moved_each_way(images, self.shifts)]
        if self.mirrored:
            views += [view.flip(-1) for view in views]
        features: Tensor = self.plain(views[0]).flatten(1)
        for view in views[1:]:
            features = features + self.plain(view).flatten(1)
        return features / len(views) if len(views) > 1 else features

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """Map images (N, C, H, W) to features (N, F)."""
        return remembered_features(self, images, lambda: self._computed(images))

    def _computed(self, images: Tensor) -> Tensor:
        return self.scale * _whitened(self.before_whitening(images), self.mean, self.directions, self.gains)

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *more: Any) -> None:
        # As many directions as the state has: it holds what was found, whatever the setting is, or was by default.
        given, gains = (state_dict.get(f"{prefix}{name}") for name in ("directions", "gains"))
        if (
            given is not None
            and gains is not None
            and given.shape[:1] == self.directions.shape[:1]
            and given.shape[1:] == gains.shape  # one gain would be broadcast to all
        ):
            self.directions = self.directions.new_zeros(given.shape)
            self.gains = self.gains.new_zeros(gains.shape)
        super()._load_from_state_dict(state_dict, prefix, *more)


def moved_each_way(images: Tensor, shifts: int) -> list[Tensor]:
    """Images (N, C, H, W) moved by 1 to `shifts` pixels up, down, left and right; what comes in repeats the edge.

    Returns:
        4 `shifts` tensors of the same shape, the smallest moves first.
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


class NormalisedScattering(nn.Module):
    """Scattering features, normalised by groups of channels within each image."""

    def __init__(self, scattering: Scattering2d, *, groups: int) -> None:
        """See `ScatteringClassifier` for `groups`."""
        super().__init__()
        self.scattering = scattering
        self.norm = scattering_norm(groups, scattering.output_shape[0])
        self.output_shape = scattering.output_shape

    def forward(self, images: Tensor) -> Tensor:
        """Map images (N, C, H, W) to features (N, *output_shape)."""
        features: Tensor = self.norm(self.scattering(images))
        return features


class WhitenedScatteringClassifier(ImageClassifier):
    """A linear classifier on whitened scattering features, for training by DP-SGD and for students of such teachers.

    Args:
        num_classes: number of classes c.
        image_shape: channels, height, width.
        prior: images by whose statistics the features are whitened. Default: `StrokePrior`.
        scales: J.
        angles: L.
        groups: see `ScatteringClassifier`.
        power: how far features are whitened, 0 to 0.5; see `whitening_of`.
        floor: see `whitening_of`.
        images: how many images of the prior are taken.
        directions: see `whitening_of`.
        mirrored: see `WhitenedFeatures`.
        shifts: see `WhitenedFeatures`.

    Raises:
        ValueError: a setting that does not fit.
    """

    def __init__(
        self,
        *,
        num_classes: int = 10,
        image_shape: tuple[int, int, int] = (1, 28, 28),
        prior: ImagePrior | None = None,
        scales: int = 2,
        angles: int = 8,
        groups: int = 27,
        power: float = 0.25,
        floor: float = 0.01,
        images: int = 2000,
        directions: int = DIRECTIONS,
        mirrored: bool = False,
        shifts: int = 0,
    ) -> None:
        super().__init__()
        scattering = Scattering2d(image_shape=image_shape, scales=scales, angles=angles)
        self.feature_extractor = WhitenedFeatures(
            NormalisedScattering(scattering, groups=groups),
            image_shape=image_shape,
            prior=prior or StrokePrior(),
            power=power,
            floor=floor,
            images=images,
            directions=directions,
            mirrored=mirrored,
            shifts=shifts,
        )
        self.head = nn.Linear(self.feature_extractor.output_shape[0], num_classes)

    def forward_features(self, images: Tensor) -> Tensor:
        """Map images (N, C, H, W) to the head's input (N, F)."""
        features: Tensor = self.feature_extractor(images)
        return features

    def forward_extracted(self, features: Tensor) -> Tensor:
        """Map what `feature_extractor` gives of images, (N, F), to logits (N, c)."""
        logits: Tensor = self.head(features)
        return logits
