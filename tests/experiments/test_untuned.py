"""Characters made of MNIST's digits: what is in them, of which digits they are, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.data_files import write_idx

from datamodules import ImageFolder
from experiments.untuned import Labels, Pixels, build_untuned

SMALL = (("cropped", 16, (30, 40)), ("overlaid", 28, (40, 20)))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.untuned.SETS", SMALL)


def write_digits(root: Path, prefix: str, digits: Pixels, labels: Labels) -> None:
    write_idx(root / "MNIST" / "raw" / f"{prefix}-images-idx3-ubyte", digits)
    write_idx(root / "MNIST" / "raw" / f"{prefix}-labels-idx1-ubyte", labels)


def largest_by_part(place: Path) -> dict[str, set[int]]:
    """Greatest grey value of each picture, by set and part."""
    found = {}
    for name, size in (("cropped", 16), ("overlaid", 28)):
        for part in ("train", "test"):
            data = ImageFolder(root=place / name, size=size, channels=1, duplicates="allow")
            records = data.read(part)  # type: ignore[arg-type]
            assert records.images.shape[1:] == (1, size, size) and set(records.labels.tolist()) == set(range(10))
            found[f"{name}/{part}"] = set(records.images.amax(dim=(1, 2, 3)).tolist())
    return found


@pytest.mark.parametrize("darker", ["train", "test"])
def test_training_and_test_characters_are_of_the_digits_of_their_own_part(tmp_path: Path, darker: str) -> None:
    """Digits are plain blocks of their part's grey, which no scaling makes brighter and only a brighter one hides."""
    labels = np.arange(40) % 10
    greys = {part: 120 if part == darker else 240 for part in ("train", "test")}
    blocks = {part: np.zeros((40, 28, 28), dtype=np.uint8) for part in greys}
    for part, grey in greys.items():
        blocks[part][:, 4:24, 4:24] = grey
        write_digits(tmp_path, {"train": "train", "test": "t10k"}[part], blocks[part], labels)
    found = largest_by_part(build_untuned(root=tmp_path, to=tmp_path / "untuned"))
    assert found == {f"{name}/{part}": {grey} for name in ("cropped", "overlaid") for part, grey in greys.items()}
    # Negative control: were a single class of digits the other part's, both sets would show it.
    blocks[darker][labels == 3, 4:24, 4:24] = 240
    write_digits(tmp_path, {"train": "train", "test": "t10k"}[darker], blocks[darker], labels)
    leaking = largest_by_part(build_untuned(root=tmp_path, to=tmp_path / "leaking"))
    assert all(leaking[f"{name}/{darker}"] == {120, 240} for name in ("cropped", "overlaid"))
