"""What a teacher by DP-SGD publishes tells of N its stated bound and no more; nothing is trained beside its plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.data_files import write_folders
from support.dp_teachers import dp_sgd
from support.runs import fit, guarantee

from datamodules import Digits
from datamodules.image_folder import ImageFolder
from lightning_modules import DPSGDTeacher
from lightning_modules.private_fit import ForwardExceptions
from privacy import Ledger, SampledGaussian, compose


def pictures(folder: str, count: int) -> None:
    for part, number in (("train", count), ("test", 4)):
        write_folders(Path(folder, part), count=number, size=8)


def settings(folder: str, **trainer: Any) -> dict[str, Any]:
    images = {"root": folder, "size": 8, "channels": 1, "num_records": 40, "name": "insects", "val_fraction": 0.1}
    data = {"dataset": {"class_path": "ImageFolder", "init_args": images}, "batch_size": 8, "steps_per_epoch": 2}
    return dp_sgd(f"run_{folder}", data=data, trainer=trainer, noise_multiplier=2.0, delta=1e-3)


def stated(folder: str) -> dict[str, Any]:
    fit(settings(folder))
    return {name: guarantee(f"run_{folder}")[name] for name in ("epsilon", "epsilon_spent", "mechanism", "not_covered")}


@pytest.mark.parametrize("broken", [False, True])
def test_a_bound_on_n_is_all_that_is_told(monkeypatch: pytest.MonkeyPatch, broken: bool) -> None:
    if broken:  # the control: q of N itself
        monkeypatch.setattr(ImageFolder, "states_bound", property(lambda _: False, lambda *_: None), raising=False)
    for folder, count in (("some", 12), ("more", 15)):
        pictures(folder, count)
    some, more = stated("some"), stated("more")
    assert (some == more) is not broken
    if not broken:
        assert "Poisson samples at rate 0.2" in some["mechanism"]
        page = Path("run_some/public/guarantee.md").read_text()
        assert "near-duplicates of an image" in page.split("It does not cover:")[1]


@pytest.mark.parametrize("broken", [False, True])
def test_an_error_leaves_the_page_of_the_whole_plan(monkeypatch: pytest.MonkeyPatch, broken: bool) -> None:
    pictures("some", 12)
    whole = stated("some")["epsilon"]
    if broken:
        monkeypatch.delattr(ForwardExceptions, "on_exception")
    monkeypatch.setattr(DPSGDTeacher, "on_train_batch_end", lambda *_: (_ for _ in ()).throw(InterruptedError))
    with pytest.raises(InterruptedError):
        fit(settings("some", default_root_dir="interrupted"))
    page = Path("interrupted/public/guarantee.json")
    assert page.is_file() is not broken
    if not broken:
        found = json.loads(page.read_text())["guarantee"]
        assert found["epsilon"] == whole > found["epsilon_spent"]
        assert not list(Path("interrupted/public").glob("*.pt"))


def test_trainings_on_one_folder_are_one_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """From two working folders, under another name, and with a folder for all ledgers."""
    monkeypatch.delenv("TRANSCRIPTION_LEDGERS")
    caplog.set_level("INFO")
    pictures("some", 12)
    for number, place in enumerate(("first", "of another name", "with one for all", "fourth"), start=1):
        (tmp_path / place).mkdir()
        monkeypatch.chdir(tmp_path / place)
        config = settings("some")
        named = {"root": str(tmp_path / "some"), "name": "other" if number == 2 else "insects"}
        config["data"]["init_args"]["dataset"]["init_args"] |= named
        with monkeypatch.context() as patch:
            if number == 3:
                patch.setenv("TRANSCRIPTION_LEDGERS", str(tmp_path / "of all"))
            fit(config)
        stated = guarantee("run_some")
        total = compose({SampledGaussian(2.0, stated["releases"][0][0]["sample_rate"]): 2 * number}, 1e-3).epsilon
        assert stated["epsilon_all_runs"] == pytest.approx(total, rel=1e-6) and stated["trainings"] == number
        assert "Privacy ledger of insects/train: " in caplog.text


def test_nothing_is_trained_before_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    pictures("some", 12)
    config = settings("some", callbacks=[{"class_path": "lightning.pytorch.callbacks.BatchSizeFinder"}])
    with pytest.raises((ValueError, SystemExit), match="BatchSizeFinder trains before the fit"):
        fit(config)
    monkeypatch.setattr("lightning_modules.training.run.BatchSizeFinder", ())
    try:
        fit(config)
    except BaseException as error:
        assert "trains before the fit" not in str(error)


class ChosenOn(Digits):
    """The digits under a name that recipes were chosen on."""

    private_name = "MNIST"


CHOSEN_ON = {"class_path": f"{__name__}.ChosenOn"}
CLIENT = {"class_path": "ClientRecords", "init_args": {"client": 0, "num_clients": 2, "dataset": CHOSEN_ON}}


@pytest.mark.parametrize(
    ("data", "chosen"), [({"class_path": "Digits"}, False), (CHOSEN_ON, True), (CLIENT, True)], ids=str
)
def test_a_page_says_where_recipes_were_chosen_on_its_data(data: dict[str, Any], chosen: bool) -> None:
    fit(dp_sgd(data={"dataset": data}, noise_multiplier=1.0))
    said = " ".join(guarantee()["assumptions"])
    assert ("recipes were compared on held-out" in said, "but for the access above" in said) == (chosen, chosen)


def test_a_trial_run_is_in_the_ledger_too() -> None:
    fit(dp_sgd(noise_multiplier=1.0), "--trainer.fast_dev_run=2")
    assert not Path("run").exists()
    book = Ledger(path=Path("ledgers/Digits-train.jsonl"), private_data="Digits/train", run="")
    assert [sum(own.values()) for own in book.releases_by_training().values()] == [3]  # the epoch that was planned


def test_the_page_says_that_private_pictures_may_be_public_and_not_how_many() -> None:
    pictures("some", 12)
    config = settings("some")
    config["data"]["init_args"]["dataset"]["init_args"]["duplicates"] = "allow"
    fit(config)
    assert [text for text in guarantee("run_some")["assumptions"] if "private picture" in text] == [
        "a private picture that is also in the public test part of insects may be known"
    ]
