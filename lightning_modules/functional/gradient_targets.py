"""What DPDFD and DPSD ask a teacher for, and what they make of the noisy gradient that comes back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from torch import Tensor
from torch.nn import functional

from lightning_modules.functional.losses import decoupled_kd, kd, output_gradients, soft_cross_entropy, surrogate_loss

__all__ = ["Annotation", "GradientTargets"]


class Annotation(NamedTuple):
    """What the student is fitted to, all of it released and detached.

    Attributes:
        targets: Probabilities, shape (B, c).
        gradients: Gradients of the student's outputs, shape (B, c), where the student follows these in place of the
            cross-entropy to `targets`.
    """

    targets: Tensor
    gradients: Tensor | None = None

    def loss(self, outputs: Tensor) -> Tensor:
        """The student's loss, for each sample: (B, c) to (B,)."""
        if self.gradients is not None:
            return surrogate_loss(outputs, self.gradients)
        return soft_cross_entropy(outputs, self.targets)


@dataclass(frozen=True, kw_only=True)
class GradientTargets:
    """Targets from noisy gradients (DPDFD Algorithm 1, lines 5 to 10; DPSD Eqs. 2 to 5).

    Attributes:
        loss: Distillation loss whose gradient is annotated: `dkd` decoupled (Zhao et al. 2022), or `kd` classic.
        gamma: γ, the length of a step along the noisy gradient; null is 1/norm_bound, so that a step moves the logits
            by about one.
        student_target: `targets`, the cross-entropy to y_s as printed; or `gradients`, the released gradients
            themselves, propagated back through the student. The former multiplies them by the softmax's Jacobian, which
            vanishes where the student is sure, right or wrong.
        dkd_alpha: Weight of the target-class part of decoupled distillation.
        dkd_beta: Weight of the other classes' part.
    """

    loss: Literal["kd", "dkd"] = "dkd"
    gamma: float | None = None
    student_target: Literal["targets", "gradients"] = "targets"
    dkd_alpha: float = 1.0
    dkd_beta: float = 8.0

    def __post_init__(self) -> None:
        if self.loss not in ("kd", "dkd"):
            raise ValueError(f"gradient_targets.loss must be kd or dkd, got {self.loss!r}")
        if self.gamma is not None and not self.gamma > 0:
            raise ValueError(f"gradient_targets.gamma must be above 0 or null for 1/norm_bound, got {self.gamma}")
        if self.student_target not in ("targets", "gradients"):
            raise ValueError(
                f"gradient_targets.student_target must be targets or gradients, got {self.student_target!r}"
            )

    def gradients(self, outputs: Tensor, responses: Tensor) -> Tensor:
        """Gradient of each sample's own distillation loss w.r.t. the student's outputs. **Private** until annotated.

        Args:
            outputs: The student's logits, shape (B, c), detached.
            responses: One teacher's logits, shape (B, c), or many teachers', shape (n, B, c).

        Returns:
            Float32, the shape of `responses`.
        """
        classes = responses.shape[-1]
        teacher = responses.reshape(-1, classes)

        def loss(free: Tensor) -> Tensor:
            if self.loss == "kd":
                return kd(free, teacher)
            return decoupled_kd(free, teacher, alpha=self.dkd_alpha, beta=self.dkd_beta)

        return output_gradients(outputs.expand_as(responses).reshape(-1, classes), loss).view_as(responses)

    def annotation(self, outputs: Tensor, released: Tensor, *, norm_bound: float) -> Annotation:
        """y_s = softmax(outputs - γ · released gradient), and the step itself where the student follows it.

        Args:
            outputs: The student's logits, shape (B, c), detached.
            released: What the annotator released about them, shape (B, c).
            norm_bound: C, the bound on each sample's gradient.
        """
        step = (1 / norm_bound if self.gamma is None else self.gamma) * released
        targets = functional.softmax(outputs.float() - step, dim=1)
        return Annotation(targets, step if self.student_target == "gradients" else None)
