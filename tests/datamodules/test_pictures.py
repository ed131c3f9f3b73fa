"""Pictures of any size and kind become images, once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from support.data_files import picture

from datamodules import ImageDataset, pictures
from datamodules.pictures import Preparation, alike_files, read_pictures, thumbnails_of


def ramp(height: int, width: int) -> Any:
    """A picture that is darker at the left."""
    return np.linspace(0, 255, width, dtype=np.uint8)[None].repeat(height, axis=0)


def test_the_middle_is_cut_out_or_all_is_squeezed(tmp_path: Path) -> None:
    path = picture(ramp(20, 60), tmp_path / "a.png")
    cropped = Preparation(size=20, channels=1)(path)[0]
    assert np.array_equal(cropped, ramp(20, 60)[:, 20:40])
    stretched = Preparation(size=20, channels=1, resize="stretch")(path)[0]
    assert stretched[0, 0] < 10 and stretched[0, -1] > 245


def test_grey_and_colour_become_each_other(tmp_path: Path) -> None:
    red = np.zeros((8, 8, 3), np.uint8)
    red[..., 0] = 255
    grey = Preparation(size=8, channels=1)(picture(red, tmp_path / "red.png"))
    assert grey.shape == (1, 8, 8) and abs(int(grey[0, 0, 0]) - 76) <= 1  # 0.299 of 255
    colour = Preparation(size=8, channels=3)(picture(ramp(8, 8), tmp_path / "grey.png"))
    assert np.array_equal(colour[0], colour[2]) and np.array_equal(colour[0], ramp(8, 8))


def test_sixteen_bits_are_not_clipped(tmp_path: Path) -> None:
    deep = ramp(8, 8).astype(np.uint16) * 257
    got = Preparation(size=8, channels=1)(picture(deep, tmp_path / "a.png"))
    assert np.array_equal(got[0], ramp(8, 8))
    picture(deep >> 4, tmp_path / "dark.png")
    assert Preparation(size=8, channels=1)(tmp_path / "dark.png").max() < 16
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


def test_copies_look_alike_and_digits_of_one_class_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digits = (load_digits().images * 15.9).astype(np.uint8)
    number, prepare = torch.arange(1500), Preparation(size=8, channels=1)
    known = thumbnails_of(ImageDataset(images=torch.from_numpy(digits[:1500])[:, None], labels=number, ids=number))
    files = [picture(digits[number], tmp_path / f"{number}.png") for number in range(1500, 1797)]
    Image.fromarray(digits[7]).save(tmp_path / "copy.jpg", quality=90)
    assert list(alike_files([*files, tmp_path / "copy.jpg"], known, prepare)) == [(tmp_path / "copy.jpg", 7)]
    monkeypatch.setattr(pictures, "_ALIKE", 0.95)  # as a rule for photographs would have it
    assert len(list(alike_files(files, known, prepare))) > 50


@pytest.mark.parametrize("content", [b"", b"<html>", b"\xff\xd8\xff\xe0" + bytes(50)])
def test_what_is_no_picture_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.jpg").write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.jpg cannot be read as a picture"):
        read_pictures([tmp_path / "a.jpg"], Preparation(size=8, channels=1))
