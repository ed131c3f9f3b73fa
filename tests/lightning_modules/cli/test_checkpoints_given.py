"""What is given with `--ckpt_path`: a setting is applied or refused by name, and so is a file that is of no use."""

from __future__ import annotations

import copy
import json
import shutil
import zipfile
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import wandb
from lightning import Callback
from support.data_files import picture, write_folders
from support.offered import OF_DATA as LINKED, offered
from support.runs import QUIET, RESUME, charged, checkpoint, configuration, fit, interrupted

import datamodules
import lightning_modules
from lightning_modules import DPDFD
from lightning_modules.callbacks.saving import LastCheckpoint, read_checkpoint
from lightning_modules.cli import main
from lightning_modules.cli.resuming import MAY_CHANGE, may_change
from lightning_modules.federated.connection import LocalClients
from lightning_modules.networks import SmallCNN
from privacy.identity import CheckpointError

INSIDE = "model.init_args."


REFUSED = {
    "seed_everything": 4,
    "data.init_args.dataset.class_path": "support.dp_teachers.OtherDigits",
    "data.init_args.dataset.init_args.val_fraction": 0.2,
    f"{INSIDE}student.network.init_args.width": 3,
    f"{INSIDE}gradient_targets.gamma": 7.0,
    f"{INSIDE}mechanism.norm_bound": 0.5,
}
APPLIED = {f"{INSIDE}mechanism.noise_multiplier": 50.0, f"{INSIDE}budget.target_epsilon": 1e9}


def changed(config: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """A configuration with dotted settings in their places."""
    config = copy.deepcopy(config)
    for name, value in settings.items():
        *above, last = name.split(".")
        inside = config
        for word in above:
            inside = inside.setdefault(word, {})
        inside[last] = value
    return config


def short(name: str) -> str:
    """The option of a setting, and how a message calls it."""
    return ".".join(word for word in name.split(".") if word not in ("init_args", "class_path"))


def test_a_setting_is_applied_or_refused_by_name(place: Path) -> None:
    config = configuration()
    fit(config)
    held = Path("run/checkpoints/last.ckpt").read_bytes()
    for number, (name, value) in enumerate(REFUSED.items()):
        Path("more.yaml").write_text(json.dumps(changed({}, {name: value})), encoding="utf-8")
        # By an option, by a second file over the first, or by the file itself.
        ways = [(config, f"--{short(name)}={value}"), (config, "--config=more.yaml"), (changed(config, {name: value}),)]
        given, *arguments = ways[number % 3]
        with pytest.raises(CheckpointError, match=rf"{short(name)} was .* and is .*{str(value).rpartition('.')[2]}"):
            fit(given, RESUME, *arguments)
    assert Path("run/checkpoints/last.ckpt").read_bytes() == held
    again = fit(changed(config, {**APPLIED, "trainer.max_epochs": 2}), RESUME).model
    assert (again.mechanism.noise_multiplier, again.session.budget.target_epsilon) == (50.0, 1e9)


def test_a_fit_that_is_done_takes_no_other_noise(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It was said to be applied, the student of the noise before was exported, and files named noise it never had."""
    config, noise = configuration(steps=1, epochs=2), "--model.mechanism.noise_multiplier=7"
    fit(config)
    files = [Path("run/config.yaml"), Path("run/checkpoints/last.ckpt")]
    held = [file.read_bytes() for file in files]
    with pytest.raises(CheckpointError, match=r"noise_multiplier was .* and is 7.*the fit is done"):
        fit(config, RESUME, noise)
    with pytest.raises(CheckpointError, match=r"max_epochs must be at least the 2 of .*last\.ckpt, got 1"):
        fit(config, RESUME, noise, "--trainer.max_epochs=1")
    assert [file.read_bytes() for file in files] == held
    monkeypatch.setattr("lightning_modules.cli.resuming.refuse", lambda *_, **__: None)
    assert fit(config, RESUME, noise).model.steps_done == 2
    # A student of hours was lost without a word to a second fit into its folder.
    said = "Replaces run/checkpoints/last.ckpt of an earlier fit"
    assert said not in caplog.text
    with caplog.at_level("INFO"):
        fit(configuration(steps=1))
    assert caplog.text.count(said) == 1


def of_trainer(**trainer: Any) -> dict[str, Any]:
    return configuration(model={"images": "prior"}, trainer=trainer, steps=2)


def logging_to(class_path: str, **settings: Any) -> dict[str, Any]:
    return of_trainer(logger={"class_path": class_path, "init_args": {"save_dir": "logs", **settings}})


@pytest.mark.parametrize(
    "config",
    [
        logging_to("TensorBoardLogger", version="one", sub_dir="events"),
        pytest.param(logging_to("WandbLogger", id="one", offline=True), marks=pytest.mark.slow),
    ],
    ids=lambda config: config["trainer"]["logger"]["class_path"],
)
def test_last_is_where_the_fit_writes(folder: Path, monkeypatch: pytest.MonkeyPatch, config: dict[str, Any]) -> None:
    """It was sought in trainer.default_root_dir: the fit began anew, and its teacher was queried and charged again."""
    monkeypatch.setattr("lightning_modules.callbacks.figures.log_image", lambda *_, **__: None)  # W&B reads them
    more = ("--ckpt_path=last", "--trainer.max_epochs=2")
    fit(config, "--ckpt_path=last")
    wandb.finish()
    assert (fit(config, *more).model.steps_done, charged()) == (4, 4)
    wandb.finish()


EVERY_1000: dict[str, Any] = {"class_path": "ModelCheckpoint", "init_args": {"every_n_train_steps": 1000}}
ELSEWHERE: dict[str, Any] = {"class_path": "ModelCheckpoint", "init_args": {"dirpath": "mine", "filename": "best"}}


@pytest.mark.parametrize(
    "trainer", [{"callbacks": [EVERY_1000, ELSEWHERE]}, {"val_check_interval": 2}], ids=["callbacks", "validation"]
)
def test_a_fit_that_is_done_has_its_last_checkpoint(
    folder: Path, monkeypatch: pytest.MonkeyPatch, trainer: dict[str, Any]
) -> None:
    """A student of 40 steps had none, beside a callback that saves every 1,000: it could not be exported."""

    def require_saved() -> None:
        fit(config)
        assert checkpoint()["distillation"]["steps_done"] == 3
        main(["export", "run", "--to", "student"])

    config = configuration(model={"images": "prior"}, trainer=trainer)
    require_saved()
    assert (fit(config, "--ckpt_path=last", "--trainer.max_epochs=2").model.steps_done, charged()) == (6, 6)
    if "callbacks" in trainer:
        monkeypatch.setattr("lightning_modules.cli.fit.LastCheckpoint", Callback)
    monkeypatch.setattr(LastCheckpoint, "on_train_end", lambda *_: None)
    shutil.rmtree("run")
    with pytest.raises((AssertionError, FileNotFoundError)):
        require_saved()
    fit(config, "--trainer.default_root_dir=none", "--trainer.enable_checkpointing=false", "--trainer.callbacks=null")
    assert not list(Path("none").rglob("*.ckpt"))


def test_a_fit_that_fails_has_its_last_checkpoint(folder: Path) -> None:
    interrupted(DPDFD, 2, lambda: fit(of_trainer(callbacks=[EVERY_1000])))
    assert fit(of_trainer(callbacks=[EVERY_1000]), "--ckpt_path=last").model.steps_done == charged() == 2


@pytest.fixture
def tested(folder: Path) -> Path:
    """A student's run in `run`, its configuration in `given.json`."""
    fit(configuration(steps=1))
    return folder


GIVEN = ("--config", "given.json", *QUIET)


def test_what_is_measured_is_named_and_is_what_was_trained(tested: Path) -> None:
    for command in ("test", "validate", "predict"):
        with pytest.raises(CheckpointError, match=rf"^{command} needs a run: LightningCLI"):
            main([command, *GIVEN])
    for given, message in (
        ("best", "`last` or a checkpoint's file, and best is not a file"),
        ("teachers/digits.ckpt", r"digits\.ckpt is of .*Teacher, and the configuration is for .*DPDFD"),
    ):
        with pytest.raises(CheckpointError, match=message):
            main(["test", *GIVEN, f"--ckpt_path={given}"])
    with pytest.raises(CheckpointError, match=r"network\.width was 4 and is 8: test measures what was trained"):
        main(["test", *GIVEN, RESUME, "--model.student.network.init_args.width=8"])
    measured: Any = main(["test", "run", *QUIET])
    record = json.loads(Path("run/result.json").read_text())
    assert float(measured.trainer.callback_metrics["test/accuracy"]) == pytest.approx(record["accuracy"], abs=1e-6)


def test_a_run_is_measured_where_its_training_pictures_are_not(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for part, count in (("train", 40), ("test", 10)):
        write_folders(Path("pictures", part), count=count)
    torch.save(SmallCNN(num_classes=2, image_shape=(1, 24, 24)).state_dict(), "teacher.pt")
    config = configuration(steps=1, model={"teacher": "teacher.pt", "teacher_network": "SmallCNN"})
    config["data"]["init_args"]["dataset"] = {"class_path": "ImageFolder", "init_args": {"root": "pictures"}}
    fit(config)
    shutil.rmtree("pictures/train")
    picture(np.zeros((30, 40), np.uint8), Path("pictures/test/ants/another_size.png"))
    for command in ("test", "validate", "predict"):
        done = main([command, "run", *QUIET])
        assert done is not None and len(done.datamodule.dataset.test_records) == 21
        assert done.datamodule.image_shape == (1, 24, 24) and done.datamodule.num_records is None
    monkeypatch.setattr("lightning_modules.cli.fit._shape", lambda *_: None)
    with pytest.raises(ValueError, match="has test pictures of 2 sizes"):
        main(["test", "run", *QUIET])


def test_a_checkpoint_of_other_weights_is_refused(tested: Path) -> None:
    content = torch.load("run/checkpoints/last.ckpt", weights_only=True)
    content["hyper_parameters"] = {}  # of a script, which does not say what it has built
    torch.save(content, "script.ckpt")
    del content["distillation"]
    torch.save(content, "script.ckpt")
    with pytest.raises(CheckpointError, match="does not say what its run was charged"):
        main(["fit", *GIVEN, "--ckpt_path=script.ckpt", "--trainer.max_epochs=2"])
    content["hyper_parameters"] = torch.load("run/checkpoints/last.ckpt", weights_only=True)["hyper_parameters"]
    del content["optimizer_states"]
    torch.save(content, "weights.ckpt")
    with pytest.raises(CheckpointError, match="it lacks optimizer_states"):
        main(["fit", *GIVEN, "--ckpt_path=weights.ckpt"])


def test_a_file_that_is_cut_short_or_of_another_kind_is_refused(tested: Path) -> None:
    content = Path("run/checkpoints/last.ckpt").read_bytes()
    for length in (0, 1, len(content) // 2, len(content) - 1):
        Path("cut.ckpt").write_bytes(content[:length])
        with pytest.raises(CheckpointError, match=r"cut\.ckpt cannot be read"):
            read_checkpoint(Path("cut.ckpt"), command="fit")
    Path("cut.ckpt").write_bytes(content)
    read_checkpoint(Path("cut.ckpt"), command="fit")
    with zipfile.ZipFile("zip.ckpt", "w") as other:
        other.writestr("data.txt", "hello")
    Path("json.ckpt").write_text('{"state_dict": {}}')
    torch.save([1, 2], "list.ckpt")
    torch.save({"state_dict": {}}, "weights.ckpt")
    for name in ("zip", "json", "list", "weights"):
        with pytest.raises(CheckpointError, match=rf"^{name}\.ckpt "):
            read_checkpoint(Path(f"{name}.ckpt"), command="fit")


def test_what_may_change_is_a_setting_of_a_method_or_of_data() -> None:
    listed = {f"{group}.{name}" for group, names in MAY_CHANGE.items() for name in names.split()}
    places = ("data", "data.dataset", "data" + 3 * ".dataset", "model.images.pool", "model.pool")
    assert all(map(may_change, [*listed, *(f"{place}.{name}" for place in places for name in ("root", "batch_size"))]))
    there = {f"data.{name}" for name in signature(datamodules.PoissonSampled).parameters}
    there |= {f"model.clients.{name}" for name in signature(LocalClients).parameters}
    for kind in (getattr(lightning_modules, name) for name in lightning_modules.__all__):
        if hasattr(kind, "setup"):
            there |= {f"model.{name}" for name in (*offered(kind, mechanisms=False), *LINKED)}
    there |= {f"model.{held}{end}" for held in ("teacher", "generator_phase.baseline") for end in ("", ".path")}
    assert listed <= there and "model.mechanism.norm_bound" not in listed


@pytest.mark.parametrize("config", [logging_to("TensorBoardLogger"), of_trainer(default_root_dir=None)])
def test_last_of_fits_that_each_have_a_folder_is_refused(folder: Path, config: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match=r"each fit gets a new folder: set trainer\.default_root_dir, or"):
        fit(config, "--ckpt_path=last")
    assert not charged()


def test_no_callback_s_best_takes_the_place_of_the_last_state(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"save_last of ModelCheckpoint must not be link"):
        fit(of_trainer(callbacks=[{"class_path": "ModelCheckpoint", "init_args": {"save_last": "link"}}]))
    assert not charged()
