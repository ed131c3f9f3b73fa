"""A network's weights as safetensors: tensors and their names, nothing that runs when it is read."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save
from torch import nn

__all__ = ["WEIGHTS", "read_weights", "weights_of"]

WEIGHTS = "student.safetensors"


def weights_of(network: nn.Module) -> bytes:
    """The file's content: parameters and those buffers that a checkpoint keeps."""
    state = {
        name: value.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, value in network.state_dict().items()
    }
    return save(state, metadata={"format": "pt"})


def read_weights(folder: Path) -> dict[str, torch.Tensor]:
    """The inverse, from a published folder."""
    found: dict[str, torch.Tensor] = load_file(folder / WEIGHTS)
    return found
