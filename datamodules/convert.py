"""`python -m datamodules.convert SOURCE TO` sorts the pictures of a table into a folder per class, for `ImageFolder`.

SOURCE is a CSV file of file names and labels, an `.npz` file of arrays, a Parquet or Arrow file, or a folder of such
files, as of a Hugging Face data set. Parts named train, val or test stay apart. Copies are as private as the originals.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from datamodules.files import imported

_PARTS = {"train": "train", "training": "train", "test": "test", "val": "val", "valid": "val", "validation": "val"}
_LABELS = ("label", "labels", "class", "category", "target", "diagnosis")


class Row(NamedTuple):
    """A picture in a table: its part (empty if unknown), label, file name, and file, encoded bytes or pixels."""

    part: str
    label: Any
    name: str
    content: Any


def _part_of(name: str) -> str:
    return next((_PARTS[word] for word in re.split("[^a-z]+", name.lower()) if word in _PARTS), "")


def _label_column(source: Path, columns: Sequence[str], label: str | None) -> str:
    found = [name for name in columns if name == label or (label is None and name.lower() in _LABELS)]
    if len(found or columns) != 1:
        raise ValueError(f"--label must name the column of labels in {source}: one of {', '.join(columns)}")
    return (found or columns)[0]


def _of_csv(source: Path, label: str | None) -> Iterator[Row]:
    with source.open(newline="", encoding="utf-8-sig") as handle:
        table = list(csv.DictReader(handle, delimiter="\t" if source.suffix == ".tsv" else ","))
    files: dict[str, list[Path]] = {}
    for file in sorted(one for one in source.parent.rglob("*") if one.is_file()):
        inside = file.relative_to(source.parent).as_posix()
        for name in {inside, file.name, file.stem}:
            files.setdefault(name, []).append(file)

    def found(name: str) -> list[Path]:
        return files.get(Path(name).as_posix()) or files.get(Path(name).name) or []

    columns = list(table[0]) if table else []
    pictures = next((name for name in columns if found(table[0][name])), None)
    if pictures is None:
        raise ValueError(f"{source} must have a column of file names that lie beside it, got {', '.join(columns)}")
    part = next((name for name in columns if all(row[name].lower() in _PARTS for row in table)), None)
    named = _label_column(source, [name for name in columns if name not in (pictures, part)], label)
    for row in table:
        if len(meant := found(row[pictures])) != 1:
            there = "does not lie beside it" if not meant else f"may be {' or '.join(map(str, meant[:3]))}"
            raise ValueError(f"{source} names {row[pictures]}, which {there}")
        alone = len(files[meant[0].name]) == 1
        name = meant[0].name if alone else "_".join(meant[0].relative_to(source.parent).parts)
        yield Row(_PARTS[row[part].lower()] if part else _part_of(source.stem), row[named], name, meant[0])


def _of_arrays(source: Path, label: str | None) -> Iterator[Row]:
    with np.load(source, allow_pickle=False) as content:
        arrays = {name: content[name] for name in content.files}
    for name, images in arrays.items():
        part = _part_of(name)
        fit = [a for other, a in arrays.items() if a.ndim < 3 and _part_of(other) == part and len(a) == len(images)]
        if images.ndim < 3 or not fit:
            continue
        if images.dtype != np.uint8:
            raise ValueError(f"{name} of {source} must be uint8, got {images.dtype}")
        images = images.squeeze(-1 if images.shape[-1] == 1 else ()) if images.ndim == 4 else images
        for number, pixels in enumerate(images):
            yield Row(part, fit[0].reshape(-1)[number], f"{name}_{number:06d}.png", pixels)


def _of_arrow(source: Path, label: str | None) -> Iterator[Row]:
    arrow, parquet = imported("pyarrow", "pyarrow.parquet", needed_by=source)
    if source.suffix == ".parquet":
        table = parquet.read_table(source)
    else:
        table = arrow.ipc.open_stream(arrow.memory_map(str(source))).read_all()
    pictures = [field.name for field in table.schema if arrow.types.is_struct(field.type)]
    if len(pictures) != 1:
        raise ValueError(f"{source} must have one column of pictures, got {', '.join(table.column_names)}")
    named = _label_column(source, [name for name in table.column_names if name != pictures[0]], label)
    stated = json.loads((table.schema.metadata or {}).get(b"huggingface", b"{}")).get("info", {}).get("features", {})
    names = stated.get(named, {}).get("names")
    for batch in table.select([pictures[0], named]).to_batches():
        for number, row in enumerate(batch.to_pylist()):
            picture, one = row[pictures[0]], row[named]
            name = Path(picture["path"] or f"{number:06d}.png").name
            part = _part_of(source.stem) or _part_of(source.parent.name)
            yield Row(part, names[one] if names else one, f"{source.stem}_{name}", picture["bytes"])


TABLES = {".csv": _of_csv, ".tsv": _of_csv, ".npz": _of_arrays, ".parquet": _of_arrow, ".arrow": _of_arrow}
"""What reads the rows of a table, by the ending of its file."""


def convert(source: Path, to: Path, *, label: str | None = None) -> int:
    """Writes the pictures of a table, or of those in a folder, and returns their number.

    Args:
        source: The table or folder.
        to: New folder.
        label: Column of labels, where that is not clear.

    Raises:
        ValueError: There are no pictures or labels, or `to` exists.
        ImportError: The package `pyarrow` is needed and not installed.
    """
    files = [source] if source.is_file() else sorted(source.rglob("*"))
    tables = [file for file in files if file.suffix in TABLES]
    if to.exists():
        raise ValueError(f"TO must be a new folder, and {to} exists")
    count = 0
    for row in (row for table in tables for row in TABLES[table.suffix](table, label)):
        count += 1
        kind = str(row.label).zfill(3) if str(row.label).isdecimal() else re.sub(r"[^\w. -]|^\.+", "_", str(row.label))
        file = to / row.part / kind / row.name
        file.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(row.content, Path):
            shutil.copy(row.content, file)  # with its permissions
        elif isinstance(row.content, bytes):
            file.write_bytes(row.content)
        else:
            Image.fromarray(row.content).save(file)
    if not count:
        raise ValueError(f"{source} must be or hold a table of pictures ({', '.join(TABLES)}), got none")
    return count


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m datamodules.convert", description=__doc__)
    parser.add_argument("source", type=Path, metavar="SOURCE")
    parser.add_argument("to", type=Path, metavar="TO", help="new folder")
    parser.add_argument("--label", help="column of labels")
    given = parser.parse_args()
    print(f"{convert(given.source, given.to, label=given.label):,} pictures are in {given.to}")
