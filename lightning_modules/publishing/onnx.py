"""Exports a network to ONNX, with operations that every runtime has, and compares its logits with the network's."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import json
import logging
import math
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lightning_modules.networks.kernels import Kernels
from lightning_modules.networks.patches import Patches
from lightning_modules.networks.scattering import Scattering, folded
from lightning_modules.publishing.folder import ExportError

ONNX = "student.onnx"
_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
TOLERANCE = 1e-4
"""Largest allowed difference of a logit: absolute or, if the largest logit exceeds 1, relative to it."""

_SIZES = (1, 2, 35)  # batch sizes, one of them larger than the pieces of a scattering transform


def write_onnx(
    network: nn.Module, folder: Path, *, image_shape: tuple[int, int, int], metadata: Mapping[str, Any] | None = None
) -> float:
    """Write `student.onnx`, which maps `images` (N, C, H, W) to `logits` (N, c).

    Returns:
        The largest difference of its logits from the network's.

    Raises:
        ExportError: A package is missing, the network cannot be exported, or its logits differ.
    """
    if missing := [name for name in _PACKAGES if importlib.util.find_spec(name) is None]:
        raise ExportError(f"ONNX needs {', '.join(missing)}: pip install 'private-model-transcription[onnx]'")
    onnxruntime: Any = importlib.import_module("onnxruntime")
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    try:
        logger.setLevel(logging.ERROR)
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
    finally:
        logger.setLevel(level)
    _forget_origin(converted.model)
    converted.model.metadata_props.update({name: json.dumps(value) for name, value in (metadata or {}).items()})
    converted.save(str(folder / ONNX))
    session = onnxruntime.InferenceSession(str(folder / ONNX), providers=["CPUExecutionProvider"])

    def ask(images: Tensor) -> Tensor:
        return torch.from_numpy(session.run(["logits"], {"images": images.numpy()})[0])

    return require_agreement(ask, network, image_shape=image_shape, name=ONNX)


def _forget_origin(model: Any) -> None:
    """Remove source lines and folder names of this machine."""
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
    """Return the largest difference between two networks' logits on noise, in batches of several sizes, and on blanks.

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
    """Copy a network for export: in eval mode on the CPU, with the same outputs, for any number of images.

    Scattering is computed without complex numbers; scattering, patches and kernels process a batch in one piece.
    """
    whole = nn.Sequential(copy.deepcopy(network)).cpu().eval().requires_grad_(False)
    for module in list(whole.modules()):
        if isinstance(module, Patches | Kernels):
            module.forward = module.at_once  # type: ignore[method-assign]
        for name, child in module.named_children():
            if isinstance(child, Scattering):
                setattr(module, name, PortableScattering(child).eval())
    return whole.to(memory_format=torch.contiguous_format)


class PortableScattering(Scattering):
    """`Scattering` with Fourier transforms as matrix products in float64: at these sizes the matrices are small.

    Fourier transforms of ONNX runtimes differ by too much for blank images: group normalisation amplifies rounding
    errors of 1e-6 to differences of 1e-3 in logits.
    """

    def __init__(self, scattering: Scattering) -> None:
        nn.Module.__init__(self)
        self.margins, self.output_shape, self.norm = scattering.margins, scattering.output_shape, scattering.norm
        height, width = scattering.get_buffer("wavelets0").shape[-2:]
        for scale in range(2):
            # Sizes of the maps after subsampling at this scale.
            for direction, sign in (("forward", -1), ("backward", 1)):
                for axis, side in (("rows", height >> scale), ("columns", width >> scale)):
                    for part, matrix in zip(("real", "imaginary"), _fourier(side, sign), strict=True):
                        self.register_buffer(f"{direction}_{axis}_{part}_{scale}", matrix)
            for name in (f"wavelets{scale}", f"average{scale}"):
                self.register_buffer(name, scattering.get_buffer(name).double())

    def scattered(self, images: Tensor) -> Tensor:
        """See `Scattering.scattered`; all images at once."""
        return self._transform(images.double()).to(images.dtype)

    def _spectrum(self, maps: Tensor) -> tuple[Tensor, Tensor]:
        return self._transformed(maps, None, "forward", 0)

    def _filtered(self, spectra: tuple[Tensor, Tensor], scale: int) -> Tensor:
        bank = self.get_buffer(f"wavelets{scale}")
        parts = [folded(part.unsqueeze(-3) * bank, 2**scale) for part in spectra]
        real, imaginary = self._transformed(parts[0], parts[1], "backward", scale)
        return (real.square() + imaginary.square()).sqrt()

    def _transformed(self, real: Tensor, imaginary: Tensor | None, direction: str, scale: int) -> tuple[Tensor, Tensor]:
        """Fourier transform of maps (..., H, W) along both axes, as real and imaginary parts."""
        columns = [self.get_buffer(f"{direction}_columns_{part}_{scale}") for part in ("real", "imaginary")]
        rows = [self.get_buffer(f"{direction}_rows_{part}_{scale}") for part in ("real", "imaginary")]
        # The matrices are symmetric.
        first, second = real @ columns[0], real @ columns[1]
        if imaginary is not None:
            first, second = first - imaginary @ columns[1], second + imaginary @ columns[0]
        return rows[0] @ first - rows[1] @ second, rows[0] @ second + rows[1] @ first


def _fourier(side: int, sign: int) -> tuple[Tensor, Tensor]:
    """Real and imaginary parts of the Fourier matrix, (side, side); sign 1 gives its inverse."""
    steps = torch.arange(side)
    angles = 2 * math.pi / side * ((steps[:, None] * steps) % side).double()
    scale = 1 / side if sign > 0 else 1.0
    return angles.cos() * scale, sign * angles.sin() * scale
