"""Patch features (Coates, Lee and Ng 2011). Their filters are patches of procedural images and cost no privacy."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_modules.networks.classifiers import checked_shape
from lightning_modules.networks.feature_cache import compute_once
from lightning_modules.priors import ImagePrior
from privacy.checks import check_count, check_number

#: Elements of the maps computed at once: pieces that stay in the processor's cache are up to three times as fast. On a
#: GPU each piece adds latency instead.
_MAPS, _MAPS_OF_GPU = 600_000, 200_000_000
_SAMPLED_IMAGES = 1000
_PATCHES_PER_IMAGE = 100
#: Subtracted from responses, which are in units of the filters' length.
_THRESHOLD = 0.25
#: Added to the eigenvalues of the patches' covariance.
_REGULARISATION = 0.1


def patch_filters(patches: Tensor, *, count: int, contrast: float) -> tuple[Tensor, Tensor]:
    """Makes linear filters whose response to a patch is its scalar product with another patch, both whitened.

    Patches are normalised to mean 0 and a standard deviation of about 1 and whitened by their covariance S; K of them,
    scaled to norm 1, are the filters (Coates, Lee and Ng 2011, "An Analysis of Single-Layer Networks in Unsupervised
    Feature Learning", who use centroids; if there are many filters, random patches do as well).

    Args:
        patches: (N, D), of public images.
        count: K; the filters are the first K patches with enough contrast.
        contrast: Standard deviation whose square is added to a patch's variance before normalisation.

    Returns:
        Filters (D, K), each of mean 0, and offsets (K,): the responses to a *normalised* patch p are p @ filters +
        offsets. float32.

    Raises:
        ValueError: fewer than `count` patches have enough contrast.
    """
    rows = patches.double()
    rows = rows - rows.mean(dim=1, keepdim=True)
    rows = rows / (rows.square().mean(dim=1, keepdim=True) + contrast**2).sqrt()
    middle = rows.mean(dim=0)
    covariance = torch.cov(rows.T)
    values, vectors = torch.linalg.eigh(covariance)
    whitener = vectors @ torch.diag((values.clamp_min(0) + _REGULARISATION).rsqrt()) @ vectors.T
    whitened = (rows - middle) @ whitener
    lengths = whitened.norm(dim=1)
    chosen = (lengths > 1).nonzero()[:count, 0]
    if len(chosen) < count:
        raise ValueError(f"filters must be at most {len(chosen)} of {len(patches)} patches with contrast, got {count}")
    filters = whitener @ (whitened[chosen] / lengths[chosen, None]).T
    offsets = -middle @ filters
    # A normalised patch has mean 0: a filter's mean does not change its response, but costs precision.
    return (filters - filters.mean(dim=0)).float(), offsets.float()


class Patches(nn.Module):
    """Similarities of the parts of an image to many patches of procedural images.

    The patches of an image are normalised, whitened and compared with K filters (`patch_filters`). Responses r are
    split into max(r - θ, 0) and max(-r - θ, 0) (Coates and Ng 2011, "The Importance of Encoding Versus Training"),
    averaged around the centre of each cell of a grid (`cell_windows`) and raised to a power. There are no parameters.
    Filters, contrast and power are buffers, so that a checkpoint stays valid if later versions draw other images or
    change a default.

    Args:
        image_shape: channels, height, width.
        prior: procedural images to take patches from.
        filters: K.
        patch: side of a patch in pixels.
        stride: distance between patches in pixels.
        cells: cells of the grid along each side.
        contrast: standard deviation, for pixels in [-1, 1], whose square is added to a patch's variance before
            normalisation, so that faint patches count less.
        power: exponent of the averages; below 1 it reduces the difference between rare and frequent patterns, as for
            Fisher vectors (Perronnin, Sánchez and Mensink 2010).

    Raises:
        ValueError: a setting is invalid or does not fit the images.

    Attributes:
        output_shape: (F,), F = 2·K·cells².
    """

    filters: Tensor
    offsets: Tensor
    average: Tensor
    contrast: Tensor
    power: Tensor

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        prior: ImagePrior,
        *,
        filters: int = 800,
        patch: int = 6,
        stride: int = 2,
        cells: int = 2,
        contrast: float = 0.3,
        power: float = 0.75,
    ) -> None:
        super().__init__()
        for name, value in (("filters", filters), ("patch", patch), ("stride", stride), ("cells", cells)):
            check_count(f"Patches.{name}", value, minimum=2 if name == "patch" else 1)
        check_number("Patches.contrast", contrast, above=0)
        check_number("Patches.power", power, above=0)
        least = patch + stride * (cells - 1)
        channels, height, width = checked_shape(f"Patches of {cells}x{cells} cells", image_shape, least=least)
        self.patch, self.stride, self.cells = patch, stride, cells
        rows, columns = ((side - patch) // stride + 1 for side in (height, width))
        self.output_shape = (2 * filters * cells**2,)

        def fit_filters() -> tuple[Tensor, Tensor]:
            images, draw = first_images(prior, image_shape, _SAMPLED_IMAGES)
            count = _SAMPLED_IMAGES * _PATCHES_PER_IMAGE
            patches = random_patches(images, patch, count=count, generator=draw)
            return patch_filters(patches, count=filters, contrast=contrast)

        settings = (channels, height, width, filters, patch, contrast)
        weights, offsets = compute_once(prior, "filters", *settings, compute=fit_filters)
        self.register_buffer("filters", weights.T.reshape(filters, channels, patch, patch).contiguous())
        self.register_buffer("offsets", offsets[:, None, None])
        self.register_buffer("contrast", torch.tensor(float(contrast)))
        self.register_buffer("power", torch.tensor(float(power)))
        self.register_buffer("average", cell_windows(rows, columns, cells), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Maps images (N, C, H, W) to features (N, 2·K·cells²)."""
        maps = _MAPS if self.filters.device.type == "cpu" else _MAPS_OF_GPU
        filters = max(1, maps // len(self.average))
        images_at_once = max(1, filters // len(self.filters))
        pieces = [self.at_once(piece, filters=filters) for piece in images.to(self.filters).split(images_at_once)]
        return torch.cat(pieces) if len(images) else images.new_zeros(0, *self.output_shape)

    def at_once(self, images: Tensor, *, filters: int | None = None) -> Tensor:
        """As `forward`, without splitting the images, for `filters` filters at a time (default: all)."""
        means, squares = (
            F.avg_pool2d(values.mean(dim=1, keepdim=True), self.patch, self.stride)
            for values in (images, images.square())
        )
        deviation = (squares - means.square()).clamp_min(0).add(self.contrast.square()).sqrt()
        patches = (F.unfold(images, self.patch, stride=self.stride) / deviation.flatten(2)).mT
        some = filters or len(self.filters)
        positive, negative = [], []
        for weights, offsets in zip(
            self.filters.flatten(1).split(some), self.offsets.flatten().split(some), strict=True
        ):
            # Filters have mean 0, so that a patch's mean drops out. With filters last, averaging is fast.
            responses = F.linear(patches, weights, offsets)
            # Windows sum to 1, so the threshold can be subtracted after averaging.
            positive.append(self.average.T @ responses.clamp_min(_THRESHOLD) - _THRESHOLD)
            negative.append(-(self.average.T @ responses.clamp_max(-_THRESHOLD)) - _THRESHOLD)
        averages = torch.cat([*positive, *negative], dim=2).mT.flatten(1)
        # Powers below 1 have no derivative at 0.
        return averages.clamp_min(1e-6).pow(self.power)


def first_images(prior: ImagePrior, image_shape: tuple[int, int, int], count: int) -> tuple[Tensor, torch.Generator]:
    """Returns the prior's first `count` images, always the same, and the generator that drew them."""
    draw = torch.Generator().manual_seed(0)
    return prior.sample(count, image_shape=image_shape, generator=draw, device=torch.device("cpu")), draw


def random_patches(images: Tensor, side: int, *, count: int, generator: torch.Generator) -> Tensor:
    """Takes patches (count, C·side²) from random places of images or maps (N, C, H, W).

    They are taken from each image in turn, so that the first ones, which become filters, are from different images.
    """
    channels, rows_in, columns_in = images.shape[1:]
    image = torch.arange(count) % len(images)
    top = torch.randint(rows_in - side + 1, (count,), generator=generator)
    left = torch.randint(columns_in - side + 1, (count,), generator=generator)
    window = torch.arange(side)
    rows, columns = (top[:, None] + window)[:, None, :, None], (left[:, None] + window)[:, None, None, :]
    channel = torch.arange(channels)[None, :, None, None]
    return images[image[:, None, None, None], channel, rows, columns].flatten(1)


def cell_windows(rows: int, columns: int, cells: int) -> Tensor:
    """Matrix (rows·columns, cells²) of Gaussian windows around the centre of each cell of a grid.

    Windows overlap, with a standard deviation of half a cell's side. Each sums to 1.
    """
    sides = []
    for length in (rows, columns):
        places = (torch.arange(length, dtype=torch.float64) + 0.5) * cells / length
        far = places[:, None] - torch.arange(cells) - 0.5
        window = torch.exp(-2 * far.square())
        sides.append((window / window.sum(dim=0)).float())
    return torch.kron(sides[0], sides[1])
