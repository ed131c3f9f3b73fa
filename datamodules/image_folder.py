"""A user's own pictures, in one folder per class, without code."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from datamodules.base import Part
from datamodules.convert import TABLES
from datamodules.files import missing_data
from datamodules.pictures import (
    SUFFIXES,
    Picture,
    PictureDataModule,
    Preparation,
    alike_files,
    class_folders,
    pictures_in,
    same_files,
    sizes_and_channels,
    skipped_below,
    subfolders,
    thumbnails_of,
    warn_of_dark,
    warn_of_skipped,
)
from datamodules.records import ImageDataset, id_fraction, ids_of_names
from privacy.checks import check_count, look_up
from privacy.ledger_place import DataHome

_PARTS: tuple[Literal["train", "test"], ...] = ("train", "test")
_VALIDATION = ("val", "valid", "validation")


class ImageFolder(PictureDataModule):
    """Your own pictures, in one folder per class, which has the class's name.

    Either `root/train/CLASS/*` (private) and `root/test/CLASS/*` (public by assumption), of which one may be absent if
    it is not needed; or `root/CLASS/*` with `test_fraction`, where a hash of a picture's path in `root`, or its person,
    decides its part. Subfolders of a class's folder are searched as well. Pictures of any size become squares; see
    `Preparation`.

    Building the object lists the folders, and takes the size and channels that are not given from the public pictures
    in `test`; no other picture is opened. A record's id is a hash of its path, so a renamed picture is another record.
    Measurements and images of the test pictures are published, so these must not show anyone who is to be protected: a
    private picture that equals one of them, byte for byte, is refused when the private ones are read.
    """

    label_decides = True

    site = "your own pictures"
    downloadable = False

    def __init__(
        self,
        *,
        root: str | os.PathLike[str],
        size: int | None = None,
        channels: Literal[1, 3] | None = None,
        resize: Literal["crop", "stretch"] = "crop",
        bits: int = 16,
        test_fraction: float | None = None,
        person_pattern: str | None = None,
        name: str | None = None,
        num_records: int | None = None,
        duplicates: Literal["refuse", "allow"] = "refuse",
        **settings: Any,
    ) -> None:
        """Lists the folders.

        Args:
            root: The folder.
            size: Height and width of the images. Default: the shorter side of the pictures in `test`, if all have one
                size.
            channels: 1 for grey, 3 for colour. Default: 3 if a picture in `test` is in colour.
            resize: `crop` cuts a square from the middle, `stretch` squeezes the whole picture into one.
            bits: Number of bits used by 16-bit pictures, 12 for many radiographs.
            test_fraction: Share of the pictures for testing, if there are no folders `train` and `test`.
            person_pattern: Regular expression that is searched in a picture's path below its class's folder; the first
                group that matches identifies the person: `^(patient[0-9]+)_`, or `^([^/]+)/` for one folder per person.
                Splits then keep persons together. Pictures that it does not match are refused; with `|(.*)` at its
                end, each of them is its own person.
            name: Name of the private data in results and in their ledger; by default the folder's. Two folders of the
                same pictures need the same name, unless one is a copy made after the first use: the hidden file
                `.ledger.jsonl`, which each use leaves in the folder, leads to one ledger.
            num_records: A public bound on the number of private records. Default: the current number of pictures, which
                by itself reveals whether one was added; unknown if the private ones are not available.
            duplicates: `allow` trains on private pictures that are also in the public test part, which every guarantee
                then says.
            settings: See `ImageDataModule`.

        Raises:
            ValueError: The folder does not exist or has no folders with pictures, a setting is out of range, or it is
                unknown which pictures are for testing.
        """
        self.test_fraction = test_fraction
        self.person_pattern = person_pattern
        self.duplicates = duplicates
        try:
            groups = re.compile(person_pattern or "()").groups
        except re.error:
            groups = 0
        if not groups:
            raise ValueError(f"person_pattern must be a regular expression with a group, got {person_pattern!r}")
        place = Path(root).expanduser()
        self.name = name or place.resolve().name
        self._named = name or ""
        # Never how many there are, which is private.
        allowed = f"a private picture that is also in the public test part of {self.name} may be known"
        self.assumptions = look_up("duplicates", duplicates, {"refuse": (), "allow": (allowed,)})
        try:
            self._require_layout(place)
            parts = [part for part in _PARTS if test_fraction is None and (place / part).is_dir()]
            folders = [place / part for part in parts] or [place]
            self.class_names = self._official = class_folders(folders)
        except ValueError as error:
            raise ValueError(f"{error}{_conversion(place)}") from None
        self.num_classes = len(self.class_names)
        listed = [pictures_in(folder, self.class_names) for folder in folders]
        first = listed[0]
        #: Pictures of all classes, whichever are chosen, by part.
        self._listed: dict[Part, list[Picture]] = (
            dict(zip(parts, listed, strict=True)) if test_fraction is None else self._divided(first, test_fraction)
        )
        empty = sorted({*range(self.num_classes)} - {picture.label for picture in first})
        if empty:
            place = folders[0] / self.class_names[empty[0]]
            other = ", ".join(skipped_below(place))
            raise ValueError(f"{place} holds no pictures ({', '.join(sorted(SUFFIXES))}){other and f', but {other}'}")
        ignored = [] if self.test_fraction is not None else [one for one in subfolders(place) if one not in _PARTS]
        warn_of_skipped(place, further=[f"folder {name}" for name in ignored], more=" ".join(_val_as_test(place)))
        self.states_bound = num_records is not None
        bound = None if parts == ["test"] else len(first)
        self.num_records = bound if num_records is None else check_count("num_records", num_records, minimum=1)
        if size is None or channels is None:
            size, channels = self._size_and_channels(place, size, channels)
        preparation = Preparation(size=size, channels=channels, resize=resize, bits=bits)
        super().__init__(preparation=preparation, root=place, **settings)

    @property
    def home(self) -> DataHome:
        """The folder, and those below it or elsewhere that hold private pictures; equal names are equal data."""
        private = [one for part, one in self._listed.items() if part == "train" or self.test_fraction is not None]
        files = [picture.file for pictures in private for picture in pictures]
        held = {(file.resolve() if file.is_symlink() else file).parent for file in files}
        return DataHome((self.root, *sorted(held)), name=f"{self._named}/train" if self._named else "")

    def read(self, part: Part) -> ImageDataset:
        """Reads the pictures of one part."""
        if part not in self._listed:
            raise missing_data(self, [f"{part}/"], folder=self.root, further=_val_as_test(self.root))
        kept = self.kept_labels
        pictures = [picture for picture in self._listed[part] if picture.label in kept]
        if not pictures:
            raise ValueError(f"{self.root} has no pictures for its {part} part: add some, or change test_fraction")
        other = (self.root / ("test" if part == "train" else "train")).resolve()
        for picture in pictures if self.test_fraction is None else ():
            if os.path.realpath(picture.file).startswith(f"{other}{os.sep}"):
                raise ValueError(f"{picture.file} is a link into {other.name}: a picture is either private or public")
        identities = self._identities(pictures)
        self._warn_of_rare(part, pictures)
        if part == "test":
            if self.preparation.bits == 16:
                warn_of_dark([picture.file for picture in pictures[:20]])
            return self.records_of(pictures, identities=identities)
        public = self._listed.get("test", [])
        if same := same_files([picture.file for picture in pictures], published := [one.file for one in public]):
            said = f"{len(same)} private pictures of {self.name} are also in its public test part, like {same[0][0]}"
            if self.duplicates == "refuse":
                raise ValueError(f"{said} in {same[0][1]}: take them out of one, or set duplicates to allow")
            rank_zero_warn(said)
        known = self._identities(public)
        if identities is not None and known is not None and (shared := torch.isin(identities, known)).any():
            whose = pictures[int(shared.nonzero()[0])].file
            raise ValueError(f"the person of {whose} has pictures in test as well, which are public")
        records = self.records_of(pictures, identities=identities)
        known = thumbnails_of(records)
        try:
            if alike := list(alike_files(published, known, self.preparation)):
                said = f"{alike[0][0]} like {pictures[alike[0][1]].file}: take copies out of one of the parts"
                rank_zero_warn(f"{len(alike)} public test pictures of {self.name} look like private ones, {said}")
        except ValueError as error:
            rank_zero_warn(f"public test pictures were not searched for copies of private ones: {error}")
        return records

    def _warn_of_rare(self, part: Part, pictures: Sequence[Picture]) -> None:
        """Names classes of which there is too little to learn or to measure."""
        here, shown = (Counter(one.label for one in some) for some in (pictures, self._listed.get("test", pictures)))
        if part == "train" and (rare := [self._official[label] for label in self.kept_labels if here[label] < 2]):
            rank_zero_warn(f"{self.root} has at most one training picture of {', '.join(rare)}: it cannot be learnt")
        if unseen := [self._official[label] for label in self.kept_labels if not shown[label]]:
            rank_zero_warn(f"{self.root} has no test picture of {', '.join(unseen)}: the accuracy leaves these out")

    def _divided(self, everything: list[Picture], test_fraction: float) -> dict[Part, list[Picture]]:
        """Divides the pictures by `test_fraction`: by the hash of each one's path, or its person."""
        deciding = self._identities(everything)
        deciding = ids_of_names([picture.name for picture in everything]) if deciding is None else deciding
        is_test = (id_fraction(deciding, purpose="folder-test") < test_fraction).tolist()
        drawn = list(zip(everything, is_test, strict=True))
        return {part: [one for one, test in drawn if test == (part == "test")] for part in _PARTS}

    def _identities(self, pictures: Sequence[Picture]) -> Tensor | None:
        """Hashes (N,) int64 of the persons that `person_pattern` finds; None without a pattern."""
        if self.person_pattern is None:
            return None
        persons = []
        for picture in pictures:
            found = re.search(self.person_pattern, picture.name.partition("/")[2])
            persons.append(next(filter(None, found.groups()), "") if found else "")
            if not persons[-1]:
                raise ValueError(
                    f"person_pattern {self.person_pattern!r} does not match {picture.file}: rename it, or add |(.*) to "
                    "the pattern, which makes each such picture its own person"
                )
        known = sorted(set(persons))
        ids = dict(zip(known, ids_of_names(known).tolist(), strict=True))
        return torch.tensor([ids[person] for person in persons], dtype=torch.int64)

    def _size_and_channels(
        self, place: Path, size: int | None, channels: Literal[1, 3] | None
    ) -> tuple[int, Literal[1, 3]]:
        """Fill in size and channels from the test pictures: opening private ones would be an unaccounted query."""
        if self.test_fraction is not None:
            # A teacher may have used another fraction, so that no picture is known to be public.
            raise ValueError("size and channels must be given with test_fraction (--data.size 64 --data.channels 3)")
        files = [picture.file for picture in self._listed.get("test", [])]
        sizes, found = sizes_and_channels(files)
        how = "(--data.size 64, with SyntheticSteps or PoissonSampled --data.dataset.size)"
        if not files:
            hints = "".join(f". {hint}" for hint in _val_as_test(place))
            raise ValueError(
                f"{place}/test/CLASS has no pictures. Students need public ones there, a folder for each class, in the "
                f"teacher's order. To train a teacher without them, set size and channels {how}{hints}"
            )
        if size is None and len(sizes) > 1:
            most = ", ".join(f"{number} of {width} x {height}" for (width, height), number in sizes.most_common(3))
            raise ValueError(f"{place} has test pictures of {len(sizes)} sizes ({most}): set size {how}")
        return min(next(iter(sizes))) if size is None else size, channels or found

    def _require_layout(self, place: Path) -> None:
        if not place.is_dir():
            raise ValueError(f"root {place} is not a folder: give the one that holds your pictures")
        found = subfolders(place)
        has_parts = any(part in found for part in _PARTS)
        if self.test_fraction is None and has_parts:
            return
        if self.test_fraction is None:
            raise ValueError(
                f"{place} has no folders train and test ({_some(found)}): sort them into train/CLASS, which are "
                "private, and test/CLASS, which are public. To train a teacher, test_fraction 0.2 divides them"
            )
        if not 0 < self.test_fraction < 1:
            raise ValueError(f"test_fraction must lie between 0 and 1, both excluded, got {self.test_fraction}")
        if set(found) <= {*_PARTS, *_VALIDATION} and has_parts:
            raise ValueError(f"{place} has folders for its parts ({_some(found)}): leave test_fraction out")


def _val_as_test(place: Path) -> list[str]:
    """What to do about a folder for validation where none is for testing."""
    found = [name for name in _VALIDATION if (place / name).is_dir() and not (place / "test").is_dir()]
    return [f"If {name} may be public, make it the test part: mv {place / name} {place / 'test'}" for name in found]


def _conversion(place: Path) -> str:
    """How to sort pictures into folders that a table names or holds, if there is one."""
    files = [place] if place.is_file() else sorted(place.rglob("*"))
    table = next((file for file in files if file.suffix in TABLES), None)
    if table is None:
        return ""
    install = "" if table.suffix in (".csv", ".tsv", ".npz") else "pip install pyarrow; "
    command = f"{install}python -m datamodules.convert {table} {place.with_suffix('')}_by_class"
    return f". {table.name} is a table of pictures; this sorts them by class: {command}"


def _some(names: Sequence[str]) -> str:
    return f"its folders are {', '.join(names[:10]) or 'none'}{', ...' if len(names) > 10 else ''}"
