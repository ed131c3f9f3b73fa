"""Reading of teachers' files: weights in any of the usual wrappings. Nothing is unpickled but plain values.

Reads torch files (weights only) and safetensors, in a folder as of Hugging Face too. Files that could run their maker's
code are refused: pickled modules, programs of `torch.export`, whose loader evaluates expressions, and TorchScript,
which can access files. `OnnxNetwork` reads ONNX graphs.
"""

from __future__ import annotations

import argparse
import pickletools
import re
import zipfile
from _codecs import encode
from collections.abc import Iterable, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from lightning_modules.cli.configs import missing_teacher

_WRAPPINGS = ("state_dict", "model_state_dict", "model")
IN_FOLDER = ("model.safetensors", "pytorch_model.bin")
_Weights = Mapping[str, torch.Tensor]

_SCALAR = np.float64(0).__reduce__()[0]
#: What checkpoints hold beside their weights: an `argparse.Namespace` of settings and NumPy's numbers. Rebuilding them
#: runs no code of the file's maker.
_HARMLESS: list[Any] = [
    argparse.Namespace,
    encode,
    np.dtype,
    *map(type, map(np.dtype, "?bBhHiIlLqQefd")),
    (_SCALAR, "numpy.core.multiarray.scalar"),
    (_SCALAR, "numpy._core.multiarray.scalar"),
]

#: How files begin that are no weights.
_OTHERS = {
    b"version https://git-lfs": "a pointer of git-LFS and not the file itself: run `git lfs pull`",
    b"<": "a web page: download the file itself (its link has /resolve/ or /raw/ in place of /blob/)",
}

#: Names of weights that another form of the network has, and how to get back to it.
_ALTERED = {
    r"(_packed_params|zero_point|qweight|qzeros|\.SCB|\.absmax)": "quantized: give those from before, or an ONNX graph",
    r"_mask$": "pruned: call torch.nn.utils.prune.remove(module, name) for each layer, and save them again",
    r"(weight_g$|weight_v$|parametrizations\.)": "weight-normalised or otherwise parametrised: call "
    "torch.nn.utils.parametrize.remove_parametrizations or remove_weight_norm for each layer, and save them again",
    r"\.lora_[AB]\.": "of an adapter (LoRA) alone: merge it into its network, and save that",
}


class TeacherError(ValueError):
    """A teacher that is missing, has another architecture, or is unusable."""


def read_file(path: Path) -> tuple[Path, Any]:
    """Reads the tensors and plain values of a torch or safetensors file, or of that in a folder of Hugging Face's.

    Returns:
        The file, and its content; None for a graph in ONNX, which `OnnxNetwork` reads.

    Raises:
        TeacherError: It is missing, cannot be read, or not without running code of its maker; the message says what it
            is, or how to make it.
    """
    file = next((path / name for name in IN_FOLDER if (path / name).is_file()), path)
    if file.is_dir():
        raise TeacherError(
            f"teacher {file} is a folder: give the file of its weights, such as checkpoints/last.ckpt, or a folder "
            f"with config.json and {' or '.join(IN_FOLDER)}"
        )
    if not file.is_file():
        raise TeacherError(missing_teacher(file))
    if file.suffix.lower() == ".onnx":
        return file, None
    with file.open("rb") as opened:
        beginning = opened.read(256)
    known = beginning.lstrip()
    other = "empty" if not beginning else next((said for head, said in _OTHERS.items() if known.startswith(head)), None)
    if other is not None:
        raise TeacherError(f"teacher {file} is {other}")
    if file.suffix.lower() == ".safetensors" or beginning[8:9] == b"{":
        try:
            with safe_open(str(file), framework="pt", device="cpu") as archive:
                return file, {name: archive.get_tensor(name) for name in archive.keys()}  # noqa: SIM118 - no mapping
        except (SafetensorError, OSError) as error:
            reason = _cut(file) if "not fully covered" in str(error) else str(error)
            raise TeacherError(f"teacher {file} cannot be read as safetensors: {reason}") from error
    try:
        with torch.serialization.safe_globals(_HARMLESS):
            return file, torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        raise TeacherError(
            f"teacher {file} cannot be read as plain weights: it is {_kind_of(file, error)}. Give a checkpoint of a "
            "Teacher, a file of safetensors or of torch.save(model.state_dict(), ...), with model.teacher.network, or "
            "an ONNX graph (*.onnx). What would run code of its maker is not loaded"
        ) from error


def _cut(file: Path) -> str:
    return f"cut short after {file.stat().st_size:,} bytes: copy or download it again"


def _kind_of(file: Path, error: Exception) -> str:
    """What a file is that torch refuses to read."""
    content, said = file.read_bytes()[: 2**20], str(error)
    if named := re.search(r"GLOBAL (\S+)", said):
        return f"a pickle that names {named[1]}"
    if content.startswith(b"PK"):
        if not zipfile.is_zipfile(file):
            return _cut(file)
        with zipfile.ZipFile(file) as archive:
            parts = archive.namelist()
        return "TorchScript, a program" if any("/code/" in part for part in parts) else "a program of torch.export"
    if isinstance(error, EOFError) or "EOF" in said:
        return _cut(file)
    names, texts = [], [""]
    try:
        for step, argument, _ in pickletools.genops(content):
            if step.name == "STACK_GLOBAL":
                names.append(".".join(texts[-2:]))
            elif isinstance(argument, str):
                texts.append(argument)
    except Exception:  # no pickle, or the rest of a long one
        pass
    return f"a pickle that names {names[0]}" if names else f"nothing that torch has saved ({said[-100:]})"


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
    inner, seen = content, list[str]()
    while isinstance(inner, Mapping):
        if inner and all(isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in inner.items()):
            return dict(inner)
        seen += map(str, inner)
        inner = next((inner[name] for name in _WRAPPINGS if isinstance(inner.get(name), Mapping)), None)
    _require_plain(seen, file)
    keys = f": it has {', '.join(seen[:8])}" if seen else ""
    raise TeacherError(f"{file} holds no weights: expected a state_dict, or one under {', '.join(_WRAPPINGS)}{keys}")


def _require_plain(names: Iterable[str], file: Path) -> None:
    """Refuses weights of a network in another form than its architecture has."""
    listed = list(names)
    for pattern, said in _ALTERED.items():
        if any(re.search(pattern, name) for name in listed):
            raise TeacherError(f"the weights in teacher {file} are {said}")


def fitted_weights(weights: _Weights, network: nn.Module, *, file: Path) -> dict[str, torch.Tensor]:
    """Returns weights under the names that they have in a network.

    Names are used unchanged, without the `_orig_mod` of `torch.compile`, without a prefix such as `module`, or with one
    that all of the network's names have, if the result has exactly what the network needs. If nothing fits, the result
    lets an error name the difference.

    Raises:
        TeacherError: Several networks in the file fit, or the weights are of a quantized or altered one.
    """
    if _fits(weights, network):
        return dict(weights)
    candidates: dict[str, dict[str, torch.Tensor]] = {"": {}}
    for name, value in weights.items():
        parts = [part for part in name.split(".") if part != "_orig_mod"]
        for end in range(len(parts)):
            candidates.setdefault(".".join(parts[:end]), {})[".".join(parts[end:])] = value
    fitting = [prefix for prefix, named in candidates.items() if _fits(named, network)]
    if not fitting and (inner := common_prefix(network.state_dict())):
        widened = {prefix: {inner + name: one for name, one in named.items()} for prefix, named in candidates.items()}
        fitting = [prefix for prefix, named in widened.items() if _fits(named, network)]
        candidates = widened if fitting else candidates
    if len(fitting) > 1 and "network" not in fitting:
        raise TeacherError(f"teacher {file} holds {' and '.join(sorted(fitting))}, which all fit: save the one")
    if not fitting:
        _require_plain(weights, file)
    # Our own checkpoints store the network under this name.
    return candidates[fitting[0] if len(fitting) == 1 else "network" if "network" in candidates else ""]


def common_prefix(names: Iterable[str]) -> str:
    """The parts, with their dot, that all names begin with: those of a network that only holds another.

    >>> common_prefix(["inner.conv.weight", "inner.fc.bias"])
    'inner.'
    """
    levels = zip(*(name.split(".")[:-1] for name in names), strict=False)
    return "".join(f"{level[0]}." for level in takewhile(lambda level: len(set(level)) == 1, levels))


def _fits(weights: _Weights, network: nn.Module) -> bool:
    state = network.state_dict()
    # Files from before PyTorch 0.4.1 have no counters; loading fills them in.
    needed = {name for name in state if not name.endswith("num_batches_tracked")}
    return needed <= weights.keys() <= state.keys() and all(
        weights[name].shape == state[name].shape for name in weights
    )
