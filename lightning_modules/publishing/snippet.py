"""`load_student.py`: loads a published network where this package is not installed."""

from __future__ import annotations

from typing import Any

from lightning_modules.networks import Network
from lightning_modules.publishing.formats import ONNX, PROGRAM
from lightning_modules.publishing.loading import WEIGHTS

SNIPPET = "load_student.py"

_HEAD = '''"""Loads the network of this folder; private-model-transcription is not needed.

load_student() maps images (N, C, H, W), float32 in [-1, 1], to logits (N, classes); see config.json.
"""

from pathlib import Path

'''

_PROGRAM = f'''import torch


def load_student():
    return torch.export.load(Path(__file__).resolve().parent / "{PROGRAM}").module()
'''

_CLASS = f'''import json
from importlib import import_module

from safetensors.torch import load_file


def load_student():
    folder = Path(__file__).resolve().parent
    spec = json.loads((folder / "config.json").read_text(encoding="utf-8"))["architecture"]
    module, _, name = spec["name"].rpartition(".")
    network = getattr(import_module(module), name)(**spec["arguments"])
    network.load_state_dict(load_file(folder / "{WEIGHTS}"))
    return network.eval()
'''

_ONNX = f'''import numpy
import onnxruntime


def load_student():
    session = onnxruntime.InferenceSession(str(Path(__file__).resolve().parent / "{ONNX}"))
    return lambda images: session.run(["logits"], {{"images": numpy.asarray(images, dtype=numpy.float32)}})[0]
'''


def snippet(spec: Network, *, program: bool, onnx: bool) -> str | None:
    """Its text; None where nothing in the folder can be loaded without this package.

    Args:
        spec: The network's class and arguments.
        program: Whether there is a `torch.export` program.
        onnx: Whether there is an ONNX file.
    """
    if program:
        return _HEAD + _PROGRAM
    name = str(spec.name)
    if not name.startswith("lightning_modules.") and ":" not in name and _is_plain(spec.arguments):
        return _HEAD + _CLASS
    return _HEAD + _ONNX if onnx else None


def _is_plain(value: Any) -> bool:
    """Whether a class can be called with it as it is: no settings of other classes."""
    if isinstance(value, dict):
        return "class_path" not in value and all(map(_is_plain, value.values()))
    if isinstance(value, str) and "." in value:
        return False  # it may stand for a class
    return all(map(_is_plain, value)) if isinstance(value, (list, tuple)) else True
