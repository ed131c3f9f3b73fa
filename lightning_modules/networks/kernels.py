"""Two-layer convolutional kernel networks (Mairal 2016). Their anchors are procedural images and cost no privacy."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_modules.networks.classifiers import checked_shape
from lightning_modules.networks.feature_cache import compute_once
from lightning_modules.networks.patches import first_images, random_patches
from lightning_modules.priors import ImagePrior
from privacy.checks import check_count

#: Images computed at once: the maps of a few stay in the processor's cache.
_PIECE = 8
_SAMPLED_IMAGES = 1000
_PATCHES_PER_IMAGE = 60
#: Rounds of assigning each row to the anchor of largest cosine similarity and averaging directions.
_ROUNDS = 15
#: Side of either layer's patches, in pixels of the map below.
_SIDE = 3
#: σ and λ of either layer's kernel, see `nystrom_factor`.
_BANDWIDTH, _REGULARISATION = 0.6, 0.001
#: Stride in pixels of the first layer's maps.
_SUBSAMPLING = 2
#: Standard deviation whose square is added to a patch's variance before normalisation; images are in [-1, 1].
_CONTRAST = 0.1
#: Patches with a norm below this times the root mean square of all norms make no anchors.
_DEGENERATE = 0.1
#: Least norm to divide by. Smaller norms are rounding errors.
_LEAST = 1e-6


def spherical_kmeans(rows: Tensor, *, count: int) -> Tensor:
    """Cluster the directions of rows into anchors (K, D) of unit norm by spherical k-means.

    It starts from the first K rows, so the result is deterministic and depends on the order of rows.

    Args:
        rows: (N, D), of any norm; those much shorter than the others are left out.
        count: K.

    Raises:
        ValueError: fewer than `count` rows have enough contrast.
    """
    lengths = rows.norm(dim=1)
    kept = lengths > _DEGENERATE * lengths.square().mean().sqrt()
    directions = rows[kept] / lengths[kept, None]
    if len(directions) < count:
        raise ValueError(f"anchors must be at most {len(directions)} of {len(rows)} patches with contrast, got {count}")
    anchors: Tensor = directions[:count].clone()
    for _ in range(_ROUNDS):
        nearest = torch.cat([(piece @ anchors.T).argmax(dim=1) for piece in directions.split(8192)])
        sums = torch.zeros_like(anchors).index_add_(0, nearest, directions)
        size = sums.norm(dim=1, keepdim=True)
        # An anchor stays where it is if it has no rows, or their directions cancel out.
        anchors = torch.where(size > _LEAST, sums / size.clamp_min(_LEAST), anchors)
    return anchors


def nystrom_factor(anchors: Tensor) -> Tensor:
    """(κ(Z Zᵀ) + λI)^(-1/2): maps kernel values at the anchors to vectors whose scalar products approximate the kernel.

    κ(u) = exp((u - 1)/σ²) is exp(-|x - y|²/(2σ²)) for unit vectors with u = x·y (Mairal 2016, "End-to-End Kernel
    Learning with Supervised Convolutional Kernel Networks", Eq. 5). The factor is (K, K), symmetric, float32.

    Args:
        anchors: (K, D), each of length 1.
    """
    rows = anchors.double()
    values, vectors = torch.linalg.eigh(_kappa(rows @ rows.T))
    factor: Tensor = vectors @ torch.diag((values.clamp_min(0) + _REGULARISATION).rsqrt()) @ vectors.T
    return factor.float()


def _kappa(cosines: Tensor) -> Tensor:
    values: Tensor = ((cosines - 1) / _BANDWIDTH**2).exp()
    return values


class Kernels(nn.Module):
    """Two layers of a convolutional kernel network, averaged over the cells of a grid.

    A layer compares each patch x of its input with anchors Z, |x| κ(Zx/|x|), and multiplies by `nystrom_factor`, so
    that scalar products of its outputs approximate the kernel |x||y| κ(x·y/(|x||y|)). The first layer centres its
    patches and normalises their contrast; its maps are smoothed by a Gaussian and subsampled. Anchors are found without
    labels, by spherical k-means on patches of procedural images and of their first-layer maps. There are no parameters;
    anchors and factors are buffers, so that a checkpoint stays valid if a later version of the prior draws differently.

    Args:
        image_shape: channels, height, width.
        prior: procedural images to find anchors on.
        first_anchors: number of anchors of the first layer, K₁.
        anchors: number of anchors of the second layer, K₂.
        cells: cells of the grid along each side.

    Raises:
        ValueError: a setting is invalid or does not fit the images.

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
        image_shape: tuple[int, int, int],
        prior: ImagePrior,
        *,
        first_anchors: int = 64,
        anchors: int = 512,
        cells: int = 4,
    ) -> None:
        super().__init__()
        for name, value in (("first_anchors", first_anchors), ("anchors", anchors), ("cells", cells)):
            check_count(f"Kernels.{name}", value, minimum=1)
        # The second layer's maps must have at least `cells` rows and columns.
        least = _SUBSAMPLING * (cells + _SIDE - 2) + _SIDE
        channels, height, width = checked_shape(f"Kernels of {cells}x{cells} cells", image_shape, least=least)
        self.cells = cells
        self.output_shape = (anchors * cells**2,)
        size = channels * _SIDE**2
        centring = torch.eye(size) - 1 / size
        smooth = [_smoothing(side - _SIDE + 1) for side in (height, width)]
        rows, columns = (len(matrix) - _SIDE + 1 for matrix in smooth)
        self.register_buffer("centring", centring.reshape(size, channels, _SIDE, _SIDE), persistent=False)
        self.register_buffer("smooth_rows", smooth[0], persistent=False)
        self.register_buffer("smooth_columns", smooth[1].T.contiguous(), persistent=False)
        self.register_buffer("average", _cell_means(rows, columns, cells), persistent=False)
        tensors = compute_once(
            prior,
            *("anchors", channels, height, width, first_anchors, anchors),
            compute=lambda: self._fitted_on(prior, image_shape, first_anchors, anchors),
        )
        for name, tensor in zip(("first", "first_factor", "second", "second_factor"), tensors, strict=True):
            self.register_buffer(name, tensor)

    @torch.no_grad()
    def _fitted_on(
        self, prior: ImagePrior, image_shape: tuple[int, int, int], first_anchors: int, anchors: int
    ) -> tuple[Tensor, ...]:
        """Finds both layers' anchors and factors on the prior's first images; deterministic."""
        images, draw = first_images(prior, image_shape, _SAMPLED_IMAGES)
        count = _SAMPLED_IMAGES * _PATCHES_PER_IMAGE
        patches = random_patches(images, _SIDE, count=count, generator=draw)
        centred = patches @ self.centring.flatten(1)
        found = spherical_kmeans(centred * self._evened(centred.norm(dim=1, keepdim=True)), count=first_anchors)
        first, factor = found[:, :, None, None], nystrom_factor(found)
        maps = torch.cat([self._first_maps(piece, first, factor) for piece in images.split(_PIECE)])
        found = spherical_kmeans(random_patches(maps, _SIDE, count=count, generator=draw), count=anchors)
        second = found.unflatten(1, (first_anchors, _SIDE, _SIDE))
        return first, factor, second, nystrom_factor(found)

    def forward(self, images: Tensor) -> Tensor:
        """Maps images (N, C, H, W) to features (N, K₂·cells²)."""
        pieces = [self.at_once(piece) for piece in images.to(self.first).split(_PIECE)]
        return torch.cat(pieces) if len(images) else images.new_zeros(0, *self.output_shape)

    def at_once(self, images: Tensor) -> Tensor:
        """As `forward`, without splitting the images into pieces."""
        maps = self._first_maps(images, self.first, self.first_factor)
        energy = F.avg_pool2d(maps.square().sum(dim=1, keepdim=True), _SIDE, 1) * _SIDE**2
        length = energy.sqrt()
        compared = _compared(F.conv2d(maps, self.second), length, length)
        # The factor is linear and the same at each position: multiplying after averaging is cheaper.
        return (self.second_factor @ (compared.flatten(2) @ self.average)).flatten(1)

    def _first_maps(self, images: Tensor, first: Tensor, factor: Tensor) -> Tensor:
        """Maps images (N, C, H, W) to the first layer's maps (N, K₁, H', W'), smoothed and subsampled."""
        # Centre first: the mean of squares minus the square of the mean is all rounding error in flat regions.
        centred = F.conv2d(images, self.centring)
        length = centred.square().sum(dim=1, keepdim=True).sqrt()
        compared = _compared(F.conv2d(centred, first), length, length * self._evened(length))
        smoothed = self.smooth_rows @ compared @ self.smooth_columns
        return F.conv2d(smoothed, factor[:, :, None, None])

    def _evened(self, length: Tensor) -> Tensor:
        """Contrast normalisation: the factor by which to scale a centred patch of norm `length`."""
        return (length.square() + self.centring.shape[0] * _CONTRAST**2).rsqrt()


def _compared(products: Tensor, length: Tensor, weight: Tensor) -> Tensor:
    """weight · κ(products / length), from scalar products (N, K, H, W) with anchors and norms (N, 1, H, W)."""
    return _kappa(products / length.clamp_min(_LEAST)) * weight


def _smoothing(side: int) -> Tensor:
    """Matrix (kept, side) that smooths by a Gaussian and subsamples; its rows sum to 1."""
    kept = (side - 1) // _SUBSAMPLING + 1
    before = (side - 1 - _SUBSAMPLING * (kept - 1)) / 2
    centres = before + _SUBSAMPLING * torch.arange(kept, dtype=torch.float64)
    weights = torch.exp(-(torch.arange(side, dtype=torch.float64) - centres[:, None]).square() / _SUBSAMPLING**2)
    weights[weights < 1e-9] = 0.0  # in float32 some were subnormal, and their products took a third of the time
    return (weights / weights.sum(dim=1, keepdim=True)).float()


def _cell_means(rows: int, columns: int, cells: int) -> Tensor:
    """Matrix (rows·columns, cells²) that averages a map over each cell of a grid; needs rows, columns >= cells."""
    sides = []
    for length in (rows, columns):
        cell = torch.arange(length) * cells // length
        member = F.one_hot(cell, cells).float()
        sides.append(member / member.sum(dim=0))
    return torch.kron(sides[0], sides[1])
