"""Published files: whether they are there and unchanged, and the errors where they are not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path

from torchvision.datasets.utils import check_integrity

DOWNLOAD_ERRORS = (OSError, RuntimeError, HTTPException, EOFError, ImportError)
"""What a failed download raises, by cause and by library: `URLError` is an `OSError`, a wrong checksum a
`RuntimeError`, a connection cut half-way an `HTTPException` or an `EOFError`, and a missing `gdown` an
`ImportError`."""


def require_md5(path: Path, published: str) -> None:
    """Compares a file with the published MD5 sum: against damage and mistakes, no proof against an adversary.

    Raises:
        ValueError: It is another file.
    """
    if not check_integrity(path, published):
        raise ValueError(
            f"{path} has another MD5 sum than the published file, {published}: delete it and get it anew; for a copy "
            "that you have changed yourself set verify to false (with SyntheticSteps --data.dataset.verify false)"
        )


@contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """Names the file in any error that a parser raises on a damaged one.

    Raises:
        ValueError: The block raised an error, except of missing names, which are bugs of the reader.
    """
    try:
        yield
    except (AttributeError, ImportError, NameError):
        raise
    except Exception as error:
        raise ValueError(f"{path} is damaged or no {what} ({error}): delete it and get it anew") from error


class MissingExtraError(ImportError):
    """A data set needs a package that only an extra of this one installs."""


class MissingDataError(FileNotFoundError):
    """Files of a data set are missing and could not be downloaded.

    All data sets and libraries raise this one class: a user without a network reads what to do, and not a traceback of
    mirrors. See `ImageDataModule.missing_data`.
    """
