"""Published files: whether they are there, and whether they are unchanged."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from http.client import HTTPException
from pathlib import Path

__all__ = ["DOWNLOAD_ERRORS", "missing_files", "require_md5"]

DOWNLOAD_ERRORS = (OSError, RuntimeError, HTTPException, EOFError, ImportError)
"""What a failed download raises, by cause and by library: `URLError` is an `OSError`, a wrong checksum a
`RuntimeError`, a connection cut half-way an `HTTPException` or an `EOFError`, and a missing `gdown` an
`ImportError`."""

_BLOCK = 1 << 20


def missing_files(folder: Path, names: Iterable[str]) -> list[str]:
    """Returns those of `names` that are not files of `folder`."""
    return [name for name in names if not (folder / name).is_file()]


def require_md5(path: Path, published: str) -> None:
    """Compares a file with the published MD5 sum: against damage and mistakes, no proof against an adversary.

    Raises:
        ValueError: It is another file.
    """
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as handle:
        while block := handle.read(_BLOCK):
            digest.update(block)
    if digest.hexdigest() != published:
        raise ValueError(
            f"{path} has the MD5 sum {digest.hexdigest()}, and the published file has {published}: it is cut short, "
            "damaged or a changed copy. Delete it and get it anew; for a copy that you have changed yourself set "
            "verify to false (--data.verify false, with the SyntheticSteps data module --data.dataset.verify false)"
        )
