"""MedMNIST: official parts, classes and counts of the package, one label for each image."""

from __future__ import annotations

import hashlib
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.data_files import write_medmnist

from datamodules import MedMNIST, MissingDataError, MissingExtraError, SyntheticSteps

medmnist = pytest.importorskip("medmnist")
REAL = Path(__file__).parents[3] / "shared" / "data" / "PneumoniaMNIST" / "pneumoniamnist_content.npz"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_medmnist(tmp_path)


def test_the_three_splits_are_the_official_parts(root: Path) -> None:
    data = MedMNIST(root=root, verify=False)
    data.setup("fit")
    data.setup("test")
    with np.load(root / "medmnist" / "pneumoniamnist.npz") as arrays:
        for part, records in (
            ("train", data.train_records),
            ("val", data.validation_records),
            ("test", data.test_records),
        ):
            assert np.array_equal(records.images.numpy()[:, 0], arrays[f"{part}_images"])
            assert np.array_equal(records.labels.numpy(), arrays[f"{part}_labels"][:, 0])
    assert torch.equal(data.read_private().ids, data.train_records.ids)


def test_public_facts_are_the_package_s_and_need_no_file() -> None:
    data = MedMNIST(root="nowhere", subset="pathmnist", size=64)
    assert (data.num_classes, data.image_shape, data.num_records) == (9, (3, 64, 64), 89_996)
    assert (data.class_names[0], data.name, data.private_data) == ("adipose", "PathMNIST", "PathMNIST/train")
    assert data.metrics == ("accuracy", "auroc") and data.file.name == "pathmnist_64.npz"
    assert MedMNIST(subset="pathmnist").private_data == data.private_data  # the same records, smaller
    assert MedMNIST(subset="retinamnist").num_classes == 5


@pytest.mark.parametrize("subset", [name for name in medmnist.INFO if not name.endswith("3d")])
def test_every_flat_subset_is_known_or_refused_for_its_labels(subset: str) -> None:
    info = medmnist.INFO[subset]
    if info["task"].startswith("multi-label"):
        with pytest.raises(
            ValueError, match="'chestmnist' is multi-label, binary-class: each image has several labels"
        ):
            MedMNIST(subset=subset)
    else:
        data = MedMNIST(subset=subset)
        assert data.num_classes == len(data.class_names) == len(info["label"]) >= 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"subset": "organmnist3d"}, "'organmnist3d' holds volumes"),
        ({"subset": "pneumonia"}, r"subset must be one of pathmnist, .*; 'pneumonia' is none of MedMNIST's"),
        ({"size": 32}, "size must be 28, 64, 128 or 224, got 32"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MedMNIST(**settings)


def test_colour_comes_channels_first(tmp_path: Path) -> None:
    write_medmnist(tmp_path, subset="bloodmnist", channels=3, classes=8, size=64)
    records = MedMNIST(root=tmp_path, subset="bloodmnist", size=64, verify=False).read("test")
    with np.load(tmp_path / "medmnist" / "bloodmnist_64.npz") as arrays:
        assert np.array_equal(records.images.numpy(), arrays["test_images"].transpose(0, 3, 1, 2))


def without_members(path: Path, keep: str) -> None:
    with zipfile.ZipFile(path) as archive:
        kept = {name: archive.read(name) for name in archive.namelist() if name.startswith(keep)}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in kept.items():
            archive.writestr(name, content)


def test_the_test_part_is_read_alone(root: Path) -> None:
    path = root / "medmnist" / "pneumoniamnist.npz"
    without_members(path, "test")
    data = SyntheticSteps(dataset=MedMNIST(root=root, verify=False))
    data.setup("fit")
    assert len(data.dataset.test_records) == 30
    with pytest.raises(ValueError, match="damaged or no file of MedMNIST"):
        data.dataset.setup("fit")


def test_another_file_than_the_published_one_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = root / "medmnist" / "pneumoniamnist.npz"
    with pytest.raises(ValueError, match=r"pneumoniamnist.npz has the MD5 sum .* has 28209eda62fecd6e6a2d98b1501bb15f"):
        MedMNIST(root=root).setup("fit")
    with pytest.raises(ValueError, match="holds 30 test images, and the published file 624"):
        MedMNIST(root=root).setup("test")
    info = medmnist.INFO["pneumoniamnist"]
    monkeypatch.setitem(info, "MD5", hashlib.md5(path.read_bytes()).hexdigest())
    monkeypatch.setitem(info, "n_samples", {"train": 60, "val": 20, "test": 30})
    data = MedMNIST(root=root)
    data.setup("fit")
    data.setup("test")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"test_images": np.zeros((30, 32, 32), np.uint8)}, r"expected uint8 of \(30, 28, 28\) with one label each"),
        ({"test_labels": np.zeros((30, 14), np.uint8)}, "with 420 labels"),
        ({"test_labels": np.full((30, 1), 2, np.uint8)}, "test labels outside 0 to 1"),
    ],
)
def test_files_of_another_content_are_refused(root: Path, change: dict[str, Any], message: str) -> None:
    path = root / "medmnist" / "pneumoniamnist.npz"
    with np.load(path) as arrays:
        content = {**arrays, **change}
    np.savez(path, **content)
    with pytest.raises(ValueError, match=message):
        MedMNIST(root=root, verify=False).setup("test")


@pytest.mark.parametrize("content", [b"", b"<html>", b"PK\x03\x04" + bytes(100)])
def test_damaged_files_are_named(root: Path, content: bytes) -> None:
    (root / "medmnist" / "pneumoniamnist.npz").write_bytes(content)
    with pytest.raises(ValueError, match=r"pneumoniamnist\.npz is damaged or no file of MedMNIST"):
        MedMNIST(root=root, verify=False).setup("test")


def test_missing_files_and_failed_downloads_are_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingDataError, match=r"(?s)medmnist:\n  pneumoniamnist.npz\n.*zenodo"):
        MedMNIST(root=tmp_path).setup("test")
    monkeypatch.setitem(medmnist.INFO["pneumoniamnist"], "url", (tmp_path / "gone.npz").as_uri())
    with pytest.raises(MissingDataError, match="Downloading was tried and failed"):
        MedMNIST(root=tmp_path, download=True).prepare_data()


def test_a_download_is_checked(
    root: Path, tmp_path: Path, site: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, address = site
    path = shutil.copy(root / "medmnist" / "pneumoniamnist.npz", folder)
    info = medmnist.INFO["pneumoniamnist"]
    monkeypatch.setitem(info, "url", f"{address}pneumoniamnist.npz")
    data = MedMNIST(root=tmp_path / "fresh", download=True)
    with pytest.raises(MissingDataError, match="corrupted"):
        data.fetch("test")
    assert not data.file.exists()
    monkeypatch.setitem(info, "MD5", hashlib.md5(Path(path).read_bytes()).hexdigest())
    data.fetch("test")
    assert data.file.is_file()


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "medmnist", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'private-model-transcription\[medmnist\]'"):
        MedMNIST()


@pytest.mark.skipif(not REAL.is_file(), reason="the real PneumoniaMNIST is not at hand")
def test_the_real_images_are_read(tmp_path: Path) -> None:
    (tmp_path / "medmnist").mkdir()
    shutil.copyfile(REAL, tmp_path / "medmnist" / "pneumoniamnist.npz")
    with pytest.raises(ValueError, match="MD5"):  # the training images of this copy are in another order
        MedMNIST(root=tmp_path).setup("fit")
    MedMNIST(root=tmp_path).setup("test")
    data = MedMNIST(root=tmp_path, verify=False)
    data.setup("fit")
    data.setup("test")
    counts = [
        split.labels.bincount().tolist() for split in (data.train_records, data.validation_records, data.test_records)
    ]
    assert counts == [[1214, 3494], [135, 389], [234, 390]] and data.num_records == 4708
