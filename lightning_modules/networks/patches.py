"""Features of small patches (Coates, Lee and Ng 2011), with filters of procedural images: they cost no privacy."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_modules.networks.classifiers import ImageClassifier, checked_shape
from lightning_modules.networks.remembered import Remembered
from lightning_modules.networks.whitening import DIRECTIONS, LENGTH, WhitenedFeatures
from lightning_modules.priors import DeadLeavesPrior, ImagePrior

__all__ = ["PatchFeatures", "WhitenedPatchClassifier", "cell_means", "patch_filters", "random_patches"]

#: Numbers in the maps of the images at once: those of a few stay in the processor's cache, which is up to three times
#: as fast as a batch of them.
_MAPS = 1_250_000
_SAMPLED_IMAGES = 1000
_PATCHES_PER_IMAGE = 100
#: Filters and offsets of a prior's images.
_FOUND = Remembered()


def patch_filters(patches: Tensor, *, count: int, contrast: float, regularisation: float) -> tuple[Tensor, Tensor]:
    """Linear filters whose response to a patch is the scalar product of two patches, both whitened.

    A patch is normalised to mean 0 and to a standard deviation of about 1, whitened by the covariance S of all, and
    compared to `count` of them, each of length 1 (Coates, Lee and Ng 2011, "An Analysis of Single-Layer Networks in
    Unsupervised Feature Learning", where the filters are centroids; random patches do as well with many of them).

    Args:
        patches: (N, D), of public images.
        count: K, of the filters; the first K patches that are no plain surface.
        contrast: Standard deviation that is added, as a variance, to a patch's own before it is divided by it.
        regularisation: Added to the eigenvalues of S.

    Returns:
        Filters (D, K), each of mean 0, and offsets (K,): the responses to a *normalised* patch p are p @ filters +
        offsets. float32.

    Raises:
        ValueError: too few patches with any contrast.
    """
    rows = _normalised(patches.double(), contrast)
    middle = rows.mean(dim=0)
    covariance = torch.cov(rows.T)
    values, vectors = torch.linalg.eigh(covariance)
    whitener = vectors @ torch.diag((values.clamp_min(0) + regularisation).rsqrt()) @ vectors.T
    whitened = (rows - middle) @ whitener
    lengths = whitened.norm(dim=1)
    chosen = (lengths > 1).nonzero()[:count, 0]
    if len(chosen) < count:
        raise ValueError(
            f"filters must be at most as many as patches with some contrast, {len(chosen)} of the {len(patches)} that "
            f"were drawn of the prior, got {count}"
        )
    filters = whitener @ (whitened[chosen] / lengths[chosen, None]).T
    offsets = -middle @ filters
    # A normalised patch has mean 0: a constant in a filter says nothing, and would only cost digits.
    return (filters - filters.mean(dim=0)).float(), offsets.float()


def _normalised(patches: Tensor, contrast: float) -> Tensor:
    centred = patches - patches.mean(dim=1, keepdim=True)
    return centred / (centred.square().mean(dim=1, keepdim=True) + contrast**2).sqrt()


class PatchFeatures(nn.Module):
    """How much each part of an image has of each of many patches, which are taken of procedural images.

    The patches of an image are normalised, whitened and compared to K filters (`patch_filters`); what a response
    exceeds a threshold by, and what it falls short of minus the threshold by (Coates and Ng 2011, "The Importance of
    Encoding Versus Training"), is averaged over each cell of a grid. No parameters; the filters are buffers, so that a
    checkpoint holds them whatever later versions of the prior draw.

    Args:
        image_shape: channels, height, width.
        prior: images that patches are taken of.
        filters: K.
        patch: side of a patch in pixels.
        stride: distance of two patches in pixels.
        cells: of the grid, along either side.
        threshold: in units of a response's length.
        contrast: see `patch_filters`; images are in [-1, 1].
        regularisation: see `patch_filters`.

    Raises:
        ValueError: a setting that has no meaning or does not fit the images.
    """

    filters: Tensor
    offsets: Tensor
    average: Tensor

    def __init__(
        self,
        *,
        image_shape: tuple[int, int, int],
        prior: ImagePrior,
        filters: int = 800,
        patch: int = 6,
        stride: int = 2,
        cells: int = 2,
        threshold: float = 0.25,
        contrast: float = 0.025,
        regularisation: float = 0.1,
    ) -> None:
        super().__init__()
        for name, value in (("filters", filters), ("patch", patch), ("stride", stride), ("cells", cells)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value!r}")
        if patch < 2:
            raise ValueError(f"patch must be at least 2, got {patch!r}")
        if not threshold >= 0 or not contrast > 0 or not regularisation > 0:
            raise ValueError(
                "threshold must be 0 or more, contrast and regularisation above 0, got "
                f"{threshold}, {contrast} and {regularisation}"
            )
        least = patch + stride * (cells - 1)
        channels, height, width = checked_shape(
            f"PatchFeatures of {cells}x{cells} cells", num_classes=2, image_shape=image_shape, least=least
        )
        self.patch, self.stride, self.cells = patch, stride, cells
        self.threshold, self.contrast = threshold, contrast
        rows, columns = ((side - patch) // stride + 1 for side in (height, width))
        self.output_shape = (2 * filters * cells**2,)
        settings = (channels, height, width, filters, patch, contrast, regularisation)
        weights, offsets = _FOUND.of(
            prior,
            *settings,
            compute=lambda: patch_filters(
                _patches_of(prior, image_shape, patch), count=filters, contrast=contrast, regularisation=regularisation
            ),
        )
        self.register_buffer("filters", weights.T.reshape(filters, channels, patch, patch).contiguous())
        self.register_buffer("offsets", offsets[:, None, None])
        self.register_buffer("average", cell_means(rows, columns, cells), persistent=False)

    def extra_repr(self) -> str:
        """Settings, which the buffers do not show."""
        count, channels = self.filters.shape[:2]
        return (
            f"{count} filters of {channels}x{self.patch}x{self.patch}, stride={self.stride}, cells={self.cells}, "
            f"threshold={self.threshold}, contrast={self.contrast}"
        )

    def forward(self, images: Tensor) -> Tensor:
        """Map images (N, C, H, W) to features (N, 2·K·cells²)."""
        at_once = max(1, _MAPS // (len(self.filters) * len(self.average)))
        pieces = [self.at_once(piece) for piece in images.to(self.filters).split(at_once)]
        return torch.cat(pieces) if len(images) else images.new_zeros(0, *self.output_shape)

    def at_once(self, images: Tensor) -> Tensor:
        """As `forward`, of all images in one piece, whatever their number."""
        means, squares = (
            F.avg_pool2d(values.mean(dim=1, keepdim=True), self.patch, self.stride)
            for values in (images, images.square())
        )
        # Patches are normalised after the product, which is linear: filters have mean 0, so that the mean drops out.
        deviation = (squares - means.square()).clamp_min(0).add(self.contrast**2).sqrt()
        responses = F.conv2d(images, self.filters, stride=self.stride) / deviation + self.offsets
        positive = torch.relu(responses - self.threshold).flatten(2) @ self.average
        negative = torch.relu(-responses - self.threshold).flatten(2) @ self.average
        return torch.cat([positive, negative], dim=1).flatten(1)


def _patches_of(prior: ImagePrior, image_shape: tuple[int, int, int], side: int) -> Tensor:
    """Patches (N, C·side²) from everywhere in the prior's first images: the same ones each time."""
    draw = torch.Generator().manual_seed(0)
    size = (image_shape[0], image_shape[1], image_shape[2])
    images = prior.sample(_SAMPLED_IMAGES, image_shape=size, generator=draw, device=torch.device("cpu"))
    return random_patches(images, side, count=_SAMPLED_IMAGES * _PATCHES_PER_IMAGE, generator=draw)


def random_patches(images: Tensor, side: int, *, count: int, generator: torch.Generator) -> Tensor:
    """Patches (count, C·side²) from everywhere in maps (N, C, H, W).

    One of each image in turn, so that the first few, of which filters are made, are of as many images.
    """
    channels, rows_in, columns_in = images.shape[1:]
    image = torch.arange(count) % len(images)
    top = torch.randint(rows_in - side + 1, (count,), generator=generator)
    left = torch.randint(columns_in - side + 1, (count,), generator=generator)
    window = torch.arange(side)
    rows, columns = (top[:, None] + window)[:, None, :, None], (left[:, None] + window)[:, None, None, :]
    channel = torch.arange(channels)[None, :, None, None]
    return images[image[:, None, None, None], channel, rows, columns].flatten(1)


def cell_means(rows: int, columns: int, cells: int) -> Tensor:
    """Matrix (rows·columns, cells²) that averages a map over each cell of a grid; at least as many rows as cells."""
    sides = []
    for length in (rows, columns):
        cell = torch.arange(length) * cells // length
        member = F.one_hot(cell, cells).float()
        sides.append(member / member.sum(dim=0))
    return torch.kron(sides[0], sides[1])


class WhitenedPatchClassifier(ImageClassifier):
    """A linear classifier on whitened patch features, for training by DP-SGD and for students of such teachers.

    Nothing in it was learnt from anybody's data: filters and whitening are of procedural images. What it is worth on
    CIFAR-10, and beside scattering: docs/features.md.

    Args:
        num_classes: number of classes c.
        image_shape: channels, height, width.
        prior: images that filters are taken of, and by whose statistics the features are whitened. Default:
            `DeadLeavesPrior`.
        filters: see `PatchFeatures`.
        patch: see `PatchFeatures`.
        stride: see `PatchFeatures`.
        cells: see `PatchFeatures`.
        threshold: see `PatchFeatures`.
        power: how far features are whitened, 0 to 0.5; see `whitening_of`.
        floor: see `whitening_of`.
        images: how many images of the prior whitening takes.
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
        image_shape: tuple[int, int, int] = (3, 32, 32),
        prior: ImagePrior | None = None,
        filters: int = 800,
        patch: int = 6,
        stride: int = 2,
        cells: int = 2,
        threshold: float = 0.25,
        power: float = 0.25,
        floor: float = 0.01,
        images: int = 2000,
        directions: int = DIRECTIONS,
        mirrored: bool = False,
        shifts: int = 0,
    ) -> None:
        super().__init__()
        prior = prior or DeadLeavesPrior()
        self.feature_extractor = WhitenedFeatures(
            PatchFeatures(
                image_shape=image_shape,
                prior=prior,
                filters=filters,
                patch=patch,
                stride=stride,
                cells=cells,
                threshold=threshold,
            ),
            image_shape=image_shape,
            prior=prior,
            power=power,
            floor=floor,
            images=images,
            directions=directions,
            length=LENGTH,
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
