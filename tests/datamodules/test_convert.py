"""Tables of pictures become folders of classes, and DICOM files pictures; without the package, what to install."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.data_files import picture, write_folders

from datamodules import ImageFolder
from datamodules.convert import convert
from datamodules.pictures import Preparation


def written(folder: Path) -> list[str]:
    return sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())


@pytest.mark.parametrize("part", [None, "split"])
def test_a_table_of_file_names(tmp_path: Path, part: str | None) -> None:
    write_folders(tmp_path / "flat")  # in folders that are no classes
    files = sorted((tmp_path / "flat").rglob("*.png"))
    for number, file in enumerate(files):
        file.rename(tmp_path / "flat" / f"{number:03d}.png")
    rows = [
        f"{number:03d},{'cat' if number % 2 else 'dog'},{('train', 'test')[number % 3 == 0]}" for number in range(80)
    ]
    header = ["id,diagnosis,split", *rows]
    (tmp_path / "flat" / "list.csv").write_text("\n".join(row if part else row.rpartition(",")[0] for row in header))
    to = f"{tmp_path / 'flat'}_by_class"
    with pytest.raises(ValueError, match=rf"list\.csv is a table .*: python -m datamodules\.convert .*list\.csv {to}$"):
        ImageFolder(root=tmp_path / "flat", size=8, channels=1)
    assert convert(tmp_path / "flat" / "list.csv", Path(to)) == 80
    data = ImageFolder(root=to, size=8, channels=1, test_fraction=None if part else 0.5)
    assert data.class_names == ("cat", "dog") and data.num_records == (53 if part else 80)
    data.setup("test")
    with pytest.raises(ValueError, match="TO must be a new folder"):
        convert(tmp_path / "flat", Path(to))
    with pytest.raises(ValueError, match="must be or hold a table of pictures"):
        convert(Path(to), tmp_path / "other")
    (tmp_path / "flat" / "list.csv").write_text("file,a,b\n000.png,1,2\n")
    with pytest.raises(ValueError, match=r"--label must name the column of labels in .*: one of a, b"):
        convert(tmp_path / "flat" / "list.csv", tmp_path / "other")
    assert convert(tmp_path / "flat" / "list.csv", tmp_path / "other", label="b") == 1


def test_equal_names_in_two_folders_are_two_pictures(tmp_path: Path) -> None:
    for part, value in (("train", 10), ("test", 200)):
        (tmp_path / "in" / part).mkdir(parents=True)
        Image.new("L", (8, 8), value).save(tmp_path / "in" / part / "0.png")
        (tmp_path / "in" / part / "0.png").chmod(0o600)
    table = tmp_path / "in" / "list.csv"
    # The names of parts are also those of folders, which are no pictures.
    table.write_text("split,file,label\ntrain,train/0.png,..\ntest,test/0.png,cat\n")
    assert convert(table, tmp_path / "out") == 2
    assert written(tmp_path / "out") == ["test/cat/test_0.png", "train/_/train_0.png"]
    private = tmp_path / "out" / "train" / "_" / "train_0.png"
    assert Image.open(private).getpixel((0, 0)) == 10 and private.stat().st_mode & 0o777 == 0o600
    table.write_text("file,label,split\n0.png,cat,train\n")
    with pytest.raises(ValueError, match=r"names 0\.png, which may be .*test/0\.png or .*train/0\.png"):
        convert(table, tmp_path / "other")


def test_arrays_in_a_file(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (12, 8, 8, 1), dtype=np.uint8)
    np.savez(
        tmp_path / "a.npz", x_train=images, y_train=np.arange(12) % 2 + 9, x_test=images[:4], y_test=[9, 10, 9, 10]
    )
    with pytest.raises(ValueError, match=r"a\.npz is a table of pictures"):
        ImageFolder(root=tmp_path / "a.npz")
    assert convert(tmp_path / "a.npz", tmp_path / "a") == 16
    data = ImageFolder(root=tmp_path / "a", duplicates="allow")
    assert data.class_names == ("009", "010") and data.image_shape == (1, 8, 8)
    data.setup("test")
    assert np.array_equal(data.test_records.images[:2, 0], images[[0, 2], :, :, 0])
    np.savez(tmp_path / "b.npz", images=images / 255, labels=np.zeros(12))
    with pytest.raises(ValueError, match=r"images of .* must be uint8, got float64"):
        convert(tmp_path / "b.npz", tmp_path / "b")


def test_a_data_set_of_hugging_face(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "birds" / "data"
    source.mkdir(parents=True)
    (source / "train-00000-of-00001.parquet").write_bytes(b"PAR1")
    with pytest.raises(ValueError, match=r"pip install pyarrow; python -m datamodules\.convert .*parquet"):
        ImageFolder(root=tmp_path / "birds", size=8, channels=1)
    arrow: Any = importlib.import_module("pyarrow")
    parquet: Any = importlib.import_module("pyarrow.parquet")
    content = picture(np.zeros((8, 8), np.uint8), tmp_path / "x.png").read_bytes()
    table = arrow.table({"image": [{"bytes": content, "path": None}] * 4, "label": [0, 1, 0, 1]})
    features = {"info": {"features": {"label": {"names": ["wren", "owl"]}}}}
    table = table.replace_schema_metadata({"huggingface": json.dumps(features)})
    for part in ("train", "test"):
        parquet.write_table(table, source / f"{part}-00000-of-00001.parquet")
    assert convert(tmp_path / "birds", tmp_path / "sorted") == 8
    assert written(tmp_path / "sorted")[:2] == [
        "test/owl/test-00000-of-00001_000001.png", "test/owl/test-00000-of-00001_000003.png",
    ]  # fmt: skip
    with arrow.OSFile(str(tmp_path / "train.arrow"), "wb") as sink, arrow.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    assert convert(tmp_path / "train.arrow", tmp_path / "streamed") == 4


@pytest.mark.parametrize("inverted", [False, True])
def test_dicom_files_are_pictures(tmp_path: Path, inverted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.dcm"
    path.write_bytes(b"no DICOM")
    prepare = Preparation(size=8, channels=1)
    with monkeypatch.context() as without:
        without.setitem(__import__("sys").modules, "pydicom", None)
        with pytest.raises(ImportError, match=r"a\.dcm .*pip install 'private-model-transcription\[dicom\]'"):
            prepare(path)
    pydicom: Any = importlib.import_module("pydicom")
    with pytest.raises(ValueError, match=r"a\.dcm cannot be read as a picture \(no DICOM file with pixels"):
        prepare(path)
    data = pydicom.Dataset()
    data.file_meta = pydicom.dataset.FileMetaDataset()
    data.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    data.file_meta.MediaStorageSOPClassUID = data.SOPClassUID = pydicom.uid.SecondaryCaptureImageStorage
    data.file_meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID = pydicom.uid.generate_uid()
    data.Rows = data.Columns = 8
    data.SamplesPerPixel, data.PixelRepresentation, data.BitsAllocated = 1, 0, 16
    data.BitsStored, data.HighBit = 12, 11
    data.PhotometricInterpretation = "MONOCHROME1" if inverted else "MONOCHROME2"
    ramp = np.linspace(0, 4095, 64).astype(np.uint16).reshape(8, 8)
    data.PixelData = ramp.tobytes()
    data.save_as(path, enforce_file_format=True)
    expected = (ramp / 4095 * 255).astype(np.uint8)
    assert np.abs(prepare(path)[0].astype(int) - (255 - expected if inverted else expected)).max() <= 1
    assert Image.fromarray(prepare(path)[0]).size == (8, 8)
