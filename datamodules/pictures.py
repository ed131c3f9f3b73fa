"""Decodes picture files of any size, in one folder per class."""

from __future__ import annotations

import hashlib
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_warn
from PIL import Image, ImageOps
from torch import Tensor
from torch.nn import functional

from datamodules.base import ImageDataModule
from datamodules.files import imported
from datamodules.mapped import MappedRecords
from datamodules.progress import tracked
from datamodules.records import ImageDataset, Partition, PartitionError, ids_of_names
from privacy.checks import check_choice, check_count, check_number

SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jp2", ".png", ".webp", ".avif", ".bmp", ".tif", ".tiff", ".gif", ".ppm", ".pgm", ".dcm"}
)
"""Lower-case endings of file names that count as pictures; `.dcm` (DICOM) needs the extra `dicom`."""

_NOTES = frozenset({"", ".txt", ".md", ".csv", ".tsv", ".json", ".xml", ".html", ".ini", ".db"})
"""Endings of files that nobody takes for pictures."""

_LEFTOVERS = "__MACOSX"
"""Folder that macOS adds to archives, with a file for each picture that is none."""

Pixels = np.ndarray[Any, np.dtype[np.uint8]]

#: Bytes up to which pictures are decoded once, and kept.
_IN_MEMORY = 2**30
_PIECE = 1024
_WORTH_A_BAR = 5000
#: Height and width of thumbnails, the correlation above which two are alike, and how many are compared at once.
_SIDES, _ALIKE, _COMPARED = (18, 18), 0.998, 64


@dataclass(frozen=True)
class Preparation:
    """Conversion of a picture to an image of a data set.

    It is turned upright by its EXIF orientation, cropped or stretched to a square, and resized by Pillow's bilinear
    filter, which averages over all pixels when it shrinks. With one channel, a colour picture becomes its luma; with
    three, a grey picture gets three equal ones. Transparency is dropped, and an animation's first picture is used.

    Attributes:
        size: Resulting height and width.
        channels: 1 or 3.
        resize: `crop` cuts a square from the middle, `stretch` squeezes the whole picture into one.
        bits: Number of bits used by 16-bit pictures (12 for many radiographs); the lowest are dropped.
    """

    size: int
    channels: int
    resize: Literal["crop", "stretch"] = "crop"
    bits: int = 16

    def __post_init__(self) -> None:
        check_count("size", self.size, minimum=1)
        if self.channels not in (1, 3):
            raise ValueError(f"channels must be 1 (grey) or 3 (colour), got {self.channels!r}")
        check_choice("resize", self.resize, ("crop", "stretch"))
        check_number("bits", self.bits, least=8, most=16)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width)."""
        return (self.channels, self.size, self.size)

    def __call__(self, path: Path) -> Pixels:
        """Returns the picture as (C, H, W) uint8.

        Raises:
            ValueError: It is not a picture, is damaged, or holds pixels whose range is not known.
        """
        with _opened(path) as picture:
            # Lets a JPEG be decoded at 1/8 to 1/2 of its size, but at least twice the needed one.
            picture.draft(picture.mode, (2 * self.size, 2 * self.size))
            upright = ImageOps.exif_transpose(picture)
            image = _eight_bits(upright, self.bits).convert("L" if self.channels == 1 else "RGB")
            if self.resize == "crop":
                side = min(image.size)
                left, top = ((length - side) // 2 for length in image.size)
                image = image.crop((left, top, left + side, top + side))
            squared = image.resize((self.size, self.size), Image.Resampling.BILINEAR)
            pixels: Pixels = np.asarray(squared, dtype=np.uint8)
            return pixels[None] if self.channels == 1 else pixels.transpose(2, 0, 1)


class PictureFiles:
    """N pictures in files, decoded when they are indexed as a tensor (N, C, H, W) uint8 would be.

    They are decoded by as many threads as torch has: a single one in a worker process of a `DataLoader`.
    """

    def __init__(self, files: Iterable[str | bytes | Path], prepare: Preparation) -> None:
        # An array, which worker processes share; a million objects would be copied as soon as they are counted.
        self.files = np.array([os.fsencode(file) for file in files], dtype=np.bytes_)
        self.prepare = prepare
        self.shape = (len(self.files), *prepare.shape)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, rows: Any) -> Tensor:
        """Decodes pictures.

        Raises:
            ValueError: A file is not a readable picture.
        """
        found = self.files[rows.cpu().numpy() if isinstance(rows, Tensor) else rows]
        files = [Path(os.fsdecode(file)) for file in np.atleast_1d(found)]
        pixels = torch.empty(len(files), *self.shape[1:], dtype=torch.uint8)
        starts = range(0, len(files), _PIECE)
        with ThreadPoolExecutor(min(8, torch.get_num_threads())) as pool:  # Pillow does not hold Python's lock
            for start in tracked(starts, "decoding pictures", len(starts), silent=len(files) < _WORTH_A_BAR):
                piece = np.stack(list(pool.map(self.prepare, files[start : start + _PIECE])))
                pixels[start : start + len(piece)] = torch.from_numpy(piece)
        return pixels if np.ndim(found) else pixels[0]

    def at(self, rows: Tensor) -> PictureFiles:
        """Returns the pictures at positions `rows` (M,), still in their files."""
        return PictureFiles(self.files[rows.cpu().numpy()], self.prepare)

    @property
    def state(self) -> str:
        """Says which files these are, when and how large they were written, and how they are prepared.

        A picture that replaces another may have its size and its time of writing, which archives keep; the time of a
        change cannot be set.
        """
        told = hashlib.sha256(repr(self.prepare).encode())
        for file in self.files:
            found = os.stat(file)
            times = found.st_mtime_ns, found.st_ctime_ns
            told.update(b"\0%b %d %d %d" % (os.path.abspath(file), found.st_size, *times))
        return told.hexdigest()


def read_pictures(files: Sequence[Path], prepare: Preparation) -> Tensor | PictureFiles:
    """Decodes N pictures, (N, C, H, W) uint8, or leaves them in their files if they would take more than 1 GiB.

    Raises:
        ValueError: A file is not a readable picture.
    """
    pictures = PictureFiles(files, prepare)
    return pictures[:] if math.prod(pictures.shape) <= _IN_MEMORY else pictures


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    try:
        with _dicom(path) if path.suffix.lower() == ".dcm" else Image.open(path) as picture:
            yield picture
    except (OSError, SyntaxError, EOFError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(f"{path} cannot be read as a picture ({error}): remove it or get it again") from error


def _dicom(path: Path) -> Image.Image:
    """The first frame of a DICOM file, bright where there is much, in 8 bits by its window or its stored bits.

    Raises:
        ImportError: The package `pydicom` is not installed.
        ValueError: It is no DICOM file, or has no pixels.
    """
    reader, pixels = imported("pydicom", "pydicom.pixels", needed_by=path, extra="dicom")
    try:
        data = reader.dcmread(path)
        frame = pixels.pixel_array(data, index=0)
        if frame.ndim == 3:
            return Image.fromarray(frame.astype(np.uint8))
        least, most = (-1, 1) if data.PixelRepresentation else (0, 2)
        scale, shift = float(data.get("RescaleSlope", 1)), float(data.get("RescaleIntercept", 0))
        low, high = ((limit << data.BitsStored - 1) * scale + shift for limit in (least, most))
        shown = pixels.apply_voi_lut(pixels.apply_modality_lut(frame, data), data)
    except Exception as error:  # pydicom's decoders raise anything
        raise ValueError(f"no DICOM file with pixels: {error}") from error
    share = ((shown - low) / (high - 1 - low)).clip(0, 1)
    return Image.fromarray(
        (255 * (1 - share if data.PhotometricInterpretation == "MONOCHROME1" else share)).astype(np.uint8)
    )


def _eight_bits(image: Image.Image, bits: int) -> Image.Image:
    """Converts pixels to at most 8 bits; Pillow would clip deeper ones to white.

    Raises:
        ValueError: The pixels have 32 bits, without a common range.
    """
    if image.mode.startswith("I;16"):
        array = np.asarray(image).astype(np.uint16)
        return Image.fromarray((array >> (bits - 8)).clip(max=255).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError(f"pixels of mode {image.mode!r} have no known range: save it with 8 or 16 bits")
    return image


def warn_of_dark(files: Sequence[Path]) -> None:
    """Warns about 16-bit pictures that use fewer bits; for public ones, since a warning reveals something."""
    for path in files:
        with _opened(path) as picture:
            if picture.mode.startswith("I;16") and 256 <= np.asarray(picture).max() < 4096:
                rank_zero_warn(
                    f"{path} has 16 bits and no pixel of 4,096 or more, and becomes almost black: if its content has "
                    "12 bits, as radiographs often do, set bits 12"
                )
                return


def same_files(first: Sequence[Path], second: Sequence[Path]) -> list[tuple[Path, Path]]:
    """Files of `first` with the same bytes as one of `second`, each with that one. Only files of one size are read."""
    common = {file.stat().st_size for file in first} & {file.stat().st_size for file in second}
    digests = [
        [(hashlib.sha256(file.read_bytes()).digest(), file) for file in files if file.stat().st_size in common]
        for files in (first, second)
    ]
    known = dict(digests[1])
    return [(file, known[digest]) for digest, file in digests[0] if digest in known]


def thumbnails_of(records: ImageDataset) -> Tensor:
    """Grey thumbnails of all records, which opens each picture; see `alike_files`."""
    return MappedRecords.of(records, _thumbnails, key="thumbnails", workers=torch.get_num_threads()).inputs


def alike_files(files: Sequence[Path], known: Tensor, prepare: Preparation) -> Iterator[tuple[Path, int]]:
    """Yields files whose pictures look like one of those with `known` thumbnails, each with the position of that one.

    Thumbnails are compared. Between MNIST's parts their correlation is at most 0.997, between those of the digits 0.994
    and of Imagenette 0.984. Copies saved as JPEG at quality 90 are found in 96 to 100 % of cases, at 75 in 77 to 100 %.

    Raises:
        ValueError: A file is not a readable picture.
    """
    for start in range(0, len(files), _COMPARED):
        some = files[start : start + _COMPARED]
        likeness, nearest = (_thumbnails(PictureFiles(some, prepare)[:].float()) @ known.T).max(dim=1)
        yield from ((some[row], int(nearest[row])) for row in (likeness > _ALIKE).nonzero().flatten().tolist())


def _thumbnails(images: Tensor) -> Tensor:
    """Grey thumbnails of images as rows of mean 0 and norm 1, whose products are correlations."""
    flat = functional.interpolate(images, size=_SIDES, mode="bilinear", antialias=True).mean(dim=1).flatten(1)
    return functional.normalize(flat - flat.mean(dim=1, keepdim=True))


def subfolders(folder: Path) -> tuple[str, ...]:
    """Returns the names of a folder's subfolders in order, except hidden ones and what macOS adds to archives."""
    found = sorted(inner.name for inner in folder.iterdir() if inner.is_dir())
    return tuple(name for name in found if not name.startswith(".") and name != _LEFTOVERS)


def class_folders(parts: Sequence[Path]) -> tuple[str, ...]:
    """Names of the class folders in the first of a data set's parts; other parts may have no further ones.

    Raises:
        ValueError: There are fewer than two, or another part has one that the first lacks.
    """
    classes = subfolders(parts[0])
    if len(classes) < 2:
        found = ", ".join(classes) or "none"
        raise ValueError(f"{parts[0]} must have a folder for each class, and at least 2, got {found}")
    for part in parts[1:]:
        if unknown := [name for name in subfolders(part) if name not in classes]:
            raise ValueError(f"{part} has folders that {parts[0]} has not: {', '.join(unknown[:10])}")
    return classes


def pictures_below(folder: Path) -> list[Path]:
    """Returns the pictures in and below a folder in order of their relative paths, except hidden ones."""
    return [file for file in _files_below(folder) if file.suffix.lower() in SUFFIXES]


def skipped_below(folder: Path) -> list[str]:
    """Counts the files in and below a folder that are neither pictures that can be read nor notes, by ending."""
    endings = Counter(file.suffix.lower() for file in _files_below(folder))
    return [f"{count} files {ending}" for ending, count in sorted(endings.items()) if ending not in SUFFIXES | _NOTES]


def warn_of_skipped(folder: Path, *, further: Sequence[str] = (), more: str = "") -> None:
    """One line about files, and `further` things, that a user may take for pictures and that are not read."""
    if said := [*skipped_below(folder), *further]:
        made = "Files become pictures by: magick mogrify -format png FILE..."
        rank_zero_warn(f"{folder}: not read are {', '.join(said)}. {made}{more and ' '}{more}")


def _files_below(folder: Path) -> list[Path]:
    found = []
    for where, inner, files in os.walk(folder, followlinks=True):
        inner[:] = [name for name in inner if not name.startswith(".") and name != _LEFTOVERS]
        found += [os.path.join(where, name) for name in files if not name.startswith(".")]
    return [Path(file) for file in sorted(found)]


def sizes_and_channels(files: Sequence[Path]) -> tuple[Counter[tuple[int, int]], Literal[1, 3]]:
    """Counts of the sizes (width, height) of up to 999 pictures, and 3 if one of them is in colour, else 1.

    Raises:
        ValueError: A file is not a picture.
    """
    sizes: Counter[tuple[int, int]] = Counter()
    channels: Literal[1, 3] = 1
    for path in files[:: -(-len(files) // 999) or 1]:
        with _opened(path) as picture:
            sizes[picture.size] += 1
            channels = channels if Image.getmodebase(picture.mode) == "L" else 3
    return sizes, channels


def require_outside(
    stated: Sequence[Partition | None],
    files: Sequence[Path],
    *,
    private: Path | None = None,
    named: str = "images.pool",
) -> None:
    """Refuses public `files` below a folder of private data, following links both ways. None is opened.

    Args:
        stated: Partitions of the private data, from files and the data module.
        files: Pictures that are to be public.
        private: Folder of the private data, if at hand, whose links may lead elsewhere.
        named: Setting that gave the files.

    Raises:
        PartitionError: A file is below such a folder.
    """
    names = {one["place"]: one["data"] for one in stated if one is not None and one["place"] is not None}
    real = {file.resolve() for file in files}
    folders = {above for file in real for above in file.parents}
    inside = [names[place] for place in map(_place_of, folders) if place in names]
    if not inside and private is not None and any(file.resolve() in real for file in pictures_below(private)):
        inside = [private.resolve().name]
    if inside:
        raise PartitionError(f"{named} must lie outside of the folder of {inside[0]}, which holds private pictures")


def _place_of(folder: Path) -> str:
    return hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:16]


class Picture(NamedTuple):
    """A file, its label, and a name independent of the data set's location, from which its id is made."""

    file: Path
    label: int
    name: str


def pictures_in(place: Path, classes: Sequence[str], *, labels: Iterable[int] | None = None) -> list[Picture]:
    """Lists the pictures in and below the folders of classes, of some labels or all; names are paths from `place`."""
    return [
        Picture(file, label, file.relative_to(place).as_posix())
        for label in (range(len(classes)) if labels is None else labels)
        for file in pictures_below(place / classes[label])
    ]


class PictureDataModule(ImageDataModule):
    """A data set whose images are picture files."""

    def __init__(self, *, preparation: Preparation, **settings: Any) -> None:
        """Stores the settings; no picture is opened."""
        self.preparation = preparation
        self.image_shape = preparation.shape
        super().__init__(**settings)

    @property
    def partition(self) -> dict[str, Any]:
        """See `ImageDataModule.partition`; recognises the folder under any name without storing its path."""
        return {**super().partition, "place": _place_of(self.folder)}

    def records_of(self, pictures: Sequence[Picture], *, identities: Tensor | None = None) -> ImageDataset:
        """Reads the records of some pictures; see `read_pictures`."""
        names = [picture.name for picture in pictures]
        return ImageDataset(
            images=read_pictures([picture.file for picture in pictures], self.preparation),
            labels=torch.tensor([picture.label for picture in pictures], dtype=torch.int64),
            ids=ids_of_names(names),
            identities=identities,
            names=names,
        )

    @property
    def kept_labels(self) -> list[int]:
        """Official labels of the kept classes, in order."""
        return sorted(range(self.official_classes) if self.kept_classes is None else self.kept_classes)
