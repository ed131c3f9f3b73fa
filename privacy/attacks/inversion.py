"""Result of an inversion attack: do its images show the classes, and are they nearer to the training images?"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from privacy.attacks.answers import Records
from privacy.attacks.drawing import features_of

_EXACT = "donot_use_mm_for_euclid_dist"


@dataclass(frozen=True)
class InversionResult:
    """How much inverted images show of the private classes and records.

    Attributes:
        images: Number of images.
        accuracy: Share of images that an independently trained classifier assigns to the requested class; 1 / c by
            chance.
        inception_score: exp of the mean KL divergence of the classifier's predictions from their mean (Salimans et al.
            2016): from 1, all alike, to c, all certain and classes balanced. DPSD, Fig. 8.
        distance_train: Median distance in the classifier's features to the nearest training image.
        distance_test: Median distance to the nearest of as many test images.
        nearer: Share of images nearer to a training image than to any test image; about 0.5 if they show nothing of
            single records. Inverted images of a class are similar, so a few real images may decide it.
        nearer_error: Standard error of `nearer` over the classes.
    """

    images: int
    accuracy: float
    inception_score: float
    distance_train: float
    distance_test: float
    nearer: float
    nearer_error: float


@torch.no_grad()
def judged(inverted: Records, *, judge: nn.Module, train: Tensor, test: Tensor) -> InversionResult:
    """Evaluate inverted images.

    Args:
        inverted: The images, with the requested classes as labels.
        judge: A classifier with a linear last layer, trained on neither `train` nor `test` but on other public images.
        train: (N, C, H, W), the attacked model's training images.
        test: (M, C, H, W), other images of the same kind. Only the first min(N, M) of both are used.

    Raises:
        ValueError: `inverted`, `train` or `test` is empty.
    """
    if not len(inverted) or not len(train) or not len(test):
        raise ValueError("inverted, train and test must hold images, got none")
    judge.eval()
    logs = judge(inverted.images).double().log_softmax(dim=1)
    mean = logs.exp().mean(dim=0)
    divergence = (logs.exp() * (logs - mean.log())).sum(dim=1).mean()
    count = min(len(train), len(test))
    own = features_of(judge, inverted.images)
    to_train, to_test = (
        torch.cdist(own, features_of(judge, images[:count]), compute_mode=_EXACT).min(dim=1).values
        for images in (train, test)
    )
    nearer = (to_train < to_test).double()
    by_class = torch.stack([nearer[inverted.labels == label].mean() for label in inverted.labels.unique()])
    return InversionResult(
        images=len(inverted),
        accuracy=float((logs.argmax(dim=1) == inverted.labels).double().mean()),
        inception_score=float(divergence.exp()),
        distance_train=float(to_train.median()),
        distance_test=float(to_test.median()),
        nearer=float(nearer.mean()),
        nearer_error=float(by_class.std(correction=0)) / max(1, len(by_class) - 1) ** 0.5,
    )
