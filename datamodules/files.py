"""Checks that published files exist and are unchanged, and the errors if not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path

from torchvision.datasets.utils import check_integrity

DOWNLOAD_ERRORS = (OSError, RuntimeError, HTTPException, EOFError, ImportError)
"""Errors of failed downloads: `URLError` is an `OSError`, a wrong checksum a `RuntimeError`, a lost connection an
`HTTPException` or an `EOFError`, and a missing `gdown` an `ImportError`."""


def require_md5(path: Path, published: str) -> None:
    """Compares a file with the published MD5 sum, which detects damage and mistakes but no adversary.

    Raises:
        ValueError: The sums differ.
    """
    if not check_integrity(path, published):
        raise ValueError(
            f"{path} has another MD5 sum than the published file, {published}: delete it and get it again; for a copy "
            "that you have changed yourself set verify to false (with SyntheticSteps --data.dataset.verify false)"
        )


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


class MissingExtraError(ImportError):
    """A data set needs a package that is only installed by an extra."""


class MissingDataError(FileNotFoundError):
    """Files of a data set are missing and could not be downloaded.

    It replaces the errors of all libraries: a user without a network should read what to do, not a traceback of
    mirrors. See `ImageDataModule.missing_data`.
    """
