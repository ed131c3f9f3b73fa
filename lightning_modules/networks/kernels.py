"""Convolutional kernel networks of two layers (Mairal 2016): anchors of procedural images cost no privacy."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_modules.networks.classifiers import checked_shape
from lightning_modules.networks.memory import found_once
from lightning_modules.networks.patches import first_images, random_patches
from lightning_modules.priors import ImagePrior
from lightning_modules.setting_checks import check_whole_number

#: Images at once: as of patch features, the maps of a few stay in the processor's cache.
_PIECE = 8
_SAMPLED_IMAGES = 1000
_PATCHES_PER_IMAGE = 60
_ROUNDS = 15
#: Side of either layer's patches, in pixels of the map below.
_SIDE = 3
#: σ and λ of either layer's kernel, see `nystrom_factor`.
_BANDWIDTH, _REGULARISATION = 0.6, 0.001
#: Distance in pixels at which the first layer's maps are kept.
_SUBSAMPLING = 2
#: Standard deviation that is added, as a variance, to a patch's own before it is divided by it; images are in [-1, 1].
_CONTRAST = 0.1
#: A patch shorter than this, relative to the root mean square of all, has no direction worth an anchor.
_DEGENERATE = 0.1
#: Added to a length that is divided by. Patches as short as this are rounding errors.
_LEAST = 1e-6


def spherical_kmeans(rows: Tensor, *, count: int, rounds: int = _ROUNDS) -> Tensor:
    """Anchors (K, D) on the unit sphere, of the rows' type, that directions of rows are close to (spherical k-means).

    The first are of the first rows, so that the rows' order decides the result, and nothing random does.

    Args:
        rows: (N, D), of any length; those much shorter than the others are left out.
        count: K.
        rounds: of assigning each row to the anchor of the largest scalar product, and taking their mean's direction.

    Raises:
        ValueError: fewer rows with any contrast than anchors.
    """
    lengths = rows.norm(dim=1)
    kept = lengths > _DEGENERATE * lengths.square().mean().sqrt()
    directions = rows[kept] / lengths[kept, None]
    if len(directions) < count:
        raise ValueError(f"anchors must be at most {len(directions)} of {len(rows)} patches with contrast, got {count}")
    anchors: Tensor = directions[:count].clone()
    for _ in range(rounds):
        nearest = torch.cat([(piece @ anchors.T).argmax(dim=1) for piece in directions.split(8192)])
        sums = torch.zeros_like(anchors).index_add_(0, nearest, directions)
        size = sums.norm(dim=1, keepdim=True)
        # An anchor that nothing is close to, or only what cancels out, stays where it is.
        anchors = torch.where(size > _LEAST, sums / size.clamp_min(_LEAST), anchors)
    return anchors


def nystrom_factor(
    anchors: Tensor, *, bandwidth: float = _BANDWIDTH, regularisation: float = _REGULARISATION
) -> Tensor:
    """(κ(Z Zᵀ) + λI)^(-1/2): turns kernel values at the anchors into coordinates whose scalar products are kernels.

    κ(u) = exp((u - 1)/σ²), which of two directions is exp(-|x - y|²/(2σ²)) (Mairal 2016, "End-to-End Kernel Learning
    with Supervised Convolutional Kernel Networks", Eq. 5). The factor is (K, K), symmetric, float32.

    Args:
        anchors: (K, D), each of length 1.
        bandwidth: σ.
        regularisation: λ.
    """
    rows = anchors.double()
    values, vectors = torch.linalg.eigh(_kappa(rows @ rows.T, bandwidth))
    factor: Tensor = vectors @ torch.diag((values.clamp_min(0) + regularisation).rsqrt()) @ vectors.T
    return factor.float()


def _kappa(cosines: Tensor, bandwidth: float) -> Tensor:
    values: Tensor = ((cosines - 1) / bandwidth**2).exp()
    return values


class Kernels(nn.Module):
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
        cells: of the grid, along either side.

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
            check_whole_number(f"Kernels.{name}", value, least=1)
        # Of the second layer's maps there are cells rows and columns at least.
        least = _SUBSAMPLING * (cells + _SIDE - 2) + _SIDE
        channels, height, width = checked_shape(
            f"Kernels of {cells}x{cells} cells", image_shape=image_shape, least=least
        )
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
        found = found_once(
            prior,
            *("anchors", channels, height, width, first_anchors, anchors),
            compute=lambda: self._found_on(prior, image_shape, first_anchors, anchors),
        )
        for name, tensor in zip(("first", "first_factor", "second", "second_factor"), found, strict=True):
            self.register_buffer(name, tensor)

    def extra_repr(self) -> str:
        return f"{len(self.first)} and {len(self.second)} anchors, cells={self.cells}"

    @torch.no_grad()
    def _found_on(
        self, prior: ImagePrior, image_shape: tuple[int, int, int], first_anchors: int, anchors: int
    ) -> tuple[Tensor, ...]:
        """Both layers' anchors and factors, of the prior's first images: the same ones each time."""
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
        """Map images (N, C, H, W) to features (N, K₂·cells²)."""
        pieces = [self.at_once(piece) for piece in images.to(self.first).split(_PIECE)]
        return torch.cat(pieces) if len(images) else images.new_zeros(0, *self.output_shape)

    def at_once(self, images: Tensor) -> Tensor:
        """As `forward`, of all images in one piece, whatever their number."""
        maps = self._first_maps(images, self.first, self.first_factor)
        energy = F.avg_pool2d(maps.square().sum(dim=1, keepdim=True), _SIDE, 1) * _SIDE**2
        length = energy.sqrt()
        compared = _compared(F.conv2d(maps, self.second), length, length)
        # The factor is linear and the same everywhere: after the mean there are fewer places to multiply by it.
        return (self.second_factor @ (compared.flatten(2) @ self.average)).flatten(1)

    def _first_maps(self, images: Tensor, first: Tensor, factor: Tensor) -> Tensor:
        """Map images (N, C, H, W) to the first layer's maps (N, K₁, H', W'), smoothed and subsampled."""
        # Centred first, and not by what the mean of squares exceeds the square of the mean by: in plain surfaces
        # nothing but rounding errors would be left of that.
        centred = F.conv2d(images, self.centring)
        length = centred.square().sum(dim=1, keepdim=True).sqrt()
        compared = _compared(F.conv2d(centred, first), length, length * self._evened(length))
        smoothed = self.smooth_rows @ compared @ self.smooth_columns
        return F.conv2d(smoothed, factor[:, :, None, None])

    def _evened(self, length: Tensor) -> Tensor:
        """Factor for a centred patch of a given norm, so that all patches with some contrast have similar norms."""
        return (length.square() + self.centring.shape[0] * _CONTRAST**2).rsqrt()


def _compared(products: Tensor, length: Tensor, weight: Tensor) -> Tensor:
    """Weight times κ of cosines, of scalar products (N, K, H, W) with anchors and of lengths (N, 1, H, W)."""
    return _kappa(products / length.clamp_min(_LEAST), _BANDWIDTH) * weight


def _smoothing(side: int) -> Tensor:
    """Matrix (kept, side) of Gaussian means around each place that is kept; its rows add up to 1."""
    kept = (side - 1) // _SUBSAMPLING + 1
    before = (side - 1 - _SUBSAMPLING * (kept - 1)) / 2
    centres = before + _SUBSAMPLING * torch.arange(kept, dtype=torch.float64)
    weights = torch.exp(-(torch.arange(side, dtype=torch.float64) - centres[:, None]).square() / _SUBSAMPLING**2)
    weights[weights < 1e-9] = 0.0  # as float32 some were subnormal, and products with those took a third of all time
    return (weights / weights.sum(dim=1, keepdim=True)).float()


def _cell_means(rows: int, columns: int, cells: int) -> Tensor:
    """Matrix (rows·columns, cells²) that averages a map over each cell of a grid; at least as many rows as cells."""
    sides = []
    for length in (rows, columns):
        cell = torch.arange(length) * cells // length
        member = F.one_hot(cell, cells).float()
        sides.append(member / member.sum(dim=0))
    return torch.kron(sides[0], sides[1])
