"""A teacher in ONNX: a graph without code of its maker, run by onnxruntime. It has outputs and no gradients."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from lightning_modules.teachers.files import TeacherError


class OnnxNetwork(nn.Module):
    """The graph of an ONNX file as a network, on the CPU.

    Args:
        file: The file, with any external data that it names next to it.

    Raises:
        TeacherError: The extra `onnx` is not installed, its weights are not finite, or the graph is not one of images
            to rows of numbers.

    Attributes:
        digest: Hash of the graph and its weights. **Private.**
    """

    def __init__(self, file: Path) -> None:
        super().__init__()
        try:
            # Untyped: it ships no type information.
            onnx, runtime = (importlib.import_module(name) for name in ("onnx", "onnxruntime"))
            model: Any = onnx.load(str(file))
            session: Any = runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        except ImportError as error:
            raise TeacherError(f"teacher {file}: pip install 'private-model-transcription[onnx]' to read it") from error
        except Exception as error:  # each of the two has its own errors
            raise TeacherError(f"teacher {file} cannot be read as ONNX ({str(error)[:300]})") from error
        inputs = session.get_inputs()
        if len(inputs) != 1 or inputs[0].type != "tensor(float)" or len(inputs[0].shape) != 4:
            descriptions = ", ".join(f"{one.name}: {one.type} {one.shape}" for one in inputs)
            raise TeacherError(f"teacher {file} must take one float32 input (N, C, H, W), got {descriptions}")
        weights = [onnx.numpy_helper.to_array(one) for one in model.graph.initializer]
        if not all(np.isfinite(one).all() for one in weights if one.dtype.kind == "f"):
            raise TeacherError(f"teacher {file} holds weights that are not finite")
        self._name: str = inputs[0].name
        batch = inputs[0].shape[0]
        #: Images in one call where the graph was written for a fixed number; None takes any.
        self._batch: int | None = batch if isinstance(batch, int) else None
        self.digest = hashlib.sha256(model.SerializeToString()).digest()
        # In a function: an attribute could be copied, and a session cannot.
        self._session: Callable[[], Any] = lambda: session

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Outputs of images (N, C, H, W), (N, c), on their device.

        Raises:
            RuntimeError: A gradient is required, or the graph does not take such images.
        """
        if images.requires_grad and torch.is_grad_enabled():
            raise RuntimeError("a teacher in ONNX has no gradients")
        pieces = images.detach().float().cpu().split(self._batch or max(1, len(images)))
        return torch.cat([self._run(piece) for piece in pieces]).to(images.device)

    def _run(self, piece: torch.Tensor) -> torch.Tensor:
        count = len(piece)
        if self._batch is not None and count < self._batch:
            piece = torch.cat([piece, piece[-1:].expand(self._batch - count, *piece.shape[1:])])
        try:
            outputs = self._session().run(None, {self._name: piece.contiguous().numpy()})[0]
        except Exception as error:  # onnxruntime's own have no common class
            raise RuntimeError(f"onnxruntime: {str(error)[:300]}") from error
        return torch.from_numpy(outputs)[:count].float()
