"""The public test split in two halves: one to select by, one for the figure that is reported."""

from __future__ import annotations

from datamodules.images import ImageDataset
from datamodules.splits import id_fraction


def selection_halves(records: ImageDataset) -> tuple[ImageDataset, ImageDataset]:
    """Halves the test split by stable ids alone, the same way in every run and on every machine.

    Runs and steps are chosen by the first half alone: the accuracy on the other half is not biased by the selection.

    Args:
        records: The test split.

    Returns:
        The half to select by, and the half to report. About as many records in each.

    Raises:
        ValueError: One of them would be empty.
    """
    mask = id_fraction(records.ids, purpose="selection") < 0.5
    if mask.all() or not mask.any():
        raise ValueError(
            f"evaluation='selection' needs a test split that can be halved, got {len(records)} record(s): use 'test'"
        )
    return records.select(mask), records.select(~mask)
