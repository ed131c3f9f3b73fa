"""Randomized response on a teacher's label, over the student's own candidates (LabelDP, DPSD label switch)."""

from __future__ import annotations

import functools
import math
from fractions import Fraction

import torch

from privacy.mechanisms.draws import bernoulli, uniform_integers
from privacy.mechanisms.noise import NoiseSource

_WORDS = 2**64


def threshold_candidates(probabilities: torch.Tensor, *, threshold: float | None = None) -> torch.Tensor:
    """LabelDP's candidates, bool (B, c): the **student's** probabilities (B, c) above a threshold, two or more.

    The two largest are always among them. The default threshold is the paper's, 1/(2c).

    Raises:
        ValueError: Fewer than two classes.
    """
    limit = 1 / (2 * _classes(probabilities)) if threshold is None else threshold
    return (probabilities > limit) | top_k_candidates(probabilities, k=2)


def top_k_candidates(scores: torch.Tensor, *, k: int | torch.Tensor) -> torch.Tensor:
    """DPSD's candidate set, bool (B, c): the **student's** k largest logits or probabilities (B, c), exactly k per row.

    k is from 2 to c, or one such number per row, (B,) int64.

    Raises:
        ValueError: k out of range.
    """
    classes = _classes(scores)
    sizes = torch.as_tensor(k, device=scores.device)
    if sizes.ndim and sizes.shape != (len(scores),):
        raise ValueError(f"k must be one number, or one for each of {len(scores)} rows, got shape {tuple(sizes.shape)}")
    if len(scores) and not 2 <= int(sizes.min()) <= int(sizes.max()) <= classes:
        raise ValueError(f"k must lie between 2 and the {classes} classes, got {k}")
    first = torch.arange(classes, device=scores.device) < sizes.reshape(-1, 1)
    mask = torch.zeros_like(scores, dtype=torch.bool)
    return mask.scatter_(1, scores.argsort(dim=1, descending=True, stable=True), first.expand(len(scores), -1))


def randomized_response(
    labels: torch.Tensor, candidates: torch.Tensor, *, epsilon: float, noise: NoiseSource
) -> torch.Tensor:
    """Answers with the label or another candidate, or uniformly among the candidates if the label is not one of them.

    A label r inside its set I, k = |I|, is kept with probability e^ε/(e^ε + k - 1), and each other member is given with
    1/(e^ε + k - 1) (LabelDP's scan garbles the denominator). Over all pairs of labels, inside or not, the log-ratio is
    at most ε: see `RandomizedResponse`. DPSD's Eq. (5), which answers over all classes if r ∈ I and so reveals that
    r ∈ I, is not implemented.

    Args:
        labels: r, the teacher's decisions, shape (B,), int64. **Private.**
        candidates: I, shape (B, c), bool; must not depend on the teacher.
        epsilon: ε of one response, finite and at least 0.
        noise: Source of the randomness.

    Returns:
        Responses, shape (B,), int64, on the device of `labels`.

    Raises:
        ValueError: Wrong shapes, an invalid ε, labels out of range, or a set of fewer than two candidates.
    """
    if labels.ndim != 1 or candidates.ndim != 2 or len(labels) != len(candidates):
        raise ValueError(
            f"labels must be (B,) and candidates (B, c), got {tuple(labels.shape)} and {tuple(candidates.shape)}"
        )
    if not (epsilon >= 0 and math.isfinite(epsilon)):
        raise ValueError(f"epsilon must be finite and at least 0, got {epsilon}")
    device, labels, mask = labels.device, labels.detach().cpu(), candidates.detach().cpu().bool()
    sizes = mask.sum(dim=1)
    if len(sizes) and int(sizes.min()) < 2:
        raise ValueError(f"every candidate set needs 2 or more members, got one of {int(sizes.min())}")
    if len(labels) and (int(labels.min()) < 0 or int(labels.max()) >= mask.shape[1]):
        raise ValueError(f"labels must lie in [0, {mask.shape[1]}), got {int(labels.min())} to {int(labels.max())}")
    thresholds = [0, 0] + [keep_threshold(epsilon, k) for k in range(2, mask.shape[1] + 1)]
    inside = mask.gather(1, labels[:, None])[:, 0]
    keep = bernoulli(noise, thresholds, sizes) & inside
    # Drawn for every row, used or not, so that neither time nor the number of draws depends on the label.
    others = mask.clone()
    others[torch.arange(len(labels)), labels] = False
    pick = torch.where(inside[:, None], others, mask)
    answers = _nth_member(pick, uniform_integers(noise, pick.sum(dim=1)))
    return torch.where(keep, labels, answers).to(device)


@functools.lru_cache(maxsize=4096)
def keep_threshold(epsilon: float, num_candidates: int) -> int:
    """Largest T for which keeping a label with probability T/2**64 among k candidates is ε-private, less a margin.

    The ratio that must not exceed e^ε is (T/2**64) / ((1 - T/2**64)/(k - 1)); e^ε is lowered by a share of 1e-12, more
    than its rounding error. Below ε = 1e-11 responses are uniform, to within k/2**64.

    >>> keep_threshold(1.0, 2) / 2**64
    0.731058578629808...
    """
    ratio = Fraction(math.exp(min(epsilon, 700.0)) * (1 - 1e-12)) if epsilon > 1e-11 else Fraction(1)
    return min(math.floor(_WORDS * ratio / (ratio + num_candidates - 1)), _WORDS - 1)


def _nth_member(mask: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """Column of the `position`-th True of each row."""
    rank = mask.long().cumsum(dim=1) - 1
    return (mask & (rank == position[:, None])).long().argmax(dim=1)


def _classes(scores: torch.Tensor) -> int:
    if scores.ndim != 2 or scores.shape[1] < 2:
        raise ValueError(f"scores must have the shape (B, c) with c of 2 or more, got {tuple(scores.shape)}")
    return int(scores.shape[1])
