from __future__ import annotations

import gzip
import hashlib
import urllib.request
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
import torch
from support.idx_files import write_idx, write_mnist_part

from datamodules import MNIST, FashionMNIST, ImageDataModule, MissingDataError


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise URLError("Name or service not known")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)


def remove(root: Path, pattern: str) -> None:
    for path in (root / "MNIST" / "raw").glob(pattern):
        path.unlink()


@pytest.mark.parametrize("cls", [MNIST, FashionMNIST])
def test_files_are_read_as_they_are(tmp_path: Path, cls: type[ImageDataModule]) -> None:
    images, labels = write_mnist_part(tmp_path / cls.__name__ / "raw", prefix="t10k", count=30)
    data = cls(root=tmp_path)
    data.setup("test")
    fetched, targets = data.test_records.__getitems__(range(30))
    assert torch.equal(fetched, images.unsqueeze(1).float() / 127.5 - 1)
    assert fetched.shape[1:] == cls.image_shape
    assert torch.equal(targets, labels.long())


def test_ids_are_indices_in_the_official_file(mnist_root: Path) -> None:
    data = MNIST(root=mnist_root)
    data.setup("fit")
    train, validation = data.train_records, data.validation_records
    assert sorted([*train.ids.tolist(), *validation.ids.tolist()]) == list(range(200))
    assert torch.equal(train.labels, train.ids % 10)
    assert torch.equal(validation.labels, validation.ids % 10)


@pytest.mark.parametrize("state", ["absent", "garbage"])
def test_the_test_split_opens_without_the_training_files(mnist_root: Path, state: str) -> None:
    for path in (mnist_root / "MNIST" / "raw").glob("train-*"):
        path.unlink() if state == "absent" else path.write_bytes(b"private")
    data = MNIST(root=mnist_root)
    data.prepare_data()
    data.setup("test")
    assert sum(len(labels) for _, labels in data.test_dataloader()) == 50
    with pytest.raises(MissingDataError if state == "absent" else ValueError):
        data.setup("fit")


def test_missing_files_are_explained(mnist_root: Path) -> None:
    remove(mnist_root, "train-labels*")
    with pytest.raises(MissingDataError) as caught:
        MNIST(root=mnist_root).setup("fit")
    assert isinstance(caught.value, FileNotFoundError)
    assert caught.value.missing == ("train-labels-idx1-ubyte",)
    message = str(caught.value)
    for part in (
        str(mnist_root / "MNIST" / "raw"),
        "train-labels-idx1-ubyte",
        "--data.root",
        "--data.download true",
        "--data.dataset.download true",
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
    ):
        assert part in message
    assert "train-images" not in message and "Downloading was tried" not in message


def test_compressed_files_are_pointed_out(mnist_root: Path) -> None:
    path = mnist_root / "MNIST" / "raw" / "t10k-images-idx3-ubyte"
    path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    with pytest.raises(
        MissingDataError, match=r"Only compressed: t10k-images-idx3-ubyte.gz \(decompress with gunzip\)"
    ):
        MNIST(root=mnist_root).setup("test")


@pytest.mark.usefixtures("no_network")
def test_a_failed_download_is_explained(tmp_path: Path) -> None:
    data = MNIST(root=tmp_path, download=True)
    with pytest.raises(MissingDataError) as caught:
        data.prepare_data()
    message = str(caught.value)
    assert "Downloading was tried and failed" in message and "Name or service not known" in message
    assert "train-images-idx3-ubyte" in message and "--data.root" in message


@pytest.mark.usefixtures("no_network")
def test_what_is_there_is_not_downloaded(mnist_root: Path) -> None:
    data = MNIST(root=mnist_root, download=True)
    data.prepare_data()
    data.setup("fit")


def test_a_download_comes_from_the_mirrors_and_is_checked(
    tmp_path: Path, mnist_root: Path, site: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, address = site
    checksums = []
    for path in sorted((mnist_root / "MNIST" / "raw").iterdir()):
        archive = folder / f"{path.name}.gz"
        archive.write_bytes(gzip.compress(path.read_bytes()))
        checksums.append((archive.name, hashlib.md5(archive.read_bytes()).hexdigest()))
    monkeypatch.setattr(MNIST.source, "mirrors", [f"{address}gone/", address])
    monkeypatch.setattr(MNIST.source, "resources", checksums)
    data = MNIST(root=tmp_path / "fresh", download=True)
    data.prepare_data()
    data.setup("fit")
    assert len(data.train_records) + len(data.validation_records) == 200

    monkeypatch.setattr(MNIST.source, "resources", [(name, "0" * 32) for name, _ in checksums])
    with pytest.raises(MissingDataError, match="corrupted"):
        MNIST(root=tmp_path / "tampered", download=True).prepare_data()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t10k-images-idx3-ubyte", b"", "damaged or no IDX file"),
        ("t10k-images-idx3-ubyte", b"\x00\x00\x08\x03" + bytes(12) + b"\x01", "t10k-images-idx3-ubyte"),
        ("t10k-labels-idx1-ubyte", b"<html>not found</html>", "damaged or no IDX file"),
    ],
)
def test_damaged_files_are_named(mnist_root: Path, name: str, content: bytes, message: str) -> None:
    (mnist_root / "MNIST" / "raw" / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        MNIST(root=mnist_root).setup("test")


def test_files_of_another_data_set_are_refused(mnist_root: Path) -> None:
    folder = mnist_root / "MNIST" / "raw"
    write_idx(folder / "t10k-labels-idx1-ubyte", torch.zeros(49, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"50 images.*49 labels"):
        MNIST(root=mnist_root).setup("test")
    write_idx(folder / "t10k-labels-idx1-ubyte", torch.full((50,), 10, dtype=torch.uint8))
    with pytest.raises(ValueError, match="holds label 10, expected 0 to 9"):
        MNIST(root=mnist_root).setup("test")
    write_mnist_part(folder, prefix="t10k", count=50, size=32)
    with pytest.raises(ValueError, match=r"images of \(32, 32\), expected \(28, 28\)"):
        MNIST(root=mnist_root).setup("test")


def test_public_facts_need_no_files() -> None:
    for cls in (MNIST, FashionMNIST):
        assert (cls.num_classes, cls.image_shape, cls.num_records, len(cls.class_names)) == (
            10,
            (1, 28, 28),
            60_000,
            10,
        )
    assert FashionMNIST(root="nowhere").private_data == "FashionMNIST/train"
