"""Tiny data sets in the formats that their authors publish, for tests that want real files and no download."""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from scipy.io import savemat

Pixels = np.ndarray[Any, np.dtype[Any]]


def pixels(count: int, *shape: int, classes: int, seed: int = 0) -> tuple[Pixels, Pixels]:
    """Images (count, *shape), height second, in which a bright bar tells the class, and labels that go round."""
    draw = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    images = draw.integers(0, 64, (count, *shape), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        row = label * (shape[0] - 1) // classes
        image[row : row + 2] = 255
    return images, labels


def write_idx(path: Path, values: Pixels) -> None:
    """Write an array of bytes as an IDX file: two zero bytes, type, rank, big-endian sizes, then the bytes by rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = struct.pack(f">BBBB{values.ndim}I", 0, 0, 0x08, values.ndim, *values.shape)
    path.write_bytes(header + values.astype(np.uint8).tobytes())


def write_mnist(root: Path, *, name: str = "MNIST", train: int = 200, test: int = 50) -> Path:
    """Write `root/NAME/raw/*-ubyte`, the bytes 0 to 255."""
    for seed, (prefix, count) in enumerate({"train": train, "t10k": test}.items(), start=1):
        images, labels = pixels(count, 28, 28, classes=10, seed=seed)
        images[:, -1, -1] = 0
        write_idx(root / name / "raw" / f"{prefix}-images-idx3-ubyte", images)
        write_idx(root / name / "raw" / f"{prefix}-labels-idx1-ubyte", labels)
    return root


def write_cifar(folder: Path, files: dict[str, int], *, label_key: str, classes: int, coarse: bool = False) -> None:
    """Python 2's pickles of protocol 2: rows of 3072 bytes, red first."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (name, count) in enumerate(files.items()):
        images, labels = pixels(count, 32, 32, 3, classes=classes, seed=seed)
        planes = np.ascontiguousarray(images.transpose(0, 3, 1, 2))
        names = [f"{name}_s_{index:06d}.png" for index in range(count)]
        content = {
            "batch_label": name,
            label_key: labels.tolist(),
            "data": planes.reshape(count, -1),
            "filenames": names,
        }
        if coarse:
            content["coarse_labels"] = (labels // 5).tolist()
        # As NumPy 1 named its modules, which the published files do.
        (folder / name).write_bytes(pickle.dumps(content, protocol=2).replace(b"numpy._core", b"numpy.core"))


def write_cifar10(root: Path, *, train: int = 40, test: int = 20) -> Path:
    """Write `root/cifar-10-batches-py` with five training batches of `train` images each."""
    batches = {**{f"data_batch_{number}": train for number in range(1, 6)}, "test_batch": test}
    write_cifar(root / "cifar-10-batches-py", batches, label_key="labels", classes=10)
    return root


def write_cifar100(root: Path, *, train: int = 200, test: int = 100) -> Path:
    """Write `root/cifar-100-python`."""
    files = {"train": train, "test": test}
    write_cifar(root / "cifar-100-python", files, label_key="fine_labels", classes=100, coarse=True)
    return root


def write_svhn(root: Path, *, train: int = 60, test: int = 20) -> Path:
    """Write MATLAB files with images (32, 32, 3, N) and labels 1 to 10, of which 10 is the digit 0."""
    (root / "SVHN").mkdir(parents=True, exist_ok=True)
    for part, count in (("train", train), ("test", test)):
        images, labels = pixels(count, 32, 32, 3, classes=10, seed=count)
        digits = np.where(labels == 0, 10, labels).astype(np.uint8)[:, None]
        savemat(root / "SVHN" / f"{part}_32x32.mat", {"X": images.transpose(1, 2, 3, 0), "y": digits})
    return root


def picture(array: Pixels, path: Path, **settings: object) -> Path:
    """Write an array as a picture, of the format that its name ends in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    suffix = path.suffix.lower().lstrip(".")
    Image.fromarray(array).save(buffer, {"jpg": "jpeg", "tif": "tiff", "pgm": "ppm"}.get(suffix, suffix), **settings)
    path.write_bytes(buffer.getvalue())
    return path


#: Of each face: file number, part, person, and which of these attributes it has.
ATTRIBUTES = ("Bald", "Black_Hair", "Blond_Hair", "Brown_Hair", "Gray_Hair", "Male", "Young")


def write_celeba(root: Path, *, train: int = 60, validation: int = 20, test: int = 30) -> Path:
    """Write faces of 178x218 pixels and the three text files; people have 3 faces each, in one part."""
    folder = root / "celeba"
    parts = [0] * train + [1] * validation + [2] * test
    rows = []
    images, _ = pixels(len(parts), 218, 178, 3, classes=4)
    for index in range(len(parts)):
        name = f"{index + 1:06d}.jpg"
        picture(images[index], folder / "img_align_celeba" / name, quality=95)
        has = {"Young"} | ({"Male"} if index % 2 else set())
        # Of five faces: black, blond, brown, none of them, two of them.
        has |= [{"Black_Hair"}, {"Blond_Hair"}, {"Brown_Hair"}, {"Bald"}, {"Black_Hair", "Brown_Hair"}][index % 5]
        rows.append((name, ["1" if one in has else "-1" for one in ATTRIBUTES]))
    lines = [str(len(parts)), " ".join(ATTRIBUTES) + " ", *(f"{name} {' '.join(has)}" for name, has in rows)]
    (folder / "list_attr_celeba.txt").write_text("\n".join(lines) + "\n")
    names = [name for name, _ in rows]
    _lines(folder / "list_eval_partition.txt", zip(names, parts, strict=True))
    _lines(folder / "identity_CelebA.txt", ((name, 10 + index // 3) for index, name in enumerate(names)))
    return root


def _lines(path: Path, pairs: Iterable[tuple[str, int]]) -> None:
    path.write_text("".join(f"{name} {value}\n" for name, value in pairs))


def write_medmnist(
    root: Path, *, subset: str = "pneumoniamnist", size: int = 28, channels: int = 1, classes: int = 2
) -> Path:
    """Write `root/medmnist/<subset>.npz` with 60 training, 20 validation and 30 test images, labels (N, 1)."""
    folder = root / "medmnist"
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {}
    for seed, (part, count) in enumerate({"train": 60, "val": 20, "test": 30}.items()):
        shape = (size, size) if channels == 1 else (size, size, channels)
        images, labels = pixels(count, *shape, classes=classes, seed=seed)
        arrays |= {f"{part}_images": images, f"{part}_labels": labels.astype(np.uint8)[:, None]}
    np.savez_compressed(folder / f"{subset}{'' if size == 28 else f'_{size}'}.npz", **arrays)
    return root


def write_radiographs(root: Path, *, each: int = 30) -> Path:
    """Write Kaggle's folders, each with images and masks."""
    for seed, name in enumerate(("COVID", "Lung_Opacity", "Normal", "Viral Pneumonia")):
        folder = root / "COVID-19_Radiography_Dataset" / name
        images, _ = pixels(each, 299, 299, classes=4, seed=seed)
        for number, image in enumerate(images, start=1):
            image[75 * seed : 75 * seed + 40] = 255
            picture(image, folder / "images" / f"{name}-{number}.png")
        picture(images[0], folder / "masks" / f"{name}-1.png")
    return root


WNIDS = ("n01440764", "n02102040", "n02979186")


def write_imagenet(root: Path, *, folder: str = "imagenet", train: int = 12, val: int = 5) -> Path:
    """Write `train` and `val` by WordNet id, pictures of several sizes, and the mapping to names."""
    for label, wnid in enumerate(WNIDS):
        for part, count in (("train", train), ("val", val)):
            images, _ = pixels(count, 90, 120, 3, classes=3, seed=label)
            for number, image in enumerate(images):
                image[30 * label : 30 * label + 20] = 255
                wide = image[:, : 100 + number]
                name = f"{wnid}_{number}.JPEG" if part == "train" else f"ILSVRC2012_val_{label}{number:07d}.JPEG"
                picture(wide, root / folder / part / wnid / name)
    names = ("tench, Tinca tinca", "English springer, English springer spaniel", "cassette player")
    lines = [f"{wnid} {name}" for wnid, name in zip(WNIDS, names, strict=True)]
    (root / folder / "LOC_synset_mapping.txt").write_text("\n".join(lines) + "\n")
    return root


def write_folders(place: Path, *, classes: Iterable[str] = ("ants", "bees"), count: int = 40, size: int = 24) -> Path:
    """Write `count` grey PNG pictures into a folder for each class; those of a folder `test` are others."""
    names = tuple(classes)
    for label, name in enumerate(names):
        images, _ = pixels(count, size, size, classes=2, seed=label + 100 * (place.name == "test"))
        for number, image in enumerate(images):
            row = label * (size - 1) // len(names)
            image[row : row + 2] = 255
            picture(image, place / name / f"{number:03d}.png")
    return place
