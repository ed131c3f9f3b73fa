"""Distortions, and which images are chosen to be queried."""

from __future__ import annotations

import pytest
import torch

from lightning_modules.dgd.queries import balanced_quotas, confident_samples
from lightning_modules.dgd.tangent_normal import distort


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


def test_a_class_that_is_never_predicted_is_filled_up_as_well() -> None:
    probabilities = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.6, 0.4]])
    assert confident_samples(probabilities, quotas=torch.tensor([2, 2])).tolist() == [0, 3, 1, 2]
