"""A residual network without a classifier: maps of features, for a pretraining that knows no classes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lightning_modules.networks.classifiers import checked_shape

__all__ = ["ResNetEncoder"]


class _Block(nn.Module):
    """Two 3x3 convolutions and a way around them (He et al. 2016)."""

    def __init__(self, inputs: int, outputs: int, *, stride: int) -> None:
        super().__init__()
        # In sequence, so that normalisation can be folded into the convolutions once they are frozen.
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.around = (
            nn.Identity()
            if stride == 1 and inputs == outputs
            else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs))
        )

    def forward(self, maps: Tensor) -> Tensor:
        return torch.relu(self.body(maps) + self.around(maps))


class ResNetEncoder(nn.Module):
    """A ResNet for images of 28 to 64 pixels: a 3x3 stem without pooling, then stages, each half as wide as the last.

    With `width: 64` and `blocks: [2, 2, 2, 2]` it is ResNet-18 for small images (He et al. 2016) without its last
    layer: 11.2 million parameters and 0.56 billion multiplications of an image of 3x32x32. The defaults are what two
    cores can train within an hour: 0.7 million parameters, 23 million multiplications.

    Args:
        image_shape: channels, height, width; at least 2**(stages - 1) pixels a side.
        width: channels of the first stage; each further stage doubles them.
        blocks: blocks of two convolutions in each stage.

    Raises:
        ValueError: for an image too small for so many stages, no stage, or a size that is not positive.

    Attributes:
        output_shape: (C, h, w) of the last stage's maps.
    """

    def __init__(
        self,
        *,
        image_shape: tuple[int, int, int] = (3, 32, 32),
        width: int = 24,
        blocks: Sequence[int] = (1, 1, 1, 1),
    ) -> None:
        super().__init__()
        if width < 1:
            raise ValueError(f"width must be at least 1, got {width!r}")
        if not blocks or min(blocks) < 1:
            raise ValueError(f"blocks must be one or more sizes of at least 1, got {list(blocks)!r}")
        channels, height, columns = checked_shape(
            f"ResNetEncoder of {len(blocks)} stages",
            num_classes=2,
            image_shape=image_shape,
            least=2 ** (len(blocks) - 1),
        )
        self.stem = nn.Sequential(
            nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        self.stages = nn.ModuleList()
        channels = width
        for number, count in enumerate(blocks):
            outputs, stride = width * 2**number, 1 if number == 0 else 2
            first = _Block(channels, outputs, stride=stride)
            self.stages.append(nn.Sequential(first, *(_Block(outputs, outputs, stride=1) for _ in range(count - 1))))
            channels, height, columns = outputs, -(-height // stride), -(-columns // stride)
        self.output_shape = (channels, height, columns)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward_stages(self, images: Tensor) -> list[Tensor]:
        """Map images (N, C, H, W) to the maps of each stage, the first one first."""
        maps = self.stem(images)
        found = []
        for stage in self.stages:
            maps = stage(maps)
            found.append(maps)
        return found

    def forward(self, images: Tensor) -> Tensor:
        """Map images (N, C, H, W) to the last stage's maps (N, *output_shape)."""
        return self.forward_stages(images)[-1]
