"""Annotator for a teacher's raw responses: useful where the teacher's own training bounds what they reveal."""

from __future__ import annotations

import torch

from privacy.annotators.base import Annotator, of_all_processes
from privacy.events import Unbounded
from privacy.mechanisms.description import MechanismDescription
from privacy.plan import Charge


class ResponseAnnotator(Annotator):
    """Releases logits without noise.

    Nothing bounds such responses by themselves. For a teacher trained by DP-SGD they are post-processing, and its own
    (ε, δ) is the record-level figure; for any other teacher ε is infinite.

    Arguments are those of `Annotator`.
    """

    def _charge_for(self, batch_size: int, num_classes: int) -> Charge:
        return Charge(release=Unbounded(reason="the teacher's answers were released without noise"), queries=batch_size)

    @of_all_processes(samples=0)
    def annotate(self, logits: torch.Tensor) -> torch.Tensor:
        """Charges one call, then returns the responses.

        Args:
            logits: The teacher's, shape (B, c).

        Returns:
            The same, detached.

        Raises:
            ValueError: Not of the shape that was bound: nothing is charged. Or not finite: charged, since failing is a
                response as well.
            BudgetExceeded: The target does not allow it: nothing is charged or released.
        """
        self._require_shape("logits", logits)
        self._spend(self.charge)
        if not bool(torch.isfinite(logits).all()):
            raise ValueError(
                "the teacher's responses must be finite, got nan or inf: its weights or its inputs overflow"
            )
        return logits.detach().clone()

    def describe(self) -> MechanismDescription:
        return MechanismDescription(
            mechanism=f"the teacher's logits on synthetic images, without noise (B={self.shape[0]} in a call)",
            relation="that of the teacher's own guarantee, where it has one",
            source="post-processing of the teacher",
            noise="",
        )
