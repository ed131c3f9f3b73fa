"""Answers of classifiers about records, the input of membership attacks; shadow models, and an overfitted control."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

_AT_ONCE = 500


@dataclass(frozen=True)
class Records:
    """Labelled images.

    Attributes:
        images: (N, C, H, W) float32 in [-1, 1].
        labels: (N,) int64.
    """

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def at(self, rows: Tensor) -> Records:
        """Selects records by positions (M,) or by a mask (N,)."""
        return Records(self.images[rows], self.labels[rows])


@dataclass(frozen=True)
class Answers:
    """Answers of one model about N records, Q queries each.

    Attributes:
        confidences: (N, Q) float64, log(p / (1 - p)) of the probability p of the record's label.
        correct: (N, Q) bool, whether the label has the largest output.
    """

    confidences: NDArray[np.float64]
    correct: NDArray[np.bool_]


@dataclass(frozen=True)
class Shadows:
    """Answers of K models, and which records each was trained on.

    Attributes:
        confidences: (K, N, Q) float64, see `Answers`.
        correct: (K, N, Q) bool, see `Answers`.
        members: (K, N) bool. Records that no model has seen are the population, known to be non-members.
    """

    confidences: NDArray[np.float64]
    correct: NDArray[np.bool_]
    members: NDArray[np.bool_]

    @staticmethod
    def of(answers: list[Answers], members: NDArray[np.bool_]) -> Shadows:
        """Stack the answers of K models; `members` is (K, N)."""
        return Shadows(
            np.stack([one.confidences for one in answers]), np.stack([one.correct for one in answers]), members
        )


def moved(images: Tensor) -> Tensor:
    """Images and their shifts by a quarter of a pixel in each direction: (N, C, H, W) to (5, N, C, H, W).

    Pixels are interpolated and edges repeated. To a model trained without augmentation, shifts by whole pixels would be
    other images.
    """
    height, width = images.shape[2:]
    padded = F.pad(images, (1, 1, 1, 1), mode="replicate")
    starts = [(0, 1), (2, 1), (1, 0), (1, 2)]
    shifted = torch.stack([padded[..., top : top + height, left : left + width] for top, left in starts])
    return torch.cat([images[None], torch.lerp(images[None], shifted, 0.25)])


@torch.no_grad()
def answers_of(model: nn.Module, records: Records) -> Answers:
    """Query a model, from images (N, C, H, W) to logits (N, c), with N records and their shifts (`moved`).

    It runs in eval mode on the device of its parameters.
    """
    was, device = model.training, next((value.device for value in model.parameters()), torch.device("cpu"))
    model.eval()
    confidences, correct = [], []
    for start in range(0, len(records), _AT_ONCE):
        part = records.at(torch.arange(start, min(start + _AT_ONCE, len(records))))
        queries = moved(part.images)
        logits = model(queries.flatten(0, 1).to(device)).double().cpu().unflatten(0, queries.shape[:2])
        own = part.labels.expand(len(queries), -1).unsqueeze(2)
        others = logits.scatter(2, own, -torch.inf).logsumexp(dim=2)
        confidences.append((logits.gather(2, own).squeeze(2) - others).T)
        correct.append((logits.argmax(dim=2) == part.labels).T)
    model.train(was)
    # No Gaussian or regression can be fitted to non-finite values.
    scaled = np.nan_to_num(torch.cat(confidences).numpy(), nan=-1e6, posinf=1e6, neginf=-1e6)
    return Answers(scaled, torch.cat(correct).numpy())


def train_shadows(
    train: Callable[[Records], nn.Module], records: Records, *, count: int, population: Records
) -> Shadows:
    """Trains models on random halves of the records, by a fair coin per record, and queries each with all records.

    Args:
        train: Trains a model on records: a teacher, or a student distilled from one.
        records: The N records to take halves of.
        count: Number of models, K.
        population: Further records of the same kind that no model is trained on; their answers come last.
    """
    coins = np.random.default_rng(0).random((count, len(records))) < 0.5
    asked = Records(torch.cat([records.images, population.images]), torch.cat([records.labels, population.labels]))
    answers = [answers_of(train(records.at(torch.from_numpy(half))), asked) for half in coins]
    return Shadows.of(answers, np.pad(coins, ((0, 0), (0, len(population)))))


def fit(network: nn.Module, loss: Callable[[], Tensor], *, steps: int, lr: float = 2e-3) -> None:
    """Minimises `loss` by steps of Adam on a network's weights."""
    optimizer = torch.optim.Adam(network.parameters(), lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()


def overfitted(records: Records, *, num_classes: int, hidden: int = 256, steps: int = 100) -> nn.Module:
    """Overfit a two-layer dense network without privacy: images (N, C, H, W) to logits (N, c), in eval mode.

    Args:
        records: About a thousand; more take longer and are memorised less well.
        num_classes: c.
        hidden: Width of the hidden layer.
        steps: Steps of Adam, on all records at once.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        size = records.images[0].numel()
        network = nn.Sequential(nn.Flatten(), nn.Linear(size, hidden), nn.ReLU(), nn.Linear(hidden, num_classes))
    with torch.enable_grad():
        fit(network, lambda: F.cross_entropy(network(records.images), records.labels), steps=steps, lr=1e-2)
    return network.eval()
