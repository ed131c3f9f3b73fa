"""What a teacher's file holds: weights in any of the usual wrappings. Nothing is unpickled.

Reads files of torch (weights only) and safetensors. Refused, with the lines that convert them, is whatever could run
code of its maker: pickled modules, programs of `torch.export`, whose loader evaluates expressions, and TorchScript, a
language of its own with operations on files. A graph in ONNX is read by `OnnxNetwork`.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

_WRAPPINGS = ("state_dict", "model_state_dict", "model")
_Weights = Mapping[str, torch.Tensor]


class TeacherError(ValueError):
    """A teacher that is missing, of another architecture, or unusable."""


def is_onnx(file: Path) -> bool:
    """Whether a file is a graph rather than weights, by its name."""
    return file.suffix.lower() == ".onnx"


def read_file(file: Path) -> Any:
    """What a file of torch or of safetensors holds: tensors and plain values.

    Raises:
        TeacherError: It cannot be read without running code of its maker, or not at all.
    """
    with file.open("rb") as opened:
        beginning = opened.read(16)
    if file.suffix.lower() == ".safetensors" or beginning[8:9] == b"{":
        try:
            with safe_open(str(file), framework="pt", device="cpu") as archive:
                return {name: archive.get_tensor(name) for name in archive.keys()}  # noqa: SIM118 - no mapping
        except (SafetensorError, OSError) as error:
            raise TeacherError(f"teacher {file} cannot be read as safetensors: {error}") from error
    # Torch's own files have been zip archives since version 1.6.
    names = zipfile.ZipFile(file).namelist() if zipfile.is_zipfile(file) else []
    if any(name.endswith(("serialized_exported_program.json", "archive_format")) for name in names):
        load = f'torch.export.load("{file}")'
        raise _must_be_converted(file, "a program of torch.export", load, "content.state_dict")
    if any(name.endswith("constants.pkl") for name in names):
        raise _must_be_converted(file, "TorchScript", f'torch.jit.load("{file}")', "content.state_dict()")
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        pickled = re.search(r"Unsupported global: GLOBAL ([\w.]+)", str(error))
        if pickled is None:
            raise TeacherError(
                f"teacher {file} cannot be read as plain weights ({str(error)[:300]}): give a checkpoint of a Teacher, "
                "a file of torch.save(model.state_dict(), ...) or of safetensors, or an ONNX graph (*.onnx)"
            ) from error
        weights = 'content["state_dict"] if isinstance(content, dict) else content.state_dict()'
        load = f'torch.load("{file}", weights_only=False)'
        raise _must_be_converted(file, f"a pickle of objects ({pickled[1]})", load, weights) from error


def _must_be_converted(file: Path, what: str, load: str, weights: str) -> TeacherError:
    return TeacherError(
        f"teacher {file} is {what}: loading it would run code of its maker. Convert it where you trust who made it:\n"
        f"    content = {load}\n"
        f'    torch.save({weights}, "weights.pt")\n'
        "and give weights.pt, with model.teacher.network for its architecture"
    )


def weights_in(content: Any, file: Path) -> dict[str, torch.Tensor]:
    """The weights in a file's content: itself, or what it has under `state_dict`, `model_state_dict` or `model`.

    Raises:
        TeacherError: It holds an ensemble, or no weights.
    """
    if isinstance(content, Mapping) and "ensemble" in content:
        raise TeacherError(
            f"{file} holds an ensemble, and this method takes one teacher: set model.annotator.release to ensemble for "
            "DPDFD, take MeanResponseAnnotator for Distillation, VoteAnnotator for DGD, or LocalClients (teachers=FILE)"
        )
    found = content
    while isinstance(found, Mapping):
        if found and all(isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in found.items()):
            return dict(found)
        found = next((found[name] for name in _WRAPPINGS if isinstance(found.get(name), Mapping)), None)
    held = f": it has {', '.join(map(str, list(content)[:8]))}" if isinstance(content, Mapping) else ""
    raise TeacherError(f"{file} holds no weights: expected a state_dict, or one under {', '.join(_WRAPPINGS)}{held}")


def fitted_weights(weights: _Weights, network: nn.Module, *, file: Path) -> dict[str, torch.Tensor]:
    """Weights under the names that a network has for them.

    Names are taken as they are, without the `_orig_mod` of `torch.compile`, or without a prefix such as `module` or
    `model`, where the result has all that the network needs and nothing else. Where nothing fits, they are those that
    an error can name.

    Raises:
        TeacherError: Several networks in the file fit.
    """
    if _fits(weights, network):
        return dict(weights)
    candidates: dict[str, dict[str, torch.Tensor]] = {"": {}}
    for name, value in weights.items():
        parts = [part for part in name.split(".") if part != "_orig_mod"]
        for end in range(len(parts)):
            candidates.setdefault(".".join(parts[:end]), {})[".".join(parts[end:])] = value
    fitting = [prefix for prefix, named in candidates.items() if _fits(named, network)]
    if len(fitting) > 1 and "network" not in fitting:
        raise TeacherError(
            f"teacher {file} holds {len(fitting)} networks that fit, {' and '.join(sorted(fitting))}: save the one"
        )
    # Our own checkpoints have the network under that name.
    return candidates[fitting[0] if len(fitting) == 1 else "network" if "network" in candidates else ""]


def _fits(weights: _Weights, network: nn.Module) -> bool:
    wanted = network.state_dict()
    # Files from before PyTorch 0.4.1 have no counters; it fills them in.
    needed = {name for name in wanted if not name.endswith("num_batches_tracked")}
    return needed <= weights.keys() <= wanted.keys() and all(
        weights[name].shape == wanted[name].shape for name in weights
    )
