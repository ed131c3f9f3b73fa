"""Replaces images by the outputs of a function, computed once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import torch
from rich.progress import track
from torch import Tensor
from torch.utils.data import Dataset

from datamodules.records import ImageDataset

#: Number of images per call.
PIECE = 512
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
    """Inputs and labels in memory, fetched a batch at a time.

    Attributes:
        inputs: (N, ...), outputs of the function for each image.
        labels: (N,) int64.
    """

    def __init__(self, inputs: Tensor, labels: Tensor) -> None:
        self.inputs = inputs
        self.labels = labels.to(inputs.device)

    @classmethod
    def of(
        cls,
        records: ImageDataset | MappedRecords,
        function: Callable[[Tensor], Tensor],
        *,
        workers: int = 1,
        parts: Sequence[Tensor] | None = None,
        dtype: torch.dtype | None = None,
    ) -> MappedRecords:
        """Applies `function` to the images of all records.

        Args:
            records: The records.
            function: Maps images (B, C, H, W) to (B, ...), each image by itself, without gradients.
            workers: Number of single-core threads. Operations on a piece are short, and cores that share one wait for
                each other more than they work.
            parts: Consecutive positions for each call; None divides all equally.
            dtype: Type in which the results are kept; None leaves it unchanged.
        """
        parts = torch.arange(len(records)).split(PIECE) if parts is None else parts

        def of_part(rows: Tensor) -> Tensor:
            with torch.no_grad():  # gradients are enabled again in another thread
                return function(records.__getitems__(rows)[0])

        first = of_part(parts[0])
        if first.is_cuda and torch.cuda.mem_get_info(first.device)[0] < 2 * first[0].nbytes * len(records):
            first = first.cpu()  # else no memory would be left for a batch of them
        # Filled in place: joining pieces would hold everything twice, which is gigabytes for features.
        inputs = first.new_empty(len(records), *first.shape[1:], dtype=dtype)
        inputs[: len(first)] = first

        def fill(rows: Tensor) -> None:
            if len(rows):
                inputs[int(rows[0]) : int(rows[-1]) + 1] = of_part(rows)

        # Minutes of silence would look like a hanging fit.
        shown = partial(
            track, description="Computing features", total=len(parts) - 1, disable=len(parts) < _WORTH_A_BAR
        )
        if workers == 1:
            deque(map(fill, shown(parts[1:])), maxlen=0)
            return cls(inputs, records.labels)
        with one_thread(), ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            deque(shown(pool.map(fill, parts[1:])), maxlen=0)  # reraises a thread's error
        return cls(inputs, records.labels)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, indices: Sequence[int] | Tensor) -> tuple[Tensor, Tensor]:
        """Returns inputs (B, ...) float32 and labels (B,) int64 of many positions."""
        rows = torch.as_tensor(indices, dtype=torch.int64)
        return self.inputs[rows].float(), self.labels[rows]

    def into(self, held: Tensor, indices: Sequence[int] | Tensor) -> tuple[Tensor, Tensor]:
        """Like `__getitems__` of B positions, but writes the inputs to `held` (at least B, ...), of their type."""
        rows = torch.as_tensor(indices, dtype=torch.int64, device=self.inputs.device)
        return torch.index_select(self.inputs, 0, rows, out=held[: len(rows)]), self.labels[rows]

    def clear(self) -> None:
        """Frees the memory, even if this object is still referenced: a trainer keeps its last fit's loaders."""
        self.inputs, self.labels = self.inputs.new_empty(0), self.labels.new_empty(0)

    def to(self, device: torch.device) -> MappedRecords:
        return MappedRecords(self.inputs.to(device), self.labels)
