"""Tiny data sets in MNIST's on-disk format, for tests that want real files and no download."""

from __future__ import annotations

import struct
from pathlib import Path

import torch
from torch import Tensor

UBYTE = 0x08


def write_idx(path: Path, values: Tensor) -> None:
    """Write a uint8 tensor as an IDX file: two zero bytes, type, rank, big-endian sizes, then the bytes row by row."""
    assert values.dtype == torch.uint8
    header = struct.pack(f">BBBB{values.dim()}I", 0, 0, UBYTE, values.dim(), *values.shape)
    path.write_bytes(header + values.contiguous().numpy().tobytes())


def write_mnist_part(
    folder: Path, *, prefix: str, count: int, num_classes: int = 10, size: int = 28, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Write ``PREFIX-images-idx3-ubyte`` and ``PREFIX-labels-idx1-ubyte`` into ``folder``.

    An image is a bright bar whose row tells the class, on a dark noisy ground, so that a classifier can learn it.
    Labels go round the classes. Pixel values span 0 to 255.

    Returns:
        What was written: images (count, size, size) uint8 and labels (count,) uint8.
    """
    labels = (torch.arange(count) % num_classes).to(torch.uint8)
    images = torch.randint(0, 64, (count, size, size), generator=torch.Generator().manual_seed(seed)).to(torch.uint8)
    for image, label in zip(images, labels.tolist(), strict=True):
        row = label * (size - 1) // num_classes
        image[row : row + 2] = 255
    images[:, -1, -1] = 0
    folder.mkdir(parents=True, exist_ok=True)
    write_idx(folder / f"{prefix}-images-idx3-ubyte", images)
    write_idx(folder / f"{prefix}-labels-idx1-ubyte", labels)
    return images, labels


def write_mnist(root: Path, *, name: str = "MNIST", train: int = 200, test: int = 50) -> Path:
    """Write a whole tiny data set as ``root/NAME/raw/*-ubyte`` and return ``root``."""
    folder = root / name / "raw"
    write_mnist_part(folder, prefix="train", count=train, seed=1)
    write_mnist_part(folder, prefix="t10k", count=test, seed=2)
    return root
