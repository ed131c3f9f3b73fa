"""Targets from noisy labels, and schedules of the candidates that these labels are drawn among (DPSD, FedDPSD)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from lightning_modules.losses.targets import Annotation

_COVERAGE = 0.99
"""Of `ConfidentCandidates`. Less lets an overconfident student confirm itself: in trials 0.95 stayed at 79 %."""


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


def annotation_of_labels(outputs: Tensor, labels: Tensor, candidates: Tensor, *, epsilon: float) -> Annotation:
    """Targets from noisy labels by `label_evidence`; `outputs` are detached logits (B, c)."""
    evidence = label_evidence(labels, candidates, epsilon=epsilon)
    return Annotation(label_posterior(outputs.float(), evidence), evidence=evidence)


class CandidateSchedule(nn.Module, ABC):
    """Decides how many of the student's largest outputs are candidates. It sees only the student, never the teacher."""

    @property
    def fixed_beforehand(self) -> bool:
        """Whether sizes depend only on the step: those of the two classes for that, and of subclasses that keep them.

        Then each call is charged for its own size; sizes that depend on the student, which earlier responses have
        trained, are charged as the smallest possible.
        """
        kind = type(self)
        by_step = kind.size in (FixedCandidates.size, LinearCandidates.size)
        return by_step and kind.sizes is CandidateSchedule.sizes

    @abstractmethod
    def size(self, probabilities: Tensor, *, step: int, smallest: int) -> int:
        """Number of candidates in this step, between `smallest`, DPSD's k, and the number of classes c.

        The student's probabilities are (B, c), detached; steps are numbered from 0.
        """

    def sizes(self, probabilities: Tensor, *, step: int, smallest: int) -> Tensor:
        """Number of candidates of each image in this step, shape (B,), int64; see `size`."""
        size = self.size(probabilities, step=step, smallest=smallest)
        return torch.full((len(probabilities),), size, device=probabilities.device)


class FixedCandidates(CandidateSchedule):
    """DPSD as printed: `smallest` from the first step on, which collapses if raw responses are used.

    The top 3 of an untrained student seldom include the label, and then the uniform response confirms the student's own
    guess.
    """

    def size(self, probabilities: Tensor, *, step: int, smallest: int) -> int:
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
        super().__init__()
        if not 0 <= begin <= end:
            raise ValueError(f"begin and end must satisfy 0 <= begin <= end, got {begin} and {end}")
        self.begin = begin
        self.end = end

    def size(self, probabilities: Tensor, *, step: int, smallest: int) -> int:
        classes = probabilities.shape[1]
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
        super().__init__()
        self.per_image = per_image

    def size(self, probabilities: Tensor, *, step: int, smallest: int) -> int:
        return int(self._fewest(_held(probabilities).mean(dim=0, keepdim=True), smallest))

    def sizes(self, probabilities: Tensor, *, step: int, smallest: int) -> Tensor:
        if not self.per_image:
            return super().sizes(probabilities, step=step, smallest=smallest)
        return self._fewest(_held(probabilities), smallest)

    def _fewest(self, held: Tensor, smallest: int) -> Tensor:
        """Smallest sufficient number of candidates in each row of (n, c), shape (n,)."""
        return ((held < _COVERAGE).sum(dim=1) + 1).clamp(smallest, held.shape[1])


def _held(probabilities: Tensor) -> Tensor:
    """Total probability of the 1 to c most probable classes, shape (B, c)."""
    return probabilities.sort(dim=1, descending=True).values.cumsum(dim=1)


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

    def annotation(self, outputs: Tensor, labels: Tensor, candidates: Tensor, *, epsilon: float) -> Annotation:
        """Targets for detached logits (B, c), from labels (B,), each drawn among candidates (B, c), bool, with ε."""
        if not self.noise_correction:
            return Annotation(functional.one_hot(labels, outputs.shape[1]).float())
        return annotation_of_labels(outputs, labels, candidates, epsilon=epsilon)
