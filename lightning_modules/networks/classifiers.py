"""Classifiers: the papers' students and teachers, and a modern one. Logits are `head(forward_features(images))`.

Max-pooling comes before the activation: activations are monotonic, so the result is the same at a quarter of the work.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock, ResNet

from privacy.checks import check_choice, check_count, check_number


class ImageClassifier(nn.Module):
    """Base class of networks whose last layer is the linear `head`, built from num_classes and image_shape.

    Losses on features (DPDFD Eq. 5, DGD Eq. 2) need the head's input, which `forward_features` returns. A derived class
    sets `features` or overrides `forward_features`.
    """

    features: nn.Sequential
    head: nn.Linear

    def forward_features(self, images: Tensor) -> Tensor:
        """Maps images (N, C, H, W) to the head's input (N, F)."""
        features: Tensor = self.features(images)
        return features

    def forward(self, images: Tensor) -> Tensor:
        """Maps images (N, C, H, W) to logits (N, num_classes)."""
        logits: Tensor = self.head(self.forward_features(images))
        return logits


def checked_shape(network: str, image_shape: tuple[int, int, int], *, least: int) -> tuple[int, int, int]:
    """Returns (channels, height, width) of images that are large enough.

    Raises:
        ValueError: A side of the image is below `least` pixels.
    """
    channels, height, width = image_shape
    if min(height, width) < least:
        raise ValueError(f"image_shape: {network} needs at least {least}x{least} pixels, got {height}x{width}")
    return channels, height, width


def logits_and_features(model: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
    """Runs a classifier on images (N, C, H, W) once and returns its logits (N, c) and the features (N, F) before them.

    For a network that is no `ImageClassifier`, a temporary hook catches the input of its `head`, if that is an
    `nn.Linear`, or else of the `nn.Linear` registered last.

    Raises:
        ValueError: The model has no `nn.Linear`, or does not call the chosen one once with one row per image.
    """
    if isinstance(model, ImageClassifier):
        features = model.forward_features(images)
        return model.head(features), features
    head = getattr(model, "head", None)
    if not isinstance(head, nn.Linear):
        linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
        if not linear:
            raise ValueError(f"model: {type(model).__name__} has no nn.Linear: derive it from ImageClassifier")
        head = linear[-1]
    caught: list[Tensor] = []
    handle = head.register_forward_pre_hook(lambda _module, inputs: caught.append(inputs[0]))
    try:
        logits: Tensor = model(images)
    finally:
        handle.remove()
    if len(caught) != 1 or caught[0].dim() != 2 or len(caught[0]) != len(images):
        raise ValueError(
            f"model: the last nn.Linear of {type(model).__name__} was given {[tuple(x.shape) for x in caught]}, "
            f"not one (N, F) tensor for N={len(images)} images: derive the model from ImageClassifier"
        )
    return logits, caught[0]


class DataLensClassifier(ImageClassifier):
    """DataLens's classifier (Wang et al. 2021): the student of DPDFD and DPSD, and of LabelDP in its data setting.

    Conv 3x3 (32, valid), ReLU, max-pool 2, dropout 0.2, conv 3x3 (64, valid), ReLU, dropout 0.25, dense 64, ReLU, dense
    c: 515 146 parameters for 28x28x1 and 10 classes. It has no batch normalisation and learns from noisy gradients at
    half the pace of a student that does.

    Args:
        num_classes: number of classes c.
        image_shape: channels, height, width; at least 8x8 pixels.

    Raises:
        ValueError: The image is smaller than 8x8 pixels.
    """

    def __init__(self, num_classes: int = 10, image_shape: tuple[int, int, int] = (1, 28, 28)) -> None:
        super().__init__()
        channels, height, width = checked_shape("DataLensClassifier", image_shape, least=8)
        self.features = nn.Sequential(
            nn.Conv2d(channels, 32, 3),
            nn.MaxPool2d(2),
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


def start_by_xavier(module: nn.Module) -> None:
    """Draws a layer's initial weights by Xavier's method and sets its biases to 0, as DGD and DPSD print."""
    if isinstance(module, (nn.Conv2d, nn.Linear)):
        nn.init.xavier_uniform_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


class TwoConvNet(ImageClassifier):
    """The network of DGD's baseline and teachers: two convolutions, then the output.

    The convolutions are 3x3 with 64 and 128 channels, stride 1 and padding 1, each with ReLU and a 2x2 max-pool;
    Xavier initialisation (DGD, Sec. IV, which does not describe its student).

    Args:
        num_classes: number of classes c.
        image_shape: channels, height, width; at least 4x4 pixels.
        hidden: sizes of dense layers with ReLU before the output; DGD adds 384 and 192 on SVHN.

    Raises:
        ValueError: The image is smaller than 4x4 pixels, or a size is not positive.
    """

    def __init__(
        self, num_classes: int = 10, image_shape: tuple[int, int, int] = (1, 28, 28), *, hidden: Sequence[int] = ()
    ) -> None:
        super().__init__()
        channels, height, width = checked_shape("TwoConvNet", image_shape, least=4)
        layers: list[nn.Module] = []
        for inputs, outputs in ((channels, 64), (64, 128)):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()]
        layers.append(nn.Flatten())
        inputs = 128 * (height // 4) * (width // 4)
        for outputs in hidden:
            check_count("hidden", outputs, minimum=1)
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
            inputs = outputs
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(inputs, num_classes)
        self.apply(start_by_xavier)


class SmallCNN(ImageClassifier):
    """A small modern classifier.

    Blocks of 3x3 convolution, normalisation, activation and 2x2 max-pool, then one dense layer and the output.

    With batch normalisation it is the student that learns fastest from noisy gradients. Batch statistics mix the
    samples of a batch, which DP-SGD does not allow: use `norm: group` or `norm: none` there, and tanh, which bounds the
    activations (Papernot et al. 2021).

    Args:
        num_classes: number of classes c.
        image_shape: channels, height, width; at least 2**depth pixels a side.
        width: channels of the first block, doubled in each further block.
        depth: number of blocks.
        convolutions: convolutions of a block, each normalised and activated; the pool is in the first.
        hidden: size F of the dense layer, the features; 0 leaves it out.
        norm: batch normalisation, group normalisation (up to 4 groups), or none.
        activation: relu or tanh.

    Raises:
        ValueError: The image is too small for `depth`, a size is not positive, or a name is unknown.
    """

    def __init__(
        self,
        num_classes: int = 10,
        image_shape: tuple[int, int, int] = (1, 28, 28),
        *,
        width: int = 16,
        depth: int = 2,
        convolutions: int = 1,
        hidden: int = 128,
        norm: Literal["batch", "group", "none"] = "batch",
        activation: Literal["relu", "tanh"] = "relu",
    ) -> None:
        super().__init__()
        for name, value in (("width", width), ("depth", depth), ("convolutions", convolutions)):
            check_count(name, value, minimum=1)
        check_count("hidden", hidden, minimum=0)
        check_choice("norm", norm, ("batch", "group", "none"))
        check_choice("activation", activation, ("relu", "tanh"))
        channels, height, columns = checked_shape(f"SmallCNN of depth {depth}", image_shape, least=2**depth)
        act = nn.ReLU if activation == "relu" else nn.Tanh
        layers: list[nn.Module] = []
        for block in range(depth):
            outputs = width * 2**block
            for convolution in range(convolutions):
                layers.append(nn.Conv2d(channels, outputs, 3, padding=1, bias=norm == "none"))
                if norm == "batch":
                    layers.append(nn.BatchNorm2d(outputs))
                elif norm == "group":
                    layers.append(nn.GroupNorm(math.gcd(outputs, 4), outputs))
                layers += [*([] if convolution else [nn.MaxPool2d(2)]), act()]
                channels = outputs
        layers.append(nn.Flatten())
        size = channels * (height // 2**depth) * (columns // 2**depth)
        if hidden:
            layers += [nn.Linear(size, hidden), act()]
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(hidden or size, num_classes)


class TanhCNN(ImageClassifier):
    """The network of end-to-end DP-SGD on MNIST (Papernot et al. 2021; Tramèr and Boneh 2021).

    Conv 8x8 (16, stride 2), tanh, max-pool, conv 4x4 (32, stride 2), tanh, max-pool, dense 32, tanh, dense c: 26 010
    parameters for 28x28x1 and 10 classes. Tanh bounds the activations, and with them the gradients before clipping.

    Args:
        num_classes: number of classes c.
        image_shape: channels, height, width; at least 16x16 pixels.

    Raises:
        ValueError: The image is smaller than 16x16 pixels.
    """

    def __init__(self, num_classes: int = 10, image_shape: tuple[int, int, int] = (1, 28, 28)) -> None:
        super().__init__()
        channels, height, width = checked_shape("TanhCNN", image_shape, least=16)
        rows, columns = ((side // 2 - 5) // 2 for side in (height, width))
        self.features = nn.Sequential(
            nn.Conv2d(channels, 16, 8, stride=2, padding=3),
            nn.MaxPool2d(2, 1),
            nn.Tanh(),
            nn.Conv2d(16, 32, 4, stride=2),
            nn.MaxPool2d(2, 1),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(32 * rows * columns, 32),
            nn.Tanh(),
        )
        self.head = nn.Linear(32, num_classes)


class ResNet18(ImageClassifier):
    """ResNet-18 for small images: a 3x3 stem with stride 1 and no max-pool (He et al. 2016, section 4.2).

    Args:
        num_classes: number of classes c.
        image_shape: channels, height, width; at least 4x4 pixels.

    Raises:
        ValueError: The image is smaller than 4x4 pixels.
    """

    blocks = (2, 2, 2, 2)

    def __init__(self, num_classes: int = 10, image_shape: tuple[int, int, int] = (1, 28, 28)) -> None:
        super().__init__()
        channels, _, _ = checked_shape(type(self).__name__, image_shape, least=4)
        self.body = ResNet(BasicBlock, list(self.blocks))
        self.body.conv1 = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
        nn.init.kaiming_normal_(self.body.conv1.weight, mode="fan_out", nonlinearity="relu")
        # torchvision's forward pass calls these by name.
        self.body.maxpool = nn.Identity()
        self.body.fc = nn.Identity()
        self.head = nn.Linear(512, num_classes)

    def forward_features(self, images: Tensor) -> Tensor:
        """Maps images (N, C, H, W) to features (N, 512)."""
        features: Tensor = self.body(images)
        return features


class ResNet34(ResNet18):
    """ResNet-34 for small images, built as `ResNet18`: the papers' teacher."""

    blocks = (3, 4, 6, 3)


class MeanEmbedding(ImageClassifier):
    """A zero-initialised linear head without bias on random Fourier features of norm 1 (Rahimi and Recht 2007).

    One step of `DPSGDTeacher` with `loss: inner_product`, plain SGD with learning rate 1 and every record in the batch
    sets row y of the head to the noisy sum of the features of class y, divided by the number of records: the mean
    embedding of DP-MERF (Harder, Adamczewski and Park 2021, Eq. 8). Other rates or numbers of steps change its scale.

    Args:
        num_classes: number of classes c.
        image_shape: channels, height, width.
        features: D, an even number: cosines and sines of D/2 random projections.
        length: Length scale of the Gaussian kernel that inner products of features approximate, for images in [-1, 1].
            A value computed on private images is not private. DP-MERF's code has √105 for MNIST and √127 for
            FashionMNIST, in [0, 1], without saying which images they were computed on.

    Raises:
        ValueError: a setting is out of range.
    """

    frequencies: Tensor

    def __init__(
        self,
        num_classes: int = 10,
        image_shape: tuple[int, int, int] = (1, 28, 28),
        *,
        features: int = 10_000,
        length: float = 20.5,
    ) -> None:
        super().__init__()
        check_count("features", features, minimum=2)
        check_number("length", length, above=0)
        draw = torch.Generator().manual_seed(0)  # public; a student must have the same frequencies
        self.register_buffer("frequencies", torch.randn(math.prod(image_shape), features // 2, generator=draw) / length)
        self.head = nn.Linear(features, num_classes, bias=False)
        nn.init.zeros_(self.head.weight)

    def forward_features(self, images: Tensor) -> Tensor:
        """Maps images (N, C, H, W) to features (N, D) of length 1."""
        projected = images.flatten(1) @ self.frequencies
        return torch.cat([projected.cos(), projected.sin()], dim=1) / math.sqrt(projected.shape[1])
