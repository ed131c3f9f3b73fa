"""Weights of a program of `torch.export`, read without its loader, which evaluates expressions and may unpickle.

An archive holds each weight as plain bytes, and a table in JSON that says what they are. The program itself is not
read: the architecture has to be given.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

__all__ = ["exported_weights", "is_exported"]

_TABLE = "_weights_config.json"
#: Of `torch._export.serde.schema.ScalarType`.
_TYPES = {
    1: torch.uint8,
    2: torch.int8,
    3: torch.int16,
    4: torch.int32,
    5: torch.int64,
    6: torch.float16,
    7: torch.float32,
    8: torch.float64,
    12: torch.bool,
    13: torch.bfloat16,
}


def is_exported(names: list[str]) -> bool:
    """Whether names of an archive's content are those of a program of `torch.export`."""
    return any(name.endswith(("serialized_exported_program.json", "archive_format")) for name in names)


def exported_weights(file: Path) -> dict[str, torch.Tensor]:
    """Weights and buffers of the one program in an archive.

    Raises:
        ValueError: It is of another version, holds several programs, or weights that only a pickle can hold.
    """
    with zipfile.ZipFile(file) as archive:
        tables = [name for name in archive.namelist() if name.endswith(_TABLE)]
        if len(tables) != 1:
            raise ValueError(f"{len(tables)} tables of weights")
        entries: Mapping[str, Any] = json.loads(archive.read(tables[0]))["config"]
        folder = tables[0].rpartition("/")[0]
        try:
            return {name: _tensor(archive.read(f"{folder}/{one['path_name']}"), one) for name, one in entries.items()}
        except (KeyError, TypeError, RuntimeError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error


def _tensor(content: bytes, entry: Mapping[str, Any]) -> torch.Tensor:
    if entry["use_pickle"]:
        raise ValueError("a weight is pickled")
    meta = entry["tensor_meta"]
    flat = torch.frombuffer(bytearray(content), dtype=_TYPES[int(meta["dtype"])])
    sizes, strides = ([int(one["as_int"]) for one in meta[name]] for name in ("sizes", "strides"))
    # It refuses what reaches beyond the bytes.
    return flat.as_strided(sizes, strides, int(meta["storage_offset"]["as_int"])).clone()
