"""What DPSD, FedDPSD and direct training make of noisy labels."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from lightning_modules.functional.candidates import CandidateSchedule
from lightning_modules.functional.losses import expected_labels

__all__ = ["LabelTargets"]


@dataclass(frozen=True, kw_only=True)
class LabelTargets:
    """Targets of the label switch.

    Attributes:
        schedule: Candidates over the course of a run. Default: `LinearCandidates`.
        noise_correction: Fit the student to the classes that the noisy labels make likely (`expected_labels`), in place
            of the labels themselves as printed. Computed from released labels alone.
    """

    schedule: CandidateSchedule | None = None
    noise_correction: bool = True

    def targets(self, outputs: Tensor, labels: Tensor, candidates: Tensor, *, epsilon: float) -> Tensor:
        """Distributions (B, c), float32, that released labels make of a model's outputs.

        Args:
            outputs: The model's logits, shape (B, c), detached.
            labels: Released classes, shape (B,), int64.
            candidates: What each was drawn among, shape (B, c), bool.
            epsilon: Of one response.
        """
        if self.noise_correction:
            return expected_labels(outputs.float(), labels, candidates, epsilon=epsilon)
        return functional.one_hot(labels, outputs.shape[1]).float()
