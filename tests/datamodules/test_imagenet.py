"""ImageNet in folders: classes of the folders, names of the mapping, and the part of it that is at hand."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support.data_files import WNIDS, write_imagenet

from datamodules import ImageNet, MissingDataError

REAL = Path(__file__).parents[3] / "shared" / "data" / "Imagenette64" / "imagenette64.zip"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_imagenet(tmp_path)


def test_classes_are_the_folders_in_order_of_their_ids(root: Path) -> None:
    data = ImageNet(root=root, size=32)
    data.setup("fit")
    data.setup("test")
    assert data.wnids == WNIDS and data.class_names[0] == "tench, Tinca tinca"
    assert (data.num_classes, data.image_shape, data.num_records) == (3, (3, 32, 32), 3900)
    assert (data.name, data.private_data) == ("ImageNet", "ImageNet/train")
    assert data.read("train").labels.bincount().tolist() == [12] * 3
    assert data.test_records.labels.bincount().tolist() == [5] * 3


def test_a_photograph_is_cut_to_its_middle_and_shrunk(root: Path) -> None:
    records = ImageNet(root=root, size=64).read("test")
    file = sorted((root / "imagenet" / "val" / WNIDS[0]).iterdir())[0]
    photograph = Image.open(file)
    left = (photograph.width - 90) // 2
    expected = photograph.crop((left, 0, left + 90, 90)).resize((64, 64), Image.Resampling.BILINEAR)
    assert np.array_equal(records.images[0].permute(1, 2, 0).numpy(), np.asarray(expected))


def test_all_of_imagenet_has_its_official_size(tmp_path: Path) -> None:
    for number in range(1000):
        (tmp_path / "imagenet" / "val" / f"n{number:08d}").mkdir(parents=True)
    data = ImageNet(root=tmp_path)
    assert (data.num_classes, data.num_records) == (1000, 1_281_167)
    assert data.class_names[:2] == ("n00000000", "n00000001")


def test_names_of_a_table_with_tabs(root: Path) -> None:
    (root / "imagenet" / "LOC_synset_mapping.txt").unlink()
    (root / "imagenet" / "classes.tsv").write_text(f"{WNIDS[1]}\tEnglish springer\n")
    assert ImageNet(root=root).class_names == (WNIDS[0], "English springer", WNIDS[2])


@pytest.mark.parametrize("classes", [[WNIDS[2], 0], ["cassette player", "tench, Tinca tinca"]])
def test_chosen_classes_by_id_name_or_position(root: Path, classes: list[Any]) -> None:
    for file in (root / "imagenet").rglob(f"{WNIDS[1]}/*"):
        file.write_bytes(b"left out, and so not opened")
    data = ImageNet(root=root, size=16, classes=classes)
    data.setup("fit")
    data.setup("test")
    assert data.class_names == ("cassette player", "tench, Tinca tinca")
    assert data.test_records.labels.tolist() == [1] * 5 + [0] * 5


def test_the_test_part_alone(root: Path) -> None:
    shutil.rmtree(root / "imagenet" / "train")
    data = ImageNet(root=root, size=16)
    data.setup("test")
    assert len(data.test_records) == 15 and data.num_records == 3900
    with pytest.raises(MissingDataError, match=rf"(?s)train:\n  {WNIDS[0]}/\n.*image-net.org") as caught:
        data.setup("fit")
    assert "download true" not in str(caught.value)


def test_ids_are_of_class_and_file(root: Path, tmp_path: Path) -> None:
    before = ImageNet(root=root, size=16).read("train").ids
    moved = shutil.copytree(root / "imagenet", tmp_path / "b" / "imagenet")
    gone = sorted((moved / "train" / WNIDS[1]).iterdir())[3]
    gone.unlink()
    after = ImageNet(root=tmp_path / "b", size=16).read("train").ids
    assert torch.equal(before[torch.arange(36) != 15], after)


def test_a_part_of_it_is_known_by_its_folder(tmp_path: Path) -> None:
    data = ImageNet(root=write_imagenet(tmp_path, folder="imagenette"), folder="imagenette")
    assert (data.name, data.private_data) == ("imagenette", "imagenette/train")


def test_folders_of_no_use_are_refused(root: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"(?s)nowhere/imagenet:\n  train/\n  val/\n"):
        ImageNet(root=tmp_path / "nowhere")
    (root / "imagenet" / "val" / "n00000001").mkdir()
    with pytest.raises(ValueError, match=r"val has folders that .*train has not: n00000001"):
        ImageNet(root=root)
    with pytest.raises(ValueError, match=r"folder must be the name of a folder in root, got 'a/b'"):
        ImageNet(root=root, folder="a/b")


@pytest.mark.skipif(not REAL.is_file(), reason="no real part of ImageNet is at hand")
@pytest.mark.slow
def test_a_real_part_of_imagenet(tmp_path: Path) -> None:
    with zipfile.ZipFile(REAL) as archive:
        archive.extractall(tmp_path / "imagenette64")
    shutil.copy(REAL.with_name("classes.tsv"), tmp_path / "imagenette64")
    data = ImageNet(root=tmp_path, folder="imagenette64")
    data.setup("test")
    assert data.num_classes == 10 and data.class_names[:2] == ("tench", "English springer")
    assert len(data.test_records) == 3925 and len(data.read_private()) == 9469
