"""Loading a published network with this package."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from lightning_modules.publishing.architecture import TRUSTED, build, foreign_classes
from lightning_modules.publishing.description import read_description
from lightning_modules.publishing.errors import ExportError
from lightning_modules.publishing.weights import WEIGHTS, read_weights

__all__ = ["load_student"]


def load_student(folder: str | Path, *, trust_code: bool = False) -> nn.Module:
    """The network of a folder that `LightningCLI export` has written, in eval mode on the CPU.

    It maps images (N, C, H, W), float32 in [-1, 1], to logits (N, c). `config.json` names shape and classes.

    Args:
        folder: What was published.
        trust_code: Import classes that are neither this package's nor of `torchvision.models`: a folder may name any
            class, and importing one runs its code.

    Raises:
        ValueError: No such folder, a class that is not trusted or cannot be built, or weights that do not fit it.
    """
    where = Path(folder)
    config = read_description(where)
    spec = config["architecture"]
    foreign = foreign_classes(spec)
    if foreign and not trust_code:
        raise ExportError(
            f"{where} names {', '.join(foreign)}, which does not lie in {', '.join(TRUSTED)}: importing it runs "
            "its code. Pass trust_code=True if you know where the folder comes from"
        )
    shape = config["image_shape"]
    network = build(spec, num_classes=int(config["num_classes"]), image_shape=(shape[0], shape[1], shape[2]))
    try:
        network.load_state_dict(read_weights(where))
    except (OSError, RuntimeError) as error:
        raise ExportError(f"{where / WEIGHTS} cannot be read, or does not fit {spec['class_path']}: {error}") from error
    return network.eval()
