from __future__ import annotations

import torch
from sklearn.datasets import load_digits

from datamodules import Digits


def test_splits_are_a_partition_of_the_bundled_digits() -> None:
    data = Digits()
    data.setup("fit")
    data.setup("test")
    splits = (data.train_records, data.validation_records, data.test_records)
    assert sorted(torch.cat([s.ids for s in splits]).tolist()) == list(range(1797))
    # the figures in the docstring
    assert [len(s) for s in splits] == [1275, 160, 362]
    assert Digits.num_records == 1275 + 160


def test_images_are_the_bundled_ones() -> None:
    data = Digits()
    data.setup("test")
    bundled = load_digits()
    images, labels = data.test_records.__getitems__(range(len(data.test_records)))
    ids = data.test_records.ids.numpy()
    assert torch.equal(images[:, 0], torch.from_numpy(bundled.images[ids] / 8 - 1).float())
    assert labels.tolist() == bundled.target[ids].tolist()
    assert images.shape[1:] == Digits.image_shape and len(labels.unique()) == Digits.num_classes


def test_the_test_part_does_not_depend_on_the_validation_fraction() -> None:
    ids = []
    for fraction in (0.1, 0.5):
        data = Digits(val_fraction=fraction)
        data.setup("test")
        ids.append(data.test_records.ids)
    assert torch.equal(*ids)
