"""Whether an exported network gives what the one in memory gives."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from lightning_modules.publishing.errors import ExportError

__all__ = ["TOLERANCE", "require_agreement"]

TOLERANCE = 1e-4
"""Largest difference of a logit, absolute and, for logits beyond 1, relative to the largest."""

_SIZES = (1, 2, 35)  # any number of images has to do, also more than a scattering transform takes at once


def require_agreement(
    exported: Callable[[Tensor], Tensor], network: nn.Module, *, image_shape: tuple[int, int, int], name: str
) -> float:
    """The largest difference of their logits on noise, and on blank images, for batches of several sizes.

    Raises:
        ExportError: It is above `TOLERANCE`, or a batch of one size is not taken.
    """
    draw = torch.Generator().manual_seed(0)
    noise = 2 * torch.rand(max(_SIZES), *image_shape, generator=draw) - 1
    blank = torch.stack([torch.full(image_shape, value) for value in (-1.0, 0.0, 1.0)])
    largest = 0.0
    for images in (*(noise[:size] for size in _SIZES), blank):
        with torch.no_grad():
            expected = network(images)
            try:
                given = exported(images)
            except Exception as error:
                raise ExportError(f"{name} does not take {len(images)} images: {error}") from error
        difference = float((given - expected).abs().max())
        if not difference <= TOLERANCE * max(1.0, float(expected.abs().max())):
            raise ExportError(
                f"{name} gives other logits than the network, by {difference:.3g}: it was not exported. Leave out what "
                "asks for it"
            )
        largest = max(largest, difference)
    return largest
