"""Records of published files, checks that the files exist and are unchanged, and the errors if not."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from datamodules.records import ImageDataset

if TYPE_CHECKING:
    from datamodules.base import ImageDataModule


@contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """Turns errors of a parser within the block into errors that name the file.

    Raises:
        ValueError: The block raised an error.
    """
    try:
        yield
    except Exception as error:
        raise ValueError(f"{path} is damaged or no {what} ({error}): delete it and get it again") from error


def imported(*modules: str, needed_by: object, extra: str = "") -> list[Any]:
    """Imports modules of one package, of which the first has its name.

    Raises:
        ImportError: It is not installed.
    """
    try:
        return [importlib.import_module(module) for module in modules]
    except ImportError as error:
        install = f"'private-model-transcription[{extra}]'" if extra else modules[0]
        raise ImportError(f"{needed_by} needs the package {modules[0]}: pip install {install}") from error


class MissingDataError(FileNotFoundError):
    """Files of a data set are missing and could not be downloaded.

    It replaces the errors of all libraries: a user without a network should read what to do, not a traceback of
    mirrors. See `missing_data`.
    """


def missing_data(
    data: ImageDataModule, missing: Sequence[str], *, folder: Path | None = None, further: Sequence[str] = ()
) -> MissingDataError:
    """Makes an error that lists missing files or folders, how to get them, and further lines."""
    name = getattr(data, "name", "") or type(data).__name__
    lines = [f"{name}: {len(missing)} file(s) missing in {folder or data.folder}:"]
    lines += [f"  {name}" for name in missing[:10]]
    nested = "(with SyntheticSteps or PoissonSampled: --data.dataset."
    lines += [
        "Get them in one of these ways:",
        "  - if they are elsewhere: set `root` to the folder that holds the data set's folder",
        f"      --data.root PATH {nested}root PATH)",
    ]
    if data.downloadable:
        lines += ["  - with a network: set `download`", f"      --data.download true {nested}download true)"]
    if data.site:
        lines.append(f"  - by hand: get them from {data.site} and save them, uncompressed, under the names above")
    return MissingDataError("\n".join([*lines, *further]))


def records_of_file(
    data: ImageDataModule, path: Path, images: Any, labels: Any, *, ids: Tensor | None = None
) -> ImageDataset:
    """Makes records from the arrays of a file.

    Args:
        data: The data set, whose shape and classes they must have.
        path: The file, for messages.
        images: (N, C, H, W) uint8.
        labels: N, from 0.
        ids: (N,) int64; by default a record's index.

    Raises:
        ValueError: Types, shapes or labels are not those of the data set.
    """
    images, labels = np.asarray(images), np.asarray(labels).reshape(-1)
    if images.dtype != np.uint8 or images.shape[1:] != data.image_shape or len(images) != len(labels):
        raise ValueError(
            f"{path} holds images as {images.dtype} of {images.shape} and {len(labels)} labels, expected uint8 of "
            f"(N, {', '.join(map(str, data.image_shape))}) and one label each"
        )
    if len(labels) and not (labels.min() >= 0 and labels.max() < data.official_classes):
        raise ValueError(f"{path} holds labels outside 0 to {data.official_classes - 1}")
    return ImageDataset(
        images=torch.from_numpy(np.ascontiguousarray(images)),
        labels=torch.from_numpy(labels.astype(np.int64)),
        ids=torch.arange(len(labels)) if ids is None else ids,
    )
