from __future__ import annotations

import torch
from torch import Tensor

from datamodules.records import id_fraction


def moved(assign_by_id: bool, removed: int) -> int:
    """How many of 2000 other records change split when one is removed, by hash of the id or of the position."""
    ids = torch.arange(2000)
    left = ids[ids != removed]

    def held_out(records: Tensor) -> Tensor:
        keys = records if assign_by_id else torch.arange(len(records))
        return id_fraction(keys, purpose="validation") < 0.1

    before, after = held_out(ids)[ids != removed], held_out(left)
    return int((before != after).sum())


def test_removing_a_record_moves_no_other() -> None:
    assert all(moved(True, removed) == 0 for removed in (0, 17, 1000, 1999))
    assert moved(False, 17) > 100  # a split by position would be noticed


def test_fractions_are_fixed_for_all_time() -> None:
    # Checkpoints, shards and ledgers of earlier versions stay comparable only while these do not change.
    fractions = id_fraction(torch.tensor([0, 1, 59_999, -1]), purpose="validation")
    expected = [0.28468225775499434, 0.07225900249843598, 0.3464189317509223, 0.3810288996909006]
    assert fractions.tolist() == expected


def test_fractions_are_uniform_and_purposes_unrelated() -> None:
    ids = torch.arange(60_000)
    one, two = id_fraction(ids, purpose="validation"), id_fraction(ids, purpose="shard")
    assert one.min() >= 0 and one.max() < 1
    for fraction in (0.01, 0.1, 0.5):
        # five standard deviations of a binomial share
        assert abs((one < fraction).double().mean() - fraction) < 5 * (fraction * (1 - fraction) / 60_000) ** 0.5
    assert abs(torch.corrcoef(torch.stack([one, two]))[0, 1]) < 5 / 60_000**0.5
