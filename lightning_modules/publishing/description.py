"""`config.json`: describes the network of a published folder, for rebuilding it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lightning_modules.publishing.errors import ExportError
from lightning_modules.publishing.run import FinishedRun
from lightning_modules.publishing.wording import without_folders
from lightning_modules.runtime.runs import versions

__all__ = ["CONFIG", "FORMAT", "PREPROCESSING", "describe", "is_export", "read_description"]

CONFIG = "config.json"
FORMAT = "private-model-transcription/student"

PREPROCESSING = {
    "layout": "NCHW",
    "dtype": "float32",
    "range": [-1.0, 1.0],
    "from_0_to_1": "2 * x - 1",
}
"""What every network of this project is given."""


def describe(run: FinishedRun) -> dict[str, Any]:
    """All that `load_student` needs. No teacher, no path, no setting of the training."""
    return {
        "format": FORMAT,
        "format_version": 1,
        "architecture": without_folders(asdict(run.architecture)),
        "num_classes": run.num_classes,
        "image_shape": list(run.image_shape),
        "class_names": list(run.class_names),
        "preprocessing": PREPROCESSING,
        "outputs": "logits",
        "role": run.role,
        "method": run.method,
        "versions": {**versions(), **(dict(run.record["versions"]) if run.record else {})},
    }


def read_description(folder: Path) -> dict[str, Any]:
    """The same, from a published folder.

    Raises:
        ExportError: It is none.
    """
    try:
        values = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        if values["format"] != FORMAT or values["format_version"] != 1:
            raise ValueError(f"its format is {values['format']!r}, version {values['format_version']!r}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ExportError(f"{folder} is no folder that `LightningCLI export` has written ({error})") from error
    found: dict[str, Any] = values
    return found


def is_export(folder: Path) -> bool:
    """Whether a folder was written by an export."""
    try:
        read_description(folder)
    except ExportError:
        return False
    return True
