"""How many candidates a label may be answered among, over the course of a run (D's k)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn


class CandidateSchedule(nn.Module, ABC):
    """Says how many of the student's largest outputs are candidates. It sees the student alone, never the teacher.

    Attributes:
        fixed_beforehand: whether sizes follow from the step alone. Then each call is charged for its own size; sizes
            that follow from the student, which earlier answers have trained, are charged as the smallest possible.
    """

    fixed_beforehand: ClassVar[bool]

    @abstractmethod
    def size(self, probabilities: Tensor, *, step: int, smallest: int, epsilon: float) -> int:
        """Candidates of this step, between ``smallest`` and the number of classes c.

        Args:
            probabilities: the student's, (B, c), detached.
            step: number of the step, from 0.
            smallest: D's k.
            epsilon: of one answer.
        """


class FixedCandidates(CandidateSchedule):
    """D to the letter: ``smallest`` from the first step on, which collapses.

    The top 3 of a student that has learnt nothing seldom hold the label, and then the uniform answer confirms the
    student's own guess.
    """

    fixed_beforehand = True

    def size(self, probabilities: Tensor, *, step: int, smallest: int, epsilon: float) -> int:
        return smallest


class LinearCandidates(CandidateSchedule):
    """From all classes down to ``smallest`` in equal parts, by the step alone.

    Args:
        begin: steps during which all classes are candidates.
        end: steps after which ``smallest`` is reached.

    Raises:
        ValueError: unless 0 <= begin <= end.
    """

    fixed_beforehand = True

    def __init__(self, *, begin: int = 200, end: int = 800) -> None:
        super().__init__()
        if not 0 <= begin <= end:
            raise ValueError(f"begin and end must satisfy 0 <= begin <= end, got {begin} and {end}")
        self.begin = begin
        self.end = end

    def size(self, probabilities: Tensor, *, step: int, smallest: int, epsilon: float) -> int:
        classes = probabilities.shape[1]
        if step >= self.end:
            return smallest
        passed = max(0, step - self.begin) / max(1, self.end - self.begin)
        return classes - int(passed * (classes - smallest))


class ConfidentCandidates(CandidateSchedule):
    """One candidate fewer whenever the student has learnt the answers that it was given.

    Noisy answers keep a student from certainty: who has learnt all there is expects the kept label at e^ε/(e^ε + k - 1)
    and any other at less. Confidence is how far the mean largest probability has come from 1/k to there.

    Args:
        confidence: what has to be reached before k is lowered, in (0, 1).
        patience: steps of the running mean, and fewest steps between two changes.

    Raises:
        ValueError: for a setting out of its range.
    """

    fixed_beforehand = False
    reached: Tensor
    current: Tensor
    waited: Tensor

    def __init__(self, *, confidence: float = 0.7, patience: int = 20) -> None:
        super().__init__()
        if not 0 < confidence < 1:
            raise ValueError(f"confidence must lie in (0, 1), got {confidence}")
        if patience < 1:
            raise ValueError(f"patience must be 1 or more, got {patience}")
        self.confidence = confidence
        self.patience = patience
        # Buffers, so that a resumed run goes on where it was.
        self.register_buffer("reached", torch.zeros(()))
        self.register_buffer("current", torch.zeros((), dtype=torch.int64))
        self.register_buffer("waited", torch.zeros((), dtype=torch.int64))

    def size(self, probabilities: Tensor, *, step: int, smallest: int, epsilon: float) -> int:
        k = int(self.current) or probabilities.shape[1]
        odds = float(torch.tensor(epsilon).exp())
        most, least = odds / (odds + k - 1), 1 / k
        now = (float(probabilities.max(dim=1).values.mean()) - least) / (most - least)
        self.reached += (now - float(self.reached)) / self.patience
        self.waited += 1
        if k > smallest and int(self.waited) >= self.patience and float(self.reached) >= self.confidence:
            k -= 1
            self.reached.zero_()
            self.waited.zero_()
        self.current.fill_(k)
        return k
