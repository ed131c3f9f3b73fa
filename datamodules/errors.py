"""Errors for data-set files that are not where they are expected."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

__all__ = ["MissingDataError", "MissingExtraError"]

_LISTED = 10


class MissingExtraError(ImportError):
    """A data set needs a package that only an extra of this one installs."""

    def __init__(self, *, dataset: str, package: str, extra: str) -> None:
        """Composes the message."""
        super().__init__(
            f"{dataset} needs the package {package}, which is not installed: "
            f"pip install 'private-model-transcription[{extra}]'"
        )


class MissingDataError(FileNotFoundError):
    """Files of a data set are missing and could not be downloaded.

    One class for every data set and for every way in which a library reports this (`URLError` here, `RuntimeError`
    there), so that a user without a network reads what to do, not a traceback of mirrors.
    """

    def __init__(
        self,
        *,
        dataset: str,
        folder: Path,
        missing: Sequence[str],
        source: str,
        hint: str = "",
        failure: str = "",
        downloadable: bool = True,
    ) -> None:
        """Composes the message.

        Args:
            dataset: Name of the data set.
            folder: Where its files are expected.
            missing: File names that are not in `folder`.
            source: Where the files can be had.
            hint: What was noticed on the way, for instance that only compressed files are there.
            failure: Why downloading failed; empty where downloading was not requested.
            downloadable: Whether the setting `download` can fetch them.
        """
        self.dataset = dataset
        self.folder = folder
        self.missing = tuple(missing)
        lines = [f"{dataset}: {len(self.missing)} file(s) missing in {folder}:"]
        lines += [f"  {name}" for name in self.missing[:_LISTED]]
        if len(self.missing) > _LISTED:
            lines.append(f"  ... and {len(self.missing) - _LISTED} more")
        if hint:
            lines.append(hint)
        if failure:
            lines.append(f"Downloading was tried and failed: {failure}")
        lines.append("Get them in one of these ways:")
        lines.append("  - they lie elsewhere: set `root` to the folder that holds the data set's folder")
        lines.append("      --data.root PATH (with the SyntheticSteps data module: --data.dataset.root PATH)")
        if downloadable:
            lines.append("  - with a network: set `download`")
            lines.append(
                "      --data.download true (with the SyntheticSteps data module: --data.dataset.download true)"
            )
        lines.append(f"  - by hand: take them from {source} and put them, uncompressed, under the names above")
        super().__init__("\n".join(lines))
