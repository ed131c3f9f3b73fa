"""ImageNet, or some of its classes, in one folder per WordNet id."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from datamodules.base import Part
from datamodules.images import ImageDataset
from datamodules.pictures import PictureDataModule, Preparation, class_folders, pictures_of

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
        self.wnids = self._listed(place)
        names = _names(place)
        self.class_aliases = self.wnids
        self.class_names = tuple(names.get(wnid, wnid) for wnid in self.wnids)
        self.num_classes = len(self.wnids)
        self.num_records = min(_ALL_RECORDS, _LARGEST_CLASS * len(self.wnids))
        super().__init__(preparation=Preparation(size=size, channels=3, resize=resize), **settings)

    def read(self, part: Part) -> ImageDataset:
        """Decodes the pictures of one part and of the chosen classes only, in threads."""
        kept = self.kept_labels(self.wnids)
        place = self.folder / _FOLDERS[part]
        missing = [self.wnids[label] for label in kept if not (place / self.wnids[label]).is_dir()]
        if missing:
            raise self.missing_data([f"{wnid}/" for wnid in missing], folder=place)
        pictures = pictures_of([(label, place / self.wnids[label]) for label in kept], relative_to=place)
        return self.records_of(pictures)

    def _listed(self, place: Path) -> tuple[str, ...]:
        parts = [place / name for name in ("train", "val") if (place / name).is_dir()]
        if not parts:
            raise self.missing_data(["train/", "val/"], folder=place)
        return class_folders(parts)


def _names(place: Path) -> dict[str, str]:
    """Reads class names by WordNet id, if there is a file of them."""
    path = place / "LOC_synset_mapping.txt"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return {wnid: name.strip() for wnid, _, name in (line.partition(" ") for line in lines) if name.strip()}
