"""DP-MERF's classifier: each class is represented by the mean of its random Fourier features."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from lightning_modules.networks.classifiers import ImageClassifier, checked_shape
from lightning_modules.setting_checks import check_number, check_whole_number


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
        pixels = math.prod(checked_shape("MeanEmbedding", num_classes=num_classes, image_shape=image_shape))
        check_whole_number("features", features, least=2)
        if features % 2:
            raise ValueError(f"features must be an even number, got {features}")
        check_number("length", length, above=0)
        draw = torch.Generator().manual_seed(0)  # public; a student must have the same frequencies
        self.register_buffer("frequencies", torch.randn(pixels, features // 2, generator=draw) / length)
        self.head = nn.Linear(features, num_classes, bias=False)
        nn.init.zeros_(self.head.weight)

    def forward_features(self, images: Tensor) -> Tensor:
        """Map images (N, C, H, W) to features (N, D) of length 1."""
        projected = images.flatten(1) @ self.frequencies
        return torch.cat([projected.cos(), projected.sin()], dim=1) / math.sqrt(projected.shape[1])
