"""How many candidates a label may be answered among, over the course of a run (DPSD's k)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn


class CandidateSchedule(nn.Module, ABC):
    """Says how many of the student's largest outputs are candidates. It sees the student alone, never the teacher.

    Attributes:
        fixed_beforehand: whether sizes follow from the step alone. Then each call is charged for its own size; sizes
            that follow from the student, which earlier responses have trained, are charged as the smallest possible.
    """

    fixed_beforehand: ClassVar[bool]

    @abstractmethod
    def size(self, probabilities: Tensor, *, step: int, smallest: int) -> int:
        """Candidates of this step, between `smallest` and the number of classes c.

        Args:
            probabilities: the student's, (B, c), detached.
            step: number of the step, from 0.
            smallest: DPSD's k.
        """

    def sizes(self, probabilities: Tensor, *, step: int, smallest: int) -> Tensor:
        """Candidates of each image of this step, shape (B,), int64; see `size`."""
        size = self.size(probabilities, step=step, smallest=smallest)
        return torch.full((len(probabilities),), size, device=probabilities.device)


class FixedCandidates(CandidateSchedule):
    """DPSD as printed: `smallest` from the first step on, which collapses where responses are taken as they are.

    The top 3 of a student that has learnt nothing seldom hold the label, and then the uniform response confirms the
    student's own guess.
    """

    fixed_beforehand = True

    def size(self, probabilities: Tensor, *, step: int, smallest: int) -> int:
        return smallest


class LinearCandidates(CandidateSchedule):
    """From all classes down to `smallest` in equal parts, by the step alone.

    Args:
        begin: steps during which all classes are candidates.
        end: steps after which `smallest` is reached.

    Raises:
        ValueError: unless 0 <= begin <= end.
    """

    fixed_beforehand = True

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
    """As few as hold nearly all of what the student thinks possible, on the average over the batch or for each image.

    Too little coverage makes an overconfident student confirm itself: in trials 0.95 stayed at 79 %, where 0.99 learnt.

    Args:
        coverage: share of the student's probability that the candidates have to hold, in (0, 1).
        per_image: A size for each image, small where the student is sure of it. The published ε of DPSD's Theorem 2
            does not depend on sizes, and the record-level one is that of the smallest size either way.

    Raises:
        ValueError: A coverage out of its range.
    """

    fixed_beforehand = False

    def __init__(self, *, coverage: float = 0.99, per_image: bool = False) -> None:
        super().__init__()
        if not 0 < coverage < 1:
            raise ValueError(f"coverage must lie in (0, 1), got {coverage}")
        self.coverage = coverage
        self.per_image = per_image

    def size(self, probabilities: Tensor, *, step: int, smallest: int) -> int:
        return int(self._fewest(_held(probabilities).mean(dim=0, keepdim=True), smallest))

    def sizes(self, probabilities: Tensor, *, step: int, smallest: int) -> Tensor:
        if not self.per_image:
            return super().sizes(probabilities, step=step, smallest=smallest)
        return self._fewest(_held(probabilities), smallest)

    def _fewest(self, held: Tensor, smallest: int) -> Tensor:
        """Candidates that hold enough in each row of (n, c), shape (n,)."""
        return ((held < self.coverage).sum(dim=1) + 1).clamp(smallest, held.shape[1])


def _held(probabilities: Tensor) -> Tensor:
    """Share of the probability that the 1 to c most probable classes hold, shape (B, c)."""
    return probabilities.sort(dim=1, descending=True).values.cumsum(dim=1)
