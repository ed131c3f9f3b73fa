"""The student's targets, and how they come from noisy gradients (DPDFD, DPSD)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from lightning_modules.losses.functional import (
    decoupled_kd,
    decoupled_kd_as_printed,
    kd,
    logit_distance,
    output_gradients,
)
from lightning_modules.setting_checks import check_choice, check_number
from privacy.mechanisms import Mechanism, NoisyGradients

_SMALLEST_PROBABILITY = 1e-12
"""Smaller probabilities are raised to it: the gradient, about one over the probability, stays finite in float32."""
_LONGEST = 2**0.5
"""Norm of p_s − p_t, at most."""
_LEAST_STABILITY = 0.01


class Annotation(NamedTuple):
    """The student's targets, all of them released and detached.

    Attributes:
        targets: Probabilities, shape (B, c).
        gradients: Gradients of the student's outputs, shape (B, c), if the student follows these instead of the
            cross-entropy to `targets`.
        step: γ·g̃, shape (B, c), if `targets` are the softmax of the outputs minus it.
        evidence: See `label_evidence`, shape (B, c), if `targets` come from `label_posterior`.
    """

    targets: Tensor
    gradients: Tensor | None = None
    step: Tensor | None = None
    evidence: Tensor | None = None

    def loss(self, outputs: Tensor) -> Tensor:
        """The student's loss per sample, (B, c) to (B,): L_S of DPDFD's Algorithm 1, unless it follows `gradients`."""
        if self.gradients is not None:  # its value means nothing; its gradient is the released one
            return (outputs * self.gradients.detach()).sum(dim=1)
        return functional.cross_entropy(outputs, self.targets, reduction="none")


@dataclass(frozen=True, kw_only=True)
class GradientTargets:
    """Targets from noisy gradients (DPDFD Algorithm 1, lines 5 to 10; DPSD Eqs. 2, 3 and 7).

    Both papers print y_s = φ_s(D) − γ·g̃ with g = ∂L_T/∂φ_s(D), and do not say what φ_s(D) is. Their entropy terms
    φ_s·log φ_s, and DPSD's Eq. 2 with p = Φ_s(x), use it as probabilities; that is `outputs: probabilities`, where the
    gradient is with respect to probabilities as well. Only the mechanism bounds the norm of a gradient: none of these
    settings changes the cost.

    Attributes:
        loss: Distillation loss whose gradient is annotated: `dkd` decoupled (Zhao et al. 2022), `dkd_as_printed` as
            DPSD's Eq. 2 prints it (`decoupled_kd_as_printed`), `kd` classic, or `logits`, their squared distance.
        outputs: What φ_s(D) is. `logits`: the target is softmax(logits − γ·g̃). `probabilities`: it is p − γ·g̃, which
            noise takes out of the simplex. Negative entries, whose cross-entropy has no lower bound, are set to 0 and
            the others divided by their sum (post-processing of what was released, which costs nothing).
        gamma: γ, step size along the noisy gradient; null is 1/norm_bound, so that a step moves the outputs by about
            one.
        student_target: `targets`, the cross-entropy to y_s as printed; or `gradients`, the released gradients
            themselves, minus their mean over classes, backpropagated through the student; or `answers`, the
            cross-entropy to the teacher's probabilities recovered from the released rows (`teacher_answers`), which do
            not depend on the student's outputs; the mean row of several teachers is solved like that of one. The first
            multiplies gradients by the softmax's Jacobian, which vanishes if the student is sure, right or wrong. The
            others need `outputs: logits`, and `answers` the loss `kd`, whose gradient is p_s − p_t, or `logits`: a row
            is then the direction from z_t to z_s, and softmax(−γ·g̃) the answer, as if z_s were 0 (a student of noisy
            answers has far smaller logits than its teachers).
        dkd_beta: Weight of the other classes' part of decoupled distillation; that of the target class is 1.
    """

    loss: Literal["kd", "logits", "dkd", "dkd_as_printed"] = "dkd"
    gamma: float | None = None
    student_target: Literal["targets", "gradients", "answers"] = "targets"
    dkd_beta: float = 8.0
    outputs: Literal["logits", "probabilities"] = "logits"

    def __post_init__(self) -> None:
        check_choice("gradient_targets.loss", self.loss, ("kd", "logits", "dkd", "dkd_as_printed"))
        check_choice("gradient_targets.outputs", self.outputs, ("logits", "probabilities"))
        check_choice("gradient_targets.student_target", self.student_target, ("targets", "gradients", "answers"))
        check_number("gradient_targets.gamma", self.gamma, above=0, null="1/norm_bound")
        check_number("gradient_targets.dkd_beta", self.dkd_beta)
        if self.student_target != "targets" and self.outputs != "logits":
            raise ValueError(
                f"gradient_targets.student_target={self.student_target!r} needs outputs='logits', got {self.outputs!r}"
            )
        if self.student_target == "answers" and self.loss != "logits" and (self.loss, self.gamma) != ("kd", None):
            raise ValueError(
                "gradient_targets.student_target='answers' needs loss='logits', or loss='kd' and gamma=null, got "
                f"{self.loss!r} and {self.gamma}"
            )

    def require(self, mechanism: Mechanism) -> None:
        """Refuses a mechanism whose releases are no targets of this kind.

        Raises:
            ValueError: It releases labels, or gradients whose length cannot be told.
        """
        if self.student_target == "targets":
            return
        if not isinstance(mechanism, NoisyGradients):
            raise ValueError(f"gradient_targets.student_target={self.student_target!r} needs the data switch")
        if self.student_target != "answers":
            return
        made = (mechanism.bounding, mechanism.release)
        if made[0] != "normalize" or made[1] not in ("per_sample", "per_sample_full", "ensemble"):
            raise ValueError(
                "gradient_targets.student_target='answers' needs mechanism.bounding normalize and release per_sample "
                f"or ensemble, got {made[0]!r} and {made[1]!r}"
            )
        if self.loss == "kd" and mechanism.stability < _LEAST_STABILITY:
            raise ValueError(
                "gradient_targets.student_target='answers' of loss='kd' needs a mechanism.stability of "
                f"{_LEAST_STABILITY} or more, got {mechanism.stability}"
            )

    def gradients(self, outputs: Tensor, responses: Tensor) -> Tensor:
        """Gradient of each sample's own distillation loss w.r.t. the student's outputs. **Private** until released.

        With respect to probabilities, the loss is that of p divided by its sum, so that the gradient vanishes if the
        student agrees with the teacher. Differentiating the entries as c free numbers would add a multiple of the
        vector of ones, which moves no distribution but would use up the norm.

        Args:
            outputs: The student's logits, shape (B, c), detached.
            responses: Logits of one teacher, shape (B, c), or of n teachers, shape (n, B, c). The gradients have this
                shape, in float32.
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
            return kd(student, teacher)
        if self.loss == "logits":
            return logit_distance(student, teacher)
        decoupled = decoupled_kd if self.loss == "dkd" else decoupled_kd_as_printed
        return decoupled(student, teacher, beta=self.dkd_beta)

    def annotation(
        self, outputs: Tensor, released: Tensor, *, norm_bound: float, stability: float = 1e-4
    ) -> Annotation:
        """Returns y_s, a step from the student's outputs against the released gradient, and how to follow it.

        Args:
            outputs: The student's logits, shape (B, c), detached.
            released: What was released about them, shape (B, c).
            norm_bound: C, the bound on each sample's gradient, or on a batch's.
            stability: The e with which gradients were normalised.
        """
        step = (1 / norm_bound if self.gamma is None else self.gamma) * released
        if self.outputs == "probabilities":
            return Annotation(_moved(functional.softmax(outputs.float(), dim=1), step))
        if self.student_target == "answers":
            if self.loss == "logits":
                return Annotation(functional.softmax(-step, dim=1))
            return Annotation(teacher_answers(functional.softmax(outputs.float(), dim=1), step, stability=stability))
        targets = functional.softmax(outputs.float() - step, dim=1)
        if self.student_target == "targets":
            return Annotation(targets, step=step)
        # A mask and noise leave a mean over classes, which moves no softmax but would move all weights: on FashionMNIST
        # a student of DPSD's three largest entries had 38 % with it, and 73 without.
        return Annotation(targets, step - step.mean(dim=1, keepdim=True), step)


def teacher_answers(probabilities: Tensor, rows: Tensor, *, stability: float) -> Tensor:
    """Recovers the teacher's probabilities p_t from normalised gradients of `kd`: post-processing of a release.

    A row is g/(‖g‖ + e) with g = p_s − p_t, and noise: solved for p_t, (B, c), and moved to the nearest distribution
    (Duchi et al. 2008).

    Args:
        probabilities: The student's, p_s, shape (B, c).
        rows: Released gradients over C, shape (B, c).
        stability: e, above 0. If it is small compared with ‖g‖, rows do not reveal lengths, and all count as long.
    """
    norms = rows.norm(dim=1, keepdim=True)
    lengths = norms.clamp_max(_LONGEST / (_LONGEST + stability))  # no two distributions are further apart
    gradients = rows / norms.clamp_min(_SMALLEST_PROBABILITY) * (stability * lengths / (1 - lengths))
    free = probabilities - gradients
    sorted_, counts = free.sort(dim=1, descending=True).values, torch.arange(1, free.shape[1] + 1, device=free.device)
    surplus = (sorted_.cumsum(dim=1) - 1) / counts
    last = (sorted_ > surplus).sum(dim=1, keepdim=True) - 1
    found: Tensor = (free - surplus.gather(1, last)).clamp_min(0)
    return found


def _moved(probabilities: Tensor, step: Tensor) -> Tensor:
    """Probabilities (B, c) minus a step, without negative entries and divided by their sum.

    If nothing positive is left, the target is the student's own prediction, which changes nothing.
    """
    kept = (probabilities - step).clamp_min(0)
    total = kept.sum(dim=1, keepdim=True)
    usable = total > torch.finfo(total.dtype).tiny
    return torch.where(usable, kept / total.where(usable, torch.ones_like(total)), probabilities)
