"""Reconstruction by a data-free generator, DAFL (Chen et al. 2019, "Data-free learning of student networks")."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from privacy.attacks.answers import Records
from privacy.attacks.drawing import PER_CLASS, Decoder, features_of, wanted_classes

_CODE = 64
_BALANCE, _ACTIVATION = 5.0, 0.1
"""Weights of the class balance and of the feature activation."""


def data_free_inversion(
    model: nn.Module, *, num_classes: int, image_shape: tuple[int, int, int], steps: int = 300
) -> Records:
    """Train a generator with DAFL's three terms: certain predictions, balanced classes and large features.

    Threat model: the attacker has the published weights and no images. Generators of this project's methods are
    trained in this way.

    Args:
        model: Maps images (N, C, H, W) to logits (N, c), in eval mode, with a linear last layer.
        num_classes: c.
        image_shape: Channels, height, width.
        steps: Steps of Adam, on 128 images each.

    Returns:
        8 images of each class in [-1, 1], the most certain ones of many, with the requested classes as labels.
    """
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(0)
        decoder = Decoder(size=_CODE, image_shape=image_shape)
        optimizer = torch.optim.Adam(decoder.parameters(), lr=2e-3)
        for _ in range(steps):
            images = decoder(torch.randn(128, _CODE))
            logits = model(images)
            chances = logits.softmax(dim=1).mean(dim=0)
            loss = F.cross_entropy(logits, logits.argmax(dim=1)) + _BALANCE * (chances * chances.log()).sum()
            loss = loss - _ACTIVATION * features_of(model, images).abs().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            images = decoder(torch.randn(20 * num_classes * PER_CLASS, _CODE))
            chances = model(images).softmax(dim=1)
    best = chances.topk(PER_CLASS, dim=0).indices.T.flatten()
    return Records(images[best], wanted_classes(num_classes))
