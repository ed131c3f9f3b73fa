"""What every classifier here has in common: `head(forward_features(images))` gives the logits."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn


class ImageClassifier(nn.Module, ABC):
    """A network whose last layer is the linear `head`.

    Losses on a network's features (DPDFD Eq. 5, DGD Eq. 2) need the head's input: it has a name here.
    """

    head: nn.Linear

    @abstractmethod
    def forward_features(self, images: Tensor) -> Tensor:
        """Map images (N, C, H, W) to the head's input (N, F)."""

    def forward(self, images: Tensor) -> Tensor:
        """Map images (N, C, H, W) to logits (N, num_classes)."""
        logits: Tensor = self.head(self.forward_features(images))
        return logits


def checked_shape(
    network: str, *, num_classes: int = 1, image_shape: tuple[int, int, int], least: int
) -> tuple[int, int, int]:
    """Check what every network is told of the data and return (channels, height, width).

    Raises:
        ValueError: if there is no class, a size is not positive, or the image is smaller than the network's `least`
            side in pixels.
    """
    if num_classes < 1:
        raise ValueError(f"num_classes must be at least 1, got {num_classes!r}")
    if len(image_shape) != 3 or min(image_shape) < 1:
        raise ValueError(f"image_shape must be three positive sizes (channels, height, width), got {image_shape!r}")
    channels, height, width = image_shape
    if min(height, width) < least:
        raise ValueError(
            f"image_shape: {network} needs images of at least {least}x{least} pixels, got {height}x{width}"
        )
    return channels, height, width
