"""Convolutional kernel networks of two layers (Mairal 2016): anchors of procedural images cost no privacy."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_modules.networks.classifiers import ImageClassifier, checked_shape
from lightning_modules.networks.patches import cell_means, random_patches
from lightning_modules.networks.remembered import Remembered
from lightning_modules.networks.whitening import DIRECTIONS, LENGTH, WhitenedFeatures
from lightning_modules.priors import DeadLeavesPrior, ImagePrior

__all__ = [
    "ConvolutionalKernelClassifier",
    "ConvolutionalKernelFeatures",
    "nystrom_factor",
    "spherical_kmeans",
]

#: Images at once: as of patch features, the maps of a few stay in the processor's cache.
_PIECE = 8
_SAMPLED_IMAGES = 1000
_PATCHES_PER_IMAGE = 60
_ROUNDS = 15
#: A patch shorter than this, relative to the root mean square of all, has no direction worth an anchor.
_DEGENERATE = 0.1
#: Added to a length that is divided by. Patches as short as this are rounding errors.
_LEAST = 1e-6
#: Anchors and factors of a prior's images.
_FOUND = Remembered()


def spherical_kmeans(rows: Tensor, *, count: int, rounds: int = _ROUNDS) -> Tensor:
    """Anchors on the unit sphere that the directions of rows are close to (spherical k-means).

    The first are of the first rows, so that the rows' order decides the result, and nothing random does.

    Args:
        rows: (N, D), of any length; those much shorter than the others are left out.
        count: K.
        rounds: of assigning each row to the anchor of the largest scalar product, and taking their mean's direction.

    Returns:
        (K, D), each of length 1, in the rows' type.

    Raises:
        ValueError: fewer rows that are no plain surface than anchors.
    """
    lengths = rows.norm(dim=1)
    kept = lengths > _DEGENERATE * lengths.square().mean().sqrt()
    directions = rows[kept] / lengths[kept, None]
    if len(directions) < count:
        raise ValueError(
            f"anchors must be at most as many as patches with some contrast, {len(directions)} of the {len(rows)} that "
            f"were drawn of the prior, got {count}"
        )
    anchors: Tensor = directions[:count].clone()
    for _ in range(rounds):
        nearest = torch.cat([(piece @ anchors.T).argmax(dim=1) for piece in directions.split(8192)])
        sums = torch.zeros_like(anchors).index_add_(0, nearest, directions)
        size = sums.norm(dim=1, keepdim=True)
        # An anchor that nothing is close to, or only what cancels out, stays where it is.
        anchors = torch.where(size > _LEAST, sums / size.clamp_min(_LEAST), anchors)
    return anchors


def nystrom_factor(anchors: Tensor, *, bandwidth: float, regularisation: float) -> Tensor:
    """(κ(Z Zᵀ) + λI)^(-1/2): turns kernel values at the anchors into coordinates whose scalar products are kernels.

    κ(u) = exp((u - 1)/σ²), which of two directions is exp(-|x - y|²/(2σ²)) (Mairal 2016, "End-to-End Kernel Learning
    with Supervised Convolutional Kernel Networks", Eq. 5).

    Args:
        anchors: (K, D), each of length 1.
        bandwidth: σ.
        regularisation: λ.

    Returns:
        (K, K), symmetric, float32.
    """
    rows = anchors.double()
    values, vectors = torch.linalg.eigh(_kappa(rows @ rows.T, bandwidth))
    factor: Tensor = vectors @ torch.diag((values.clamp_min(0) + regularisation).rsqrt()) @ vectors.T
    return factor.float()


def _kappa(cosines: Tensor, bandwidth: float) -> Tensor:
    values: Tensor = ((cosines - 1) / bandwidth**2).exp()
    return values


class ConvolutionalKernelFeatures(nn.Module):
    """Two layers of a convolutional kernel network, averaged over the cells of a grid.

    A layer compares each patch x of the map below to anchors Z, |x| κ(Zx/|x|), and multiplies by `nystrom_factor`, so
    that scalar products of what comes out approximate the kernel |x||y| κ(x·y/(|x||y|)). The first layer's patches
    have their mean removed and their contrast normalised; between the layers, maps are smoothed by a Gaussian and
    subsampled. Anchors are found without labels, by spherical k-means of patches of procedural images and of their
    first layer's maps. No parameters; all that was found is in buffers, so that a checkpoint holds it whatever later
    versions of the prior draw.

    Args:
        image_shape: channels, height, width.
        prior: images that anchors are found on.
        first_anchors: of the first layer, K₁.
        anchors: of the second layer, K₂.
        patch: side of either layer's patches, in pixels of the map below.
        bandwidth: σ of either layer's kernel, see `nystrom_factor`.
        subsampling: distance in pixels of the first layer's maps at which they are kept.
        cells: of the grid, along either side.
        contrast: standard deviation that is added, as a variance, to a patch's own before it is divided by it; images
            are in [-1, 1].
        regularisation: λ, see `nystrom_factor`.

    Raises:
        ValueError: a setting that has no meaning or does not fit the images.

    Attributes:
        output_shape: (F,), F = K₂·cells².
    """

    first: Tensor
    first_factor: Tensor
    second: Tensor
    second_factor: Tensor
    centring: Tensor
    smooth_rows: Tensor
    smooth_columns: Tensor
    average: Tensor

    def __init__(
        self,
        *,
        image_shape: tuple[int, int, int],
        prior: ImagePrior,
        first_anchors: int = 64,
        anchors: int = 512,
        patch: int = 3,
        bandwidth: float = 0.6,
        subsampling: int = 2,
        cells: int = 4,
        contrast: float = 0.1,
        regularisation: float = 0.001,
    ) -> None:
        super().__init__()
        for name, count in (
            ("first_anchors", first_anchors),
            ("anchors", anchors),
            ("subsampling", subsampling),
            ("cells", cells),
        ):
            if count < 1:
                raise ValueError(f"{name} must be at least 1, got {count!r}")
        if patch < 2:
            raise ValueError(f"patch must be at least 2, got {patch!r}")
        for name, value in (("bandwidth", bandwidth), ("contrast", contrast), ("regularisation", regularisation)):
            if not value > 0:
                raise ValueError(f"{name} must be above 0, got {value!r}")
        # Of the second layer's maps there are cells rows and columns at least.
        least = subsampling * (cells + patch - 2) + patch
        channels, height, width = checked_shape(
            f"ConvolutionalKernelFeatures of {cells}x{cells} cells", num_classes=2, image_shape=image_shape, least=least
        )
        self.patch, self.bandwidth, self.subsampling, self.cells = patch, bandwidth, subsampling, cells
        self.contrast, self.regularisation = contrast, regularisation
        self.output_shape = (anchors * cells**2,)
        size = channels * patch**2
        centring = torch.eye(size) - 1 / size
        smooth = [_smoothing(side - patch + 1, subsampling) for side in (height, width)]
        rows, columns = (len(matrix) - patch + 1 for matrix in smooth)
        self.register_buffer("centring", centring.reshape(size, channels, patch, patch), persistent=False)
        self.register_buffer("smooth_rows", smooth[0], persistent=False)
        self.register_buffer("smooth_columns", smooth[1].T.contiguous(), persistent=False)
        self.register_buffer("average", cell_means(rows, columns, cells), persistent=False)
        shape = (channels, height, width)
        found = _FOUND.of(
            prior,
            *(*shape, first_anchors, anchors, patch, bandwidth, subsampling, contrast, regularisation),
            compute=lambda: self._found_on(prior, shape, first_anchors, anchors),
        )
        for name, tensor in zip(("first", "first_factor", "second", "second_factor"), found, strict=True):
            self.register_buffer(name, tensor)

    def extra_repr(self) -> str:
        """Settings, which the buffers do not show."""
        return (
            f"{len(self.first)} and {len(self.second)} anchors of side {self.patch}, bandwidth={self.bandwidth}, "
            f"subsampling={self.subsampling}, cells={self.cells}, contrast={self.contrast}"
        )

    @torch.no_grad()
    def _found_on(
        self, prior: ImagePrior, image_shape: tuple[int, int, int], first_anchors: int, anchors: int
    ) -> tuple[Tensor, ...]:
        """Both layers' anchors and factors, of the prior's first images: the same ones each time."""
        settings = {"bandwidth": self.bandwidth, "regularisation": self.regularisation}
        draw = torch.Generator().manual_seed(0)
        images = prior.sample(_SAMPLED_IMAGES, image_shape=image_shape, generator=draw, device=torch.device("cpu"))
        count = _SAMPLED_IMAGES * _PATCHES_PER_IMAGE
        patches = random_patches(images, self.patch, count=count, generator=draw)
        centred = patches @ self.centring.flatten(1)
        found = spherical_kmeans(centred * self._evened(centred.norm(dim=1, keepdim=True)), count=first_anchors)
        first, factor = found[:, :, None, None], nystrom_factor(found, **settings)
        maps = torch.cat([self._first_maps(piece, first, factor) for piece in images.split(_PIECE)])
        found = spherical_kmeans(random_patches(maps, self.patch, count=count, generator=draw), count=anchors)
        second = found.unflatten(1, (first_anchors, self.patch, self.patch))
        return first, factor, second, nystrom_factor(found, **settings)

    def forward(self, images: Tensor) -> Tensor:
        """Map images (N, C, H, W) to features (N, K₂·cells²)."""
        pieces = [self.at_once(piece) for piece in images.to(self.first).split(_PIECE)]
        return torch.cat(pieces) if len(images) else images.new_zeros(0, *self.output_shape)

    def at_once(self, images: Tensor) -> Tensor:
        """As `forward`, of all images in one piece, whatever their number."""
        maps = self.first_layer(images)
        energy = F.avg_pool2d(maps.square().sum(dim=1, keepdim=True), self.patch, 1) * self.patch**2
        length = energy.sqrt()
        compared = _compared(F.conv2d(maps, self.second), length, length, self.bandwidth)
        # The factor is linear and the same everywhere: after the mean there are fewer places to multiply by it.
        return (self.second_factor @ (compared.flatten(2) @ self.average)).flatten(1)

    def first_layer(self, images: Tensor) -> Tensor:
        """Map images (N, C, H, W) to the first layer's maps (N, K₁, H', W'), smoothed and subsampled."""
        return self._first_maps(images, self.first, self.first_factor)

    def _first_maps(self, images: Tensor, first: Tensor, factor: Tensor) -> Tensor:
        # Centred first, and not by what the mean of squares exceeds the square of the mean by: in plain surfaces
        # nothing but rounding errors would be left of that.
        centred = F.conv2d(images, self.centring)
        length = centred.square().sum(dim=1, keepdim=True).sqrt()
        compared = _compared(F.conv2d(centred, first), length, length * self._evened(length), self.bandwidth)
        smoothed = self.smooth_rows @ compared @ self.smooth_columns
        return F.conv2d(smoothed, factor[:, :, None, None])

    def _evened(self, length: Tensor) -> Tensor:
        """What a centred patch of such a length is multiplied by, so that all with some contrast are about as long."""
        return (length.square() + self.centring.shape[0] * self.contrast**2).rsqrt()


def _compared(products: Tensor, length: Tensor, weight: Tensor, bandwidth: float) -> Tensor:
    """Weight times κ of cosines, of scalar products (N, K, H, W) with anchors and of lengths (N, 1, H, W)."""
    return _kappa(products / length.clamp_min(_LEAST), bandwidth) * weight


def _smoothing(side: int, step: int) -> Tensor:
    """Matrix (kept, side) of Gaussian means around every `step`-th place; its rows add up to 1."""
    kept = (side - 1) // step + 1
    before = (side - 1 - step * (kept - 1)) / 2
    centres = before + step * torch.arange(kept, dtype=torch.float64)
    distances = torch.arange(side, dtype=torch.float64) - centres[:, None]
    weights = torch.exp(-distances.square() / step**2) if step > 1 else (distances == 0).double()
    return (weights / weights.sum(dim=1, keepdim=True)).float()


class ConvolutionalKernelClassifier(ImageClassifier):
    """A linear classifier on whitened features of a convolutional kernel network, for DP-SGD and students of such.

    Nothing in it was learnt from anybody's data: anchors and whitening are of procedural images. What it is worth
    beside patches: docs/features.md.

    Args:
        num_classes: number of classes c.
        image_shape: channels, height, width.
        prior: images that anchors are found on, and by whose statistics the features are whitened. Default:
            `DeadLeavesPrior`.
        first_anchors: see `ConvolutionalKernelFeatures`.
        anchors: see `ConvolutionalKernelFeatures`.
        patch: see `ConvolutionalKernelFeatures`.
        bandwidth: see `ConvolutionalKernelFeatures`.
        subsampling: see `ConvolutionalKernelFeatures`.
        cells: see `ConvolutionalKernelFeatures`.
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
        first_anchors: int = 64,
        anchors: int = 512,
        patch: int = 3,
        bandwidth: float = 0.6,
        subsampling: int = 2,
        cells: int = 4,
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
            ConvolutionalKernelFeatures(
                image_shape=image_shape,
                prior=prior,
                first_anchors=first_anchors,
                anchors=anchors,
                patch=patch,
                bandwidth=bandwidth,
                subsampling=subsampling,
                cells=cells,
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
