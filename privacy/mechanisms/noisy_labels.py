"""Labels by randomized response over the student's own candidates (LabelDP, DPSD label switch)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from privacy.checks import check_count, check_positive
from privacy.description import THRESHOLDS, MechanismDescription
from privacy.events import RandomizedResponse, Repeated
from privacy.mechanisms.base import Mechanism, Shape, require_shape
from privacy.mechanisms.randomized_response import randomized_response
from privacy.plan import Charge
from privacy.published.claims import Claim, WholeRun

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
        check_positive("epsilon", self.epsilon)
        check_count("smallest", self.smallest, minimum=2)

    def require(self, shape: Shape) -> None:
        """See `Mechanism.require`: `smallest` must not exceed the number of classes."""
        super().require(shape)
        if self.smallest > shape.num_classes:
            raise ValueError(f"smallest must be at most the number of classes {shape.num_classes}, got {self.smallest}")

    def claim_of_nonprivate_access(self, shape: Shape) -> Claim | None:
        """The claim for the whole run: LabelDP and DPSD do not count a teacher that trains the generator."""
        return WholeRun(source=_PUBLISHED[shape.paper or "LabelDP"][0], epsilon=self.epsilon)

    def charge(self, shape: Shape, *, size: int | None = None) -> Charge:
        """Cost of one call, whose candidate sets all have `size` classes; None if their sizes vary."""
        samples = shape.batch_size
        release = Repeated(RandomizedResponse(self.epsilon, self.smallest if size is None else size), samples)
        return Charge(release=release, claim=self.claim_of_nonprivate_access(shape), queries=samples)

    def charge_of_call(
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
        return self.charge(shape, size=size), 1

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

    def describe(self, shape: Shape) -> MechanismDescription:
        return MechanismDescription(
            mechanism=(
                "the teacher's class of each synthetic image, by randomized response over candidates that the "
                f"student alone has chosen (epsilon={self.epsilon:g} for one response, {self.smallest} to "
                f"{shape.num_classes} candidates, B={shape.batch_size} responses in a call)"
            ),
            source="randomized response, one record may change every response; exact composition on the loss lattice",
            noise=THRESHOLDS,
            published_source=_PUBLISHED[shape.paper or "LabelDP"][1],
        )
