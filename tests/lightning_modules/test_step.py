"""A teacher that shares its features with the student."""

from __future__ import annotations

from typing import Any

import torch
from support.features import linear

from lightning_modules.networks import LinearOnFeatures, SmallCNN
from lightning_modules.networks.feature_cache import same_module
from lightning_modules.teachers.private_teacher import PrivateTeacher

SHAPE = (1, 12, 12)


def whitened(seed: int, **settings: Any) -> LinearOnFeatures:
    torch.manual_seed(seed)
    return linear(whitened=True, num_classes=3, image_shape=SHAPE, images=20, **settings).eval()


def test_features_are_shared_where_they_are_the_same() -> None:
    student, network = whitened(0), whitened(1)
    teacher = PrivateTeacher(network, private_data="none")
    extractor = student.feature_extractor
    images = torch.rand(5, *SHAPE)
    assert teacher.shares_extractor(extractor)
    assert torch.equal(teacher.logits_of_extracted(extractor(images)), teacher.logits(images))
    assert not teacher.shares_extractor(None)
    assert not teacher.shares_extractor(whitened(0, power=0.5).feature_extractor)
    assert not PrivateTeacher(SmallCNN(image_shape=SHAPE), private_data="none").shares_extractor(extractor)


def test_one_changed_buffer_is_noticed() -> None:
    one, other = whitened(0).feature_extractor, whitened(0).feature_extractor
    assert same_module(one, other)
    other.plain.get_buffer("wavelets0")[0, 0, 0] += 1e-3  # which no state_dict holds
    assert not same_module(one, other)
