"""Published folders: writing them at once, and loading their network from safetensors."""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import nn

from lightning_modules.named_code import require_known_code
from lightning_modules.networks import build_network

CONFIG = "config.json"
WEIGHTS = "student.safetensors"
FORMAT = "private-model-transcription/student"

#: The folders of an absolute path that has at least one folder and a name.
_PATH = re.compile(r"(?<![\w.:/<>])(?:/[\w.@+ -]*[\w.@+-])+/(?=[\w.@+-]+)")


class ExportError(ValueError):
    """A run must not or cannot be exported as requested. Nothing was written."""


def read_description(folder: Path) -> dict[str, Any]:
    """Reads `config.json` of a published folder.

    Raises:
        ExportError: The folder was not written by an export.
    """
    try:
        values = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        if values["format"] != FORMAT or values["format_version"] != 1:
            raise ValueError(f"its format is {values['format']!r}, version {values['format_version']!r}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ExportError(f"{folder} is not a folder written by `LightningCLI export` ({error})") from error
    return dict(values)


def check_target(target: Path, *, force: bool) -> None:
    """Checks that a folder can be written, and replaced if it exists.

    Raises:
        ExportError: It holds other files, or an earlier export and `force` is not set, or it cannot be created.
    """
    above = next(folder for folder in target.absolute().parents if folder.exists())
    if not (above.is_dir() and os.access(above, os.W_OK)):
        raise ExportError(f"--to {target}: {above} is not a writable folder")
    if not target.exists() and not target.is_symlink():
        return
    if target.is_symlink() or not target.is_dir():
        raise ExportError(f"--to must be a folder, and {target} is {'a link' if target.is_symlink() else 'not one'}")
    if not any(target.iterdir()):
        return
    try:
        read_description(target)
    except ExportError as error:
        raise ExportError(f"--to {target}: it holds files that are not an export. Give another folder") from error
    if not force:
        raise ExportError(f"--to {target}: it holds an earlier export. Add --force to replace it")


@contextlib.contextmanager
def staged(target: Path) -> Iterator[Path]:
    """Yields an empty folder next to `target`, which replaces it if the block ends without an error."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as beside:
        made, old = Path(beside, "made"), Path(beside, "old")
        made.mkdir()
        yield made
        if target.exists():
            os.replace(target, old)
        try:
            os.replace(made, target)
        except OSError:
            if old.exists():
                os.replace(old, target)
            raise


def without_folders(value: Any) -> Any:
    """Shortens absolute paths to file names, in a text or in the texts within plain values.

    >>> without_folders("used by /home/me/ledgers/a.jsonl, /tmp/b.jsonl: see <https://arxiv.org/abs/2304.12528>")
    'used by a.jsonl, b.jsonl: see <https://arxiv.org/abs/2304.12528>'
    """
    if isinstance(value, str):
        return _PATH.sub("", value)
    if isinstance(value, dict):
        return {key: without_folders(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_folders(item) for item in value]
    return value


def load_student(folder: str | Path, *, trust_code: bool = False) -> nn.Module:
    """Loads the network of a folder written by `LightningCLI export`, in eval mode on the CPU.

    It maps images (N, C, H, W), float32 in [-1, 1], to logits (N, c). `config.json` lists shape and classes.

    Args:
        folder: The published folder.
        trust_code: Import classes from outside this package, torch and `torchvision.models`. A folder may name any
            class, and importing one runs its code.

    Raises:
        ValueError: There is no such folder, its class is not trusted or cannot be built, or its weights do not fit.
    """
    where = Path(folder)
    spec = read_description(where)["architecture"]
    try:
        require_known_code(() if trust_code else spec)
    except ValueError as error:
        raise ExportError(f"{where}: {error}. Pass trust_code=True if you know where the folder comes from") from error
    return load_as(where, spec)


def load_as(where: Path, spec: Mapping[str, Any]) -> nn.Module:
    """As `load_student`, for a trusted class: the exported name of a class leaves out its folder on this machine.

    Raises:
        ExportError: The weights do not fit the class.
    """
    config = read_description(where)
    shape = config["image_shape"]
    network = build_network(
        spec, num_classes=int(config["num_classes"]), image_shape=(shape[0], shape[1], shape[2]), name="network"
    )
    try:
        network.load_state_dict(load_file(where / WEIGHTS))
    except (OSError, RuntimeError) as error:
        raise ExportError(f"{where / WEIGHTS} cannot be read, or does not fit {name_of(spec)}: {error}") from error
    return network.eval()


def name_of(spec: Mapping[str, Any]) -> str:
    """Name of a network that plain values describe."""
    return str(spec.get("init_args", {}).get("name") or spec["class_path"])


def left_out(network: nn.Module) -> list[str]:
    """Buffers that a network's weights leave out, since its class computes them: fixed features, for one."""
    return sorted({name for name, _ in network.named_buffers()} - {*network.state_dict()})


def weights_of(network: nn.Module) -> bytes:
    """Serialise parameters and persistent buffers as safetensors, whose metadata name what is left out."""
    state = {
        name: value.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, value in network.state_dict().items()
    }
    missing = {"left_out": ", ".join(left_out(network))} if left_out(network) else {}
    return save(state, metadata={"format": "pt", **missing})
