"""Data sets in files as their authors publish them: what holds for all, then what is special to one."""

from __future__ import annotations

import hashlib
import io
import pickle
import shutil
import urllib.request
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from medmnist import INFO
from PIL import Image
from support.data_files import (
    WNIDS,
    write_celeba,
    write_cifar10,
    write_cifar100,
    write_imagenet,
    write_medmnist,
    write_mnist,
    write_radiographs,
    write_svhn,
)
from torchvision import datasets

from datamodules import (
    CIFAR10,
    CIFAR100,
    MNIST,
    SVHN,
    CelebA,
    COVIDx,
    FashionMNIST,
    ImageDataModule,
    ImageNet,
    MedMNIST,
    MissingDataError,
    SyntheticSteps,
)
from datamodules.records import id_fraction, ids_of_names


@dataclass(frozen=True)
class Family:
    """A data set and its files.

    Attributes:
        write: Writes them into a folder.
        build: The data set, given its folder.
        facts: num_classes, image_shape, num_records.
        sizes: Records of the private part, of the validation part where there is an official one, and of the test part.
        private: Pattern of the files that only the private parts need.
        test: A file of the test part.
        site: Part of the address in messages.
    """

    write: Callable[[Path], object]
    build: Callable[..., ImageDataModule]
    facts: tuple[int, tuple[int, int, int], int]
    sizes: tuple[int, int, int]
    private: str
    test: str
    site: str


FAMILIES = {
    "CIFAR10": Family(write_cifar10, partial(CIFAR10, verify=False), (10, (3, 32, 32), 50_000), (200, 0, 20),
                      "cifar-10-batches-py/data_batch_*", "cifar-10-batches-py/test_batch", "toronto.edu"),
    "CIFAR100": Family(write_cifar100, partial(CIFAR100, verify=False), (100, (3, 32, 32), 50_000), (200, 0, 100),
                       "cifar-100-python/train", "cifar-100-python/test", "toronto.edu"),
    "SVHN": Family(write_svhn, partial(SVHN, verify=False), (10, (3, 32, 32), 73_257), (60, 0, 20),
                   "SVHN/train_32x32.mat", "SVHN/test_32x32.mat", "stanford.edu"),
    "MNIST": Family(write_mnist, MNIST, (10, (1, 28, 28), 60_000), (200, 0, 50),
                    "MNIST/raw/train-*", "MNIST/raw/t10k-images-idx3-ubyte", "ossci-datasets"),
    "FashionMNIST": Family(partial(write_mnist, name="FashionMNIST"), FashionMNIST, (10, (1, 28, 28), 60_000),
                           (200, 0, 50), "FashionMNIST/raw/train-*", "FashionMNIST/raw/t10k-labels-idx1-ubyte",
                           "fashion"),
    "PneumoniaMNIST": Family(write_medmnist, partial(MedMNIST, verify=False), (2, (1, 28, 28), 4708), (60, 20, 30),
                             "", "medmnist/pneumoniamnist.npz", "zenodo"),
    "CelebA-G": Family(write_celeba, partial(CelebA, verify=False, size=16), (2, (3, 16, 16), 162_770), (60, 20, 30),
                       "celeba/img_align_celeba/0000[0-7]?.jpg", "celeba/img_align_celeba/000100.jpg", "mmlab"),
    "COVIDx": Family(write_radiographs, partial(COVIDx, size=16), (4, (1, 16, 16), 21_165), (96, 0, 24),
                     "", "COVID-19_Radiography_Dataset/Normal/images/Normal-12.png", "kaggle.com"),
    "ImageNet": Family(write_imagenet, partial(ImageNet, size=16), (3, (3, 16, 16), 3900), (36, 0, 15),
                       "imagenet/train/*/*", f"imagenet/val/{WNIDS[0]}/ILSVRC2012_val_00000000.JPEG", "image-net.org"),
}  # fmt: skip
each_family = pytest.mark.parametrize("name", FAMILIES)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Files of each family, written once."""
    made = {}
    for name, family in FAMILIES.items():
        made[name] = tmp_path_factory.mktemp(name)
        family.write(made[name])
    return made


@pytest.fixture
def copied(written: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    """Files of a family that a test may change."""
    return lambda name: shutil.copytree(written[name], tmp_path / "data", dirs_exist_ok=True)


@each_family
def test_splits_are_disjoint_of_the_stated_kind_and_the_same_each_time(name: str, written: dict[str, Path]) -> None:
    family = FAMILIES[name]
    facts = family.build(root="nowhere") if name != "ImageNet" else family.build(root=written[name])
    assert (facts.num_classes, facts.image_shape, facts.num_records) == family.facts
    assert (facts.name, facts.private_data) == (name, f"{name.removesuffix('-G')}/train")
    assert len(set(facts.class_names)) == facts.num_classes
    opened = []
    for _ in range(2):
        data = family.build(root=written[name])
        data.setup("fit")
        data.setup("test")
        opened.append([data.train_records, data.validation_records, data.test_records])
    private, held_out, test = family.sizes
    sizes = [len(records) for records in opened[0]]
    assert min(sizes) > 0 and sum(sizes) == private + held_out + test
    assert sizes[2] == test or name == "COVIDx"
    for first, second in zip(*opened, strict=True):
        assert torch.equal(first.images, second.images) and torch.equal(first.ids, second.ids)
        images, labels = first.__getitems__(range(len(first)))
        assert torch.equal(images, first.images.float() / 127.5 - 1) and images.shape[1:] == family.facts[1]
        assert images.std() > 0.01
        assert labels.dtype == torch.int64 and labels.min() >= 0 and labels.max() < family.facts[0]
    train, validation, tested = (set(records.ids.tolist()) for records in opened[0])
    by_name = name in ("CIFAR10", "CIFAR100", "ImageNet", "CelebA-G", "COVIDx")  # others count within their part
    assert not (train & validation and name != "PneumoniaMNIST") and not (by_name and (train | validation) & tested)


@each_family
@pytest.mark.parametrize("state", ["absent", "garbage"])
def test_the_test_split_opens_without_the_private_files(name: str, state: str, copied: Callable[[str], Path]) -> None:
    family = FAMILIES[name]
    if not family.private:
        pytest.skip("its parts are in the same files, or chosen by their names")
    root = copied(name)
    files = list(root.glob(family.private))
    assert files
    for path in files:
        path.unlink() if state == "absent" else path.write_bytes(b"private")
    data = SyntheticSteps(dataset=family.build(root=root))
    data.setup("fit")
    assert len(data.dataset.test_records) == family.sizes[2]
    with pytest.raises((MissingDataError, ValueError)):
        data.dataset.setup("fit")


@each_family
def test_missing_and_damaged_files_are_named(name: str, copied: Callable[[str], Path], tmp_path: Path) -> None:
    family, root = FAMILIES[name], copied(name)
    for content in (b"", b"<html>not found</html>"):
        (root / family.test).write_bytes(content)
        with pytest.raises(ValueError, match=Path(family.test).name):
            family.build(root=root).setup("test")
    with pytest.raises(MissingDataError, match=rf"(?s)missing in .*--data\.root.*{family.site}") as caught:
        family.build(root=tmp_path / "nowhere").setup("test")
    assert isinstance(caught.value, FileNotFoundError)
    assert ("download true" in str(caught.value)) is (name not in ("COVIDx", "ImageNet"))


@pytest.mark.parametrize("name", ["SVHN", "CelebA-G", "PneumoniaMNIST"])
def test_other_files_than_the_published_ones_are_refused(name: str, written: dict[str, Path]) -> None:
    """Those of which the sum is stated are read below, after a download."""
    with pytest.raises(ValueError, match="has another MD5 sum"):
        FAMILIES[name].build(root=written[name], verify=True).setup("fit")


class Response(io.BytesIO):
    """What a server sends, as urllib hands it on."""

    url = length = None


def test_a_download_is_checked_and_made_once(
    written: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written["SVHN"] / FAMILIES["SVHN"].test
    data = SVHN(root=tmp_path, download=True)
    monkeypatch.setattr(urllib.request, "urlopen", lambda _: Response(file.read_bytes()))
    monkeypatch.setitem(datasets.SVHN.split_list, "test", ["https://site", file.name, "0" * 32])
    with pytest.raises(MissingDataError, match="corrupted"):
        data.fetch("test")
    assert not (tmp_path / FAMILIES["SVHN"].test).exists()
    md5 = hashlib.md5(file.read_bytes()).hexdigest()
    monkeypatch.setitem(datasets.SVHN.split_list, "test", ["https://site", file.name, md5])
    data.fetch("test")
    monkeypatch.setattr(urllib.request, "urlopen", None)
    data.fetch("test")  # what is there is not fetched again
    data.setup("test")
    assert len(data.test_records) == FAMILIES["SVHN"].sizes[2]


@pytest.mark.parametrize("name", ["CIFAR10", "COVIDx", "ImageNet"])
def test_a_record_that_goes_changes_no_other(name: str, copied: Callable[[str], Path]) -> None:
    root = copied(name)
    before = FAMILIES[name].build(root=root).read("train")
    if name == "CIFAR10":
        path = root / "cifar-10-batches-py" / "data_batch_2"
        content = pickle.loads(path.read_bytes())
        gone = content["filenames"][7]
        for key in ("labels", "filenames"):
            del content[key][7]
        content["data"] = np.delete(content["data"], 7, axis=0)
        path.write_bytes(pickle.dumps(content, protocol=2))
    else:
        assert before.names is not None
        gone = before.names[7]
        next(root.rglob(f"*/{gone}")).unlink()
    after = FAMILIES[name].build(root=root).read("train")
    assert {*before.ids.tolist()} - {*after.ids.tolist()} == {*ids_of_names([gone]).tolist()}
    assert {*after.ids.tolist()} < {*before.ids.tolist()}


@pytest.mark.parametrize("name", ["CIFAR10", "SVHN"])
def test_files_are_read_as_torchvision_reads_them(
    name: str, written: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets.CIFAR10, "_check_integrity", lambda self: True)
    monkeypatch.setattr(datasets.CIFAR10, "_load_meta", lambda self: None)
    monkeypatch.setattr(datasets.SVHN, "_check_integrity", lambda self: True)
    ours = FAMILIES[name].build(root=written[name]).read("train")
    if name == "CIFAR10":
        theirs = datasets.CIFAR10(str(written[name]), train=True)
        images, labels = torch.from_numpy(theirs.data).permute(0, 3, 1, 2), theirs.targets
    else:
        house = datasets.SVHN(str(written[name] / "SVHN"), split="train")
        images, labels = torch.from_numpy(house.data), house.labels.tolist()
        assert ours.labels[:11].tolist() == [*range(10), 0]  # the digit 0, which the file calls 10
    assert torch.equal(ours.images, images) and ours.labels.tolist() == labels


class Touching:
    """A pickle of it writes a file when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


def test_no_code_of_a_file_is_run(copied: Callable[[str], Path]) -> None:
    root = copied("CIFAR10")
    marker, path = root / "marker", root / "cifar-10-batches-py" / "test_batch"
    path.write_bytes(pickle.dumps(Touching(marker), protocol=2))
    with pytest.raises(ValueError, match="it would call "):
        CIFAR10(root=root, verify=False).setup("test")
    assert not marker.exists()
    pickle.loads(path.read_bytes())
    assert marker.exists()  # what an ordinary reader would have done


# --- MedMNIST ---


def test_facts_of_medmnist_are_the_package_s() -> None:
    data = MedMNIST(root="nowhere", subset="pathmnist", size=64)
    assert (data.num_classes, data.image_shape, data.num_records) == (9, (3, 64, 64), 89_996)
    assert (data.class_names[0], data.name, data.file.name) == ("adipose", "PathMNIST", "pathmnist_64.npz")
    assert data.metrics == ("accuracy", "auroc")
    assert MedMNIST(subset="pathmnist").private_data == data.private_data  # the same records, smaller
    for subset in (name for name in INFO if not name.endswith("3d") and name != "chestmnist"):
        data = MedMNIST(subset=subset)
        assert data.num_classes == len(data.class_names) == len(INFO[subset]["label"]) >= 2


def test_colour_of_medmnist_comes_channels_first(tmp_path: Path) -> None:
    write_medmnist(tmp_path, subset="bloodmnist", channels=3, classes=8, size=64)
    data = MedMNIST(root=tmp_path, subset="bloodmnist", size=64)
    with np.load(tmp_path / "medmnist" / "bloodmnist_64.npz") as arrays:
        assert np.array_equal(data.read("test").images, arrays["test_images"].transpose(0, 3, 1, 2))


def test_the_test_part_of_medmnist_is_read_by_itself(copied: Callable[[str], Path]) -> None:
    root = copied("PneumoniaMNIST")
    path = root / "medmnist" / "pneumoniamnist.npz"
    with zipfile.ZipFile(path) as archive:
        kept = {name: archive.read(name) for name in archive.namelist() if name.startswith("test")}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in kept.items():
            archive.writestr(name, content)
    data = MedMNIST(root=root, verify=False)
    data.setup("test")
    with pytest.raises(ValueError, match="damaged or no file of MedMNIST"):
        data.setup("fit")


# --- CelebA ---


def celeba(root: Path, **settings: Any) -> CelebA:
    data = CelebA(root=root, verify=False, **{"size": 16, **settings})
    data.setup("fit")
    data.setup("test")
    return data


def test_both_tasks_of_celeba_are_of_the_same_faces(copied: Callable[[str], Path]) -> None:
    root = copied("CelebA-G")
    gender = celeba(root)
    hair = celeba(root, task="hair")
    assert torch.equal(gender.train_records.labels, (gender.train_records.ids - 1) % 2)
    assert (gender.class_names, hair.name) == (("female", "male"), "CelebA-H")
    assert (hair.class_names, hair.num_classes) == (("black", "blonde", "brown"), 3)
    assert gender.private_data == hair.private_data == "CelebA/train"
    # Of five faces one has no colour of hair and one has two: they are left out.
    assert torch.equal(hair.train_records.labels, (hair.train_records.ids - 1) % 5) and len(hair.train_records) == 36
    rows = torch.isin(gender.train_records.ids, hair.train_records.ids)
    assert torch.equal(gender.train_records.images[rows], hair.train_records.images)


def test_whose_a_face_is_stands_in_the_file_of_identities(copied: Callable[[str], Path]) -> None:
    root = copied("CelebA-G")
    data = celeba(root)
    assert data.train_records.identities is not None
    assert torch.equal(data.train_records.identities, 10 + (data.train_records.ids - 1) // 3)
    (root / "celeba" / "identity_CelebA.txt").unlink()
    assert celeba(root).train_records.identities is None


# --- COVIDx and ImageNet ---


def test_masks_and_left_out_classes_are_not_read(copied: Callable[[str], Path]) -> None:
    root = copied("COVIDx")
    shutil.rmtree(root / "COVID-19_Radiography_Dataset" / "Viral Pneumonia")
    data = COVIDx(root=root, size=16, classes=["COVID", "Lung_Opacity", "Normal"])
    data.setup("fit")
    data.setup("test")
    assert (data.num_classes, data.name) == (3, "COVIDx-COVID-Lung_Opacity-Normal")
    assert (data.records("train").labels.bincount() + data.test_records.labels.bincount()).tolist() == [30] * 3
    with pytest.raises(MissingDataError, match=r"(?s)Dataset:\n  Viral Pneumonia/images/\n"):
        COVIDx(root=root).setup("fit")
    colour = COVIDx(root=root, size=16, channels=3, classes=["COVID", "Lung_Opacity", "Normal"]).read("test")
    assert torch.equal(data.test_records.images.expand(-1, 3, -1, -1), colour.images)
    official = ids_of_names([f"Normal-{number}.png" for number in range(1, 10_193)])
    assert float((id_fraction(official, purpose="covidx-test") < 0.2).double().mean()) == pytest.approx(0.2, abs=0.012)


def test_classes_of_imagenet_are_its_folders(copied: Callable[[str], Path], tmp_path: Path) -> None:
    root = copied("ImageNet")
    data = ImageNet(root=root, size=64)
    data.setup("test")
    assert data.wnids == WNIDS and data.class_names[0] == "tench, Tinca tinca"
    assert data.test_records.labels.bincount().tolist() == [5] * 3
    photograph = Image.open(sorted((root / "imagenet" / "val" / WNIDS[0]).iterdir())[0])
    left = (photograph.width - 90) // 2
    expected = photograph.crop((left, 0, left + 90, 90)).resize((64, 64), Image.Resampling.BILINEAR)
    assert np.array_equal(data.test_records.images[0].permute(1, 2, 0).numpy(), np.asarray(expected))
    (root / "imagenet" / "LOC_synset_mapping.txt").write_text(f"{WNIDS[1]} English springer\n")
    assert ImageNet(root=root).class_names == (WNIDS[0], "English springer", WNIDS[2])
    for number in range(1000):
        (tmp_path / "all" / "imagenet" / "val" / f"n{number:08d}").mkdir(parents=True)
    whole = ImageNet(root=tmp_path / "all")
    assert (whole.num_classes, whole.num_records) == (1000, 1_281_167)
    part = ImageNet(root=write_imagenet(tmp_path / "part", folder="imagenette"), folder="imagenette")
    assert part.private_data == "imagenette/train"
