"""Chest radiographs of COVID-19 and other findings, from the COVID-19 Radiography Database."""

from __future__ import annotations

from typing import Any, Literal

from datamodules.base import Part
from datamodules.images import ImageDataset
from datamodules.pictures import PictureDataModule, Preparation, pictures_of
from datamodules.splits import id_fraction, ids_of_names

TEST_FRACTION = 0.2


class COVIDx(PictureDataModule):
    """21 165 chest radiographs of 299×299 pixels in 4 classes (Chowdhury et al. 2020, Rahman et al. 2021).

    Files are expected as unpacked from Kaggle's "COVID-19 Radiography Database", `root/COVID-19_Radiography_Dataset/
    <class>/images/*.png`, with the classes COVID, Lung_Opacity, Normal and Viral Pneumonia; masks are not used. The
    papers, which call it COVIDx, have 19 700 images; `classes: [COVID, Lung_Opacity, Normal]` has 19 820.

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
        """Store the settings; no file is touched.

        Args:
            size: Height and width of the images; the files are square.
            channels: 1, as radiographs are grey, or 3 equal ones, for a network that takes colour images.
            settings: See `ImageDataModule`.
        """
        super().__init__(preparation=Preparation(size=size, channels=channels), **settings)

    def read(self, part: Part) -> ImageDataset:
        """Decodes the pictures of one part and of the chosen classes only, in threads."""
        official = type(self).class_names
        folders = [(label, self.folder / official[label] / "images") for label in self.kept_labels(official)]
        missing = [f"{place.parent.name}/images/" for _, place in folders if not place.is_dir()]
        if missing:
            raise self.missing_data(missing)
        found = [one._replace(name=one.file.name) for one in pictures_of(folders, relative_to=self.folder)]
        is_test = id_fraction(ids_of_names([one.name for one in found]), purpose="covidx-test") < TEST_FRACTION
        kept = [one for one, test in zip(found, is_test.tolist(), strict=True) if test == (part == "test")]
        return self.records_of(kept)
