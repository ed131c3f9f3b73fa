"""Pictures that do not fit in memory: decoded when they are fetched, to the same bits, and their features kept."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from support.data_files import write_folders
from support.dp_teachers import train
from torch import Tensor

from datamodules import ImageFolder, PoissonSampled, Shards, base, mapped, pictures
from datamodules.mapped import MappedRecords
from datamodules.pictures import PictureFiles
from lightning_modules import DPSGDTeacher, Teacher, TeacherEnsemble
from lightning_modules.networks import LinearOnFeatures, SmallCNN
from privacy.mechanisms.base import ReproducibleNoise

IN_FILES = ("_IN_MEMORY", 0)
small = partial(SmallCNN, width=4, norm="group")


@pytest.fixture(autouse=True)
def insects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """40 private pictures of each of two classes, and 10 public ones."""
    monkeypatch.chdir(tmp_path)
    write_folders(Path("insects/test"), count=10, size=8)
    write_folders(Path("insects/train"), size=8)


def folder() -> ImageFolder:
    return ImageFolder(root="insects", size=8, channels=1, batch_size=16)


def weights(kind: str, network: Any) -> list[Tensor]:
    """Of teachers after two epochs."""
    torch.manual_seed(0)
    given: dict[str, Any] = {"num_classes": 2, "image_shape": (1, 8, 8), "network": network}
    if kind == "alone":
        module: Any = Teacher(**given)
        train(module, folder(), epochs=2)
    elif kind == "by DP-SGD":
        one, other = ReproducibleNoise(seed=1), ReproducibleNoise(seed=2)
        module = DPSGDTeacher(noise_multiplier=1.0, noise=one, delta=1e-3, **given)
        train(module, PoissonSampled(dataset=folder(), batch_size=16, steps_per_epoch=3, noise=other), epochs=2)
    else:
        module = TeacherEnsemble(steps=3, **given)
        train(module, Shards(dataset=folder(), num_teachers=2, batch_size=8, steps_per_epoch=3), epochs=2)
    networks = getattr(module, "trained_teachers", [module])
    return [value.clone() for network in networks for value in network.state_dict().values()]


@pytest.mark.parametrize(
    ("kind", "network", "files"),
    [
        *(("alone", small, 1), ("by DP-SGD", small, 1), ("by DP-SGD", LinearOnFeatures, 3)),
        *(("shards", small, 1), ("shards", LinearOnFeatures, 2)),
    ],
)
def test_equal_seeds_give_equal_weights_wherever_pictures_are(
    kind: str, network: Any, files: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_memory, before = weights(kind, network), {*Path().rglob("*")}
    monkeypatch.setattr(pictures, *IN_FILES)
    in_files = weights(kind, network)
    assert len(in_memory) == len(in_files) and all(map(torch.equal, in_memory, in_files))
    kept = {*Path().rglob("*")} - before - {Path("private")}
    assert len(kept) == files and {path.parent for path in kept} == {Path("private")}  # nothing leaves it
    assert {path.stat().st_mode & 0o777 for path in kept} == {0o600} and Path("private").stat().st_mode & 0o777 == 0o700


def test_features_are_computed_once_and_an_interruption_costs_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, *IN_FILES)
    monkeypatch.setattr(mapped, "_PIECE_BYTES", 4 * 64 * 30)
    exact = folder().read("train").__getitems__(range(80))[0].mean(dim=3).half()

    def computed(*, key: str = "mean", times: int = 1, fail_at: int = 0) -> list[int]:
        """Numbers of pictures in each call."""
        calls = list[int]()

        def function(images: Tensor) -> Tensor:
            calls.append(len(images))
            if len(calls) == fail_at:
                raise KeyboardInterrupt
            return times * images.mean(dim=3)

        try:
            found = MappedRecords.of(folder().read("train"), function, key=key, dtype=torch.float16)
            assert torch.equal(found.inputs, times * exact) and found.to(torch.device("meta")) is found
        except KeyboardInterrupt:
            calls.append(0)
        return calls

    assert computed(fail_at=3) == [30, 30, 20, 0]
    assert computed() == [30, 20]  # the first piece tells what is computed
    assert computed() == [30]
    # Controls: another function by its key, or by what it gives, and another picture.
    os.utime("insects/train/bees/038.png", (0, 0))
    assert computed(key="other") == computed(times=2) == computed() == [30, 30, 20]


def test_a_picture_that_replaces_another_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """An archive keeps the time of writing, and pictures without compression are all of one size."""
    monkeypatch.setattr(pictures, *IN_FILES)
    file = Path("insects/train/bees/038.png")
    before, state = file.stat(), folder().read("train").images.state  # type: ignore[union-attr]
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.stat().st_mtime_ns == before.st_mtime_ns
    assert folder().read("train").images.state != state  # type: ignore[union-attr]


def test_pictures_in_files_are_indexed_like_a_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels, rows = folder().read("test").images[:], torch.tensor([3, 0, 19])
    monkeypatch.setattr(pictures, *IN_FILES)
    records = folder().read("test")
    assert isinstance(pixels, Tensor) and isinstance(records.images, PictureFiles)
    assert torch.equal(records.images[rows], pixels[rows]) and torch.equal(records.images[7], pixels[7])
    assert torch.equal(records.at(rows).images[1:], pixels[rows][1:]) and len(records.images[:0]) == 0
    Path("insects/train/ants/005.png").write_bytes(b"")
    with pytest.raises(ValueError, match=r"ants/005\.png cannot be read as a picture"):
        folder().setup("fit")  # before the first step


def test_loader_processes_hold_no_more_than_their_share(monkeypatch: pytest.MonkeyPatch) -> None:
    (data := folder()).setup("test")
    assert data.test_dataloader().num_workers == 0
    monkeypatch.setattr(pictures, *IN_FILES)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 6)
    (data := folder()).setup("test")
    assert data.test_dataloader().num_workers == 6
    monkeypatch.setattr(base, "_IN_FLIGHT", 3 * 4 * 64 * base.EVALUATED_AT_ONCE)
    assert data.test_dataloader().num_workers == 3
    monkeypatch.setattr(base, "_EVALUATED", 4 * 64 * 5)
    assert data.test_dataloader().batch_size == 5
