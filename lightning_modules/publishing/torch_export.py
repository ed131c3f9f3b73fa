"""The network as a `torch.export` program, which torch loads without any class of it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from lightning_modules.publishing.agreement import require_agreement
from lightning_modules.publishing.errors import ExportError
from lightning_modules.publishing.portable import portable

__all__ = ["PROGRAM", "write_program"]

PROGRAM = "student.pt2"


def write_program(network: nn.Module, folder: Path, *, image_shape: tuple[int, int, int]) -> float:
    """Writes `student.pt2`, for any number of images, and holds it against the network.

    Args:
        network: In eval mode, on the CPU.
        folder: Where to.
        image_shape: (C, H, W).

    Returns:
        The largest difference of a logit.

    Raises:
        ExportError: The network cannot be exported, or the program gives other logits.
    """
    program = traced(network, image_shape=image_shape)
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    (folder / PROGRAM).write_bytes(buffer.getvalue())
    loaded = torch.export.load(folder / PROGRAM).module()
    return require_agreement(
        lambda images: cast(Tensor, loaded(images)), network, image_shape=image_shape, name=PROGRAM
    )


def traced(network: nn.Module, *, image_shape: tuple[int, int, int]) -> torch.export.ExportedProgram:
    """The program, without the lines of code that it came from: they reveal folders of this machine.

    Raises:
        ExportError: It cannot be traced.
    """
    try:
        # Blocks of a network that switch gradients off would become calls that cannot be saved.
        with torch.no_grad():
            program = torch.export.export(
                portable(network),
                (torch.zeros(2, *image_shape),),
                dynamic_shapes=({0: torch.export.Dim("batch")},),
            )
    except Exception as error:
        raise ExportError(
            f"{type(network).__name__} cannot be exported by torch.export ({type(error).__name__}: "
            f"{str(error)[:400]}). Leave out --torch-export and --onnx: the weights and config.json do without"
        ) from error
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                node.meta.pop("stack_trace", None)
    return program
