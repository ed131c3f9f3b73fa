"""Queries of a pool are kept as positions: a checkpoint goes on with the pool that they are of, or is refused."""

from __future__ import annotations

import io

import pytest
import torch

from lightning_modules.dgd.queries import QuerySet, balanced_quotas, confident_samples
from lightning_modules.dgd.tangent_normal import distort
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


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 9, 14)])
def test_distortions_are_drawn_from_their_source_alone(shape: tuple[int, int, int]) -> None:
    images = torch.randn(6, *shape)
    first, second = (distort(images, strength=0.5, draw=torch.Generator().manual_seed(1)) for _ in range(2))
    assert first.shape == images.shape and torch.equal(first, second)
    assert not torch.equal(first, distort(images, strength=0.5, draw=torch.Generator().manual_seed(2)))
    assert torch.equal(distort(images, strength=0.0, draw=torch.Generator()), images)


@pytest.mark.parametrize(
    ("held", "count", "quotas"),
    [
        ([4, 0, 1], 4, [0, 3, 1]),
        ([0, 0, 0], 4, [2, 1, 1]),
        ([9, 0, 0], 2, [0, 1, 1]),
    ],
)
def test_classes_with_few_labels_are_filled_up(held: list[int], count: int, quotas: list[int]) -> None:
    assert balanced_quotas(torch.tensor(held), count=count).tolist() == quotas


def test_the_surest_of_each_class_are_chosen_once() -> None:
    draw = torch.Generator().manual_seed(0)
    probabilities = (4 * torch.randn(300, 5, generator=draw)).softmax(dim=1)
    quotas = torch.tensor([3, 0, 4, 5, 1])
    chosen = confident_samples(probabilities, quotas=quotas)
    assert len(chosen) == len(chosen.unique()) == 13
    assert probabilities[chosen].argmax(dim=1).bincount(minlength=5).tolist() == quotas.tolist()
    for label, quota in enumerate(quotas.tolist()):
        own = probabilities[chosen][probabilities[chosen].argmax(dim=1) == label, label]
        assert torch.equal(own.sort(descending=True).values, probabilities[:, label].topk(quota).values)
