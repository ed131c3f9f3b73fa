"""Pictures of any size and kind become images, once."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support.data_files import picture

from datamodules import pictures
from datamodules.pictures import Preparation, read_pictures


def ramp(height: int, width: int) -> Any:
    """A picture that is darker at the left."""
    return np.linspace(0, 255, width, dtype=np.uint8)[None].repeat(height, axis=0)


def test_the_middle_is_cut_out_or_all_is_squeezed(tmp_path: Path) -> None:
    path = picture(ramp(20, 60), tmp_path / "a.png")
    cropped = Preparation(size=20, channels=1)(path)[0]
    assert np.array_equal(cropped, ramp(20, 60)[:, 20:40])
    stretched = Preparation(size=20, channels=1, resize="stretch")(path)[0]
    assert stretched[0, 0] < 10 and stretched[0, -1] > 245
    small = Preparation(size=8, channels=1, crop=8)(path)[0]
    assert np.array_equal(small, ramp(20, 60)[6:14, 26:34])


def test_grey_and_colour_become_each_other(tmp_path: Path) -> None:
    red = np.zeros((8, 8, 3), np.uint8)
    red[..., 0] = 255
    grey = Preparation(size=8, channels=1)(picture(red, tmp_path / "red.png"))
    assert grey.shape == (1, 8, 8) and abs(int(grey[0, 0, 0]) - 76) <= 1  # 0.299 of 255
    colour = Preparation(size=8, channels=3)(picture(ramp(8, 8), tmp_path / "grey.png"))
    assert np.array_equal(colour[0], colour[2]) and np.array_equal(colour[0], ramp(8, 8))


@pytest.mark.parametrize("suffix", ["png", "webp", "bmp", "gif", "tif", "pgm", "jpg"])
def test_formats(tmp_path: Path, suffix: str) -> None:
    got = Preparation(size=16, channels=1)(picture(ramp(16, 16), tmp_path / f"a.{suffix}"))
    assert np.abs(got[0].astype(int) - ramp(16, 16)).max() <= 12


def test_sixteen_bits_are_not_clipped(tmp_path: Path) -> None:
    deep = ramp(8, 8).astype(np.uint16) * 257
    got = Preparation(size=8, channels=1)(picture(deep, tmp_path / "a.png"))
    assert np.array_equal(got[0], ramp(8, 8))
    picture(deep >> 4, tmp_path / "dark.png")
    assert Preparation(size=8, channels=1)(tmp_path / "dark.png").max() < 16
    with pytest.warns(UserWarning, match="becomes almost black: .* set bits 12"):
        pictures.warn_of_dark([tmp_path / "a.png", tmp_path / "dark.png"])
    pictures.warn_of_dark([tmp_path / "a.png"])
    assert np.array_equal(Preparation(size=8, channels=1, bits=12)(tmp_path / "dark.png")[0], ramp(8, 8))
    floats = tmp_path / "a.tif"
    Image.fromarray(ramp(8, 8).astype(np.float32)).save(floats)
    with pytest.raises(ValueError, match=r"a\.tif cannot be read as a picture \(pixels of mode 'F'"):
        Preparation(size=8, channels=1)(floats)


def test_photographs_are_turned_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # taken with the camera on its side
    path = picture(ramp(16, 16), tmp_path / "a.png", exif=exif)
    got = Preparation(size=16, channels=1)(path)[0]
    assert np.array_equal(got, ramp(16, 16).T)


@pytest.mark.parametrize("content", [b"", b"<html>", b"\xff\xd8\xff\xe0" + bytes(50)])
def test_what_is_no_picture_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.jpg").write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.jpg cannot be read as a picture"):
        read_pictures([tmp_path / "a.jpg"], Preparation(size=8, channels=1))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": 0}, "size must be an integer of at least 1, got 0"),
        ({"channels": 2}, r"channels must be 1 \(grey\) or 3 \(colour\), got 2"),
        ({"bits": 7}, "bits must lie between 8 and 16, got 7"),
        ({"resize": "pad"}, "resize must be 'crop' or 'stretch', got 'pad'"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Preparation(**{"size": 8, "channels": 1, **settings})


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    return [picture(ramp(8, 8) // (1 + number), tmp_path / "in" / f"{number}.png") for number in range(5)]


SMALL = Preparation(size=8, channels=1)


def count_decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    decoded: list[int] = []
    original = pictures._decoded

    def counted(files: Any, prepare: Any) -> Any:
        decoded.append(len(files))
        return original(files, prepare)

    monkeypatch.setattr(pictures, "_decoded", counted)
    return decoded


def test_pictures_are_decoded_once_and_kept_in_private(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = count_decoded(monkeypatch)
    cache = tmp_path / "kept"
    plain = read_pictures(files, SMALL)
    first, second = (read_pictures(files, SMALL, cache=cache, name="a/b [x]") for _ in range(2))
    assert torch.equal(plain, first) and torch.equal(first, second) and decoded == [5, 5]
    (kept,) = cache.iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600 and cache.stat().st_mode & 0o777 == 0o700
    assert np.array_equal(np.load(kept), plain.numpy())
    second[:] = 7  # what is changed in memory never reaches the file
    assert torch.equal(read_pictures(files, SMALL, cache=cache, name="a/b [x]"), plain)


@pytest.mark.parametrize("change", ["content", "time", "file", "size"])
def test_a_changed_picture_is_decoded_again_and_the_old_array_goes(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    cache, prepare = tmp_path / "kept", SMALL
    read_pictures(files, prepare, cache=cache, name="a")
    if change == "content":
        picture(255 - ramp(8, 8), files[0])
    elif change == "time":
        os.utime(files[0], ns=(1, 1))
    elif change == "file":
        files = files[1:]
    else:
        prepare = Preparation(size=4, channels=1)
    decoded = count_decoded(monkeypatch)
    assert torch.equal(read_pictures(files, prepare, cache=cache, name="a"), read_pictures(files, prepare))
    assert len(decoded) == 2 and len(list(cache.iterdir())) == 1


def test_a_folder_that_cannot_be_written_costs_time_alone(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.warns(UserWarning, match="cannot be kept in .*Permission denied.*set cache to a folder"):
        got = read_pictures(files, SMALL, cache=tmp_path / "kept", name="a")
    monkeypatch.undo()
    assert torch.equal(got, read_pictures(files, SMALL))


def test_a_full_disk_leaves_nothing_behind(files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device, 0\.0 GiB are needed.*set cache to a folder with room"):
        read_pictures(files, SMALL, cache=tmp_path / "kept", name="a")
    assert list((tmp_path / "kept").iterdir()) == []


def test_a_damaged_array_is_named(files: list[Path], tmp_path: Path) -> None:
    read_pictures(files, SMALL, cache=tmp_path, name="a")
    (kept,) = tmp_path.glob("*.npy")
    np.save(kept, np.zeros((2, 1, 8, 8), np.uint8))
    with pytest.raises(ValueError, match=r"a-.*\.npy is damaged .*it holds uint8 of \(2, 1, 8, 8\)"):
        read_pictures(files, SMALL, cache=tmp_path, name="a")
    kept.write_bytes(b"")
    with pytest.raises(ValueError, match=r"a-.*\.npy is damaged"):
        read_pictures(files, SMALL, cache=tmp_path, name="a")
