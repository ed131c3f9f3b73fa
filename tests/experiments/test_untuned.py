"""Characters made of MNIST's digits: what is in them, of which digits they are, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from support.data_files import write_idx

from datamodules import ImageFolder
from experiments.untuned import Pixels, build_untuned

SMALL = (("cropped", 16, (30, 40)), ("overlaid", 28, (40, 20)))
LABELS = np.arange(40) % 10


def largest_by_part(root: Path, digits: Mapping[str, Pixels]) -> dict[str, set[int]]:
    """Greatest grey value of each character that is made of such digits, by set and part."""
    for part, prefix in (("train", "train"), ("test", "t10k")):
        write_idx(root / "MNIST" / "raw" / f"{prefix}-images-idx3-ubyte", digits[part])
        write_idx(root / "MNIST" / "raw" / f"{prefix}-labels-idx1-ubyte", LABELS)
    found, place = {}, build_untuned(root=root, to=root / "untuned")
    for name, size in (("cropped", 16), ("overlaid", 28)):
        for part in ("train", "test"):
            data = ImageFolder(root=place / name, size=size, channels=1, duplicates="allow")
            records = data.read(part)  # type: ignore[arg-type]
            assert records.images.shape[1:] == (1, size, size) and set(records.labels.tolist()) == set(range(10))
            found[f"{name}/{part}"] = set(records.images.amax(dim=(1, 2, 3)).tolist())
    return found


@pytest.mark.parametrize("darker", ["train", "test"])
def test_training_and_test_characters_are_of_the_digits_of_their_own_part(
    tmp_path: Path, darker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Digits are plain blocks of their part's grey, which no scaling makes brighter and only a brighter one hides."""
    monkeypatch.setattr("experiments.untuned.SETS", SMALL)
    greys = {part: 120 if part == darker else 240 for part in ("train", "test")}
    blocks = {part: np.zeros((40, 28, 28), dtype=np.uint8) for part in greys}
    for part, grey in greys.items():
        blocks[part][:, 4:24, 4:24] = grey
    found = largest_by_part(tmp_path / "own", blocks)
    assert found == {f"{name}/{part}": {grey} for name in ("cropped", "overlaid") for part, grey in greys.items()}
    # Negative control: were a single class of digits the other part's, both sets would show it.
    blocks[darker][LABELS == 3, 4:24, 4:24] = 240
    leaking = largest_by_part(tmp_path / "leaking", blocks)
    assert all(leaking[f"{name}/{darker}"] == {120, 240} for name in ("cropped", "overlaid"))
