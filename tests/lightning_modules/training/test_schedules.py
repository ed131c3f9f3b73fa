"""A schedule that follows the length of the fit."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR

from lightning_modules.training.manual_optimization import CosineSchedule, OptimizedGroup


def rates(schedule: Any, steps: int) -> list[float]:
    found = []
    for _ in range(steps):
        schedule.optimizer.step()
        schedule.step()
        found += schedule.get_last_lr()
    return found


def built(steps: float, kind: Any = CosineSchedule) -> Any:
    one = OptimizedGroup([torch.nn.Parameter(torch.ones(1))], lambda given: torch.optim.SGD(given, lr=3e-3), kind)
    return one.schedule(one.optimizer(one.parameters), steps=steps)  # type: ignore[misc]


def test_it_is_torch_s_schedule_of_the_fit_s_length() -> None:
    for steps in (10, 37):
        assert rates(built(steps), steps) == rates(built(0, partial(CosineAnnealingLR, T_max=steps)), steps)
    for steps in (0, math.inf):
        with pytest.raises(ValueError, match="follows the length of the fit"):
            built(steps)


def test_a_fit_that_goes_on_for_longer_ends_at_zero_where_it_ends() -> None:
    first, longer = built(10), built(20)
    rates(first, 10)
    assert first.get_last_lr()[0] == pytest.approx(0.0, abs=1e-12)
    longer.load_state_dict(first.state_dict())
    after = rates(longer, 10)
    assert after[0] == pytest.approx(3e-3 * (1 + math.cos(math.pi * 11 / 20)) / 2) and after[-1] == 0.0
    # Negative control: torch's own schedule comes with its old length, and its rate grows again.
    again = built(0, partial(CosineAnnealingLR, T_max=20))
    state = built(0, partial(CosineAnnealingLR, T_max=10))
    rates(state, 10)
    again.load_state_dict(state.state_dict())
    assert rates(again, 10)[-1] > 2e-3
