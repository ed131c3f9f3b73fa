"""CIFAR-10 and CIFAR-100, in torchvision's folders, unpickled without running code from the files."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from torchvision import datasets
from torchvision.datasets.utils import download_and_extract_archive

from datamodules.base import ImageDataModule, Part
from datamodules.files import reading, records_of_file
from datamodules.records import ImageDataset, ids_of_names


class CIFAR10(ImageDataModule):
    """60 000 colour photographs of 32×32 pixels in 10 classes (Krizhevsky 2009): 50 000 private, 10 000 test.

    Files are expected where torchvision puts them, `root/cifar-10-batches-py/data_batch_1` to `_5` and `test_batch`.
    The two parts are independent: evaluation only needs `test_batch`. A record's id is a hash of the file name stored
    with it. The files are pickled; only NumPy arrays, text and numbers are loaded from them.
    """

    num_classes = 10
    image_shape = (3, 32, 32)
    num_records = 50_000
    class_names: tuple[str, ...] = (
        *("airplane", "automobile", "bird", "cat", "deer"),
        *("dog", "frog", "horse", "ship", "truck"),
    )
    subfolder = str(datasets.CIFAR10.base_folder)
    site = str(datasets.CIFAR10.url)
    source: ClassVar[Any] = datasets.CIFAR10  # torchvision's class, for files and checksums
    label_key: ClassVar[str] = "labels"

    def read(self, part: Part) -> ImageDataset:
        images, labels, names = [], [], []
        for path in self.require_files(part):
            with reading(path, "file of CIFAR"), path.open("rb") as handle:
                content = _PlainUnpickler(handle, encoding="latin1").load()
                images.append(content["data"].reshape(-1, *self.image_shape))
                labels += [int(label) for label in content[self.label_key]]
                names += [str(name) for name in content["filenames"]]
        return records_of_file(self, path, np.concatenate(images), labels, ids=ids_of_names(names))

    def files(self, part: Part) -> dict[str, str | None]:
        return dict(self.source.train_list if part == "train" else self.source.test_list)

    def download_files(self, part: Part, missing: Sequence[str]) -> None:
        source = self.source
        download_and_extract_archive(source.url, str(self.root), filename=source.filename, md5=source.tgz_md5)


class CIFAR100(CIFAR10):
    """60 000 colour photographs of 32×32 pixels in 100 fine classes (Krizhevsky 2009): 50 000 private, 10 000 test.

    Files as for `CIFAR10`, in `root/cifar-100-python`: `train` and `test`.
    """

    num_classes = 100
    class_names = (
        *("apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle", "bottle"),
        *("bowl", "boy", "bridge", "bus", "butterfly", "camel", "can", "castle", "caterpillar", "cattle"),
        *("chair", "chimpanzee", "clock", "cloud", "cockroach", "couch", "crab", "crocodile", "cup", "dinosaur"),
        *("dolphin", "elephant", "flatfish", "forest", "fox", "girl", "hamster", "house", "kangaroo", "keyboard"),
        *("lamp", "lawn_mower", "leopard", "lion", "lizard", "lobster", "man", "maple_tree", "motorcycle", "mountain"),
        *("mouse", "mushroom", "oak_tree", "orange", "orchid", "otter", "palm_tree", "pear", "pickup_truck"),
        *("pine_tree", "plain", "plate", "poppy", "porcupine", "possum", "rabbit", "raccoon", "ray", "road"),
        *("rocket", "rose", "sea", "seal", "shark", "shrew", "skunk", "skyscraper", "snail", "snake"),
        *("spider", "squirrel", "streetcar", "sunflower", "sweet_pepper", "table", "tank", "telephone"),
        *("television", "tiger", "tractor", "train", "trout", "tulip", "turtle", "wardrobe", "whale"),
        *("willow_tree", "wolf", "woman", "worm"),
    )
    subfolder = str(datasets.CIFAR100.base_folder)
    site = str(datasets.CIFAR100.url)
    source = datasets.CIFAR100
    label_key = "fine_labels"


_ALLOWED = ("numpy._core.multiarray._reconstruct", "numpy.ndarray", "numpy.dtype", "_codecs.encode")


class _PlainUnpickler(pickle.Unpickler):
    """Unpickles NumPy arrays only: other pickles may call any function."""

    def find_class(self, module: str, name: str) -> Any:
        module = module.replace("numpy.core", "numpy._core")  # its name before NumPy 2
        if f"{module}.{name}" not in _ALLOWED:
            raise pickle.UnpicklingError(f"it would call {module}.{name}, which no file of CIFAR does")
        return super().find_class(module, name)
