"""Base class of all image data sets: public facts known without files, three splits, and their loaders."""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from http.client import HTTPException
from pathlib import Path
from typing import Any, Literal

import torch
from lightning import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader
from torchvision.datasets.utils import check_integrity

from datamodules.files import missing_data
from datamodules.records import ImageDataset, id_fraction
from privacy.checks import check_count
from privacy.ledger_place import DataHome
from privacy.processes import share_size

Part = Literal["train", "validation", "test"]

_STAGE_SPLITS: dict[str, tuple[Part, ...]] = {
    "fit": ("train", "validation"),
    "validate": ("validation",),
    "test": ("test",),
    "predict": ("test",),
}

Batches = DataLoader[tuple[Tensor, Tensor]]

#: Number of chosen classes up to which their names stand in the data set's.
_SPELLED_OUT = 4

#: Bytes of the batches that loader processes hold at a time, and of a batch for evaluation, whose features take more.
_IN_FLIGHT, _EVALUATED = 2**30, 2**26

#: Images per validation and test batch, fewer where they would take more than 64 MiB.
EVALUATED_AT_ONCE = 512

_NOT_OF_PARTITION = frozenset(
    {"self", "root", "batch_size", "num_workers", "download", "verify", "name"}
    | {"size", "channels", "resize", "bits", "preparation", "num_records", "classes", "settings"}
    | {"duplicates"}  # files carry it as an assumption
    | {"val_fraction"}  # held-out records are as private as training records
)


class ImageDataModule(LightningDataModule, ABC):
    """A labelled image data set, with splits for which a guarantee can be stated.

    ========== ============================================ ======================================================
    split      records                                      who may use them
    ========== ============================================ ======================================================
    train      the official training part, less validation  teachers only; this is what is protected
    validation `val_fraction` of the official training    the teacher's owner: private too, but not trained on
               part, by hash of the stable id, or person
    test       the official test part                       everyone: public by assumption
    ========== ============================================ ======================================================

    An official validation part (`official_validation`) is the validation split, and all of the training part is train.

    Opening the test split never reads the training part. Images are float32 in [-1, 1], labels int64 scalars.

    To add your own data set, derive from this class, state the attributes and write `read`. Set attributes that follow
    from settings in `__init__` before calling that of the base class. Keep each setting of your own as an attribute of
    the same name: it may decide which records are private, see `partition`. For a data set in files, `files` names
    them, and `read` opens what `require_files` returns within `datamodules.files.reading`, for messages, and makes
    records of arrays by `records_of_file`; see `MedMNIST`.

    Attributes:
        num_classes: c. Known when the object is built, without opening an image, like the next three.
        image_shape: (channels, height, width).
        num_records: Public size N of the private (official training) part, or a bound on it; a sound δ lies below 1/N.
            None if neither is known, which every guarantee then says.
        class_names: One name per class.
        class_aliases: Other names of the classes, which `classes` also accepts; may be empty.
        name: Name for results; by default that of the class.
        private_name: Name of the private data if several data sets are made of the same records; if empty, `name`.
        metrics: What is measured on held-out and test images: `accuracy`, and `auroc` if it is customary.
        official_validation: Whether `read` has a part `validation`.
        states_bound: Whether `num_records` is a bound stated by a user, so that N itself is not public.
        label_decides: Whether a record's label affects its id, its position or its participation, as it does if folders
            are classes or some classes are left out: a bound for labels does not hold for such data.
        kept_classes: Official positions of the classes that `classes` keeps, in its order; None keeps all.
        subfolder: Subfolder of `root` in which the files are expected.
        site: Where the files are available, for messages.
        downloadable: Whether `download` can fetch them.
        assumptions: What every guarantee about these data assumes besides.
    """

    num_classes: int
    image_shape: tuple[int, int, int]
    num_records: int | None
    class_names: tuple[str, ...]
    class_aliases: tuple[str, ...] = ()
    name: str
    private_name: str = ""
    metrics: tuple[str, ...] = ("accuracy",)
    official_validation: bool = False
    states_bound: bool = False
    label_decides: bool = False
    subfolder: str = ""
    site: str = ""
    downloadable: bool = True
    assumptions: tuple[str, ...] = ()

    def __init__(
        self,
        *,
        root: str | os.PathLike[str] = "data",
        batch_size: int = 128,
        val_fraction: float = 0.1,
        num_workers: int | None = None,
        download: bool = False,
        verify: bool = True,
        classes: Sequence[int | str] | None = None,
    ) -> None:
        """Stores the settings; no image is opened.

        Args:
            root: Folder that holds the data set's own folder. Data sets that come with a package ignore it.
            batch_size: Images per training batch.
            val_fraction: Share of the official training part that is held out for validation, between 0 and 1. Has no
                effect if there is an official validation part.
            num_workers: Loader processes. Default: none for images in memory, of which a batch is one index operation;
                else as many as torch has threads, at most 8, and only so many that their batches take at most 1 GiB.
            download: Fetch missing files from the data set's own site.
            verify: Compare files with their published MD5 sums, if any, before they are read.
            classes: Keep only these classes, by name or by position from 0 (names take precedence), and renumber them
                in the given order. The private data keep their name and ledger, which counts the runs of every choice.
        """
        super().__init__()
        if not 0 < val_fraction < 1:
            raise ValueError(f"val_fraction must lie between 0 and 1, both excluded, got {val_fraction}")
        self.root = Path(root).expanduser()
        self.batch_size = check_count("batch_size", batch_size, minimum=1)
        self.num_workers = None if num_workers is None else check_count("num_workers", num_workers)
        self.val_fraction = val_fraction
        self.download = download
        self.verify = verify
        self.name = getattr(self, "name", None) or type(self).__name__
        self._private_name = self.private_name or self.name
        self.official_classes = len(self.class_names)
        self.kept_classes: tuple[int, ...] | None = None
        if classes is not None:
            names, kept = self.class_names, _positions(self, classes)
            label = "-".join(re.sub(r"\W+", "_", names[one]) for one in sorted(kept))
            if len(kept) > _SPELLED_OUT:
                digest = hashlib.blake2b(repr(sorted(kept)).encode(), digest_size=4).hexdigest()
                label = f"{len(kept)}of{len(names)}-{digest}"
            self.kept_classes, self.num_classes = kept, len(kept)
            self.class_names, self.class_aliases = tuple(names[one] for one in kept), ()
            self.label_decides = True
            self.name = f"{self.name}-{label}"
        self._splits: dict[Part, ImageDataset] = {}
        self._numbered = False

    @property
    def private_data(self) -> str:
        """Public name of the training data, equal for two runs on the same private data.

        It is never a hash of content, which would reveal something about the private records. It does not depend on
        `classes`: a record may be in several choices, and one ledger must count the releases of all of them.
        """
        return f"{self._private_name}/train"

    @property
    def partition(self) -> dict[str, Any]:
        """Plain values that identify the private and the public records, kept in a teacher's file.

        `data`, the name; `place`, which identifies its folder if that holds no other data; `class_names`; `settings`,
        the chosen classes and every setting of a derived class that is not known to have no effect on the partition;
        `share`, for a client's data: the partition into clients and this client's number.
        """
        kinds = [kind for kind in type(self).__mro__ if issubclass(kind, ImageDataModule)]
        taken = {name for kind in kinds for name in inspect.signature(kind.__init__).parameters}
        settings = {name: getattr(self, name, None) for name in sorted(taken - _NOT_OF_PARTITION)}
        settings["classes"] = None if self.kept_classes is None else sorted(self.class_names)
        plain = json.loads(json.dumps(settings, default=lambda value: type(value).__qualname__))
        of_data = {"data": self._private_name, "place": None, "class_names": list(self.class_names)}
        return {**of_data, "settings": plain, "share": None}

    @property
    def home(self) -> DataHome | None:
        """What leads from the data to their ledger, if they are a user's own; None for the public data sets here."""
        return None if type(self).__module__.startswith("datamodules.") else DataHome(name=self.private_data)

    @abstractmethod
    def read(self, part: Part) -> ImageDataset:
        """Reads one official part, and nothing of the others, with the official classes.

        Ids must be stable: stored with the record, and unchanged when other records are removed. Classes outside
        `kept_classes` may be left out, which saves reading them.

        Args:
            part: `train` (including the records held out by `val_fraction`), `test`, or `validation` if there is one.

        Raises:
            MissingDataError: Its files are not there.
            ValueError: A file is not the published one, or not what its name says.
        """

    def records(self, part: Part) -> ImageDataset:
        """Returns one official part with the chosen classes.

        Raises:
            MissingDataError: Its files are not there.
            ValueError: It has no record of the chosen classes, or the private part has more records than stated.
        """
        records = self.read(part)
        if self.kept_classes is not None:
            labels = torch.full_like(records.labels, -1)
            for new, old in enumerate(self.kept_classes):
                labels[records.labels == old] = new
            if not (mask := labels >= 0).any():
                raise ValueError(f"classes={list(self.class_names)} leaves the {part} part of {self.name} empty")
            records = replace(records.select(mask), labels=labels[mask])
        if part == "train" and self.num_records is not None and len(records) > self.num_records:
            # A delta would be compared with too few.
            raise ValueError(
                f"num_records of {self.name} is {self.num_records}, and its private part holds {len(records)}"
            )
        return records

    # --- published files ---

    @property
    def folder(self) -> Path:
        """Folder in which the files are expected."""
        return self.root / self.subfolder

    def files(self, part: Part) -> dict[str, str | None]:
        """Names in `folder` of the files of one official part, each with its published MD5 sum, if any."""
        return {}

    def missing(self, part: Part) -> list[str]:
        """Names of `files(part)` that are missing."""
        return [name for name in self.files(part) if not (self.folder / name).is_file()]

    def download_files(self, part: Part, missing: Sequence[str]) -> None:
        """Downloads the missing files of `files(part)`; raises one of the errors that `fetch` expects if it fails."""
        raise OSError("there is no download")

    def fetch(self, part: Part) -> None:
        """Downloads the missing files of one official part, if the data set has files.

        Raises:
            MissingDataError: The download fails.
        """
        if not (missing := self.missing(part)):
            return
        try:
            self.download_files(part, missing)
        except (OSError, RuntimeError, HTTPException, EOFError, ImportError) as error:
            # A wrong checksum is a RuntimeError, a lost connection an HTTPException or EOFError; gdown may be missing.
            for name in missing:
                if (self.folder / name).is_file():
                    (self.folder / name).unlink()  # it may be incomplete
            raise missing_data(self, missing, further=[f"The download failed: {self.site}: {error}"]) from error

    def require_files(self, part: Part) -> list[Path]:
        """Paths of the files of one official part.

        Raises:
            MissingDataError: One is missing.
            ValueError: One is not the published file, and `verify` is set.
        """
        files = self.files(part)
        if missing := self.missing(part):
            raise missing_data(self, missing)
        for name, published in files.items():
            # Detects damage and mistakes, but no adversary.
            if self.verify and published is not None and not check_integrity(self.folder / name, published):
                raise ValueError(
                    f"{self.folder / name} has another MD5 sum than the published file: delete it and get it again, or "
                    "for a changed copy set verify to false (with SyntheticSteps --data.dataset.verify false)"
                )
        return [self.folder / name for name in files]

    def prepare_data(self) -> None:
        """Downloads what the coming stage needs, if `download` is set (called by Lightning, in one process)."""
        if not self.download:
            return
        stage = self.trainer.state.fn if self.trainer is not None else None
        for part in self._parts(_STAGE_SPLITS[stage] if stage is not None else ("train", "validation", "test")):
            self.fetch(part)

    def setup(self, stage: str) -> None:
        """Opens only the splits that `stage` needs.

        Args:
            stage: `fit` (train and validation), `validate` (validation), `test` or `predict` (test).

        Raises:
            ValueError: A split would be empty.
            MissingDataError: Files are missing.
        """
        needed = [split for split in _STAGE_SPLITS[stage] if split not in self._splits]
        for part in self._parts(needed):
            records = self.records(part)
            if part != "train" or self.official_validation:
                self._splits[part] = records
                continue
            deciding = records.ids if records.identities is None else records.identities
            held_out = id_fraction(deciding, purpose="validation") < self.val_fraction
            for split, mask in (("train", ~held_out), ("validation", held_out)):
                if split in needed:
                    if not mask.any():
                        raise ValueError(
                            f"val_fraction={self.val_fraction} leaves the {split} split of {self.name} empty"
                        )
                    self._splits[split] = records.select(mask)

    @property
    def train_records(self) -> ImageDataset:
        """The private training records; needs `setup("fit")`."""
        return self._opened("train", stage="fit")

    @property
    def validation_records(self) -> ImageDataset:
        """The records held out of training; needs `setup("fit")` or `setup("validate")`."""
        return self._opened("validation", stage="validate")

    @property
    def test_records(self) -> ImageDataset:
        """The public test records; needs `setup("test")`."""
        return self._opened("test", stage="test")

    def number_records(self) -> None:
        """Makes training batches carry each record's number, 0 to N-1, instead of its label.

        For direct training, in which only the mechanism sees labels and must know which records take part.
        """
        self._numbered = True

    @property
    def loaded_records(self) -> ImageDataset:
        """What training batches are loaded from: the training records, or these with their numbers as labels."""
        records = self.train_records
        return replace(records, labels=torch.arange(len(records))) if self._numbered else records

    def train_dataloader(self) -> Batches:
        """Returns shuffled training batches: images (B, C, H, W), labels (B,).

        The last, smaller batch is kept, so that every epoch has every record, unless BatchNorm would refuse it: of 1.

        Raises:
            ValueError: There are fewer records than a batch has.
        """
        records = self.loaded_records
        if self.batch_size > len(records):
            raise ValueError(
                f"batch_size must be at most the {len(records)} training records of {self.name}, got {self.batch_size}"
            )
        batch_size = share_size(self.batch_size, 1 if self.trainer is None else self.trainer.world_size)
        # Lightning gives all processes equally many records.
        own = -(-len(records) // (self.batch_size // batch_size))
        tail = own % batch_size
        return self.loader(records, batch_size, shuffle=True, drop_last=tail == 1 and own > 1)

    def val_dataloader(self) -> Batches:
        return self.loader(self.validation_records)

    def test_dataloader(self) -> Batches:
        return self.loader(self.test_records)

    def predict_dataloader(self) -> Batches:
        return self.test_dataloader()

    def loader(
        self, records: ImageDataset, batch_size: int | None = None, *, shuffle: bool = False, drop_last: bool = False
    ) -> Batches:
        """Returns batches of some records, by default in order and of the size of evaluation."""
        image, workers = 4 * math.prod(self.image_shape), self.num_workers
        size = batch_size or max(1, min(EVALUATED_AT_ONCE, _EVALUATED // image))
        if workers is None:
            held = max(1, min(8, torch.get_num_threads(), _IN_FLIGHT // (size * image)))
            workers = 0 if isinstance(records.images, Tensor) else held
        return DataLoader(
            records,
            batch_size=size,
            shuffle=shuffle,
            drop_last=drop_last,
            num_workers=workers,
            prefetch_factor=1 if workers else None,
            pin_memory=torch.cuda.is_available(),
            collate_fn=tuple,
        )

    def _parts(self, splits: Sequence[Part]) -> list[Part]:
        """Returns the official parts that contain `splits`; train and validation may share one."""
        shared: dict[str, Part] = {} if self.official_validation else {"validation": "train"}
        return list(dict.fromkeys(shared.get(split, split) for split in splits))

    def _opened(self, split: Part, *, stage: str) -> ImageDataset:
        if split not in self._splits:
            raise RuntimeError(f"the {split} split of {self.name} is not open: call setup({stage!r}) first")
        return self._splits[split]


def _positions(data: ImageDataModule, classes: Sequence[int | str]) -> tuple[int, ...]:
    """Finds classes by name, alias or position; names take precedence, even those made of digits.

    Raises:
        ValueError: A class does not exist, is given twice or shares its name with another one, or there are fewer
            than two classes.
    """
    known = {str(position): [position] for position in range(data.num_classes)}
    for titles in (data.class_aliases, data.class_names):
        known |= {title: [place for place, other in enumerate(titles) if other == title] for title in titles}
    kept = []
    for one in classes:
        if len(found := known.get(str(one), [])) != 1:
            listed = ", ".join(data.class_names[:20]) + (", ..." if data.num_classes > 20 else "")
            raise ValueError(
                f"classes must be names of one class each, or positions from 0 to {data.num_classes - 1} of "
                f"{data.name}'s classes ({listed}), got {one!r}"
            )
        kept += found
    if len({*kept}) < max(2, len(kept)):
        raise ValueError(f"classes must name at least 2 classes of {data.name}, each once, got {list(classes)}")
    return tuple(kept)
