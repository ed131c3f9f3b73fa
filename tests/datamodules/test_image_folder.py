"""A user's own pictures: classes, shape and size by settings and folder names, before a picture is opened."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support.data_files import picture, write_folders

from datamodules import ImageFolder, MissingDataError, image_folder
from datamodules.records import ids_of_names


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """40 pictures of each of two classes."""
    return write_folders(tmp_path / "insects")


@pytest.fixture
def parted(tmp_path: Path) -> Path:
    """The same in folders for training and testing."""
    write_folders(tmp_path / "insects" / "train")
    write_folders(tmp_path / "insects" / "test", count=10)
    return tmp_path / "insects"


def opened(place: Path, **settings: Any) -> ImageFolder:
    data = ImageFolder(root=place, **{"size": 16, "channels": 1, **settings})
    data.setup("fit")
    data.setup("test")
    return data


def test_what_a_model_needs_is_known_before_a_picture_is_opened(place: Path) -> None:
    for path in place.rglob("*.png"):
        path.write_bytes(b"unread")
    data = ImageFolder(root=place, size=48, channels=1, test_fraction=0.2)
    assert (data.num_classes, data.image_shape, data.num_records) == (2, (1, 48, 48), 80)
    assert (data.class_names, data.name, data.private_data) == (("ants", "bees"), "insects", "insects/train")
    with pytest.raises(ValueError, match="cannot be read as a picture"):
        data.setup("test")


def test_the_shape_is_that_of_the_test_pictures(parted: Path) -> None:
    for path in (parted / "train").rglob("*.png"):
        path.write_bytes(b"private, and not opened")
    data = ImageFolder(root=parted)
    data.setup("test")
    with pytest.raises(ValueError, match="cannot be read as a picture"):
        data.setup("fit")
    (size,) = {Image.open(path).size for path in (parted / "test").rglob("*.png")}
    assert data.image_shape == (1, min(size), min(size))
    assert ImageFolder(root=parted, size=8).image_shape == (1, 8, 8)
    picture(np.zeros((5, 7, 3), np.uint8), parted / "test" / "ants" / "other.png")
    assert ImageFolder(root=parted, size=8).image_shape == (3, 8, 8)
    with pytest.raises(ValueError, match=r"2 sizes \(20 of .*, 1 of 7 x 5\): set size \(--data.size 64"):
        ImageFolder(root=parted)
    shutil.rmtree(parted / "test")
    with pytest.raises(ValueError, match=r"/test/CLASS has no pictures.* set size and channels"):
        ImageFolder(root=parted, size=8)


def test_a_share_for_testing_is_drawn_by_the_path(place: Path) -> None:
    data = opened(place, test_fraction=0.3)
    test, private = data.test_records.ids, data.read("train").ids
    assert 10 <= len(test) <= 38 and len(test) + len(private) == 80 and not set(test.tolist()) & set(private.tolist())
    files = {int(ids_of_names([path.relative_to(place).as_posix()])): path for path in place.rglob("*.png")}
    files[int(private[0])].unlink()
    after = opened(place, test_fraction=0.3)
    assert torch.equal(after.test_records.ids, test)
    assert len(set(private.tolist()) - set(after.read("train").ids.tolist())) == 1


def test_a_private_picture_is_no_public_one_by_a_link(parted: Path) -> None:
    link = parted / "test/ants/link.png"
    link.symlink_to(next((parted / "train/ants").iterdir()).resolve())
    with pytest.raises(ValueError, match="is a link into train: a picture is either private or public"):
        ImageFolder(root=parted, size=16, channels=1).setup("test")
    link.unlink()
    ImageFolder(root=parted, size=16, channels=1).setup("test")


@pytest.mark.parametrize("share", [None, 0.3])
def test_a_private_picture_that_is_public_too_is_refused_unless_allowed(
    tmp_path: Path, share: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In another class and by other names, of which a share makes some private and some public."""
    place, train, test = tmp_path / "insects", *(("", "") if share else ("train", "test"))
    for part in {train, test}:
        write_folders(place / part)
    for number in range(20):
        shutil.copy(place / train / "ants/003.png", place / test / f"bees/copy{number}.png")
    found = r"private pictures of insects are also in its public test part, like .*\.png"
    with pytest.raises(ValueError, match=rf"^\d+ {found} in .*\.png: .* or set duplicates to allow"):
        opened(place, test_fraction=share)
    with pytest.warns(UserWarning, match=found):
        allowed = opened(place, test_fraction=share, duplicates="allow")
    assert allowed.assumptions == ("a private picture that is also in the public test part of insects may be known",)
    refusing = ImageFolder(root=place, size=16, channels=1, test_fraction=share)
    assert refusing.assumptions == () and refusing.partition == allowed.partition
    monkeypatch.setattr(image_folder, "same_files", lambda *_: [])
    opened(place, test_fraction=share)


def test_a_private_picture_that_was_saved_anew_for_testing_is_told_to_the_owner(parted: Path) -> None:
    Image.open(parted / "train/ants/003.png").save(parted / "test/ants/copy.jpg", quality=90)
    with pytest.warns(UserWarning, match=r"^1 public test pictures .* look like private .*copy\.jpg like .*003\.png"):
        opened(parted)
    (parted / "test/bees/broken.png").write_bytes(b"no picture")
    with pytest.warns(UserWarning, match=r"^public test pictures were not searched for copies .*broken\.png"):
        ImageFolder(root=parted, size=16, channels=1).records("train")


def test_of_the_test_pictures_alone_the_number_of_private_ones_is_stated_or_not_known(parted: Path) -> None:
    shutil.rmtree(parted / "train")
    assert ImageFolder(root=parted).num_records is None
    data = ImageFolder(root=parted, num_records=1000, size=16)
    data.setup("test")
    assert data.num_records == 1000 and len(data.test_records) == 20
    with pytest.raises(MissingDataError, match=r"(?s)insects:\n  train/\n(?!.*download)"):
        data.setup("fit")


def test_more_records_than_stated_are_refused(parted: Path) -> None:
    with pytest.raises(ValueError, match="num_records of insects is 79, and its private part holds 80"):
        ImageFolder(root=parted, num_records=79, size=16).setup("fit")
    ImageFolder(root=parted, num_records=80, size=16).setup("fit")


def test_any_sizes_kinds_and_depths(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    for number, (name, shape) in enumerate(
        {"a/x.jpg": (40, 30, 3), "a/deep/er/y.webp": (9, 60), "b/z.PNG": (17, 17, 3), "b/w.bmp": (8, 8)}.items()
    ):
        picture(draw.integers(0, 256, shape, dtype=np.uint8), tmp_path / "p" / "train" / name)
        picture(draw.integers(0, 256, (5 + number, 7), dtype=np.uint8), tmp_path / "p" / "test" / name)
    (tmp_path / "p" / "train" / "a" / "notes.txt").write_text("no picture")
    (tmp_path / "p" / "train" / "a" / ".hidden.png").write_text("no picture")
    (tmp_path / "p" / "train" / ".git").mkdir()
    data = ImageFolder(root=tmp_path / "p", size=20, channels=3)
    records = data.read("train")
    assert (data.num_classes, data.num_records) == (2, 4)
    assert records.images.shape == (4, 3, 20, 20) and sorted(records.labels.tolist()) == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, r"has no folders train and test \(its folders are ants, bees\): sort them into train/CLASS"),
        ({"test_fraction": 0.0}, "test_fraction must lie between 0 and 1, both excluded, got 0.0"),
        ({"test_fraction": 0.2, "channels": 1}, "size and channels must be given with test_fraction"),
        ({"test_fraction": 0.2, "duplicates": "warn"}, "duplicates must be one of refuse, allow, got 'warn'"),
        ({"test_fraction": 0.2, "num_records": 0}, "num_records must be 1 or more and a whole number"),
    ],
)
def test_wrong_settings_are_refused(place: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ImageFolder(root=place, **settings)


def test_folders_of_no_use_are_refused(parted: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has folders for its parts \(.*test, train\): leave test_fraction out"):
        ImageFolder(root=parted, test_fraction=0.2)
    (parted / "test" / "wasps").mkdir()
    with pytest.raises(ValueError, match=r"test has folders that .*train has not: wasps"):
        ImageFolder(root=parted)
    (parted / "train" / "wasps").mkdir()
    with pytest.raises(ValueError, match=r"train/wasps holds no pictures .*\.png"):
        ImageFolder(root=parted)
    with pytest.raises(ValueError, match=r"root .*nowhere is not a folder: give the one that holds your pictures"):
        ImageFolder(root=tmp_path / "nowhere")
    (tmp_path / "one" / "train" / "ants").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"train has no folders train and test"):
        ImageFolder(root=parted / "train")
    with pytest.raises(ValueError, match="at least 2, got ants"):
        ImageFolder(root=tmp_path / "one")


def test_ids_do_not_depend_on_where_the_folder_lies(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = opened(place, test_fraction=0.3)
    after = opened(shutil.copytree(place, tmp_path / "elsewhere" / "insects"), test_fraction=0.3)
    assert torch.equal(before.train_records.ids, after.train_records.ids)
    assert before.private_data == after.private_data == "insects/train"
    assert ImageFolder(root=place, size=8, channels=1, test_fraction=0.2, name="ours").private_data == "ours/train"
    monkeypatch.chdir(place)
    assert ImageFolder(root=".", size=8, channels=1, test_fraction=0.2).private_data == "insects/train"
    with pytest.raises(ValueError, match="has no pictures for its test part: add some, or change test_fraction"):
        ImageFolder(root=place, test_fraction=1e-9, size=8, channels=1).setup("test")


def test_file_names_say_whose_a_picture_is_and_no_split_divides_a_person(place: Path) -> None:
    for path in place.rglob("*.png"):
        path.rename(path.with_name(f"p{int(path.stem) % 30}_{path.name}"))  # of both classes

    names = [path.relative_to(place).as_posix() for path in place.rglob("*.png")]
    person_of = {int(ids_of_names([name])): name.split("/")[1].split("_")[0] for name in names}

    def divided(**settings: Any) -> int:
        """Persons in more than one split."""
        data = opened(place, test_fraction=0.3, val_fraction=0.3, **settings)
        splits = (data.train_records, data.validation_records, data.test_records)
        people = [{person_of[number] for number in records.ids.tolist()} for records in splits]
        if settings:
            numbers = [set(records.identities.tolist()) for records in splits]  # type: ignore[union-attr]
            assert [len(one) for one in numbers] == [len(one) for one in people] and all(people)
        return sum(map(len, people)) - len(set.union(*people))

    assert divided(person_pattern=r"^(p\d+)_") == 0 < divided()


def test_whose_a_picture_is_must_be_clear(parted: Path) -> None:
    settings = {"root": parted, "size": 16, "channels": 1}
    for pattern in (r"^p\d+_", "^(p"):
        with pytest.raises(ValueError, match="person_pattern must be a regular expression with a group"):
            ImageFolder(**settings, person_pattern=pattern)
    with pytest.raises(ValueError, match=r"does not match .*\.png: rename it, or add \|\(\.\*\)"):
        ImageFolder(**settings, person_pattern=r"^(p\d+)_").setup("fit")
    with pytest.raises(ValueError, match=r"the person of .*train/ants/000\.png has pictures in test as well"):
        opened(parted, person_pattern=r"^(p\d+)_|(.*)")
    for path in (parted / "test").rglob("*.png"):
        path.rename(path.with_name(f"p1_{path.name}"))
    records = opened(parted, person_pattern=r"^(p\d+)_|(.*)").train_records
    assert len(torch.unique(records.identities)) < len(records)  # ants/000.png and bees/000.png are one name
    opened(parted, person_pattern=r"^(p\d+)_|(.*)", name="other")


def test_classes_of_which_there_is_too_little_are_named(parted: Path, recwarn: pytest.WarningsRecorder) -> None:
    opened(parted)
    assert not recwarn.list  # the control: nothing is said of a folder that is read whole
    for file in (parted / "test" / "bees").iterdir():
        file.unlink()
    with pytest.warns(UserWarning, match="no test picture of bees: the accuracy leaves these out"):
        ImageFolder(root=parted, size=16, channels=1).setup("fit")
    for file in sorted((parted / "train" / "ants").iterdir())[1:]:
        file.unlink()
    with pytest.warns(UserWarning, match="at most one training picture of ants: it cannot be learnt"):
        opened(parted)


def test_what_is_not_read_is_said_in_one_line(parted: Path) -> None:
    for name in ("train/ants/a.heic", "train/ants/b.HEIC", "test/bees/c.nef", "train/notes.txt", "train/ants/d.png"):
        (parted / name).write_bytes((parted / "train/ants/000.png").read_bytes())
    (parted / "__MACOSX").mkdir()
    shutil.copytree(parted / "train", parted / "train" / "__MACOSX")
    shutil.copytree(parted / "test", parted / "val")
    with pytest.warns(UserWarning) as told:
        data = ImageFolder(root=parted, size=16, channels=1)
    assert (data.class_names, data.num_records) == (("ants", "bees"), 81)
    (said,) = (str(one.message) for one in told)
    assert "not read are 2 files .heic, 2 files .nef, folder val. Files become pictures by: magick mogrify" in said
    for file in (parted / "train" / "bees").iterdir():
        file.rename(file.with_suffix(".heic"))
    with pytest.raises(ValueError, match=r"train/bees holds no pictures \(.*\.png.*\), but 40 files \.heic"):
        ImageFolder(root=parted)


def test_a_folder_for_validation_is_offered_for_testing(parted: Path) -> None:
    (parted / "test").rename(parted / "val")
    offered = rf"If val may be public, make it the test part: mv {parted}/val {parted}/test"
    with (
        pytest.warns(UserWarning, match=offered),
        pytest.raises(ValueError, match=rf"set size and channels.*{offered}"),
    ):
        ImageFolder(root=parted)
    with pytest.warns(UserWarning), pytest.raises(MissingDataError, match=rf"(?s)test/\n.*{offered}"):
        ImageFolder(root=parted, size=16, channels=1).setup("test")
