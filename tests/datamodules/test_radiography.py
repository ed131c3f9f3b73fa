"""Kaggle's radiographs: class folders with images and masks, split by the hash of the file name."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from support.data_files import write_radiographs

from datamodules import COVIDx, MissingDataError
from datamodules.splits import id_fraction, ids_of_names


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_radiographs(tmp_path_factory.mktemp("radiographs"), each=20)


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path


def test_images_are_read_and_masks_are_not(root: Path) -> None:
    data = COVIDx(root=root, size=32)
    data.setup("fit")
    data.setup("test")
    private = data.read_private()
    assert (private.labels.bincount() + data.test_records.labels.bincount()).tolist() == [20] * 4
    assert private.images.shape[1:] == data.image_shape == (1, 32, 32)
    names = [f"{name}-{number}.png" for name in COVIDx.class_names for number in range(1, 21)]
    assert set(ids_of_names(names).tolist()) == {*private.ids.tolist(), *data.test_records.ids.tolist()}


def test_the_split_is_about_four_to_one_and_by_name_alone(root: Path) -> None:
    before = COVIDx(root=root, size=8).read("test").ids
    gone = root / "COVID-19_Radiography_Dataset" / "Normal" / "images" / "Normal-1.png"
    gone.unlink()
    after = COVIDx(root=root, size=8).read("test").ids
    assert set(after.tolist()) == set(before.tolist()) - set(ids_of_names(["Normal-1.png"]).tolist())
    official = ids_of_names([f"Normal-{number}.png" for number in range(1, 10_193)])
    assert float((id_fraction(official, purpose="covidx-test") < 0.2).double().mean()) == pytest.approx(0.2, abs=0.012)


def test_colour_for_networks_that_take_it(root: Path) -> None:
    grey, colour = (COVIDx(root=root, size=16, channels=1), COVIDx(root=root, size=16, channels=3))
    assert torch.equal(grey.read("test").images.expand(-1, 3, -1, -1), colour.read("test").images)


def test_the_three_classes_of_the_papers(root: Path) -> None:
    shutil.rmtree(root / "COVID-19_Radiography_Dataset" / "Viral Pneumonia")
    data = COVIDx(root=root, size=16, classes=["COVID", "Lung_Opacity", "Normal"])
    data.setup("fit")
    assert (data.num_classes, data.name) == (3, "COVIDx-COVID-Lung_Opacity-Normal")
    with pytest.raises(MissingDataError, match=r"(?s)Dataset:\n  Viral Pneumonia/images/\n.*kaggle.com") as caught:
        COVIDx(root=root).setup("fit")
    assert "download true" not in str(caught.value)


def test_public_facts_need_no_files() -> None:
    data = COVIDx(root="nowhere")
    assert (data.num_classes, data.image_shape, data.num_records) == (4, (1, 64, 64), 21_165)
    assert data.metrics == ("accuracy", "auroc") and data.private_data == "COVIDx/train"
    with pytest.raises(ValueError, match="size must be an integer of at least 1"):
        COVIDx(size=0)
