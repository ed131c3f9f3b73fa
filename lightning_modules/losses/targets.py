"""The student's targets, and how they come from noisy gradients (DPDFD, DPSD) and noisy labels (DPSD, LabelDP)."""

from __future__ import annotations

import math
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
from privacy.checks import check_choice, check_number
from privacy.mechanisms import Mechanism, NoisyGradients
from privacy.mechanisms.noisy_labels import top_k_candidates

_SMALLEST_PROBABILITY = 1e-12
"""Smaller probabilities are raised to it: the gradient, about one over the probability, stays finite in float32."""
_LONGEST = 2**0.5
"""Norm of p_s − p_t, at most."""
_LEAST_STABILITY = 0.01
_COVERAGE = 0.99
"""Of `ConfidentCandidates`. Less lets an overconfident student confirm itself: in trials 0.95 stayed at 79 %."""


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
            needed = f"mechanism.stability of {_LEAST_STABILITY} or more, got {mechanism.stability}"
            raise ValueError(f"gradient_targets.student_target='answers' of loss='kd' needs a {needed}")

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

    def annotation(self, outputs: Tensor, released: Tensor, mechanism: NoisyGradients) -> Annotation:
        """Returns y_s, a step from the student's outputs against the released gradient, and how to follow it.

        Args:
            outputs: The student's logits, shape (B, c), detached.
            released: What `mechanism` has released about them, shape (B, c).
            mechanism: Its C and e tell how long the gradients were.
        """
        step = (1 / mechanism.norm_bound if self.gamma is None else self.gamma) * released
        if self.outputs == "probabilities":
            return Annotation(_moved(functional.softmax(outputs.float(), dim=1), step))
        if self.student_target == "answers":
            if self.loss == "logits":
                return Annotation(functional.softmax(-step, dim=1))
            probabilities = functional.softmax(outputs.float(), dim=1)
            return Annotation(teacher_answers(probabilities, step, stability=mechanism.stability))
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


# --- from noisy labels ---


class CandidateSchedule:
    """Decides how many of the student's largest outputs are candidates for a label, never by the teacher.

    A subclass has one of two methods. Sizes by `size` are fixed beforehand, and each call is charged for its own. Those
    by `sizes` follow the student, which earlier responses have trained: each call is charged for the smallest possible.
    """

    def size(self, step: int, *, classes: int, smallest: int) -> int | None:
        """Number of candidates in a step, from 0 on, between `smallest`, DPSD's k, and c; None if `sizes` gives it."""
        return None

    def sizes(self, probabilities: Tensor, *, smallest: int) -> Tensor:
        """Number of candidates of each image, (B,) int64, from the student's detached probabilities (B, c)."""
        raise NotImplementedError(f"{type(self).__name__} has no sizes")


class FixedCandidates(CandidateSchedule):
    """DPSD as printed: `smallest` from the first step on, which collapses if raw responses are used.

    The top 3 of an untrained student seldom include the label, and then the uniform response confirms the student's own
    guess.
    """

    def size(self, step: int, *, classes: int, smallest: int) -> int:
        return smallest


class LinearCandidates(CandidateSchedule):
    """From all classes linearly down to `smallest`, depending only on the step.

    Args:
        begin: Number of steps during which all classes are candidates.
        end: Number of steps after which `smallest` is reached.

    Raises:
        ValueError: Not 0 <= begin <= end.
    """

    def __init__(self, *, begin: int = 500, end: int = 1200) -> None:
        if not 0 <= begin <= end:
            raise ValueError(f"begin and end must satisfy 0 <= begin <= end, got {begin} and {end}")
        self.begin = begin
        self.end = end

    def size(self, step: int, *, classes: int, smallest: int) -> int:
        if step >= self.end:
            return smallest
        passed = max(0, step - self.begin) / max(1, self.end - self.begin)
        return classes - int(passed * (classes - smallest))


class ConfidentCandidates(CandidateSchedule):
    """The fewest that hold nearly all of the student's probability, on average over the batch or for each image.

    Args:
        per_image: A size for each image, small if the student is sure of it. The published ε of DPSD's Theorem 2
            does not depend on sizes, and the record-level one is that of the smallest size either way.
    """

    def __init__(self, *, per_image: bool = False) -> None:
        self.per_image = per_image

    def sizes(self, probabilities: Tensor, *, smallest: int) -> Tensor:
        held = probabilities.sort(dim=1, descending=True).values.cumsum(dim=1)
        if not self.per_image:
            held = held.mean(dim=0).expand_as(held)
        return ((held < _COVERAGE).sum(dim=1) + 1).clamp(smallest, held.shape[1])


@dataclass(frozen=True, kw_only=True)
class LabelTargets:
    """Targets of the label switch.

    Attributes:
        schedule: Number of candidates over a run. Default: `LinearCandidates`.
        noise_correction: Fit the student to the classes that the noisy labels make likely (`label_evidence`), instead
            of the labels themselves as printed. Computed only from released labels.
    """

    schedule: CandidateSchedule | None = None
    noise_correction: bool = True

    def candidates(self, outputs: Tensor, *, step: int, smallest: int) -> tuple[Tensor, int | None]:
        """Candidates of each image, (B, c) bool, by detached logits (B, c); and their number if the step fixes it."""
        schedule = self.schedule or LinearCandidates()
        size = schedule.size(step, classes=outputs.shape[1], smallest=smallest)
        sizes = schedule.sizes(outputs.float().softmax(dim=1), smallest=smallest) if size is None else size
        return top_k_candidates(outputs, k=sizes), size

    def annotation(self, outputs: Tensor, labels: Tensor, candidates: Tensor, *, epsilon: float) -> Annotation:
        """Targets for detached logits (B, c), from labels (B,), each drawn among candidates (B, c), bool, with ε."""
        if not self.noise_correction:
            return Annotation(functional.one_hot(labels, outputs.shape[1]).float())
        evidence = label_evidence(labels, candidates, epsilon=epsilon)
        return Annotation(label_posterior(outputs.float(), evidence), evidence=evidence)


def label_evidence(responses: Tensor, candidates: Tensor, *, epsilon: float) -> Tensor:
    """Log-probability of each response given each of the c classes as the teacher's: (B, c), float32.

    Randomized response keeps the class with probability e^ε/(e^ε + k - 1), gives each other candidate with
    1/(e^ε + k - 1), and is uniform on the k candidates if the class is none of them. `label_posterior` turns this into
    likely classes. The gradient of the cross-entropy to these is that of the likelihood of the responses ("forward
    correction", Patrini et al. 2017), so a student fitted to them learns the teacher's classes and not the noise.
    Everything is computed from released responses and costs nothing.

    Args:
        responses: (B,), int64.
        candidates: (B, c), bool, two or more in each sample.
        epsilon: ε of one response.
    """
    size = candidates.sum(1, keepdim=True).float()
    # -log(e^ε + k - 1) without e^ε, which overflows float32 from ε = 89 on.
    log_other = -(epsilon + torch.log1p((size - 1) * math.exp(-epsilon)))
    return torch.where(candidates, log_other, -torch.log(size)).scatter(1, responses[:, None], log_other + epsilon)


def label_posterior(outputs: Tensor, evidence: Tensor) -> Tensor:
    """Probabilities of the teacher's classes by Bayes' rule, given logits (B, c) as the prior, and `label_evidence`.

    A class's prior is at least 1/1000 of the likeliest one's: otherwise a student that is sure of one class for all
    images would never learn another, whatever the responses.
    """
    prior = torch.maximum(outputs, outputs.amax(dim=1, keepdim=True) - math.log(1000))
    return torch.softmax(prior + evidence, dim=1)


def class_shares(responses: Tensor, *, num_classes: int, epsilon: float) -> Tensor:
    """Unbiased estimate, shape (c,), of each class's share of the true labels behind randomized responses (B,).

    All c classes were candidates. Shares sum to 1, and may be negative: with ε = 1, ten classes and 256 responses the
    standard deviation of each is about 0.12.
    """
    other = 1 / (math.exp(epsilon) + num_classes - 1)
    counted = torch.bincount(responses, minlength=num_classes) / len(responses)
    return (counted - other) / (math.expm1(epsilon) * other)
