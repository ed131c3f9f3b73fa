"""Annotator for labels: randomized response over the student's own candidates (LabelDP, DPSD label switch)."""

from __future__ import annotations

from typing import ClassVar

import torch

from privacy.account import Budget
from privacy.annotators.base import Annotator, of_all_processes
from privacy.checks import check_count, check_positive
from privacy.events import RandomizedResponse, Repeated
from privacy.mechanisms.description import THRESHOLDS, MechanismDescription
from privacy.mechanisms.noise import NoiseSource
from privacy.mechanisms.randomized_response import randomized_response
from privacy.plan import Charge
from privacy.published.claims import Claim, WholeRun

_PUBLISHED = {
    "LabelDP": ("LabelDP", "LabelDP (Liu et al. 2024, arXiv:2409.12384), selective randomized response"),
    "DPSD": ("DPSD Theorem 2", "DPSD (Liu et al., differentially private synthetic distillation), Theorem 2"),
}


class LabelAnnotator(Annotator):
    """LabelDP's selective randomized response and DPSD's label switch: one noisy class for each image.

    If the teacher's class r is among the image's k candidates, it is kept with probability e^ε/(e^ε + k - 1); otherwise
    the response is uniform. One private record may change the teacher, hence **every** response: N responses are
    charged as N (exact composition), where the papers state ε for the whole run.

    Fewer candidates cost more. A call whose sets all have one size, fixed before the run, is charged for that size. If
    sizes vary, or depend on earlier responses through the student, the smallest possible size is charged: it dominates
    the larger ones, whatever was answered before.

    Line 9 of LabelDP's Algorithm 1 returns "y_t", the teacher's *output*, when it keeps the class. Read to the letter,
    no ε bounds it: its probabilities would be released without noise. Here the class is released.

    Args:
        epsilon: ε of one response. Not a target: `target_epsilon` limits the run.
        smallest: Size of the smallest candidate set that may occur, 2 or more (DPSD's k).
        budget: What the run may spend; see `Budget`.
        noise: Source of noise; null is the operating system's.
    """

    noise_setting: ClassVar[str] = "epsilon"
    more_is_noisier: ClassVar[bool] = False
    ledger_block: ClassVar[int] = 10  # a call gives a response per sample of the batch

    def __init__(
        self, *, epsilon: float = 1.0, smallest: int = 2, budget: Budget = Budget(), noise: NoiseSource | None = None
    ) -> None:
        super().__init__(budget=budget, noise=noise)
        self.epsilon = check_positive("epsilon", epsilon)
        self.smallest = check_count("smallest", smallest, minimum=2)

    def bind(self, *, batch_size: int, num_classes: int, paper: str | None = None) -> None:
        """See `Annotator.bind`.

        Raises:
            ValueError: `smallest` exceeds the number of classes.
        """
        super().bind(batch_size=batch_size, num_classes=num_classes, paper=paper)
        if self.smallest > num_classes:
            raise ValueError(f"smallest must be at most the number of classes {num_classes}, got {self.smallest}")

    @property
    def claim_of_nonprivate_access(self) -> Claim | None:
        """The claim for the whole run: LabelDP and DPSD do not count a teacher that trains the generator."""
        return WholeRun(source=_PUBLISHED[self._paper or "LabelDP"][0], epsilon=self.epsilon)

    def _charge_for(self, batch_size: int, num_classes: int) -> Charge:
        return self._charge_of_size(self.smallest)

    def _charge_of_size(self, size: int) -> Charge:
        samples, _ = self.shape
        release = Repeated(RandomizedResponse(self.epsilon, size), samples)
        return Charge(release=release, claim=self.claim_of_nonprivate_access, queries=samples)

    def charge_elsewhere(self, *, size: int | None = None) -> None:
        """Charges one call that clients answer, before it is sent to them.

        Args:
            size: See `annotate`.

        Raises:
            BudgetExceeded: The target does not allow it: no query may be sent.
        """
        self._spend(self._honest(self._charge_of_size(self.smallest if size is None else size)))

    @of_all_processes(samples=0)
    def annotate(self, logits: torch.Tensor, candidates: torch.Tensor, *, size: int | None = None) -> torch.Tensor:
        """Charges one response for each sample, then answers.

        Args:
            logits: The teacher's, shape (B, c). **Private.** A sample that is not finite counts as class 0.
            candidates: bool, shape (B, c); must depend only on the student and public information.
            size: Number of candidates in every set, if fixed before the run; None if sizes vary or depend on earlier
                responses.

        Returns:
            Classes, shape (B,), int64, on the device of `logits`.

        Raises:
            ValueError: Not of the shape that was bound, or sets smaller than what is charged: nothing is charged.
            BudgetExceeded: The target does not allow it: nothing is charged or released.
        """
        self._require_shape("logits", logits)
        self._require_shape("candidates", candidates)
        sizes = candidates.sum(dim=1)
        least = self.smallest if size is None else size
        if int(sizes.min()) < least or least < self.smallest or (size is not None and int(sizes.max()) > size):
            raise ValueError(
                f"candidates must hold {'at least ' if size is None else ''}{max(least, self.smallest)} classes in "
                f"each sample, as is charged for, got {int(sizes.min())} to {int(sizes.max())}"
            )
        self._spend(self._honest(self._charge_of_size(least)))
        # A non-finite prediction still yields a response: whether the teacher failed is itself private.
        finite = torch.isfinite(logits).all(dim=1)
        labels = torch.where(finite, logits.argmax(dim=1), 0)
        return randomized_response(labels, candidates, epsilon=self.epsilon, noise=self.noise)

    def describe(self) -> MechanismDescription:
        samples, classes = self.shape
        return MechanismDescription(
            mechanism=(
                "the teacher's class of each synthetic image, by randomized response over candidates that the "
                f"student alone has chosen (epsilon={self.epsilon:g} for one response, {self.smallest} to {classes} "
                f"candidates, B={samples} responses in a call)"
            ),
            source="randomized response, one record may change every response; exact composition on the loss lattice",
            noise=THRESHOLDS,
            published_source=_PUBLISHED[self._paper or "LabelDP"][1],
        )
