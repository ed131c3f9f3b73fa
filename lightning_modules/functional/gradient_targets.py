"""What DPDFD and DPSD ask a teacher for, and what they make of the noisy gradient that comes back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from lightning_modules.functional.losses import (
    decoupled_kd,
    decoupled_kd_as_printed,
    kd,
    output_gradients,
    soft_cross_entropy,
    surrogate_loss,
)
from lightning_modules.setting_checks import check_choice, check_number

__all__ = ["Annotation", "GradientTargets"]

_SMALLEST_PROBABILITY = 1e-12
"""Smaller probabilities are raised to it: the gradient, about one over the probability, stays finite in float32."""


class Annotation(NamedTuple):
    """What the student is fitted to, all of it released and detached.

    Attributes:
        targets: Probabilities, shape (B, c).
        gradients: Gradients of the student's outputs, shape (B, c), where the student follows these in place of the
            cross-entropy to `targets`.
        step: γ·g̃, shape (B, c), where `targets` are the softmax of the outputs less it.
    """

    targets: Tensor
    gradients: Tensor | None = None
    step: Tensor | None = None

    def loss(self, outputs: Tensor) -> Tensor:
        """The student's loss, for each sample: (B, c) to (B,)."""
        if self.gradients is not None:
            return surrogate_loss(outputs, self.gradients)
        return soft_cross_entropy(outputs, self.targets)


@dataclass(frozen=True, kw_only=True)
class GradientTargets:
    """Targets from noisy gradients (DPDFD Algorithm 1, lines 5 to 10; DPSD Eqs. 2, 3 and 7).

    Both papers print y_s = φ_s(D) − γ·g̃ with g = ∂L_T/∂φ_s(D), and do not say what φ_s(D) is. Their entropy terms
    φ_s·log φ_s, and DPSD's Eq. 2 with p = Φ_s(x), take it for probabilities; that is `outputs: probabilities`, where
    the gradient is with respect to the probabilities as well. The annotator alone bounds the norm of a gradient:
    none of these settings changes a price.

    Attributes:
        loss: Distillation loss whose gradient is annotated: `dkd` decoupled (Zhao et al. 2022), `dkd_as_printed` as
            DPSD's Eq. 2 prints it (`decoupled_kd_as_printed`), or `kd` classic.
        outputs: What φ_s(D) is. `logits`: the target is softmax(logits − γ·g̃). `probabilities`: it is p − γ·g̃, which
            noise takes out of the simplex. Negative entries, whose cross-entropy has no lower bound, are set to 0 and
            the others divided by their sum (by post-processing of what was released: it costs nothing).
        temperature: T of `loss`; the papers state none.
        gamma: γ, the length of a step along the noisy gradient; null is 1/norm_bound, so that a step moves the outputs
            by about one.
        student_target: `targets`, the cross-entropy to y_s as printed; or `gradients`, the released gradients
            themselves, propagated back through the student. The former multiplies them by the softmax's Jacobian, which
            vanishes where the student is sure, right or wrong. The latter needs `outputs: logits`.
        dkd_alpha: Weight of the target-class part of decoupled distillation.
        dkd_beta: Weight of the other classes' part.
    """

    loss: Literal["kd", "dkd", "dkd_as_printed"] = "dkd"
    gamma: float | None = None
    student_target: Literal["targets", "gradients"] = "targets"
    dkd_alpha: float = 1.0
    dkd_beta: float = 8.0
    outputs: Literal["logits", "probabilities"] = "logits"
    temperature: float = 1.0

    def __post_init__(self) -> None:
        check_choice("gradient_targets.loss", self.loss, ("kd", "dkd", "dkd_as_printed"))
        check_choice("gradient_targets.outputs", self.outputs, ("logits", "probabilities"))
        check_choice("gradient_targets.student_target", self.student_target, ("targets", "gradients"))
        check_number("gradient_targets.temperature", self.temperature, above=0)
        check_number("gradient_targets.gamma", self.gamma, above=0, null="1/norm_bound")
        for name in ("dkd_alpha", "dkd_beta"):
            check_number(f"gradient_targets.{name}", getattr(self, name))
        if self.student_target == "gradients" and self.outputs != "logits":
            raise ValueError(
                "gradient_targets.student_target='gradients' needs gradient_targets.outputs='logits', which gradients "
                f"are propagated back through, got {self.outputs!r}"
            )

    def gradients(self, outputs: Tensor, responses: Tensor) -> Tensor:
        """Gradient of each sample's own distillation loss w.r.t. the student's outputs. **Private** until annotated.

        With respect to probabilities, the loss is that of p divided by its sum. The gradient then vanishes where the
        student agrees with the teacher. Were entries differentiated as c free numbers, it would differ by a multiple of
        the vector of ones, which moves no distribution but would use up the norm.

        Args:
            outputs: The student's logits, shape (B, c), detached.
            responses: One teacher's logits, shape (B, c), or many teachers', shape (n, B, c).

        Returns:
            Float32, the shape of `responses`.
        """
        classes = responses.shape[-1]
        teacher = responses.reshape(-1, classes)
        student = outputs.expand_as(responses).reshape(-1, classes)
        if self.outputs == "logits":
            return output_gradients(student, lambda free: self._loss(free, teacher)).view_as(responses)
        probabilities = functional.softmax(student.float(), dim=1).clamp_min(_SMALLEST_PROBABILITY)
        # Logs of probabilities are logits of them, whatever they add up to.
        return output_gradients(probabilities, lambda free: self._loss(free.log(), teacher)).view_as(responses)

    def _loss(self, student: Tensor, teacher: Tensor) -> Tensor:
        """Losses (B,) of logits (B, c)."""
        if self.loss == "kd":
            return kd(student, teacher, temperature=self.temperature)
        decoupled = decoupled_kd if self.loss == "dkd" else decoupled_kd_as_printed
        return decoupled(student, teacher, alpha=self.dkd_alpha, beta=self.dkd_beta, temperature=self.temperature)

    def annotation(self, outputs: Tensor, released: Tensor, *, norm_bound: float) -> Annotation:
        """y_s, a step from the student's outputs against the released gradient; and the step where that is followed.

        Args:
            outputs: The student's logits, shape (B, c), detached.
            released: What the annotator released about them, shape (B, c).
            norm_bound: C, the bound on each sample's gradient, or on a batch's.
        """
        step = (1 / norm_bound if self.gamma is None else self.gamma) * released
        if self.outputs == "probabilities":
            return Annotation(_moved(functional.softmax(outputs.float(), dim=1), step))
        targets = functional.softmax(outputs.float() - step, dim=1)
        return Annotation(targets, step if self.student_target == "gradients" else None, step)


def _moved(probabilities: Tensor, step: Tensor) -> Tensor:
    """Probabilities (B, c) less a step, without negative entries and divided by their sum.

    Where nothing positive is left the target is the student's own prediction: such a sample asks for nothing.
    """
    kept = (probabilities - step).clamp_min(0)
    total = kept.sum(dim=1, keepdim=True)
    usable = total > torch.finfo(total.dtype).tiny
    return torch.where(usable, kept / total.where(usable, torch.ones_like(total)), probabilities)
