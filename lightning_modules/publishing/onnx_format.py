"""The network as ONNX, for runtimes without torch."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lightning_modules.publishing.agreement import require_agreement
from lightning_modules.publishing.errors import ExportError
from lightning_modules.publishing.torch_export import traced

__all__ = ["ONNX", "require_onnx", "write_onnx"]

ONNX = "student.onnx"
_PACKAGES = ("onnx", "onnxscript", "onnxruntime")


def require_onnx() -> None:
    """Refuses before any work where the extra is missing.

    Raises:
        ExportError: With what to install.
    """
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ExportError(
            f"--onnx needs {', '.join(missing)}: install the extra, pip install 'private-model-transcription[onnx]'"
        )


def write_onnx(network: nn.Module, folder: Path, *, image_shape: tuple[int, int, int]) -> float:
    """Writes `student.onnx`, `images` (N, C, H, W) to `logits` (N, c), and holds it against the network.

    Args:
        network: In eval mode, on the CPU.
        folder: Where to.
        image_shape: (C, H, W).

    Returns:
        The largest difference of a logit.

    Raises:
        ExportError: The extra is missing, the network cannot be exported, or its logits differ.
    """
    require_onnx()
    onnxruntime: Any = importlib.import_module("onnxruntime")
    program = traced(network, image_shape=image_shape)
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    try:
        logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made: Any = torch.onnx.export(
                program, input_names=["images"], output_names=["logits"], dynamo=True, verbose=False
            )
    except Exception as error:
        raise ExportError(
            f"{type(network).__name__} cannot be exported to ONNX ({type(error).__name__}: {str(error)[:400]}). Leave "
            "out --onnx"
        ) from error
    finally:
        logger.setLevel(level)
    _forget_origin(made.model)
    made.save(str(folder / ONNX))
    session = onnxruntime.InferenceSession(str(folder / ONNX), providers=["CPUExecutionProvider"])

    def ask(images: Tensor) -> Tensor:
        return torch.from_numpy(session.run(["logits"], {"images": images.numpy()})[0])

    return require_agreement(ask, network, image_shape=image_shape, name=ONNX)


def _forget_origin(model: Any) -> None:
    """Takes out lines of code and names of folders of this machine."""
    graphs = [model.graph, *model.functions.values()]
    model.metadata_props.clear()
    for graph in graphs:
        graph.metadata_props.clear()
        for node in graph:
            node.metadata_props.clear()
            node.doc_string = None
        for value in (*graph.inputs, *graph.outputs):
            value.metadata_props.clear()
