"""Exports a network to ONNX, with operations that every runtime has, and compares its logits with the network's."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import json
import logging
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lightning_modules.networks.kernels import Kernels
from lightning_modules.networks.patches import Patches
from lightning_modules.networks.scattering import Scattering
from lightning_modules.publishing.folder import ExportError

ONNX = "student.onnx"
_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
TOLERANCE = 1e-4
"""Largest allowed difference of a logit: absolute or, if the largest logit exceeds 1, relative to it."""

_SIZES = (1, 2, 35)  # batch sizes, one of them larger than the pieces of a scattering transform


def write_onnx(
    network: nn.Module, folder: Path, *, image_shape: tuple[int, int, int], metadata: Mapping[str, Any] | None = None
) -> float:
    """Writes `student.onnx`, which maps `images` (N, C, H, W) to `logits` (N, c).

    Returns:
        The largest difference of its logits from the network's.

    Raises:
        ExportError: A package is missing, the network cannot be exported, or its logits differ.
    """
    if missing := [name for name in _PACKAGES if importlib.util.find_spec(name) is None]:
        raise ExportError(f"ONNX needs {', '.join(missing)}: pip install 'private-model-transcription[onnx]'")
    onnxruntime: Any = importlib.import_module("onnxruntime")
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    try:
        # Otherwise no_grad blocks within a network would become calls that cannot be saved.
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            example, batch = (torch.zeros(2, *image_shape),), torch.export.Dim("batch")
            program = torch.export.export(portable(network), example, dynamic_shapes=({0: batch},))
            converted: Any = torch.onnx.export(
                program, input_names=["images"], output_names=["logits"], dynamo=True, verbose=False
            )
    except Exception as error:
        raise ExportError(
            f"{type(network).__name__} cannot be exported to ONNX ({type(error).__name__}: {str(error)[:400]})"
        ) from error
    _forget_origin(converted.model)
    converted.model.metadata_props.update({name: json.dumps(value) for name, value in (metadata or {}).items()})
    converted.save(str(folder / ONNX))
    session = onnxruntime.InferenceSession(str(folder / ONNX), providers=["CPUExecutionProvider"])

    def ask(images: Tensor) -> Tensor:
        return torch.from_numpy(session.run(["logits"], {"images": images.numpy()})[0])

    return require_agreement(ask, network, image_shape=image_shape, name=ONNX)


def _forget_origin(model: Any) -> None:
    """Removes source lines and folder names of this machine."""
    graphs = [model.graph, *model.functions.values()]
    model.metadata_props.clear()
    for graph in graphs:
        graph.metadata_props.clear()
        for node in graph:
            node.metadata_props.clear()
            node.doc_string = None
        for value in (*graph.inputs, *graph.outputs):
            value.metadata_props.clear()


def require_agreement(
    exported: Callable[[Tensor], Tensor], network: nn.Module, *, image_shape: tuple[int, int, int], name: str
) -> float:
    """Returns the largest difference between two networks' logits on noise, in batches of several sizes, and on blanks.

    Raises:
        ExportError: It exceeds `TOLERANCE`, or the exported network fails on a batch.
    """
    draw = torch.Generator().manual_seed(0)
    noise = 2 * torch.rand(max(_SIZES), *image_shape, generator=draw) - 1
    blank = torch.stack([torch.full(image_shape, value) for value in (-1.0, 0.0, 1.0)])
    largest = 0.0
    for images in (*(noise[:size] for size in _SIZES), blank):
        with torch.no_grad():
            expected = network(images)
            try:
                logits = exported(images)
            except Exception as error:
                raise ExportError(f"{name} does not take {len(images)} images: {error}") from error
        difference = float((logits - expected).abs().max())
        if not difference <= TOLERANCE * max(1.0, float(expected.abs().max())):
            raise ExportError(f"logits of {name} differ from the network's by {difference:.3g}: it was not exported")
        largest = max(largest, difference)
    return largest


def portable(network: nn.Module) -> nn.Module:
    """Copies a network for export: in eval mode on the CPU, with the same outputs, for any number of images.

    Scattering, patches and kernels process a batch in one piece.
    """
    whole = nn.Sequential(copy.deepcopy(network)).cpu().eval().requires_grad_(False)
    for module in whole.modules():
        if isinstance(module, Patches | Kernels):
            module.forward = module.at_once  # type: ignore[method-assign]
        elif isinstance(module, Scattering):
            module.forward = partial(_in_float64, module.double())  # type: ignore[method-assign]
    return whole.to(memory_format=torch.contiguous_format)


def _in_float64(scattering: Scattering, images: Tensor) -> Tensor:
    """Features whose Fourier transforms agree between runtimes.

    In float32 they differ by 1e-6, which group normalisation of blank images amplifies to 1e-3 in logits.
    """
    features: Tensor = scattering.norm(scattering._transform(images.double()).to(images.dtype))
    return features
