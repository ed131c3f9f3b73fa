"""Features that several fits have in common: computed once, and never those of other images or another extractor."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from support.features import linear, whitened
from support.runs import watched
from torch import nn

from lightning_modules.networks import LinearOnFeatures, Patches, SmallCNN, feature_cache as module
from lightning_modules.networks.feature_cache import digest_of, feature_memory
from lightning_modules.networks.fixed_features import WhitenedFeatures
from lightning_modules.priors import StrokePrior
from lightning_modules.teachers.private_teacher import PrivateTeacher

IMAGES = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0)) * 2 - 1


def extractor(**settings: float) -> WhitenedFeatures:
    return whitened(Patches, prior=StrokePrior(), **{"filters": 10, "patch": 3, "images": 30, **settings})


def alike(kept: torch.Tensor, exact: torch.Tensor) -> bool:
    return torch.allclose(kept, exact, rtol=2.0**-10, atol=1e-4) and not torch.equal(kept, exact)


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images each computation was of."""
    return watched(monkeypatch, WhitenedFeatures, "_computed")


def test_equal_extractors_compute_features_of_equal_images_once(computed: list[int]) -> None:
    one, same = extractor(), extractor()
    with feature_memory() as memory:
        first = one(IMAGES)
        again = same(IMAGES.clone())
        assert computed == [5] and torch.equal(first, again)
        again.zero_()  # whoever writes into what it was given changes nobody else's
        assert torch.equal(one(IMAGES), first) and memory.held_bytes == first.nbytes / 2
    one(IMAGES)
    assert computed == [5, 5]  # nothing is kept outside


def other_buffers(one: WhitenedFeatures) -> torch.Tensor:
    state = one.state_dict()
    state["mean"] = state["mean"] + 1
    one.load_state_dict(state)
    return one(IMAGES)


OTHER: dict[str, Callable[[WhitenedFeatures], torch.Tensor]] = {
    "images": lambda one: one(-IMAGES),
    "turned images": lambda one: one(IMAGES.transpose(2, 3)),
    "settings": lambda _: extractor(power=0.5)(IMAGES),
    "buffers": other_buffers,
}


@pytest.mark.parametrize("other", OTHER.values(), ids=OTHER)
def test_what_differs_is_computed_anew(computed: list[int], other: Callable[[WhitenedFeatures], torch.Tensor]) -> None:
    with feature_memory():
        one = extractor()
        one(IMAGES)
        found = other(one)
    assert len(computed) == 2
    assert alike(found, other(extractor()))


def test_what_validation_leaves_can_be_trained_on() -> None:
    with feature_memory():
        one, head = extractor(), torch.nn.Linear(80, 2)
        with torch.inference_mode():
            one(IMAGES)
        head(one(IMAGES)).sum().backward()
    assert head.weight.grad is not None


@dataclasses.dataclass
class Fitted:
    """Prints alike whatever it was fitted to, as scikit-learn's models do."""

    found: object

    def __repr__(self) -> str:
        return "Fitted()"


@pytest.mark.parametrize(
    "kept",
    [
        lambda value: value * numpy.eye(2000)[1000],
        lambda value: [torch.arange(2000.0) == value],
        lambda value: Fitted(numpy.array([value])),
        lambda value: lambda images: images + value,
    ],
    ids=["array", "tensors", "model", "function"],
)
def test_what_prints_alike_is_not_taken_for_the_same(
    kept: Callable[[float], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Statistics of a teacher's private extractor would become those of a student's public one."""

    def of(value: float) -> str:
        network = nn.Identity()
        network.kept = kept(value)  # type: ignore[assignment]
        return digest_of(network)

    assert of(3.0) != of(4.0)
    monkeypatch.setattr(module, "_said", lambda value: re.sub("0x[0-9a-f]+", "", repr(value)))
    assert of(3.0) == of(4.0)


SHAPE = (1, 12, 12)


def on_wavelets(seed: int, **settings: Any) -> LinearOnFeatures:
    torch.manual_seed(seed)
    return linear(whitened=True, num_classes=3, image_shape=SHAPE, images=20, **settings).eval()


def test_features_are_shared_where_they_are_the_same() -> None:
    student, network = on_wavelets(0), on_wavelets(1)
    teacher = PrivateTeacher(network, private_data="none")
    extractor = student.feature_extractor
    images = torch.rand(5, *SHAPE)
    assert teacher.shares_extractor(extractor)
    assert torch.equal(teacher.logits_of_extracted(extractor(images)), teacher.logits(images))
    assert not teacher.shares_extractor(None)
    assert not teacher.shares_extractor(on_wavelets(0, power=0.5).feature_extractor)
    assert not PrivateTeacher(SmallCNN(image_shape=SHAPE), private_data="none").shares_extractor(extractor)


def test_one_changed_buffer_is_noticed() -> None:
    one, other = on_wavelets(0).feature_extractor, on_wavelets(0).feature_extractor
    assert digest_of(one) == digest_of(other)
    other.plain.get_buffer("wavelets0")[0, 0, 0] += 1e-3  # which no state_dict holds
    assert digest_of(one) != digest_of(other)
