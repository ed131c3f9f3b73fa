"""Inversion attacks, which draw images of a classifier's classes, and how much of the private ones these show."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm

from privacy.attacks.answers import Records, fit

PER_CLASS = 8
"""Number of images per class."""
_CODE = 64
"""Size of a generator's codes."""
_BALANCE, _ACTIVATION = 5.0, 0.1
"""Weights of the class balance and of the feature activation in `data_free_inversion`."""
_LEAST = -12.0
"""Smallest log-probability in `background_inversion`; smaller ones are truncated, as in the paper."""
_REALISM = 0.1
"""Weight of the discriminator in the search of `generative_inversion`."""


@contextmanager
def _seeded() -> Iterator[None]:
    """Trains with gradients and fixed random numbers, and restores both states."""
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(0)
        yield


class Decoder(nn.Module):
    """Maps codes (N, `size`) to images (N, C, H, W) in [-1, 1]: dense, then upsampled and convolved twice."""

    def __init__(self, *, size: int, image_shape: tuple[int, int, int]) -> None:
        super().__init__()
        width = 32
        self.image_shape = image_shape
        self.start = (2 * width, -(-image_shape[1] // 4), -(-image_shape[2] // 4))
        self.project = nn.Linear(size, self.start[0] * self.start[1] * self.start[2])
        self.first = nn.Sequential(
            nn.BatchNorm2d(2 * width), nn.ReLU(), nn.Conv2d(2 * width, width, 3, padding=1), nn.BatchNorm2d(width)
        )
        self.last = nn.Sequential(nn.ReLU(), nn.Conv2d(width, image_shape[0], 3, padding=1), nn.Tanh())

    def forward(self, codes: Tensor) -> Tensor:
        """Maps codes (N, size) to images (N, C, H, W)."""
        grown = F.interpolate(self.project(codes).unflatten(1, self.start), scale_factor=2.0)
        images: Tensor = self.last(F.interpolate(self.first(grown), size=self.image_shape[1:]))
        return images


def wanted_classes(num_classes: int) -> Tensor:
    """Labels (c · PER_CLASS,) to draw, grouped by class."""
    return torch.arange(num_classes).repeat_interleave(PER_CLASS)


def features_of(model: nn.Module, images: Tensor) -> Tensor:
    """Maps images (N, C, H, W) to the inputs (N, F) of a classifier's last linear layer.

    Raises:
        ValueError: No linear layer maps them.
    """
    seen: list[Tensor] = []
    # Of all that run: a student's generator is part of its model.
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    hooks = [layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0])) for layer in layers]
    try:
        model(images)
    finally:
        for hook in hooks:
            hook.remove()
    if not seen:
        raise ValueError(f"the classifier must have a linear layer, and {type(model).__name__} has none")
    return seen[-1].flatten(1)


@torch.enable_grad()
def gradient_inversion(
    model: nn.Module, *, num_classes: int, image_shape: tuple[int, int, int], steps: int = 200
) -> Records:
    """MI-Face: optimise nearly grey images until the model assigns them to the requested class.

    Fredrikson, Jha and Ristenpart 2015, "Model inversion attacks".

    Threat model: the attacker has the published weights and only knows that neighbouring pixels are similar.

    Args:
        model: Maps images (N, C, H, W) to logits (N, c), in eval mode.
        num_classes: c.
        image_shape: Channels, height, width.
        steps: Steps of Adam.

    Returns:
        8 images of each class in [-1, 1], from different starts, with the requested classes as labels.
    """
    labels = wanted_classes(num_classes)
    draw = torch.Generator().manual_seed(0)
    images = (0.1 * torch.randn(len(labels), *image_shape, generator=draw)).requires_grad_()
    optimizer = torch.optim.Adam([images], lr=0.05)
    for _ in range(steps):
        loss = F.cross_entropy(model(images), labels, reduction="sum")
        rough = images.diff(dim=2).abs().mean(dim=(1, 2, 3)) + images.diff(dim=3).abs().mean(dim=(1, 2, 3))
        (images.grad,) = torch.autograd.grad(loss + rough.sum(), images)
        optimizer.step()
        with torch.no_grad():
            images.clamp_(-1, 1)
    return Records(images.detach(), labels)


def data_free_inversion(
    model: nn.Module, *, num_classes: int, image_shape: tuple[int, int, int], steps: int = 300
) -> Records:
    """Trains a generator with DAFL's three terms: certain predictions, balanced classes and large features.

    Chen et al. 2019, "Data-free learning of student networks".

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
    with _seeded():
        decoder = Decoder(size=_CODE, image_shape=image_shape)

        def loss() -> Tensor:
            images = decoder(torch.randn(128, _CODE))
            logits = model(images)
            chances = logits.softmax(dim=1).mean(dim=0)
            terms: Tensor = F.cross_entropy(logits, logits.argmax(dim=1)) + _BALANCE * (chances * chances.log()).sum()
            return terms - _ACTIVATION * features_of(model, images).abs().mean()

        fit(decoder, loss, steps=steps)
        with torch.no_grad():
            images = decoder(torch.randn(20 * num_classes * PER_CLASS, _CODE))
            chances = model(images).softmax(dim=1)
    best = chances.topk(PER_CLASS, dim=0).indices.T.flatten()
    return Records(images[best], wanted_classes(num_classes))


def background_inversion(model: nn.Module, *, background: Tensor, num_classes: int, steps: int = 400) -> Records:
    """Learn to reconstruct the attacker's images from the model's outputs, then decode the outputs of each class.

    Yang, Zhang, Chang and Liang 2019, "Neural network inversion".

    Threat model: the attacker sees the model's probabilities for its own images, similar or procedural ones.

    Args:
        model: Maps images (N, C, H, W) to logits (N, c), in eval mode.
        background: (N, C, H, W) in [-1, 1], the attacker's images.
        num_classes: c.
        steps: Steps of Adam, on 64 images each.

    Returns:
        8 images of each class in [-1, 1], of increasing certainty, with the requested classes as labels.
    """
    with torch.no_grad():
        codes = torch.cat([model(part) for part in background.split(500)]).log_softmax(dim=1).clamp_min(_LEAST)
    with _seeded():
        decoder = Decoder(size=num_classes, image_shape=(background.shape[1], *background.shape[2:]))

        def loss() -> Tensor:
            rows = torch.randint(len(background), (64,))
            return F.mse_loss(decoder(codes[rows]), background[rows])

        fit(decoder, loss, steps=steps)
    labels = wanted_classes(num_classes)
    # Probability of all other classes together, from 0.1 down to the truncation.
    left = torch.linspace(math.log(0.1), _LEAST, PER_CLASS).exp().repeat(num_classes)[:, None]
    asked = torch.where(F.one_hot(labels, num_classes).bool(), 1 - left, left / (num_classes - 1))
    with torch.no_grad():
        return Records(decoder.eval()(asked.log().clamp_min(_LEAST)), labels)


def generative_inversion(
    model: nn.Module, *, background: Tensor, num_classes: int, steps: int = 400, search: int = 200
) -> Records:
    """GMI: train a GAN on the attacker's images and search its codes for images that the model assigns to each class.

    Zhang et al. 2020, "The secret revealer".

    Threat model: the attacker has the published weights and its own images, similar or procedural ones.

    Args:
        model: Maps images (N, C, H, W) to logits (N, c), in eval mode.
        background: (N, C, H, W) in [-1, 1], the attacker's images.
        num_classes: c.
        steps: Training steps of the GAN (hinge loss, spectral norm), on 64 images each.
        search: Steps of Adam on the codes.

    Returns:
        8 images of each class in [-1, 1], from different codes, with the requested classes as labels.
    """
    labels = wanted_classes(num_classes)
    decoder, critic, start = _learnt(background, len(labels), steps)
    with _seeded():
        codes = start.clone().requires_grad_()
        optimizer = torch.optim.Adam([codes], lr=0.05)
        for _ in range(search):
            images = decoder(codes)
            loss = F.cross_entropy(model(images), labels, reduction="sum") - _REALISM * critic(images).sum()
            (codes.grad,) = torch.autograd.grad(loss, codes)
            optimizer.step()
    with torch.no_grad():
        return Records(decoder(codes), labels)


@lru_cache(maxsize=1)  # one, whichever models are attacked
def _learnt(background: Tensor, count: int, steps: int) -> tuple[nn.Module, nn.Module, Tensor]:
    """Trains a GAN, and draws codes (count, _CODE) that searches begin at."""
    with _seeded():
        decoder = Decoder(size=_CODE, image_shape=(background.shape[1], *background.shape[2:]))
        critic = _critic(background.shape[1])
        ours = torch.optim.Adam(decoder.parameters(), lr=5e-4, betas=(0.5, 0.9))
        theirs = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.9))
        for _ in range(steps):
            real = background[torch.randint(len(background), (64,))]
            drawn = decoder(torch.randn(64, _CODE))
            theirs.zero_grad()
            (F.relu(1 - critic(real)) + F.relu(1 + critic(drawn.detach()))).mean().backward()
            theirs.step()
            ours.zero_grad()
            (-critic(drawn)).mean().backward()
            ours.step()
        for network in (decoder, critic):
            network.eval().requires_grad_(False)
        return decoder, critic, torch.randn(count, _CODE)


def _critic(channels: int) -> nn.Module:
    return nn.Sequential(
        spectral_norm(nn.Conv2d(channels, 32, 3, stride=2, padding=1)), nn.LeakyReLU(0.2),
        spectral_norm(nn.Conv2d(32, 64, 3, stride=2, padding=1)), nn.LeakyReLU(0.2),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), spectral_norm(nn.Linear(256, 1)),
    )  # fmt: skip


def passes_gradients(model: nn.Module, images: Tensor) -> bool:
    """Whether logits have a gradient with respect to images (N, C, H, W), which fixed features may lack."""
    with torch.enable_grad():
        return bool(model(images.detach().clone().requires_grad_()).requires_grad)


def copied(model: nn.Module, images: Tensor, *, num_classes: int) -> nn.Module:
    """Model extraction: train a network, through which gradients pass, on the model's answers to the attacker's images.

    Args:
        model: Maps images (N, C, H, W) to logits (N, c), in eval mode.
        images: (N, C, H, W).
        num_classes: c.
    """
    with torch.no_grad():
        targets = torch.cat([model(part).float() for part in images.split(500)]).softmax(dim=1)  # also for votes
    with _seeded():
        network = nn.Sequential(
            nn.Conv2d(images.shape[1], 32, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.ReLU(),
            nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(1024, num_classes),
        )  # fmt: skip

        def loss() -> Tensor:
            rows = torch.randint(len(images), (64,))
            return F.cross_entropy(network(images[rows]), targets[rows])

        fit(network, loss, steps=400)
    return network.eval().requires_grad_(False)


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
    """Evaluates inverted images.

    Args:
        inverted: The images, with the requested classes as labels.
        judge: A classifier with a linear last layer, trained on neither `train` nor `test` but on other public images.
        train: (N, C, H, W), the attacked model's training images.
        test: (M, C, H, W), other images of the same kind. Only the first min(N, M) of both are used.
    """
    judge.eval()
    logs = judge(inverted.images).double().log_softmax(dim=1)
    mean = logs.exp().mean(dim=0)
    divergence = (logs.exp() * (logs - mean.log())).sum(dim=1).mean()
    count = min(len(train), len(test))
    own = features_of(judge, inverted.images)
    exact = "donot_use_mm_for_euclid_dist"
    to_train, to_test = (
        torch.cdist(own, features_of(judge, images[:count]), compute_mode=exact).min(dim=1).values
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
