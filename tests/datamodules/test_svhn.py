from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.io import savemat
from support.data_files import write_svhn
from torchvision import datasets

from datamodules import SVHN, MissingDataError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_svhn(tmp_path)


def test_files_are_read_as_torchvision_reads_them(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.SVHN, "_check_integrity", lambda self: True)
    theirs = datasets.SVHN(str(root / "SVHN"), split="train")
    ours = SVHN(root=root, verify=False).read("train")
    assert torch.equal(ours.images, torch.from_numpy(theirs.data)) and ours.labels.tolist() == theirs.labels.tolist()
    assert ours.labels[:11].tolist() == [*range(10), 0]  # the digit 0, which the file calls 10


def test_the_test_split_opens_without_the_training_file(root: Path) -> None:
    (root / "SVHN" / "train_32x32.mat").unlink()
    data = SVHN(root=root, verify=False)
    data.setup("test")
    assert len(data.test_records) == 20
    with pytest.raises(MissingDataError, match=r"(?s)SVHN:\n  train_32x32.mat.*ufldl.stanford.edu"):
        data.setup("fit")


def test_another_file_than_the_published_one_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"test_32x32.mat has the MD5 sum .* the published file has eb5a983be6a315"):
        SVHN(root=root).setup("test")
    found = hashlib.md5((root / "SVHN" / "test_32x32.mat").read_bytes()).hexdigest()
    url, name, _ = datasets.SVHN.split_list["test"]
    monkeypatch.setitem(datasets.SVHN.split_list, "test", [url, name, found])
    SVHN(root=root).setup("test")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"X": np.zeros((32, 32, 3, 4), np.uint8), "y": np.ones(5, np.uint8)}, "and 5 labels y, expected uint8"),
        ({"X": np.zeros((32, 32, 3, 4), np.float64), "y": np.ones(4, np.uint8)}, "X as float64"),
        ({"X": np.zeros((32, 32, 3, 4), np.uint8), "y": np.zeros(4, np.uint8)}, "labels outside 1 to 10"),
        ({"Z": np.zeros(3)}, "damaged or no MATLAB file with X and y"),
    ],
)
def test_files_of_another_content_are_refused(root: Path, content: dict[str, Any], message: str) -> None:
    savemat(root / "SVHN" / "test_32x32.mat", content)
    with pytest.raises(ValueError, match=message):
        SVHN(root=root, verify=False).setup("test")


@pytest.mark.parametrize("content", [b"", b"<html>not found</html>", b"MATLAB 5.0 MAT-file" + bytes(300)])
def test_damaged_files_are_named(root: Path, content: bytes) -> None:
    (root / "SVHN" / "test_32x32.mat").write_bytes(content)
    with pytest.raises(ValueError, match=r"test_32x32\.mat is damaged or no MATLAB file"):
        SVHN(root=root, verify=False).setup("test")


def test_a_download_is_checked(
    root: Path, tmp_path: Path, site: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, address = site
    source = Path(shutil.copy(root / "SVHN" / "test_32x32.mat", folder))
    published = [f"{address}{source.name}", source.name, "0" * 32]
    monkeypatch.setitem(datasets.SVHN.split_list, "test", published)
    data = SVHN(root=tmp_path / "fresh", download=True)
    with pytest.raises(MissingDataError, match=r"(?s)1 file\(s\) missing.*corrupted"):
        data.fetch("test")
    assert not (data.folder / source.name).exists()
    published[2] = hashlib.md5(source.read_bytes()).hexdigest()
    data.fetch("test")
    data.setup("test")
    assert len(data.test_records) == 20
