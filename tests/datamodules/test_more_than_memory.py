"""Pictures that do not fit in memory: decoded when they are fetched, to the same bits, and their features kept."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from support.data_files import write_folders
from support.dp_teachers import train
from support.features import linear
from torch import Tensor, nn

from datamodules import ImageFolder, PoissonSampled, Shards, base, mapped, pictures
from datamodules.mapped import MappedRecords
from datamodules.pictures import PictureFiles
from lightning_modules import DPSGDTeacher, Teacher, TeacherEnsemble
from lightning_modules.networks import SmallCNN
from privacy.mechanisms.noise import ReproducibleNoise

SHAPE = (1, 8, 8)
KIND: dict[str, Any] = {"num_classes": 2, "image_shape": SHAPE}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_folders(tmp_path / "insects" / "test", count=10, size=8)
    return write_folders(tmp_path / "insects" / "train", size=8).parent


@pytest.fixture
def in_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "_IN_MEMORY", 0)


def folder(**settings: Any) -> ImageFolder:
    return ImageFolder(root="insects", size=8, channels=1, batch_size=16, **settings)


def teacher() -> tuple[nn.Module, Any]:
    return Teacher(network=partial(SmallCNN, width=4), **KIND), folder()


def sampled(network: Any) -> tuple[nn.Module, Any]:
    data = PoissonSampled(dataset=folder(), batch_size=16, steps_per_epoch=3, noise=ReproducibleNoise(seed=1))
    module = DPSGDTeacher(network=network, noise_multiplier=1.0, noise=ReproducibleNoise(seed=2), delta=1e-3, **KIND)
    return module, data


def sharded(network: Any, **settings: Any) -> tuple[nn.Module, Any]:
    module = TeacherEnsemble(network=network, steps=3, **KIND, **settings)
    return module, Shards(dataset=folder(), num_teachers=2, batch_size=8, steps_per_epoch=3)


def coarse(num_classes: int, image_shape: tuple[int, int, int]) -> nn.Module:
    return linear(num_classes=num_classes, image_shape=image_shape)


small = partial(SmallCNN, width=4, norm="group")
MADE: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
    "teacher": teacher,
    "by DP-SGD": lambda: sampled(small),
    "by DP-SGD on features": lambda: sampled(coarse),
    "on shards": lambda: sharded(small, shift=1),
    "on shards of features": lambda: sharded(coarse),
}


def weights(make: Callable[[], tuple[nn.Module, Any]]) -> list[Tensor]:
    torch.manual_seed(0)
    module, data = make()
    train(module, data, epochs=2)  # type: ignore[arg-type]
    networks = getattr(module, "trained_teachers", [module])
    return [value.clone() for network in networks for value in network.state_dict().values()]


@pytest.mark.parametrize("name", MADE)
def test_equal_seeds_give_equal_weights_wherever_pictures_are(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    in_memory, before = weights(MADE[name]), {*Path().rglob("*")}
    monkeypatch.setattr(pictures, "_IN_MEMORY", 0)
    decoded: list[int] = []
    fetch = PictureFiles.__getitem__
    monkeypatch.setattr(PictureFiles, "__getitem__", lambda self, rows: decoded.append(0) or fetch(self, rows))
    in_files = weights(MADE[name])
    assert decoded and all(map(torch.equal, in_memory, in_files)) and len(in_memory) == len(in_files)
    kept = {*Path().rglob("*")} - before - {Path("private")}
    assert all(path.parent == Path("private") for path in kept)
    assert len(kept) == 1 + (2 if name == "by DP-SGD on features" else name == "on shards of features")
    modes = {path.stat().st_mode & 0o777 for path in kept}
    assert modes == {0o600} and Path("private").stat().st_mode & 0o777 == 0o700


def kept(calls: list[int], data: ImageFolder, *, key: str = "mean", fail_at: int = 0) -> MappedRecords:
    """Means of the private pictures' rows; `calls` gets the number of pictures of each call."""

    def function(images: Tensor) -> Tensor:
        calls.append(len(images))
        if len(calls) == fail_at:
            raise KeyboardInterrupt
        return images.mean(dim=3)

    return MappedRecords.of(data.read("train"), function, key=key, dtype=torch.float16)


def test_features_are_computed_once_and_an_interruption_costs_a_piece(
    in_files: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped, "_PIECE_BYTES", 4 * 64 * 30)
    whole, data = list[int](), folder()
    exact = data.read("train").__getitems__(range(80))[0].mean(dim=3)
    with pytest.raises(KeyboardInterrupt):
        kept(whole, data, fail_at=3)
    assert whole == [30, 30, 20]
    rest, again = list[int](), list[int]()
    assert torch.equal(kept(rest, data).inputs, exact.half())
    assert rest == [30, 20]  # the first piece tells what is computed
    found = kept(again, data)
    assert again == [30] and torch.equal(found.inputs, exact.half())
    assert found.to(torch.device("meta")) is found
    # Controls: another function, another picture.
    for change in (lambda: {"key": "other"}, lambda: os.utime("insects/train/bees/039.png", (0, 0)) or {}):
        other = list[int]()
        kept(other, data, **change())
        assert other == [30, 30, 20]


def test_features_of_changed_code_are_other_features(in_files: None) -> None:
    one, other = (
        MappedRecords.of(folder().read("train"), lambda images, by=by: by * images, key="", dtype=torch.float32)
        for by in (1, 2)
    )
    assert torch.equal(2 * one.inputs, other.inputs)


def test_pictures_in_files_are_indexed_like_a_tensor(in_files: None) -> None:
    records = folder().read("test")
    assert isinstance(records.images, PictureFiles)
    pixels = records.images[:]
    rows = torch.tensor([3, 0, 19])
    assert torch.equal(records.images[rows], pixels[rows]) and torch.equal(records.images[7], pixels[7])
    assert torch.equal(records.at(rows).images[1:], pixels[rows][1:]) and len(records.images[:0]) == 0
    Path("insects/test/ants/005.png").write_bytes(b"")
    with pytest.raises(ValueError, match=r"ants/005\.png cannot be read as a picture"):
        records.__getitems__([4, 5])


def test_a_damaged_picture_is_found_before_the_first_step(in_files: None) -> None:
    Path("insects/train/ants/005.png").write_bytes(b"")
    with pytest.raises(ValueError, match=r"ants/005\.png cannot be read as a picture"):
        folder().setup("fit")


def test_loader_processes_hold_no_more_than_their_share(in_files: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 6)
    data = folder()
    data.setup("test")
    assert data.test_dataloader().num_workers == 6
    monkeypatch.setattr(base, "_IN_FLIGHT", 3 * 4 * 64 * data.eval_batch_size)
    assert data.test_dataloader().num_workers == 3
    data.num_workers = 0
    assert data.test_dataloader().num_workers == 0
