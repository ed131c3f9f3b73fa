"""Synthetic images of a run as an `ImageFolder`, with the student's own decisions for labels."""

from __future__ import annotations

import csv
import importlib
import io
import math
import re
from pathlib import Path

import torch
from torch import Tensor
from torchvision.transforms.functional import to_pil_image

from lightning_modules.base import DataFreeDistillation
from lightning_modules.publishing.folder import ExportError
from lightning_modules.publishing.run import FinishedRun
from lightning_modules.runtime.hyperparameters import require_given, require_known_checkpoint
from lightning_modules.runtime.randomness import key

IMAGES = "synthetic_images"
_AT_ONCE = 256


def image_source(run: FinishedRun) -> DataFreeDistillation:
    """The run's module, whose images may be published; its teacher is not loaded.

    Images of a procedural prior are public whatever the run. What made others was trained on released values, so that
    the guarantee has to name them, and to bound something.

    Raises:
        ExportError: There are none, or the guarantee does not cover them.
    """
    if run.role != "student":
        raise ExportError("--synthetic-images: a teacher by DP-SGD has no synthetic images; export a student of it")
    if run.image_shape[0] not in (1, 3):
        raise ExportError(f"--synthetic-images: PNG has 1 or 3 channels, and images are of shape {run.image_shape}")
    settings = run.content.get("hyper_parameters", {})
    try:
        unused = {"teacher": "not loaded"}
        require_known_checkpoint(run.content, where=str(run.checkpoint), named=run.named, given=unused)
        require_given(run.content["distillation"].get("objects", ()), (), checkpoint=str(run.checkpoint))
        module, _, name = str(settings["_class_path"]).rpartition(".")
        found = getattr(importlib.import_module(module), name).load_from_checkpoint(
            run.checkpoint, map_location="cpu", named=run.named, **unused
        )
    except (KeyError, ImportError, AttributeError, ValueError) as error:
        raise ExportError(
            f"--synthetic-images: the run's source of images cannot be built again ({error}): draw them in the script "
            "that has it"
        ) from error
    if not isinstance(found, DataFreeDistillation):
        raise ExportError(f"--synthetic-images: {type(found).__name__} draws no images")
    kind = found.images.kind
    if kind == "pool":
        raise ExportError(
            "--synthetic-images: this run learnt from a pool of real images, which are not its to publish"
        )
    if kind != "prior" and (math.isinf(run.epsilon) or "synthetic images" not in run.stated["artefacts"]):
        raise ExportError(
            f"--synthetic-images: images of source {kind!r} come from a network that was trained on the teacher's "
            "responses, and the guarantee does not cover them (record-level epsilon "
            f"{run.stated['epsilon']}; covered: {', '.join(run.stated['artefacts'])}). Images of a prior are public"
        )
    return found.eval()


@torch.no_grad()
def write_images(run: FinishedRun, source: DataFreeDistillation, folder: Path, *, count: int) -> None:
    """Writes `synthetic_images/<class>/<number>.png`, and `labels.csv` with the number of each class."""
    root = folder / IMAGES
    names = _folder_names(run.class_names)
    rows: list[tuple[str, int, str]] = []
    seed = source.draw_seed or 0
    while len(rows) < count:
        wanted = min(_AT_ONCE, count - len(rows))
        drawn = source.images.grid(wanted, seed=key(seed, len(rows), 0, "export"), device=torch.device("cpu"))
        for image, label in zip(drawn, run.network(drawn).argmax(dim=1).tolist(), strict=True):
            place = root / names[label] / f"{len(rows):06d}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            to_pil_image(_as_bytes(image)).save(place)
            rows.append((f"{names[label]}/{place.name}", label, run.class_names[label]))
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["file", "class", "class_name"])
    writer.writerows(rows)
    (root / "labels.csv").write_text(text.getvalue(), encoding="utf-8")


def _as_bytes(image: Tensor) -> Tensor:
    return ((image.float() + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)


def _folder_names(class_names: tuple[str, ...]) -> list[str]:
    """A name for each class's folder: no two alike, and none that leads elsewhere."""
    names = [re.sub(r"[^\w-]+", "_", name).strip("_") for name in class_names]
    plain = all(names) and len({name.lower() for name in names}) == len(names)
    return names if plain else [f"{label}_{name}".rstrip("_") for label, name in enumerate(names)]
