"""Exports a finished run to a folder that may be published."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torchmetrics.utilities.plot import plot_confusion_matrix

from lightning_modules.callbacks.figures import save_figure
from lightning_modules.publishing.folder import (
    CONFIG,
    FORMAT,
    WEIGHTS,
    ExportError,
    check_target,
    load_as,
    staged,
    weights_of,
    without_folders,
)
from lightning_modules.publishing.model_card import CARD, CONFUSION, model_card
from lightning_modules.publishing.onnx import ONNX, require_agreement, write_onnx
from lightning_modules.publishing.run import FinishedRun, read_run
from lightning_modules.training.run import provenance
from privacy.exported import GUARANTEE, checksums

PREPROCESSING = {"layout": "NCHW", "dtype": "float32", "range": [-1.0, 1.0], "from_0_to_1": "2 * x - 1"}
"""Input format of every network of this project."""


@dataclass(frozen=True, kw_only=True)
class Exported:
    """An export's folder.

    Attributes:
        differences: Largest difference between each written file's logits and the network's.
        without_onnx: Why there is no ONNX file; empty if there is one.
    """

    folder: Path
    run: FinishedRun
    differences: dict[str, float]
    without_onnx: str


def export_run(
    given: str | Path,
    *,
    to: str | Path,
    unprotected: bool = False,
    force: bool = False,
    license_name: str = "",
    network: str | None = None,
    named: Collection[str] = (),
) -> Exported:
    """Exports a run's student, or a teacher trained by DP-SGD, with its guarantee and a model card, atomically.

    Raises:
        ExportError: The run must not or cannot be exported as requested. Nothing was written.
    """
    target = Path(to)
    check_target(target, force=force)
    run = read_run(given, network=network, named=named)
    if math.isinf(run.guarantee.epsilon) and not unprotected:
        raise ExportError(
            f"nothing bounds what this student reveals about a record of {run.guarantee.private_data} (record-level "
            "epsilon is infinite). Add --unprotected to export it anyway: its model card will begin with that"
        )
    with staged(target) as folder:
        (folder / WEIGHTS).write_bytes(weights_of(run.network))
        _write_json(folder / CONFIG, _description(run))
        (folder / "guarantee.md").write_text(run.guarantee.to_markdown(), encoding="utf-8")
        loaded = load_as(folder, run.architecture)  # `read_run` has checked the class
        shape = run.image_shape
        differences = {WEIGHTS: require_agreement(loaded, run.network, image_shape=shape, name=WEIGHTS)}
        carried = {"class_names": run.class_names, "image_shape": shape, "range": PREPROCESSING["range"]}
        without_onnx = ""
        try:
            differences[ONNX] = write_onnx(run.network, folder, image_shape=shape, metadata=carried)
        except ExportError as error:
            (folder / ONNX).unlink(missing_ok=True)
            without_onnx = str(error)
        if run.record and "confusion" in run.record:
            counts = torch.tensor(run.record["confusion"])
            figure, _ = plot_confusion_matrix(counts, labels=list(run.class_names), add_text=len(counts) <= 20)
            save_figure(figure, folder / CONFUSION)
        files = sorted([GUARANTEE, *(path.name for path in folder.iterdir())])
        card = model_card(run, name=target.resolve().name or "student", license_name=license_name, files=files)
        (folder / CARD).write_text(card, encoding="utf-8")
        _write_json(folder / GUARANTEE, {**run.guarantee.to_dict(), "files": checksums(folder)})
    return Exported(folder=target, run=run, differences=differences, without_onnx=without_onnx)


def _without_paths(architecture: Any) -> Any:
    """Shortens `path/to/my.py:Net` to `my.py:Net`."""
    return json.loads(re.sub(r'"[^"]*/([^"/]+\.py:)', r'"\1', json.dumps(architecture)))


def _description(run: FinishedRun) -> dict[str, Any]:
    """`config.json`: what `load_student` needs, without teacher, paths or training settings."""
    return {
        "format": FORMAT,
        "format_version": 1,
        "architecture": without_folders(_without_paths(run.architecture)),
        "num_classes": run.num_classes,
        "image_shape": list(run.image_shape),
        "class_names": list(run.class_names),
        "preprocessing": {**PREPROCESSING, **run.pictures},
        "outputs": "logits",
        "role": run.role,
        "method": run.method,
        "versions": {**provenance()["versions"], **(dict(run.record["versions"]) if run.record else {})},
    }


def _write_json(path: Path, values: object) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
