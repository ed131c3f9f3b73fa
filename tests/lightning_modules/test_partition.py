"""Which records are private is part of a teacher's identity: data with another partition are refused."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Trainer
from support.data_files import write_folders
from support.dp_teachers import SMALL, private_teacher, trainer_settings
from support.runs import configuration, fit
from support.variants import CarelessDPDFD

from datamodules import ClientRecords, Digits, ImageFolder, SyntheticSteps
from datamodules.records import PartitionError, require_partition
from lightning_modules import Teacher, images as pools
from lightning_modules.images import Images, PoolSource
from lightning_modules.teachers import own_training
from lightning_modules.training import evaluation
from privacy import LedgerError
from privacy.identity import Training


def pictures(share: float | None = 0.2, **settings: Any) -> dict[str, Any]:
    given = {"root": "insects", "size": 8, "channels": 1, "test_fraction": share, "batch_size": 16, **settings}
    return {"class_path": "ImageFolder", "init_args": given}


@pytest.fixture
def teacher() -> None:
    """Of 80 pictures, about a fifth of which are for testing."""
    write_folders(Path("insects"))
    private_teacher("trained", data=pictures())


def transcribe(data: dict[str, Any], *, teacher: str = "trained/checkpoints/last.ckpt", **model: Any) -> Any:
    config = configuration("run", class_path="DPDFD", model={"teacher": teacher, **model}, steps=1)
    config["data"]["init_args"]["dataset"] = data
    return fit(config)


def without_check(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (evaluation, pools, own_training):
        monkeypatch.setattr(module, "require_partition", lambda *given, **named: None)
    monkeypatch.setattr(evaluation, "require_classes", lambda *given: None)


@contextlib.contextmanager
def refused(
    monkeypatch: pytest.MonkeyPatch, broken: bool, *said: str, error: type[Exception] = PartitionError
) -> Iterator[None]:
    """Refuses with one message; with the check taken out, goes through."""
    if broken:
        without_check(monkeypatch)
        yield
        return
    with pytest.raises(error) as stopped:
        yield
    assert all(text in str(stopped.value) for text in said)


@pytest.mark.parametrize(("named", "broken"), [(None, False), ("others", False), (None, True)])
def test_a_student_is_not_evaluated_on_training_pictures_of_its_teacher(
    teacher: None, named: str | None, broken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = ImageFolder(**pictures()["init_args"])
    private.setup("fit")
    told = ("test_fraction of the data is 0.5", "the teacher's file says 0.2 of insects")
    cli = None
    with refused(monkeypatch, broken, *told):
        cli = transcribe(pictures(0.5, name=named))
    if broken:
        shown = set(cli.datamodule.dataset.test_records.ids.tolist())
        assert len(shown & set(private.train_records.ids.tolist())) > 10
    assert Path("run").exists() is broken or not list(Path("run").rglob("*.ckpt"))


@pytest.mark.parametrize("broken", [False, True])
def test_a_student_is_not_judged_on_pictures_of_a_folder_inside_of_the_private_one(
    broken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in ("train", "test"):
        write_folders(Path("outer") / part)
    private_teacher("trained", data=pictures(None, root="outer"))
    if broken:
        monkeypatch.setattr(evaluation, "require_outside", lambda *given, **named: None)
        transcribe(pictures(root="outer/train"))
        return
    write_folders(Path("links/train"))
    for kind in ("ants", "bees"):  # links from outside
        Path("links/test").mkdir(parents=True, exist_ok=True)
        Path("links/test", kind).symlink_to(Path("outer/train", kind).resolve())
    for given in (pictures(root="outer/train"), pictures(None, root="links")):
        with pytest.raises(PartitionError, match=r"data\.dataset\.root must lie outside of the folder of outer"):
            transcribe(given)


@pytest.mark.parametrize("broken", [False, True])
def test_a_students_guarantee_says_that_private_pictures_of_its_teacher_may_be_public(
    broken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The setting, and never how many there are; the student's own data may say otherwise."""
    for part in ("train", "test"):
        write_folders(Path("both") / part)
    shutil.copy("both/train/ants/003.png", "both/test/ants/copy.png")
    if broken:
        monkeypatch.delitem(own_training._NO_DATA, "assumptions")
    private_teacher("trained", data=pictures(None, root="both", duplicates="allow"))
    told = "a private picture that is also in the public test part of both may be known"
    for duplicates in ("refuse", "allow"):
        said = transcribe(pictures(None, root="both", duplicates=duplicates)).model.guarantee().assumptions
        assert said.count(told) == (0 if broken and duplicates == "refuse" else 1)


def test_the_same_partition_and_other_data_are_taken(teacher: None) -> None:
    transcribe(pictures())
    write_folders(Path("elsewhere") / "beetles")
    transcribe(pictures(0.5, root="elsewhere/beetles"))


@pytest.mark.parametrize("whose", ["teacher", "student", "a class that forgets the hooks of its base"])
def test_what_was_trained_is_not_tested_on_other_records(
    teacher: None, whose: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data: Any = ImageFolder(**pictures(0.5)["init_args"])
    if whose == "teacher":
        module: Any = Teacher.load_from_checkpoint("trained/checkpoints/last.ckpt")
    else:
        module, data = transcribe(pictures()).model, SyntheticSteps(dataset=data, steps_per_epoch=1, batch_size=8)
    if whose.startswith("a class"):
        module.__class__ = CarelessDPDFD
    Path("again/private").mkdir(parents=True)  # where a table of predictions goes
    for command in ("test", "validate", "predict"):
        call = getattr(Trainer(**trainer_settings("again", 1), logger=False), command)
        with pytest.raises(PartitionError, match=r"test_fraction of the data is 0\.5.* 0\.2"):
            call(module, datamodule=data)
        with monkeypatch.context() as patch:
            without_check(patch)
            call(module, datamodule=data)


@pytest.mark.parametrize("broken", [False, True])
def test_a_training_is_not_resumed_on_other_records(
    teacher: None, broken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # From the command line the difference of settings is refused before; a script has none.
    module = Teacher.load_from_checkpoint("trained/checkpoints/last.ckpt")
    trainer = Trainer(**trainer_settings("again", 2), logger=False)
    with refused(monkeypatch, broken, "test_fraction of the data is 0.5", "the checkpoint says 0.2"):
        trainer.fit(module, datamodule=ImageFolder(**pictures(0.5)["init_args"]))
    if broken:  # of the second fit alone: what the first was trained on would be public
        trainer.save_checkpoint("again.ckpt")
        stated = torch.load("again.ckpt", weights_only=True)["training"]["partition"]
        assert stated["settings"]["test_fraction"] == 0.5


@pytest.mark.parametrize("broken", [False, True])
def test_teachers_of_one_ledger_agree_on_what_is_private(
    teacher: None, broken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if broken:
        monkeypatch.setattr(Training, "division", {})
    persons = {"person_pattern": r"(\d\d)\."}
    for other, told in ((pictures(0.5), "test_fraction"), (pictures(**persons), "person_pattern")):
        with refused(
            monkeypatch, broken, f"{told} of the data is", "records need a folder and a name", error=LedgerError
        ):
            private_teacher("trained", data=other)
    # Nor under another name: the folder leads to its ledger.
    with refused(
        monkeypatch, broken, "test_fraction of the data is", "need a folder and a name of their own", error=LedgerError
    ):
        private_teacher("trained", data=pictures(0.5, name="others"))
    private_teacher("trained", data=pictures(classes=["bees", "ants"]))


@pytest.mark.parametrize("part", ["test", "train"])
def test_no_pool_is_made_of_private_records(part: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folders(Path("insects"))
    stated = ImageFolder(**pictures()["init_args"]).partition
    divided, renamed = (ImageFolder(**pictures(*given, name="others")["init_args"]) for given in ((0.5,), ()))
    pool = PoolSource(Images(source="pool", pool=divided, pool_part=part), image_shape=(1, 8, 8), batch_size=4)
    with pytest.raises(PartitionError, match=r"test_fraction of the data is 0\.5.* 0\.2 of insects"):
        pool.open(private={"insects/train"}, partitions=[stated])
    without_check(monkeypatch)
    pool.open(private={"insects/train"}, partitions=[stated])
    pool = PoolSource(Images(source="pool", pool=renamed, pool_part=part), image_shape=(1, 8, 8), batch_size=4)
    for partitions, known in (([stated], part == "train"), ([], False)):  # whatever it is called
        pool.open(private={"insects/train"}, partitions=partitions)
        assert pool.is_private is known


@pytest.mark.parametrize("broken", [False, True])
def test_a_student_divides_no_pictures_of_a_teacher_that_says_nothing(
    teacher: None, broken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = torch.load("trained/checkpoints/last.ckpt", weights_only=True)
    weights = {name: value for name, value in content["state_dict"].items() if name.startswith("network.")}
    torch.save({name.removeprefix("network."): value for name, value in weights.items()}, "weights.pt")
    with refused(monkeypatch, broken, "the teacher's file does not say which are private", "test/CLASS"):
        cli = transcribe(pictures(0.5), teacher="weights.pt", teacher_network=SMALL)
        assert None in cli.model.session.partitions
    if not broken:  # of two clients one has a teacher that says it, of other pictures
        write_folders(Path("elsewhere") / "beetles")
        data, other = (ImageFolder(**pictures(root=root)["init_args"]) for root in ("insects", "elsewhere/beetles"))
        require_partition([other.partition], data)
        with pytest.raises(PartitionError, match="does not say which are private"):
            require_partition([other.partition, None], data)


@pytest.mark.parametrize("broken", [False, True])
def test_outputs_keep_their_classes(teacher: None, broken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folders(Path("elsewhere") / "public", classes=("bees", "z_ants"))
    with refused(monkeypatch, broken, "classes of the data are bees, z_ants", "outputs are ants, bees, in this order"):
        transcribe(pictures(root="elsewhere/public"))


def test_a_partition_holds_what_decides_and_no_path() -> None:
    class Folds(Digits):
        def __init__(self, *, fold: int, **settings: Any) -> None:
            self.fold = fold
            super().__init__(**settings)

    assert Folds(fold=3, val_fraction=0.4).partition["settings"] == {"classes": None, "fold": 3}
    first, second = (Folds(fold=fold) for fold in (1, 2))
    with pytest.raises(PartitionError, match="fold of the data is 2"):
        require_partition([first.partition], second)
    with pytest.raises(PartitionError, match="classes"):
        require_partition([Digits().partition], Digits(classes=[1, 2]))
    write_folders(Path("insects"))
    told = json.dumps(ImageFolder(**pictures()["init_args"]).partition)
    assert str(Path.cwd()) not in told and "test_fraction" in told
    # A client's test split is that of the whole.
    client = ClientRecords(dataset=Digits(), client=1, num_clients=3, alpha=5.0)
    require_partition([client.partition], Digits())
    assert client.partition["share"][1] == 1
