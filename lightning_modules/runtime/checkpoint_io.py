"""Checkpoints that are written whole or not at all."""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO

from privacy.files import write_atomically

__all__ = ["WholeCheckpointIO"]

_STALE_SECONDS = 3600.0


class WholeCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint beside the one before it, syncs it, and renames it.

    Lightning's own writes into the system's folder for temporary files (fsspec's transactions) and moves the file.
    Where that folder lies on another file system, moving is copying over the checkpoint that is there: a kill or a full
    disk meanwhile leaves neither the old nor the new one. Nor is anything synced.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """See Lightning's.

        Raises:
            OSError: It could not be written; the checkpoint before it stands.
        """
        if "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)  # an object store, which has no half objects
            return
        if storage_options is not None:
            raise TypeError(f"storage_options are of no use to {type(self).__name__}, got {storage_options!r}")
        buffer = io.BytesIO()
        torch.save(checkpoint, buffer)
        _remove_leftovers(Path(path))
        write_atomically(path, buffer.getbuffer())


def _remove_leftovers(path: Path) -> None:
    """What a process left that was killed while it wrote; never what another one is writing now."""
    for leftover in path.parent.glob(f".{path.name}.*"):
        if time.time() - leftover.stat().st_mtime > _STALE_SECONDS:
            leftover.unlink(missing_ok=True)
