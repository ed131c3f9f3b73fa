"""Replaces images by the outputs of a function, computed once."""

from __future__ import annotations

import fcntl
import hashlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor
from torch.utils.data import Dataset

from datamodules.progress import tracked
from datamodules.records import ImageDataset, bytes_of

#: Number of images per call, fewer if these take more bytes.
PIECE, _PIECE_BYTES = 512, 2**26
_WORTH_A_BAR = 10  # calls


@contextmanager
def one_thread() -> Iterator[int]:
    """Restricts each operation in the block to one thread, and yields the previous number of threads.

    Threads that each run a separate operation would otherwise compete for the cores, and sums over more threads add up
    in another order: results would depend on the machine.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield before
    finally:
        torch.set_num_threads(before)


class MappedRecords(Dataset[tuple[Tensor, Tensor]]):
    """Inputs and labels, fetched a batch at a time.

    Attributes:
        inputs: (N, ...), outputs of the function for each image; in memory, or on the CPU in a memory-mapped file.
        labels: (N,) int64.
    """

    def __init__(self, inputs: Tensor, labels: Tensor, *, in_file: bool = False) -> None:
        self.inputs = inputs
        self.in_file = in_file
        self.labels = labels.to(inputs.device)

    @classmethod
    def of(
        cls,
        records: ImageDataset,
        function: Callable[[Tensor], Tensor],
        *,
        key: str,
        workers: int = 1,
        parts: Sequence[Tensor] | None = None,
        dtype: torch.dtype | None = None,
    ) -> MappedRecords:
        """Applies `function` to the images of all records.

        The results for pictures that are not in memory are kept in a file in `private/`, which continues after an
        interruption, and which later calls for the same pictures and function use.

        Args:
            records: The records.
            function: Maps images (B, C, H, W) to (B, ...), each image by itself, without gradients.
            key: Identifies the function.
            workers: Number of single-core threads. Operations on a piece are short, and cores that share one wait for
                each other more than they work.
            parts: Consecutive positions that no call mixes; None is all.
            dtype: Type in which the results are kept; None leaves it unchanged.
        """
        pictures, rows = records.images, torch.arange(len(records))
        size = max(1, min(PIECE, _PIECE_BYTES // (4 * math.prod(pictures.shape[1:]))))
        if parts is None or not isinstance(pictures, Tensor):
            parts = [piece for part in parts or [rows] for piece in part.split(size)]

        def of_part(rows: Tensor) -> Tensor:
            with torch.no_grad():  # gradients are enabled again in another thread
                return function(records.__getitems__(rows)[0])

        def computed(parts: Sequence[Tensor]) -> Iterator[Tensor]:
            few = len(parts) < _WORTH_A_BAR
            if workers == 1:
                yield from tracked(map(of_part, parts), "computing features", len(parts), silent=few)
                return
            with one_thread(), ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
                yield from tracked(pool.map(of_part, parts), "computing features", len(parts), silent=few)

        first = of_part(parts[0])
        if not isinstance(pictures, Tensor):
            first = first.to("cpu", dtype)
            # With the first results: a key does not tell the code of a function, or where it runs.
            name = hashlib.sha256(f"{key} {pictures.state} {first.dtype} ".encode() + bytes_of(first)).hexdigest()
            inputs = _in_file(Path("private", f"features-{name[:32]}"), first, parts, computed)
            return cls(inputs, records.labels, in_file=True)
        if first.is_cuda and torch.cuda.mem_get_info(first.device)[0] < 2 * first[0].nbytes * len(records):
            first = first.cpu()  # else no memory would be left for a batch of them
        # Filled in place: joining pieces would hold everything twice, which is gigabytes for features.
        inputs = first.new_empty(len(records), *first.shape[1:], dtype=dtype)
        for part, values in zip(parts, chain([first], computed(parts[1:])), strict=True):
            if len(part):
                inputs[int(part[0]) : int(part[-1]) + 1] = values
        return cls(inputs, records.labels)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, indices: Sequence[int] | Tensor) -> tuple[Tensor, Tensor]:
        """Returns inputs (B, ...), of the type in which they are kept, and labels (B,) int64 of many positions."""
        rows = torch.as_tensor(indices, dtype=torch.int64, device=self.inputs.device)
        return self.inputs[rows], self.labels[rows]

    def clear(self) -> None:
        """Frees the memory, even if this object is still referenced: a trainer keeps its last fit's loaders."""
        self.inputs, self.labels = self.inputs.new_empty(0), self.labels.new_empty(0)

    def to(self, device: torch.device) -> MappedRecords:
        """Returns a copy on a device; what is in a file stays there."""
        return self if self.in_file else MappedRecords(self.inputs.to(device), self.labels)


def _in_file(
    file: Path, first: Tensor, parts: Sequence[Tensor], computed: Callable[[Sequence[Tensor]], Iterator[Tensor]]
) -> Tensor:
    """Maps a file with the results for all parts, after adding those that it lacks; `first` are those for the first."""
    size, ends = first[0].nbytes, torch.tensor([0, *map(len, parts)]).cumsum(0)
    file.parent.mkdir(mode=0o700, exist_ok=True)
    with os.fdopen(os.open(file, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)  # another fit may compute the same
        done = int((ends[1:] * size <= handle.seek(0, os.SEEK_END)).sum())
        handle.truncate(handle.seek(int(ends[done]) * size))
        there, needed = int(ends[done]), int(ends[-1])
        took = f"{needed * size / 1e9:.1f} GB"
        rank_zero_info(f"{file} ({took}) keeps what is computed once of {needed:,} pictures: {there:,} are done.")
        for values in computed(parts[done:]) if done else chain([first], computed(parts[1:])):
            handle.write(bytes_of(values.to(first)))
            handle.flush()
    shape = (int(ends[-1]), *first.shape[1:])
    return torch.from_file(str(file), size=math.prod(shape), dtype=first.dtype).view(shape)
