"""A small network that changes procedural images, in place of one that makes images from noise."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["Refiner", "check_refiner"]


class Refiner(nn.Module):
    """Moves each pixel of an image a learnt share of the way to white or to black.

    Three 3x3 convolutions give a share t = reach * tanh(.) for each pixel and channel: the pixel moves by
    t (1 - x) where t is positive and by t (1 + x) where it is negative, and so stays within [-1, 1] without its
    gradient being cut off. The last layer starts at zero: before its first step the refiner is the identity, exactly.
    It has no batch statistics, so each image is refined by itself.

    Args:
        image_shape: channels, height, width.
        width: channels of the hidden layers.
        reach: largest share, in (0, 1]. With 1 the refiner soon paints over what the prior draws, and students learn
            far less than from the prior alone; the default keeps the drawing.

    Raises:
        ValueError: if a size is not positive, or `reach` is out of its range.
    """

    def __init__(self, *, image_shape: tuple[int, int, int] = (1, 28, 28), width: int = 16, reach: float = 0.2) -> None:
        super().__init__()
        if len(image_shape) != 3 or min(image_shape) < 1:
            raise ValueError(f"image_shape must be three positive sizes (channels, height, width), got {image_shape!r}")
        if width < 1:
            raise ValueError(f"width must be at least 1, got {width!r}")
        if not 0 < reach <= 1:
            raise ValueError(f"reach must lie in (0, 1], got {reach!r}")
        self.reach = float(reach)
        channels = image_shape[0]
        last = nn.Conv2d(width, channels, 3, padding=1)
        nn.init.zeros_(last.weight)
        assert last.bias is not None
        nn.init.zeros_(last.bias)
        self.layers = nn.Sequential(
            nn.Conv2d(channels, width, 3, padding=1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(width, width, 3, padding=1),
            nn.LeakyReLU(0.2),
            last,
        )

    def forward(self, images: Tensor) -> Tensor:
        """Map images (N, C, H, W) in [-1, 1] to images of the same shape and range."""
        share = self.reach * torch.tanh(self.layers(images)).float()
        # By the absolute value and not by clamping, whose gradient at 0, where every share starts, may be 0.
        return (1 - share.abs()) * images + share


def check_refiner(network: nn.Module, *, image_shape: tuple[int, int, int]) -> None:
    """Checks by a dry run in eval mode that images (2, C, H, W) give finite images of the same shape.

    Every module's mode is restored.

    Raises:
        ValueError: naming the setting, if the network does anything else.
    """
    modes = {module: module.training for module in network.modules()}
    network.eval()
    try:
        with torch.no_grad():
            refined = network(torch.zeros(2, *image_shape))
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        raise ValueError(
            f"generator must take images of shape {image_shape} for images='refined', as Refiner does;"
            f" {type(network).__name__} cannot: {error}"
        ) from error
    finally:
        for module, training in modes.items():
            module.training = training
    if not isinstance(refined, Tensor) or refined.shape != (2, *image_shape) or not bool(refined.isfinite().all()):
        found = tuple(refined.shape) if isinstance(refined, Tensor) else type(refined).__name__
        raise ValueError(
            f"generator must give finite images of the shape it takes for images='refined', {(2, *image_shape)};"
            f" {type(network).__name__} gives {found}"
        )
