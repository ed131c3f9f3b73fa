"""Published data sets of picture files: CelebA, ImageNet and COVIDx."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torchvision import datasets

from datamodules.base import Part
from datamodules.files import missing_data, reading
from datamodules.pictures import PictureDataModule, Preparation, class_folders, pictures_in, read_pictures
from datamodules.records import ImageDataset, id_fraction, ids_of_names
from privacy.checks import check_choice

_PARTS: dict[Part, int] = {"train": 0, "validation": 1, "test": 2}
_ATTRIBUTES, _PARTITION, _IDENTITIES = "list_attr_celeba.txt", "list_eval_partition.txt", "identity_CelebA.txt"
_PICTURES = "img_align_celeba"
_HAIR = ("Black_Hair", "Blond_Hair", "Brown_Hair")


class CelebA(PictureDataModule):
    """Celebrity faces, aligned and cropped by the authors (Liu et al. 2015): 162 770 private, 19 962 test.

    `task: gender` is CelebA-G, female and male by the attribute Male. `task: hair` is CelebA-H, black, blonde and
    brown; faces with none or several of these attributes are left out. The official partition is used; its validation
    part of 19 867 faces is held out, and private as well.

    Files are expected where torchvision puts them: `root/celeba/img_align_celeba/*.jpg` of 178×218 pixels and, next to
    that folder, `list_attr_celeba.txt`, `list_eval_partition.txt` and, for a model with `unit: person`,
    `identity_CelebA.txt`. The middle of a picture is cropped to a square, which keeps all hair, and downsized. A
    record's id is the number in its file name. The text files cover all parts; only lines of the requested part are
    kept.

    Both tasks use the same faces: the private data have one name and one ledger.
    """

    num_records = 162_770  # CelebA-H has fewer
    official_validation = True
    private_name = "CelebA"
    subfolder = str(datasets.CelebA.base_folder)
    site = "https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html"

    def __init__(self, *, task: Literal["gender", "hair"] = "gender", size: int = 64, **settings: Any) -> None:
        """Stores the settings; no file is touched.

        Args:
            task: The attribute to classify.
            size: Height and width of the images.
            settings: See `ImageDataModule`.
        """
        check_choice("task", task, ("gender", "hair"))
        self.task = task
        self.class_names = ("female", "male") if task == "gender" else ("black", "blonde", "brown")
        self.num_classes = len(self.class_names)
        self.name = "CelebA-G" if task == "gender" else "CelebA-H"
        self.label_decides = task == "hair"  # faces without one colour are left out
        super().__init__(preparation=Preparation(size=size, channels=3), **settings)

    def read(self, part: Part) -> ImageDataset:
        """Reads the pictures of one part that the task has a class for."""
        self.require_files(part)
        parts = self._table(_PARTITION)
        with reading(self.folder / _PARTITION, "table of names such as 000001.jpg and parts"):
            names = sorted(name for name, (number,) in parts.items() if number == _PARTS[part])
            ids = torch.tensor([int(name.partition(".")[0]) for name in names], dtype=torch.int64)
        files = [self.folder / _PICTURES / name for name in names]
        there = {file.name for file in (self.folder / _PICTURES).iterdir()}
        if not set(names) <= there:
            raise missing_data(self, [f"{_PICTURES}/{name}" for name in names if name not in there])
        labels, identities = self._labels(names), self._identities(names)
        images = read_pictures(files, self.preparation)
        everyone = ImageDataset(images=images, labels=labels.clamp_min(0), ids=ids, identities=identities)
        return everyone.at(torch.nonzero(labels >= 0).flatten()) if bool((labels < 0).any()) else everyone

    def files(self, part: Part) -> dict[str, str | None]:
        """See `ImageDataModule.files`; includes the identities if their file exists."""
        known = (self.folder / _IDENTITIES).is_file()
        there = {_ATTRIBUTES, _PARTITION, *([_IDENTITIES] if known else [])}
        return {name: published for _, published, name in datasets.CelebA.file_list if name in there}

    def missing(self, part: Part) -> list[str]:
        """See `ImageDataModule.missing`; the pictures count as well."""
        return super().missing(part) + ([] if (self.folder / _PICTURES).is_dir() else [f"{_PICTURES}/"])

    def download_files(self, part: Part, missing: Sequence[str]) -> None:
        """Downloads all parts by torchvision from Google Drive, which may refuse; checksums are verified."""
        datasets.CelebA(str(self.root), split="test", download=True)

    def _labels(self, names: list[str]) -> Tensor:
        """Labels (N,) int64; -1 for a face without a class in the task."""
        path = self.folder / _ATTRIBUTES
        rows = self._table(_ATTRIBUTES, skip=2)
        with reading(path, "table with the attributes in its second line, and a line for each face"):
            header = path.read_text(encoding="utf-8").splitlines()[1].split()
            columns = [header.index(name) for name in (("Male",) if self.task == "gender" else _HAIR)]
            has = torch.tensor([[rows[name][column] == 1 for column in columns] for name in names])
        if self.task == "gender":
            return has[:, 0].long()
        return torch.where(has.sum(dim=1) == 1, has.long().argmax(dim=1), -1)

    def _identities(self, names: list[str]) -> Tensor | None:
        path = self.folder / _IDENTITIES
        if not path.is_file():
            return None
        rows = self._table(_IDENTITIES)
        with reading(path, "table with a line for each face"):
            return torch.tensor([rows[name][0] for name in names], dtype=torch.int64)

    def _table(self, file: str, *, skip: int = 0) -> dict[str, list[int]]:
        """Reads a table as a dictionary from file names to the integers that follow them."""
        path = self.folder / file
        with reading(path, "table of names and whole numbers"):
            lines = filter(str.strip, path.read_text(encoding="utf-8").splitlines()[skip:])
            return {name: [int(word) for word in words] for name, *words in map(str.split, lines)}


_FOLDERS: dict[Part, str] = {"train": "train", "test": "val"}
_LARGEST_CLASS = 1300
_ALL_RECORDS = 1_281_167


class ImageNet(PictureDataModule):
    """ImageNet's 1000 classes, or those present (Russakovsky et al. 2015): `train` is private, `val` is the test part.

    Files are expected as `root/<folder>/train/<wnid>/*` and `root/<folder>/val/<wnid>/*`; labels of the official test
    part were never published. Classes are the folders, in the order of their WordNet ids, and have names if
    `LOC_synset_mapping.txt` (`n01440764 tench, Tinca tinca`) is next to `train`; `classes` takes either. A record's id
    is a hash of `<wnid>/<file name>`.

    No class of the official training part has more than 1300 images, which bounds `num_records` without counting.

    There is no automatic download: it needs an account at https://image-net.org, whose terms allow non-commercial
    research.
    """

    label_decides = True

    site = "https://image-net.org/download.php"
    downloadable = False

    def __init__(
        self, *, size: int = 64, resize: Literal["crop", "stretch"] = "crop", folder: str = "imagenet", **settings: Any
    ) -> None:
        """Lists the folders; no picture is opened.

        Args:
            size: Height and width of the images.
            resize: `crop` cuts a square from the middle, `stretch` squeezes the whole picture into one.
            folder: The data set's folder in `root`. With another name it is also the name of the data set.
            settings: See `ImageDataModule`.

        Raises:
            MissingDataError: Neither part exists.
            ValueError: A setting is out of range, or there are fewer than two classes.
        """
        if not folder or Path(folder).name != folder:
            raise ValueError(f"folder must be the name of a folder in root, got {folder!r}")
        self.subfolder = folder
        self.name = "ImageNet" if folder == "imagenet" else folder
        place = Path(settings.get("root", "data")).expanduser() / folder
        parts = [place / name for name in ("train", "val") if (place / name).is_dir()]
        if not parts:
            raise missing_data(self, ["train/", "val/"], folder=place)
        self.wnids = class_folders(parts)
        mapping = place / "LOC_synset_mapping.txt"
        lines = mapping.read_text(encoding="utf-8").splitlines() if mapping.is_file() else []
        names = {wnid: name.strip() for wnid, _, name in (line.partition(" ") for line in lines) if name.strip()}
        self.class_aliases = self.wnids
        self.class_names = tuple(names.get(wnid, wnid) for wnid in self.wnids)
        self.num_classes = len(self.wnids)
        self.num_records = min(_ALL_RECORDS, _LARGEST_CLASS * len(self.wnids))
        super().__init__(preparation=Preparation(size=size, channels=3, resize=resize), **settings)

    def read(self, part: Part) -> ImageDataset:
        """Reads the pictures of one part and of the chosen classes only."""
        self.require_files(part)
        return self.records_of(pictures_in(self.folder / _FOLDERS[part], self.wnids, labels=self.kept_labels))

    def missing(self, part: Part) -> list[str]:
        """See `ImageDataModule.missing`; the folders of the chosen classes."""
        folders = [f"{_FOLDERS[part]}/{self.wnids[label]}/" for label in self.kept_labels]
        return [folder for folder in folders if not (self.folder / folder).is_dir()]


_COVIDX_TEST_FRACTION = 0.2
_COVIDX_FOLDERS = ("COVID/images/", "Lung_Opacity/images/", "Normal/images/", "Viral Pneumonia/images/")


class COVIDx(PictureDataModule):
    """21 165 chest radiographs of 299×299 pixels in 4 classes (Chowdhury et al. 2020, Rahman et al. 2021).

    Files are expected as unpacked from Kaggle's "COVID-19 Radiography Database", `root/COVID-19_Radiography_Dataset/
    <class>/images/*.png`, with the classes COVID, Lung_Opacity, Normal and Viral Pneumonia; masks are not used.
    DPDFD calls it COVIDx and counts 19 700 images; `classes: [COVID, Lung_Opacity, Normal]` has 19 820. DPSD's COVIDx
    has eight categories, which these files do not.

    There is no official split. About 4 of 5 radiographs are private and 1 of 5 is for testing, by a hash of the file
    name, which is also the record's id. Several may be of one patient, which the database does not record.

    There is no automatic download, since Kaggle needs an account.
    """

    label_decides = True

    num_classes = 4
    num_records = 21_165  # all of them, which bounds the private part
    class_names = ("COVID", "Lung_Opacity", "Normal", "Viral Pneumonia")
    metrics = ("accuracy", "auroc")
    subfolder = "COVID-19_Radiography_Dataset"
    site = "https://www.kaggle.com/datasets/tawsifurrahman/covid19-radiography-database"
    downloadable = False

    def __init__(self, *, size: int = 64, channels: Literal[1, 3] = 1, **settings: Any) -> None:
        """Stores the settings; no file is touched.

        Args:
            size: Height and width of the images; the files are square.
            channels: 1, as radiographs are grey, or 3 equal ones, for a network that takes colour images.
            settings: See `ImageDataModule`.
        """
        super().__init__(preparation=Preparation(size=size, channels=channels), **settings)

    def read(self, part: Part) -> ImageDataset:
        """Reads the pictures of one part and of the chosen classes only."""
        self.require_files(part)
        listed = pictures_in(self.folder, _COVIDX_FOLDERS, labels=self.kept_labels)
        found = [one._replace(name=one.file.name) for one in listed]
        is_test = id_fraction(ids_of_names([one.name for one in found]), purpose="covidx-test") < _COVIDX_TEST_FRACTION
        kept = [one for one, test in zip(found, is_test.tolist(), strict=True) if test == (part == "test")]
        return self.records_of(kept)

    def missing(self, part: Part) -> list[str]:
        """See `ImageDataModule.missing`; the folders of the chosen classes."""
        folders = [_COVIDX_FOLDERS[label] for label in self.kept_labels]
        return [folder for folder in folders if not (self.folder / folder).is_dir()]
