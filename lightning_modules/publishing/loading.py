"""Saves and loads a published network's weights as safetensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import nn

from lightning_modules.networks import build_network
from lightning_modules.networks.named_code import require_known_code
from lightning_modules.publishing.folder import ExportError, read_description

WEIGHTS = "student.safetensors"


def load_student(folder: str | Path, *, trust_code: bool = False) -> nn.Module:
    """Load the network of a folder written by `LightningCLI export`, in eval mode on the CPU.

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


def weights_of(network: nn.Module) -> bytes:
    """Serialise parameters and persistent buffers as safetensors."""
    state = {
        name: value.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, value in network.state_dict().items()
    }
    return save(state, metadata={"format": "pt"})
