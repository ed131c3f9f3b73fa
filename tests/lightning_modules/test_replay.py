"""Replay: what is kept, what of it is fitted, and that nothing but released values is in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.runs import BATCH_SIZE, checkpoint, distil, leaks, teacher_weights

from lightning_modules import DPDFD
from lightning_modules.losses.targets import Annotation, LabelTargets
from lightning_modules.student import Replay, ReplayMemory
from privacy.identity import CheckpointError

CAPACITY = 20


def _memory(**settings: Any) -> ReplayMemory:
    return ReplayMemory(Replay(**{"capacity": CAPACITY, **settings}), batch_size=BATCH_SIZE)


def _batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images and targets that all carry the number of their batch."""
    return torch.full((BATCH_SIZE, 1, 2, 2), float(number)), torch.full((BATCH_SIZE, 10), float(number))


def test_the_newest_images_are_kept_with_their_targets() -> None:
    memory = _memory()
    for number in range(5):
        memory.add(*_batch(number))
        assert len(memory) == min(CAPACITY, BATCH_SIZE * (number + 1))
    found = set()
    for seed in range(60):
        images, targets = memory.draw(torch.Generator().manual_seed(seed))
        assert images.shape == (BATCH_SIZE, 1, 2, 2) and images.dtype == targets.dtype == torch.float32
        assert torch.equal(images[:, 0, 0, 0], targets[:, 0])  # pairs stay together
        found |= set(targets[:, 0].tolist())
    assert found == {2.0, 3.0, 4.0}  # 4 of batch 2, and all of 3 and 4


@pytest.mark.parametrize("capacity", [CAPACITY - 1, 2 * CAPACITY])
def test_a_memory_of_another_capacity_is_refused(capacity: int) -> None:
    """In a larger one, places that were never written would be drawn; in a smaller one pairs would come apart."""
    full = _memory()
    for number in range(4):
        full.add(*_batch(number))
    with pytest.raises(CheckpointError, match=rf"replay\.capacity was {CAPACITY} and is {capacity}: resume"):
        _memory(capacity=capacity).load(full.state())
    _memory().load(full.state())


@pytest.mark.parametrize("noise_correction", [True, False])
def test_a_noisy_label_is_weighed_with_what_the_student_thinks_at_each_replay(noise_correction: bool) -> None:
    before, now = torch.randn(2, BATCH_SIZE, 10).unbind()
    labels, candidates = torch.arange(BATCH_SIZE) % 10, torch.ones(BATCH_SIZE, 10, dtype=torch.bool)
    made = LabelTargets(noise_correction=noise_correction).annotation(before, labels, candidates, epsilon=1.0)
    memory, resumed = _memory(), _memory()
    memory.add(torch.zeros(BATCH_SIZE, 1, 2, 2), memory.rows_of(made))
    resumed.load(memory.state())
    _, kept = resumed.draw(torch.Generator().manual_seed(0))
    rows = kept.argmax(dim=1)  # the labels, of which there are as many as rows
    odds = torch.ones(BATCH_SIZE, 10).scatter(1, rows[:, None], torch.e)
    expected = now.softmax(dim=1) * odds if noise_correction else torch.eye(10)[rows]
    found = resumed.targets(kept, now)
    assert torch.allclose(found, expected / expected.sum(dim=1, keepdim=True), atol=1e-6)
    assert not torch.allclose(found, made.targets, atol=1e-2)
    # A run that is resumed with the other setting begins its memory anew.
    other = LabelTargets(noise_correction=not noise_correction).annotation(before, labels, candidates, epsilon=1.0)
    resumed.add(torch.zeros(BATCH_SIZE, 1, 2, 2), resumed.rows_of(other))
    assert len(resumed) == BATCH_SIZE


@pytest.mark.parametrize("steps", [1, 3])
def test_the_student_takes_steps_on_released_pairs_of_earlier_steps(
    folder: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    released: list[Annotation] = []
    asked: list[torch.Tensor] = []
    replayed: list[tuple[torch.Tensor, torch.Tensor]] = []
    annotate, draw = DPDFD.annotate, ReplayMemory.draw

    def watched(self: DPDFD, outputs: torch.Tensor, images: torch.Tensor) -> Annotation:
        asked.append(images.clone())
        released.append(annotate(self, outputs, images))
        return released[-1]

    def drawn(self: ReplayMemory, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        replayed.append(draw(self, generator))
        known = torch.cat(asked[:-1]).half().float()
        targets = torch.cat([annotation.targets for annotation in released[:-1]])
        for image, target in zip(*replayed[-1], strict=True):
            rows = (known == image).flatten(1).all(dim=1) & (targets == target).all(dim=1)
            assert rows.any()
        return replayed[-1]

    monkeypatch.setattr(DPDFD, "annotate", watched)
    monkeypatch.setattr(ReplayMemory, "draw", drawn)
    schedule = {"class_path": "torch.optim.lr_scheduler.StepLR", "init_args": {"step_size": 1, "gamma": 0.5}}
    settings = {"student_lr_scheduler": schedule, "student_target": "gradients"}
    model = distil(model={"replay": {"capacity": 24, "steps": steps}, **settings}, steps=4).model
    assert len(released) == 4 and len(replayed) == 3 * steps  # none in the first step
    assert len({tuple(images.flatten().tolist()) for images, _ in replayed}) == 3 * steps
    assert all(len(images) == 8 for images, _ in replayed)
    tracked = model.student.state_dict()["features.1.num_batches_tracked"]
    assert int(tracked) == 1 + 3 * steps  # the first batch, and replayed ones
    optimizer = model.optimizer("student")
    assert {int(state["step"]) for state in optimizer.optimizer.state.values()} == {4 + 3 * steps}
    assert optimizer.param_groups[0]["lr"] == pytest.approx(1e-3 * 0.5**4)
    saved = checkpoint()["replay"]
    assert torch.equal(saved["targets"], torch.cat([one.targets for one in released])[[*range(24, 32), *range(8, 24)]])
    assert leaks("run", teacher_weights("teachers/digits.ckpt")) == []
