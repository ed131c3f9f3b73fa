"""Reading of teachers' files: weights in any of the usual wrappings. Nothing is unpickled.

Reads torch files (weights only) and safetensors. Files that could run their maker's code are refused: pickled modules,
programs of `torch.export`, whose loader evaluates expressions, and TorchScript, which can access files. `OnnxNetwork`
reads ONNX graphs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from lightning_modules.cli.configs import missing_teacher

_WRAPPINGS = ("state_dict", "model_state_dict", "model")
_Weights = Mapping[str, torch.Tensor]


class TeacherError(ValueError):
    """A teacher that is missing, has another architecture, or is unusable."""


def is_onnx(file: Path) -> bool:
    """Whether a file is an ONNX graph, by its name."""
    return file.suffix.lower() == ".onnx"


def require_file(file: Path) -> None:
    """Refuses a folder, or a missing teacher file, with an error that says how to make it.

    Raises:
        TeacherError: It is a folder, or missing.
    """
    if file.is_file():
        return
    if file.is_dir():
        raise TeacherError(f"teacher {file} is a folder: give the file of its weights, such as checkpoints/last.ckpt")
    raise TeacherError(missing_teacher(file))


def read_file(file: Path) -> Any:
    """Reads the tensors and plain values of a torch or safetensors file.

    Raises:
        TeacherError: It cannot be read, or not without running code of its maker.
    """
    with file.open("rb") as opened:
        beginning = opened.read(16)
    if file.suffix.lower() == ".safetensors" or beginning[8:9] == b"{":
        try:
            with safe_open(str(file), framework="pt", device="cpu") as archive:
                return {name: archive.get_tensor(name) for name in archive.keys()}  # noqa: SIM118 - no mapping
        except (SafetensorError, OSError) as error:
            raise TeacherError(f"teacher {file} cannot be read as safetensors: {error}") from error
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        pickled = "weights_only" in str(error)  # torch's advice is to run it
        reason = "it is a pickled module, or TorchScript" if pickled else str(error)[:300]
        raise TeacherError(
            f"teacher {file} cannot be read as plain weights ({reason}): give a checkpoint of a Teacher, a "
            "file of safetensors or of torch.save(model.state_dict(), ...), with model.teacher.network, or an ONNX "
            "graph (*.onnx). What would run code of its maker is not loaded"
        ) from error


def weights_in(content: Any, file: Path) -> dict[str, torch.Tensor]:
    """Weights in a file's content: the content itself, or its `state_dict`, `model_state_dict` or `model`.

    Raises:
        TeacherError: It holds an ensemble, or no weights.
    """
    if isinstance(content, Mapping) and "ensemble" in content:
        raise TeacherError(
            f"{file} holds an ensemble, and this method takes one teacher: set model.mechanism.release to ensemble for "
            "DPDFD, take NoisyMeanResponse for Distillation, NoisyVotes for DGD, or LocalClients (teachers=FILE)"
        )
    inner = content
    while isinstance(inner, Mapping):
        if inner and all(isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in inner.items()):
            return dict(inner)
        inner = next((inner[name] for name in _WRAPPINGS if isinstance(inner.get(name), Mapping)), None)
    keys = f": it has {', '.join(map(str, list(content)[:8]))}" if isinstance(content, Mapping) else ""
    raise TeacherError(f"{file} holds no weights: expected a state_dict, or one under {', '.join(_WRAPPINGS)}{keys}")


def fitted_weights(weights: _Weights, network: nn.Module, *, file: Path) -> dict[str, torch.Tensor]:
    """Returns weights under the names that they have in a network.

    Names are used unchanged, without the `_orig_mod` of `torch.compile`, or without a prefix such as `module`, if the
    result has exactly what the network needs. If nothing fits, the result lets an error name the difference.

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
        raise TeacherError(f"teacher {file} holds {' and '.join(sorted(fitting))}, which all fit: save the one")
    # Our own checkpoints store the network under this name.
    return candidates[fitting[0] if len(fitting) == 1 else "network" if "network" in candidates else ""]


def _fits(weights: _Weights, network: nn.Module) -> bool:
    state = network.state_dict()
    # Files from before PyTorch 0.4.1 have no counters; loading fills them in.
    needed = {name for name in state if not name.endswith("num_batches_tracked")}
    return needed <= weights.keys() <= state.keys() and all(
        weights[name].shape == state[name].shape for name in weights
    )
