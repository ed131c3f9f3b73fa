"""Reconstruction by a data-free generator, DAFL (Chen et al. 2019, "Data-free learning of student networks")."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from privacy.attacks.answers import Records
from privacy.attacks.drawing import Decoder, features_of, wanted_classes

_CODE = 64


def data_free_inversion(
    model: nn.Module,
    *,
    num_classes: int,
    image_shape: tuple[int, int, int],
    per_class: int = 8,
    steps: int = 300,
    balance: float = 5.0,
    activation: float = 0.1,
    batch_size: int = 128,
    seed: int = 0,
) -> Records:
    """Learns to draw what the model is sure of, of all classes alike, with large features: DAFL's three terms.

    Threat model: the attacker holds the published weights and no image at all. The methods of this project draw their
    own training images in this way.

    Args:
        model: (N, C, H, W) to logits (N, c), in eval mode, with a linear last layer.
        num_classes: c.
        image_shape: Channels, height, width.
        per_class: Images of each class: of many drawn, those that the model is surest of.
        steps: Of Adam.
        balance: Weight of the classes' balance.
        activation: Weight of the features' size.
        batch_size: Images in each step.
        seed: Of weights and codes.

    Returns:
        c · per_class images in [-1, 1] and the classes asked for.
    """
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(seed)
        decoder = Decoder(size=_CODE, image_shape=image_shape)
        optimizer = torch.optim.Adam(decoder.parameters(), lr=2e-3)
        for _ in range(steps):
            images = decoder(torch.randn(batch_size, _CODE))
            logits = model(images)
            chances = logits.softmax(dim=1).mean(dim=0)
            loss = F.cross_entropy(logits, logits.argmax(dim=1)) + balance * (chances * chances.log()).sum()
            if activation:
                loss = loss - activation * features_of(model, images).abs().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            images = decoder(torch.randn(20 * num_classes * per_class, _CODE))
            chances = model(images).softmax(dim=1)
    best = chances.topk(per_class, dim=0).indices.T.flatten()
    return Records(images[best], wanted_classes(num_classes, per_class))
