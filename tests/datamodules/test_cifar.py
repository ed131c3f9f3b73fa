"""CIFAR-10 and CIFAR-100: the authors' files as they are, and no code of a file run."""

from __future__ import annotations

import hashlib
import pickle
import subprocess
import sys
import tarfile
import urllib.request
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
import torch
from support.data_files import write_cifar10, write_cifar100
from torchvision import datasets

from datamodules import CIFAR10, CIFAR100, MissingDataError
from datamodules.splits import ids_of_names

REAL = Path(__file__).parents[3] / "shared" / "data" / "CIFAR10" / "restore.py"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_cifar10(tmp_path)


def test_files_are_read_as_torchvision_reads_them(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.CIFAR10, "_check_integrity", lambda self: True)
    monkeypatch.setattr(datasets.CIFAR10, "_load_meta", lambda self: None)
    for part in ("train", "test"):
        theirs = datasets.CIFAR10(str(root), train=part == "train")
        ours = CIFAR10(root=root, verify=False).read("train" if part == "train" else "test")
        assert torch.equal(ours.images, torch.from_numpy(theirs.data).permute(0, 3, 1, 2))
        assert ours.labels.tolist() == theirs.targets
    fetched, _ = ours.__getitems__([0])
    assert torch.equal(fetched, ours.images[:1].float() / 127.5 - 1)


def test_fine_labels_are_read_of_cifar100(tmp_path: Path) -> None:
    records = CIFAR100(root=write_cifar100(tmp_path), verify=False).read("test")
    assert records.labels.tolist() == list(range(100))
    assert len(set(CIFAR100.class_names)) == 100 == CIFAR100.num_classes
    assert list(CIFAR100.class_names) == sorted(CIFAR100.class_names)


def test_ids_are_of_the_names_that_are_stored(root: Path) -> None:
    def ids() -> list[int]:
        found: list[int] = CIFAR10(root=root, verify=False).read("train").ids.tolist()
        return found

    before = ids()
    path = root / "cifar-10-batches-py" / "data_batch_2"
    content = pickle.loads(path.read_bytes())
    gone = int(ids_of_names([content["filenames"][7]]))
    for key in ("labels", "filenames"):
        del content[key][7]
    content["data"] = np.delete(content["data"], 7, axis=0)
    path.write_bytes(pickle.dumps(content, protocol=2))
    assert gone in before and set(before) - set(ids()) == {gone} and set(ids()) < set(before)


@pytest.mark.parametrize("state", ["absent", "garbage"])
def test_the_test_split_opens_without_the_training_files(root: Path, state: str) -> None:
    for path in (root / "cifar-10-batches-py").glob("data_batch_*"):
        path.unlink() if state == "absent" else path.write_bytes(b"private")
    data = CIFAR10(root=root, verify=False)
    data.setup("test")
    assert len(data.test_records) == 20
    with pytest.raises(MissingDataError if state == "absent" else ValueError):
        data.setup("fit")


def test_missing_files_are_named(root: Path) -> None:
    (root / "cifar-10-batches-py" / "data_batch_3").unlink()
    (root / "cifar-10-python.tar.gz").touch()
    with pytest.raises(
        MissingDataError, match=r"(?s)cifar-10-batches-py:\n  data_batch_3\n.*unpack with tar"
    ) as caught:
        CIFAR10(root=root).setup("fit")
    assert caught.value.missing == ("data_batch_3",) and "--data.download true" in str(caught.value)


def test_another_file_than_the_published_one_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = root / "cifar-10-batches-py" / "test_batch"
    found = hashlib.md5(path.read_bytes()).hexdigest()
    published = dict(datasets.CIFAR10.test_list)["test_batch"]
    with pytest.raises(
        ValueError, match=rf"test_batch has the MD5 sum {found}, and the published file has {published}"
    ):
        CIFAR10(root=root).setup("test")
    monkeypatch.setattr(datasets.CIFAR10, "test_list", [["test_batch", found]])
    CIFAR10(root=root).setup("test")  # the very same bytes, where they are the published ones


class Touching:
    """A pickle of it writes a file when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


def test_no_code_of_a_file_is_run(root: Path) -> None:
    marker = root / "marker"
    path = root / "cifar-10-batches-py" / "test_batch"
    path.write_bytes(pickle.dumps(Touching(marker), protocol=2))
    with pytest.raises(ValueError, match="it would call "):
        CIFAR10(root=root, verify=False).setup("test")
    assert not marker.exists()
    pickle.loads(path.read_bytes())
    assert marker.exists()  # what an ordinary reader would have done


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": np.zeros((20, 100), np.uint8)}, r"uint8 of \(20, 100\) as data, expected uint8 of \(N, 3072\)"),
        ({"labels": [0] * 19}, "a list `labels` of 20 values of int"),
        ({"labels": [10] * 20}, "labels outside 0 to 9"),
        ({"filenames": None}, "a list `filenames` of 20 values of str"),
    ],
)
def test_files_of_another_content_are_refused(root: Path, change: dict[str, Any], message: str) -> None:
    path = root / "cifar-10-batches-py" / "test_batch"
    path.write_bytes(pickle.dumps({**pickle.loads(path.read_bytes()), **change}, protocol=2))
    with pytest.raises(ValueError, match=message):
        CIFAR10(root=root, verify=False).setup("test")


@pytest.mark.parametrize("content", [b"", b"\x80\x02}q\x00(", b"<html>", pickle.dumps([1, 2], protocol=2)])
def test_damaged_files_are_named(root: Path, content: bytes) -> None:
    (root / "cifar-10-batches-py" / "test_batch").write_bytes(content)
    with pytest.raises(ValueError, match=r"test_batch is (damaged or )?no file of CIFAR"):
        CIFAR10(root=root, verify=False).setup("test")


def test_a_failed_download_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise URLError("Name or service not known")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    with pytest.raises(MissingDataError, match=r"(?s)cs\.toronto\.edu.*Name or service not known"):
        CIFAR10(root=tmp_path, download=True).prepare_data()


def test_a_download_is_unpacked_once(
    tmp_path: Path, root: Path, site: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, address = site
    archive = folder / "site.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(root / "cifar-10-batches-py", arcname="cifar-10-batches-py")
    monkeypatch.setattr(datasets.CIFAR10, "url", f"{address}{archive.name}")
    monkeypatch.setattr(datasets.CIFAR10, "tgz_md5", hashlib.md5(archive.read_bytes()).hexdigest())
    data = CIFAR10(root=tmp_path / "fresh", download=True, verify=False)
    data.prepare_data()
    data.setup("test")
    archive.unlink()
    data.prepare_data()  # what is there is not fetched again
    with pytest.raises(MissingDataError, match="Downloading was tried and failed"):
        CIFAR10(root=tmp_path / "other", download=True, verify=False).prepare_data()


@pytest.mark.skipif(not REAL.is_file(), reason="the real CIFAR-10 is not at hand")
@pytest.mark.slow
def test_the_real_files_are_the_published_ones(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(REAL), str(tmp_path)], check=True, capture_output=True)
    data = CIFAR10(root=tmp_path)
    data.setup("fit")
    data.setup("test")
    train = data.read_private()
    assert torch.equal(train.labels.bincount(), torch.full((10,), 5000)) and len(data.test_records) == 10_000
    assert train.images.float().mean(dim=(0, 2, 3)).div(255).tolist() == pytest.approx(
        [0.4914, 0.4822, 0.4465], abs=1e-4
    )
    assert [CIFAR10.class_names[label] for label in train.labels[:3].tolist()] == ["frog", "truck", "truck"]
    assert len(data.validation_records) == pytest.approx(5000, abs=300)
