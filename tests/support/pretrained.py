"""Encoders pretrained on a few procedural images of 8x8 pixels, as files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.runs import QUIET, fit

from lightning_modules import ProceduralPretraining

ENCODER = {"class_path": "ResNetEncoder", "init_args": {"width": 4, "blocks": [1, 1]}}


def pretraining(folder: str, *, epochs: int = 1, channels: int = 3, **data: Any) -> dict[str, Any]:
    """The configuration: 64 images in four batches."""
    return {
        "seed_everything": 3,
        "trainer": {"max_epochs": epochs, "default_root_dir": folder, "log_every_n_steps": 1},
        "model": {"class_path": "ProceduralPretraining", "init_args": {"encoder": ENCODER, "embedding": 8}},
        "data": {
            "class_path": "ProceduralImages",
            "init_args": {
                "image_shape": [channels, 8, 8],
                "num_images": 64,
                "held_out": 16,
                "batch_size": 16,
                **data,
            },
        },
    }


def pretrain(folder: str, *arguments: str, epochs: int = 1, channels: int = 3, **data: Any) -> ProceduralPretraining:
    """A fit of it through the command line, into `folder/checkpoints/last.ckpt`."""
    config = pretraining(folder, epochs=epochs, channels=channels, **data)
    made: ProceduralPretraining = fit(config, *QUIET, *arguments).model
    return made


def encoder_file(folder: str = "encoder", **settings: Any) -> str:
    """The checkpoint of a pretraining, made where it is not there yet; a name relative to the working folder."""
    path = Path(folder) / "checkpoints" / "last.ckpt"
    if not path.is_file():
        pretrain(folder, **settings)
    return str(path)
