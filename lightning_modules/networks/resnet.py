"""Residual networks for images of 28 to 64 pixels: the papers' teachers, and LabelDP's student for label privacy."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock, ResNet

from lightning_modules.networks.classifiers import ImageClassifier, checked_shape


class _SmallImageResNet(ImageClassifier):
    """torchvision's ResNet with a stem for small images: 3x3, stride 1, no max-pool (He et al. 2016, section 4.2)."""

    def __init__(self, *, blocks: Sequence[int], num_classes: int, image_shape: tuple[int, int, int]) -> None:
        super().__init__()
        channels, _, _ = checked_shape(type(self).__name__, num_classes=num_classes, image_shape=image_shape, least=4)
        self.body = ResNet(BasicBlock, list(blocks))
        self.body.conv1 = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
        nn.init.kaiming_normal_(self.body.conv1.weight, mode="fan_out", nonlinearity="relu")
        # Modules without weights take the places that torchvision's forward pass calls by name.
        self.body.maxpool = nn.Identity()
        self.body.fc = nn.Identity()
        self.head = nn.Linear(512, num_classes)

    def forward_features(self, images: Tensor) -> Tensor:
        """Map images (N, C, H, W) to features (N, 512)."""
        features: Tensor = self.body(images)
        return features


class ResNet18(_SmallImageResNet):
    """ResNet-18 for small images of any number of channels.

    Args:
        num_classes: number of classes c.
        image_shape: channels, height, width; at least 4x4 pixels.

    Raises:
        ValueError: for an image smaller than 4x4 pixels.
    """

    def __init__(self, *, num_classes: int = 10, image_shape: tuple[int, int, int] = (1, 28, 28)) -> None:
        super().__init__(blocks=(2, 2, 2, 2), num_classes=num_classes, image_shape=image_shape)


class ResNet34(_SmallImageResNet):
    """ResNet-34 for small images of any number of channels: the papers' teacher.

    Args:
        num_classes: number of classes c.
        image_shape: channels, height, width; at least 4x4 pixels.

    Raises:
        ValueError: for an image smaller than 4x4 pixels.
    """

    def __init__(self, *, num_classes: int = 10, image_shape: tuple[int, int, int] = (1, 28, 28)) -> None:
        super().__init__(blocks=(3, 4, 6, 3), num_classes=num_classes, image_shape=image_shape)
