"""Labels by randomized response over the student's own candidates (LabelDP, DPSD label switch)."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

import torch

from privacy.checks import check_count, check_number
from privacy.events import RandomizedResponse, Repeated
from privacy.mechanisms.base import (
    THRESHOLDS,
    Description,
    Mechanism,
    NoiseSource,
    Shape,
    bernoulli,
    require_shape,
    uniform_integers,
)
from privacy.plan import Charge
from privacy.published import Claim, WholeRun

_WORDS = 2**64


def threshold_candidates(probabilities: torch.Tensor, *, threshold: float | None = None) -> torch.Tensor:
    """LabelDP's candidates, bool (B, c): the **student's** probabilities (B, c) above a threshold, two or more.

    The two largest are always among them. The default threshold is the paper's, 1/(2c).
    """
    limit = 1 / (2 * probabilities.shape[1]) if threshold is None else threshold
    return (probabilities > limit) | top_k_candidates(probabilities, k=2)


def top_k_candidates(scores: torch.Tensor, *, k: int | torch.Tensor) -> torch.Tensor:
    """DPSD's candidate set, bool (B, c): the **student's** k largest logits or probabilities (B, c), exactly k per row.

    k is from 2 to c, or one such number per row, (B,) int64.
    """
    sizes = torch.as_tensor(k, device=scores.device)
    first = torch.arange(scores.shape[1], device=scores.device) < sizes.reshape(-1, 1)
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
        ValueError: A set of fewer than two candidates.
    """
    device, labels, mask = labels.device, labels.detach().cpu(), candidates.detach().cpu().bool()
    sizes = mask.sum(dim=1)
    if len(sizes) and int(sizes.min()) < 2:
        raise ValueError(f"every candidate set needs 2 or more members, got one of {int(sizes.min())}")
    thresholds = [0, 0] + [keep_threshold(epsilon, k) for k in range(2, mask.shape[1] + 1)]
    inside = mask.gather(1, labels[:, None])[:, 0]
    keep = bernoulli(noise, thresholds, sizes) & inside
    # Drawn for every row, used or not, so that neither time nor the number of draws depends on the label.
    others = mask.clone()
    others[torch.arange(len(labels)), labels] = False
    pick = torch.where(inside[:, None], others, mask)
    position = uniform_integers(noise, pick.sum(dim=1))
    answers = (pick & (pick.long().cumsum(dim=1) == position[:, None] + 1)).long().argmax(dim=1)
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


_PUBLISHED = {
    "LabelDP": ("LabelDP", "LabelDP (Liu et al. 2024, arXiv:2409.12384), selective randomized response"),
    "DPSD": ("DPSD Theorem 2", "DPSD (Liu et al., differentially private synthetic distillation), Theorem 2"),
}


@dataclass(frozen=True, kw_only=True)
class NoisyLabels(Mechanism):
    """LabelDP's selective randomized response and DPSD's label switch: one noisy class for each image.

    If the teacher's class r is among the image's k candidates, it is kept with probability e^ε/(e^ε + k - 1); otherwise
    the response is uniform. One private record may change the teacher, hence **every** response: N responses are
    charged as N (exact composition), where the papers state ε for the whole run.

    Fewer candidates cost more. A call whose sets all have one size, fixed before the run, is charged for that size. If
    sizes vary, or depend on earlier responses through the student, the smallest possible size is charged: it dominates
    the larger ones, whatever was answered before.

    Line 9 of LabelDP's Algorithm 1 returns "y_t", the teacher's *output*, when it keeps the class. Read to the letter,
    no ε bounds it: its probabilities would be released without noise. Here the class is released.

    Attributes:
        epsilon: ε of one response. Not a target: `budget.target_epsilon` limits the run.
        smallest: Size of the smallest candidate set that may occur, 2 or more (DPSD's k).
    """

    noise_setting: ClassVar[str] = "epsilon"
    more_is_noisier: ClassVar[bool] = False
    ledger_block: ClassVar[int] = 10  # a call gives a response per sample of the batch

    epsilon: float = 1.0
    smallest: int = 2

    def __post_init__(self) -> None:
        check_number("epsilon", self.epsilon, above=0)
        check_count("smallest", self.smallest, minimum=2)

    def require(self, shape: Shape) -> None:
        """See `Mechanism.require`: `smallest` must not exceed the number of classes."""
        super().require(shape)
        if self.smallest > shape.num_classes:
            raise ValueError(f"smallest must be at most the number of classes {shape.num_classes}, got {self.smallest}")

    def claim_of_nonprivate_access(self, shape: Shape) -> Claim | None:
        """The claim for the whole run: LabelDP and DPSD do not count a teacher that trains the generator."""
        return WholeRun(source=_PUBLISHED[shape.paper or "LabelDP"][0], epsilon=self.epsilon)

    def cost(self, shape: Shape, *, size: int | None = None) -> Charge:
        """Cost of one call, whose candidate sets all have `size` classes; None if their sizes vary."""
        samples = shape.batch_size
        release = Repeated(RandomizedResponse(self.epsilon, self.smallest if size is None else size), samples)
        return Charge(release=release, claim=self.claim_of_nonprivate_access(shape), queries=samples)

    def cost_of_call(
        self, shape: Shape, *tensors: torch.Tensor, size: int | None = None, **settings: Any
    ) -> tuple[Charge, int]:
        logits, candidates = tensors
        require_shape("logits", logits, shape)
        require_shape("candidates", candidates, shape)
        if candidates.dtype != torch.bool:  # others would be counted by their sum
            raise ValueError(f"candidates must be bool, got {candidates.dtype}")
        sizes = candidates.sum(dim=1)
        least = self.smallest if size is None else size
        if int(sizes.min()) < least or least < self.smallest or (size is not None and int(sizes.max()) > size):
            raise ValueError(
                f"candidates must hold {'at least ' if size is None else ''}{max(least, self.smallest)} classes in "
                f"each sample, as is charged for, got {int(sizes.min())} to {int(sizes.max())}"
            )
        return self.cost(shape, size=size), 1

    def answer(self, shape: Shape, *tensors: torch.Tensor, **settings: Any) -> torch.Tensor:
        """One response for each sample.

        Args:
            shape: See `Mechanism`.
            tensors: The teacher's logits (B, c), of which a sample that is not finite counts as class 0; and bool
                candidates (B, c), which must depend only on the student and public information.
            settings: `size`, the number of candidates in every set, if fixed before the run; None if sizes vary or
                depend on earlier responses.

        Returns:
            Classes, shape (B,), int64, on the device of the logits.
        """
        logits, candidates = tensors
        # A non-finite prediction still yields a response: whether the teacher failed is itself private.
        labels = torch.where(torch.isfinite(logits).all(dim=1), logits.argmax(dim=1), 0)
        return randomized_response(labels, candidates, epsilon=self.epsilon, noise=self.source)

    def describe(self, shape: Shape) -> Description:
        return Description(
            mechanism=(
                "the teacher's class of each synthetic image, by randomized response over candidates that the "
                f"student alone has chosen (epsilon={self.epsilon:g} for one response, {self.smallest} to "
                f"{shape.num_classes} candidates, B={shape.batch_size} responses in a call)"
            ),
            source="randomized response, one record may change every response; exact composition on the loss lattice",
            noise=THRESHOLDS,
            published_source=_PUBLISHED[shape.paper or "LabelDP"][1],
        )
