"""DPSD: what each switch releases, what its candidates and its latent inputs come from, and what DPSD-T costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.runs import checkpoint, distil, leaks, of_digits, teacher_weights
from torch import Tensor

from lightning_modules import DPSD
from lightning_modules.cli.fit import TranscriptionCLI
from lightning_modules.losses.targets import (
    CandidateSchedule,
    ConfidentCandidates,
    LabelTargets,
    LinearCandidates,
    class_shares,
)
from privacy.mechanisms import NoisyLabels, Shape

ALL = {"class_path": "NoisyLabels", "init_args": {"smallest": 10, "epsilon": 2.0}}


def run(**model: Any) -> TranscriptionCLI:
    return distil(class_path="DPSD", model={"mechanism": ALL, **model})


@pytest.mark.parametrize("xavier", [True, False])
def test_student_and_generator_may_start_by_xavier(xavier: bool) -> None:
    torch.manual_seed(1)
    module = of_digits(DPSD, teacher="teachers/none.ckpt", xavier=xavier)
    for network in (module.student, module.generator):
        (first, *_) = [layer for layer in network.modules() if isinstance(layer, torch.nn.Conv2d | torch.nn.Linear)]
        bound = (6 / sum(torch.nn.init._calculate_fan_in_and_fan_out(first.weight))) ** 0.5
        assert (0.9 * bound < float(first.weight.detach().abs().max()) <= bound) is xavier


def test_no_file_holds_a_teacher_that_discriminates(folder: Path) -> None:
    run(discriminator="teacher")
    assert leaks("run", teacher_weights("teachers/digits.ckpt")) == []


@pytest.mark.parametrize(("schedule", "size"), [(LinearCandidates(begin=0, end=2), 7), (ConfidentCandidates(), None)])
def test_sizes_are_stated_where_they_were_fixed_beforehand(schedule: CandidateSchedule, size: int | None) -> None:
    """Others are charged as the smallest: a schedule that follows the student stays at 10, but might not have."""
    targets = LabelTargets(schedule=schedule)
    candidates, stated = targets.candidates(torch.zeros(4, 10), step=1, smallest=3)
    assert stated == size and candidates.sum(dim=1).tolist() == [size or 10] * 4


def test_balanced_answers_follow_from_released_labels_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    released, answers = [], []
    answer = NoisyLabels.answer

    def watched(self: NoisyLabels, shape: Shape, logits: Tensor, *arguments: Any, **settings: Any) -> Tensor:
        answers.append(logits.argmax(dim=1))
        released.append(answer(self, shape, logits, *arguments, **settings))
        return released[-1]

    monkeypatch.setattr(NoisyLabels, "answer", watched)
    model = run(balanced_answers=True, schedule={"class_path": "FixedCandidates"}).model

    def offsets(labels: list[Tensor]) -> Tensor:
        found = torch.zeros(10)
        for step in labels:
            found = 0.99 * found + 0.5 * (class_shares(step, num_classes=10, epsilon=2.0) - 0.1)
        return found

    assert torch.allclose(model.offsets, offsets(released), atol=1e-5)
    # Control: from the answers before noise they would be others.
    assert not torch.allclose(model.offsets, offsets(answers), atol=0.1)
    saved = checkpoint("run")["state_dict"]["offsets"]
    assert torch.equal(saved, model.offsets)
