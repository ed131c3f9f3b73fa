"""What an inversion attack reached: whether what it drew shows the classes, and is nearer to training images."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from privacy.attacks.answers import Records
from privacy.attacks.drawing import features_of

_EXACT = "donot_use_mm_for_euclid_dist"


@dataclass(frozen=True)
class InversionResult:
    """How much of the private classes and records is in inverted images.

    Attributes:
        images: How many were judged.
        accuracy: Share that a classifier which was trained independently of the attacked model takes for the class that
            was asked for; 1 / c is chance.
        inception_score: exp of the mean divergence of the classifier's decisions from their mean (Salimans et al.
            2016): 1, all alike, to c, each certain and all classes as often. DPSD, Fig. 8.
        distance_train: Median distance in the classifier's features to the nearest training image.
        distance_test: The same to the nearest of as many test images.
        nearer: Share nearer to a training image than to any of the test images. About 0.5 where nothing is shown of
            single records, but inverted images of a class resemble one another: a few of the others may decide it.
        nearer_error: Standard error of that over the classes.
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
    """Judges inverted images.

    Args:
        inverted: The images, and the classes that were asked for.
        judge: A classifier with a linear last layer, trained on neither `train` nor `test`: on other public images.
        train: (N, C, H, W), what the attacked model was trained on.
        test: (M, C, H, W), others of the same kind. Of the larger of the two, as many count as there are in the other.

    Raises:
        ValueError: No images.
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
