"""What a teacher's file holds: weights in any of the usual wrappings, or a graph in ONNX. Nothing is unpickled.

Reads files of torch (weights only), safetensors, the weights of a program of `torch.export`, and ONNX. Refused,
with the lines that convert them, is whatever could run code of its maker: pickled modules, and TorchScript, a program
in a language of its own, with operations on files.
"""

from __future__ import annotations

import io
import pickletools
import zipfile
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from lightning_modules.teachers.errors import TeacherError
from lightning_modules.teachers.exported import exported_weights, is_exported

__all__ = ["is_onnx", "read_file"]

_TRUST = "it runs what is in the file, so only where you trust who made it"


def is_onnx(file: Path) -> bool:
    """Whether a file is a graph rather than weights, by its name."""
    return file.suffix.lower() == ".onnx"


def read_file(file: Path) -> Any:
    """What a file of torch or of safetensors holds: tensors and plain values.

    Args:
        file: One that exists.

    Raises:
        TeacherError: It cannot be read without running code of its maker, or not at all.
    """
    if file.is_dir():
        raise TeacherError(f"teacher {file} is a folder: give the file of weights in it")
    with file.open("rb") as opened:
        beginning = opened.read(16)
    if file.suffix.lower() == ".safetensors" or beginning[8:9] == b"{":
        return _safetensors(file)
    names = _names_in_archive(file)
    if any(name.endswith("constants.pkl") for name in names) and not is_exported(names):
        raise TeacherError(
            f"teacher {file} is TorchScript: loading it runs a program of its maker. Convert it where you trust who "
            "made it:\n"
            f'    network = torch.jit.load("{file}")\n'
            '    torch.save(network.state_dict(), "weights.pt")\n'
            "and give weights.pt, with model.teacher.network for its architecture"
        )
    if is_exported(names):
        try:
            return exported_weights(file)
        except (ValueError, OSError, zipfile.BadZipFile) as error:
            raise TeacherError(
                f"teacher {file} is a program of torch.export whose weights cannot be read by themselves ({error}), "
                "and its loader runs what is in the file. Convert it where you trust who made it:\n"
                f'    program = torch.export.load("{file}")\n'
                '    torch.save(program.state_dict, "weights.pt")\n'
                "and give weights.pt, with model.teacher.network for its architecture"
            ) from error
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        raise TeacherError(_unreadable(file, error, names)) from error


def _safetensors(file: Path) -> dict[str, torch.Tensor]:
    try:
        with safe_open(str(file), framework="pt", device="cpu") as opened:
            return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - no mapping
    except (SafetensorError, OSError) as error:
        raise TeacherError(
            f"teacher {file} cannot be read as safetensors ({error}): it is cut short or another file"
        ) from error


def _names_in_archive(file: Path) -> list[str]:
    """Names of what is in a zip archive, which torch's files have been since version 1.6; none in any other file."""
    try:
        with zipfile.ZipFile(file) as archive:
            return archive.namelist()
    except (zipfile.BadZipFile, OSError):
        return []


def _unreadable(file: Path, error: Exception, names: list[str]) -> str:
    kind, made_of = _pickled(file, names)
    if kind == "object":
        return (
            f"teacher {file} is a pickled {made_of[0] if made_of else 'object'}, and nothing is unpickled here: that "
            f"would run code. Convert it ({_TRUST}):\n"
            f'    network = torch.load("{file}", weights_only=False)\n'
            '    torch.save(network.state_dict(), "weights.pt")\n'
            "and give weights.pt, with model.teacher.network for its architecture"
        )
    if kind == "mapping" and made_of:
        return (
            f"teacher {file} holds objects beside its weights ({', '.join(made_of[:3])}), and nothing is unpickled "
            f"here: that would run code. Convert it ({_TRUST}):\n"
            f'    content = torch.load("{file}", weights_only=False)\n'
            '    torch.save(content["state_dict"], "weights.pt")   # or under which name it has its weights\n'
            "and give weights.pt, with model.teacher.network for its architecture"
        )
    return (
        f"teacher {file} cannot be read as plain weights ({type(error).__name__}: {str(error)[:300]}). Give a "
        "checkpoint of `LightningCLI fit` with a Teacher, or a file written by torch.save(model.state_dict(), ...), by "
        "safetensors, or an ONNX graph (*.onnx)"
    )


def _pickled(file: Path, names: list[str]) -> tuple[str, list[str]]:
    """Whether a file's pickle is a `mapping`, an `object` or neither, and what else than plain values it names."""
    try:
        if names:
            with zipfile.ZipFile(file) as archive:
                stream = io.BytesIO(archive.read(next(name for name in names if name.endswith("data.pkl"))))
            first, made_of = _opcodes(stream)
        else:
            stream = io.BytesIO(file.read_bytes())
            first, made_of = _opcodes(stream)
            if first == "LONG1":  # before version 1.6 a number, a version and the system stand before the content
                first, made_of = [_opcodes(stream) for _ in range(3)][-1]
    except Exception:  # from arbitrary bytes
        return "neither", []
    kind = {"EMPTY_DICT": "mapping", "GLOBAL": "object", "MARK": "object"}.get(first, "neither")
    if kind == "object" and made_of and made_of[0] == "collections.OrderedDict":
        return "mapping", made_of[1:]
    return kind, [one for one in made_of if one != "collections.OrderedDict"]


def _opcodes(stream: io.BytesIO) -> tuple[str, list[str]]:
    """How the next pickle of a stream begins, and the classes and functions that it names; nothing is run.

    Without those that torch reads as plain values.
    """
    first, found = "", []
    for opcode, argument, _ in pickletools.genops(stream):
        if opcode.name not in ("PROTO", "FRAME"):
            first = first or opcode.name
        if opcode.name == "GLOBAL" and isinstance(argument, str):
            found.append(argument.replace(" ", "."))
    plain = ("torch._utils.", "torch.storage")
    named = [one for one in dict.fromkeys(found) if not one.startswith(plain) and not one.endswith("Storage")]
    return first, named
