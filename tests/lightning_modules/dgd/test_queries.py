"""Queries of a pool are kept as positions: a checkpoint goes on with the pool that they are of, or is refused."""

from __future__ import annotations

import io

import pytest
import torch

from lightning_modules.dgd.queries import QuerySet
from privacy.identity import CheckpointError


def test_another_pool_is_refused_as_a_checkpoint_that_does_not_fit() -> None:
    pool = torch.randn(8, 1, 2, 2).half().float()
    chosen = QuerySet((1, 2, 2))
    chosen.positions = torch.tensor([2, 6])
    chosen.images = pool[chosen.positions].half()
    chosen.add(torch.tensor([3]))
    resumed = QuerySet((1, 2, 2))
    resumed.load(chosen.state(of_pool=True), pool=pool)
    assert torch.equal(resumed.images, chosen.images) and torch.equal(resumed.labels, chosen.labels)
    with pytest.raises(CheckpointError, match="pool has 6 images, and the checkpoint's queries are of a larger one"):
        QuerySet((1, 2, 2)).load(chosen.state(of_pool=True), pool=pool[:6])


@pytest.mark.parametrize("of_pool", [True, False])
def test_the_bytes_of_a_pools_images_are_in_no_file(of_pool: bool) -> None:
    """A slice of no images is written with all that it is cut from; images that are no pool's are kept, and found."""
    chosen = QuerySet((1, 4, 4))
    chosen.images = torch.randn(8, 1, 4, 4).half()
    chosen.positions = torch.arange(8) if of_pool else chosen.positions
    file = io.BytesIO()
    torch.save(chosen.state(of_pool=of_pool), file)
    found = [image.numpy().tobytes() in file.getvalue() for image in chosen.images]
    assert found == [not of_pool] * 8
