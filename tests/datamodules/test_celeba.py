"""CelebA: two tasks on the official partition, and people who may be kept together."""

from __future__ import annotations

import hashlib
import urllib.request
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
import torch
from PIL import Image
from support.data_files import write_celeba
from torchvision import datasets

from datamodules import CelebA, ImageDataset, MissingDataError, Shards


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_celeba(tmp_path_factory.mktemp("faces"))


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    """The same pictures, and text files that a test may change."""
    (tmp_path / "celeba").mkdir()
    (tmp_path / "celeba" / "img_align_celeba").symlink_to(made / "celeba" / "img_align_celeba")
    for path in (made / "celeba").glob("*.txt"):
        (tmp_path / "celeba" / path.name).write_bytes(path.read_bytes())
    return tmp_path


def opened(root: Path, **settings: Any) -> CelebA:
    data = CelebA(root=root, verify=False, **settings)
    data.setup("fit")
    data.setup("test")
    return data


def test_the_splits_are_the_official_parts(root: Path) -> None:
    data = opened(root)
    splits = (data.train_records, data.validation_records, data.test_records)
    assert [records.ids.tolist() for records in splits] == [
        list(range(1, 61)),
        list(range(61, 81)),
        list(range(81, 111)),
    ]


def test_gender_is_the_attribute_male(root: Path) -> None:
    data = opened(root)
    assert torch.equal(data.train_records.labels, (data.train_records.ids - 1) % 2)
    assert (data.class_names, data.name, data.num_classes) == (("female", "male"), "CelebA-G", 2)


def test_hair_of_none_or_several_colours_is_left_out(root: Path) -> None:
    data = opened(root, task="hair")
    for records in (data.train_records, data.validation_records, data.test_records):
        assert torch.equal(records.labels, (records.ids - 1) % 5)  # 3 has none, 4 has two
        assert set(records.labels.tolist()) == {0, 1, 2}
    assert len(data.train_records) == 36 and data.num_records == 162_770
    assert (data.class_names, data.name, data.num_classes) == (("black", "blonde", "brown"), "CelebA-H", 3)


def test_both_tasks_share_the_ledger_of_the_same_faces() -> None:
    assert CelebA().private_data == CelebA(task="hair").private_data == "CelebA/train"


@pytest.mark.parametrize("crop", [178, 108])
def test_the_middle_is_cut_out_and_shrunk(root: Path, crop: int) -> None:
    data = opened(root, crop=crop, size=32)
    face = Image.open(root / "celeba" / "img_align_celeba" / "000001.jpg")
    left, top = (178 - crop) // 2, (218 - crop) // 2
    expected = face.crop((left, top, left + crop, top + crop)).resize((32, 32), Image.Resampling.BILINEAR)
    assert np.array_equal(data.train_records.images[0].permute(1, 2, 0).numpy(), np.asarray(expected))
    assert data.image_shape == (3, 32, 32)


def test_faces_are_decoded_once_for_both_tasks(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gender = opened(root)
    monkeypatch.setattr("datamodules.pictures._decoded", None)
    hair = opened(root, task="hair")
    rows = torch.isin(gender.train_records.ids, hair.train_records.ids)
    assert torch.equal(gender.train_records.images[rows], hair.train_records.images)


def test_people_are_known_and_may_share_a_shard(root: Path) -> None:
    data = opened(root)
    assert data.train_records.identities is not None
    assert torch.equal(data.train_records.identities, 10 + (data.train_records.ids - 1) // 3)
    shards = Shards(
        dataset=CelebA(root=root, verify=False),
        num_teachers=2,
        batch_size=2,
        shard_by="identity",
        require_all_classes=False,
    )
    shards.setup("fit")
    kept = shards.shards.records
    assert isinstance(kept, ImageDataset) and kept.identities is not None
    people = [set(kept.identities[torch.tensor(shards.shards.positions(shard))].tolist()) for shard in range(2)]
    assert not people[0] & people[1] and len(people[0] | people[1]) == 20


def test_identities_are_optional(root: Path) -> None:
    (root / "celeba" / "identity_CelebA.txt").unlink()
    assert opened(root).train_records.identities is None


def test_the_pictures_of_other_parts_stay_closed(root: Path) -> None:
    folder = root / "celeba" / "img_align_celeba"
    pictures = {path.name: path.resolve() for path in folder.iterdir()}
    folder.unlink()
    folder.mkdir()
    for name, path in pictures.items():
        if int(name[:6]) > 80:
            (folder / name).symlink_to(path)
        else:
            (folder / name).write_bytes(b"private")
    data = CelebA(root=root, verify=False)
    data.setup("test")
    assert len(data.test_records) == 30
    with pytest.raises(ValueError, match=r"0000\d\d.jpg cannot be read as a picture"):
        data.setup("fit")


def test_missing_pictures_and_files_are_named(root: Path) -> None:
    with (root / "celeba" / "list_eval_partition.txt").open("a") as handle:
        handle.write("".join(f"{number:06d}.jpg 2\n" for number in range(201, 220)))
    with pytest.raises(MissingDataError, match=r"(?s)img_align_celeba/000201.jpg\n.*and 9 more"):
        CelebA(root=root, verify=False).setup("test")
    (root / "celeba" / "list_attr_celeba.txt").unlink()
    with pytest.raises(MissingDataError, match=r"(?s)celeba:\n  list_attr_celeba.txt\n.*mmlab"):
        CelebA(root=root).setup("test")
    with pytest.raises(MissingDataError) as caught:
        CelebA(root=root / "empty").setup("test")
    assert caught.value.missing == ("list_attr_celeba.txt", "list_eval_partition.txt", "img_align_celeba/")


def test_other_files_than_the_published_ones_are_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"celeba/list_attr_celeba.txt has the MD5 sum"):
        CelebA(root=root).setup("test")
    sums = [
        (key, hashlib.md5((root / "celeba" / name).read_bytes()).hexdigest(), name)
        for key, _, name in datasets.CelebA.file_list
        if (root / "celeba" / name).is_file()
    ]
    monkeypatch.setattr(datasets.CelebA, "file_list", sums)
    CelebA(root=root).setup("test")


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("list_eval_partition.txt", "000100.jpg two\n", "damaged line 111, '000100.jpg two'"),
        ("list_attr_celeba.txt", "000100.jpg 1\n", "damaged line 113"),
        ("list_eval_partition.txt", "face.jpg 2\n", "names face.jpg, expected numbers"),
    ],
)
def test_damaged_lines_are_named(root: Path, name: str, line: str, message: str) -> None:
    with (root / "celeba" / name).open("a") as handle:
        handle.write(line)
    if line.startswith("face"):
        (root / "celeba" / "img_align_celeba" / "face.jpg").touch()
        with (root / "celeba" / "list_attr_celeba.txt").open("a") as handle:
            handle.write("face.jpg" + " 1" * 7 + "\n")
    try:
        with pytest.raises(ValueError, match=message):
            CelebA(root=root, verify=False, cache=False).setup("test")
    finally:
        (root / "celeba" / "img_align_celeba" / "face.jpg").unlink(missing_ok=True)


def test_faces_without_a_line_are_named(root: Path) -> None:
    for name in ("identity_CelebA.txt", "list_attr_celeba.txt"):
        path = root / "celeba" / name
        path.write_text("".join(line for line in path.read_text().splitlines(True) if not line.startswith("00010")))
        with pytest.raises(ValueError, match=rf"{name} has no line for 000100.jpg \(and 9 more\)"):
            CelebA(root=root, verify=False).setup("test")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task": "age"}, "task must be 'gender' or 'hair', got 'age'"),
        ({"crop": 179}, "crop must lie between 1 and 178"),
        ({"size": 0}, "size must be"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CelebA(**settings)


def test_a_failed_download_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise URLError("Name or service not known")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    with pytest.raises(MissingDataError, match="Downloading was tried and failed: "):
        CelebA(root=tmp_path, download=True).prepare_data()
