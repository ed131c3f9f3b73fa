"""Noise that no seed of the run reaches, of the right distribution."""

from __future__ import annotations

import math
import os

import numpy as np
import pytest
import torch
from lightning import seed_everything
from numpy.typing import NDArray
from scipy import stats

from privacy.mechanisms.base import NoiseSource, ReproducibleNoise, SystemNoise


class SeededNoise(NoiseSource):
    """The mistake that SystemNoise must not make: drawing from the run's seed."""

    secure = True

    def words(self, count: int) -> NDArray[np.uint64]:
        return np.random.randint(0, 2**63, size=count).astype(np.uint64)


def equal_in_two_runs_of_one_seed(make: type[NoiseSource]) -> bool:
    draws = []
    for _ in range(2):
        seed_everything(7, verbose=False)
        draws.append(make().gaussian((64,)))
    return torch.equal(draws[0], draws[1])


def test_two_runs_of_one_seed_draw_differently() -> None:
    assert not equal_in_two_runs_of_one_seed(SystemNoise)
    assert equal_in_two_runs_of_one_seed(SeededNoise)


def test_words_are_the_operating_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def urandom(size: int) -> bytes:
        asked.append(size)
        return bytes(size)

    monkeypatch.setattr(os, "urandom", urandom)
    assert SystemNoise().words(5).tolist() == [0] * 5
    assert asked == [40]


def test_reproducible_noise_repeats_and_no_source_is_secure_unless_it_says_so() -> None:
    first, second, other = ReproducibleNoise(seed=5), ReproducibleNoise(seed=5), ReproducibleNoise(seed=5 + 2**32)
    one = first.gaussian((3, 4))
    assert torch.equal(one, second.gaussian((3, 4)))
    assert not torch.equal(one, first.gaussian((3, 4)))
    assert not torch.equal(one, other.gaussian((3, 4)))
    assert not NoiseSource.secure


def test_extreme_words_stay_finite() -> None:
    class Extreme(NoiseSource):
        def __init__(self, word: int) -> None:
            self.word = word

        def words(self, count: int) -> NDArray[np.uint64]:
            return np.full(count, self.word, dtype=np.uint64)

    for word in (0, 1, 2**63, 2**64 - 1):
        draws = Extreme(word).gaussian((2,))
        assert torch.isfinite(draws).all()
        assert draws.abs().max() < 9.5


def test_standard_normal_also_in_the_tails_and_between_pairs() -> None:
    draws = ReproducibleNoise(seed=11).gaussian((200_000,)).numpy()
    assert stats.kstest(draws, "norm").pvalue > 1e-3
    assert stats.kstest(draws * 1.05, "norm").pvalue < 1e-9
    for threshold in (1.0, 2.0, 3.0):
        expected = 2 * stats.norm.sf(threshold)
        found = float(np.mean(np.abs(draws) > threshold))
        assert abs(found - expected) < 5 * math.sqrt(expected / len(draws))
    # Box-Muller makes draws in pairs: each half must tell nothing of the other, nor of the other's size.
    first, second = draws[:100_000], draws[100_000:]
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / math.sqrt(100_000)
    assert abs(np.corrcoef(first**2, second**2)[0, 1]) < 5 / math.sqrt(100_000)
