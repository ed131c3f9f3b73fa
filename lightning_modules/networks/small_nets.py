"""Small convolutional classifiers: the papers' students and teachers, and a modern one for two cores.

Maxima are taken before an activation, which is the same, since it keeps the order of values, and runs on a quarter of
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Literal

from torch import Tensor, nn

from lightning_modules.networks.classifiers import ImageClassifier, checked_shape
from lightning_modules.networks.pooling import MaxPool2x2


class DataLensClassifier(ImageClassifier):
    """DataLens's classifier (Wang et al. 2021): the student of DPDFD and DPSD, and of LabelDP in its data setting.

    Conv 3x3 (32, valid), ReLU, max-pool 2, dropout 0.2, conv 3x3 (64, valid), ReLU, dropout 0.25, dense 64, ReLU, dense
    c: 515 146 parameters for 28x28x1 and 10 classes. It has no batch normalisation; as a student of noised gradients it
    learns at half the pace of one that has.

    Args:
        num_classes: number of classes c.
        image_shape: channels, height, width; at least 8x8 pixels.

    Raises:
        ValueError: for an image smaller than 8x8 pixels.
    """

    def __init__(self, *, num_classes: int = 10, image_shape: tuple[int, int, int] = (1, 28, 28)) -> None:
        super().__init__()
        channels, height, width = checked_shape(
            "DataLensClassifier", num_classes=num_classes, image_shape=image_shape, least=8
        )
        self.features = nn.Sequential(
            nn.Conv2d(channels, 32, 3),
            MaxPool2x2(),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.Dropout(0.25),
            nn.Flatten(),
            nn.Linear(64 * ((height - 2) // 2 - 2) * ((width - 2) // 2 - 2), 64),
            nn.ReLU(),
        )
        self.head = nn.Linear(64, num_classes)

    def forward_features(self, images: Tensor) -> Tensor:
        """Map images (N, C, H, W) to features (N, 64)."""
        features: Tensor = self.features(images)
        return features


class TwoConvNet(ImageClassifier):
    """DGD's baseline, teachers and student: two convolutions, then the output.

    The convolutions are 3x3 with 64 and 128 channels, each with ReLU and a 2x2 max-pool. Stride 1, padding 1, Xavier
    initialisation (DGD, section on implementation details). For SVHN the paper adds two dense layers:
    `hidden=[384, 192]`.

    Args:
        num_classes: number of classes c.
        image_shape: channels, height, width; at least 4x4 pixels.
        hidden: sizes of dense ReLU layers before the output.

    Raises:
        ValueError: for an image smaller than 4x4 pixels or a size in `hidden` that is not positive.
    """

    def __init__(
        self, *, num_classes: int = 10, image_shape: tuple[int, int, int] = (1, 28, 28), hidden: Sequence[int] = ()
    ) -> None:
        super().__init__()
        channels, height, width = checked_shape("TwoConvNet", num_classes=num_classes, image_shape=image_shape, least=4)
        if any(size < 1 for size in hidden):
            raise ValueError(f"hidden must hold positive layer sizes, got {list(hidden)!r}")
        layers: list[nn.Module] = []
        for inputs, outputs in ((channels, 64), (64, 128)):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), MaxPool2x2(), nn.ReLU()]
        layers.append(nn.Flatten())
        size = 128 * (height // 4) * (width // 4)
        for outputs in hidden:
            layers += [nn.Linear(size, outputs), nn.ReLU()]
            size = outputs
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(size, num_classes)
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward_features(self, images: Tensor) -> Tensor:
        """Map images (N, C, H, W) to features (N, F)."""
        features: Tensor = self.features(images)
        return features


class SmallCNN(ImageClassifier):
    """A small modern classifier.

    Blocks of 3x3 convolution, normalisation, activation and 2x2 max-pool, then one dense layer and the output.

    With batch normalisation it is the student that learns fastest from noised gradients. Batch statistics mix the
    samples of a batch, which a network trained by DP-SGD must not do: there take `norm: group` or `norm: none`, and
    tanh, which bounds the activations (Papernot et al. 2021).

    Args:
        num_classes: number of classes c.
        image_shape: channels, height, width; at least 2**depth pixels a side.
        width: channels of the first block; each further block doubles them.
        depth: number of blocks.
        hidden: size F of the dense layer, the features.
        norm: batch normalisation, group normalisation (up to 4 groups), or none.
        activation: relu or tanh.

    Raises:
        ValueError: for an image too small for `depth`, a size that is not positive, or an unknown name.
    """

    def __init__(
        self,
        *,
        num_classes: int = 10,
        image_shape: tuple[int, int, int] = (1, 28, 28),
        width: int = 16,
        depth: int = 2,
        hidden: int = 128,
        norm: Literal["batch", "group", "none"] = "batch",
        activation: Literal["relu", "tanh"] = "relu",
    ) -> None:
        super().__init__()
        for name, value in (("width", width), ("depth", depth), ("hidden", hidden)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value!r}")
        if norm not in ("batch", "group", "none"):
            raise ValueError(f"norm must be batch, group or none, got {norm!r}")
        if activation not in ("relu", "tanh"):
            raise ValueError(f"activation must be relu or tanh, got {activation!r}")
        channels, height, columns = checked_shape(
            f"SmallCNN of depth {depth}", num_classes=num_classes, image_shape=image_shape, least=2**depth
        )
        act = nn.ReLU if activation == "relu" else nn.Tanh
        layers: list[nn.Module] = []
        for block in range(depth):
            outputs = width * 2**block
            layers.append(nn.Conv2d(channels, outputs, 3, padding=1, bias=norm == "none"))
            if norm == "batch":
                layers.append(nn.BatchNorm2d(outputs))
            elif norm == "group":
                layers.append(nn.GroupNorm(gcd(outputs, 4), outputs))
            layers += [MaxPool2x2(), act()]
            channels = outputs
        layers += [nn.Flatten(), nn.Linear(channels * (height // 2**depth) * (columns // 2**depth), hidden), act()]
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(hidden, num_classes)

    def forward_features(self, images: Tensor) -> Tensor:
        """Map images (N, C, H, W) to features (N, hidden)."""
        features: Tensor = self.features(images)
        return features
