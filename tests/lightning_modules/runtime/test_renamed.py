"""Settings under older names: read under the new ones with a warning, or left to the parser to refuse."""

from __future__ import annotations

import inspect
import json
import warnings
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import torch
import yaml
from support.runs import QUIET, checkpoint, distil, equal, networks

import lightning_modules
from lightning_modules import DPDFD
from lightning_modules.cli import _cli, main
from lightning_modules.runtime.renamed import (
    RENAMED,
    plain_content,
    upgrade_arguments,
    upgrade_settings,
    upgraded_checkpoint,
)

OLD = Path(__file__).parents[3] / "tests" / "written_by" / "ae22c58"


@pytest.mark.parametrize("method", RENAMED)
def test_every_new_name_is_a_setting_of_its_class(method: str) -> None:
    kind = getattr(lightning_modules, method)
    hints = get_type_hints(kind.__init__)
    for old, new in RENAMED[method].items():
        group, _, field = new.partition(".")
        assert is_dataclass(hints[group]) and field in {known.name for known in fields(hints[group])}, new
        # An old name must not be taken for a current setting, but for `images`, which is a group now.
        assert old == "images" or old not in inspect.signature(kind.__init__).parameters


def test_settings_move_into_their_groups_and_say_so() -> None:
    given = {"teacher": "a.ckpt", "images": "both", "prior": None, "student_follows": "gradients", "dkd_beta": 2.0}
    with pytest.warns(FutureWarning, match=r"model\.student_follows is model\.gradient_targets\.student_target now"):
        made = upgrade_settings("lightning_modules.DPDFD", given, where="a.yaml")
    assert made == {
        "teacher": "a.ckpt",
        "images": {"source": "both", "prior": None},
        "gradient_targets": {"student_target": "gradients", "dkd_beta": 2.0},
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert upgrade_settings("DPDFD", made, where="b.yaml") == made
        assert upgrade_settings("Teacher", given, where="b.yaml") == given


def test_old_and_new_names_of_one_group_go_together() -> None:
    given = {"images": {"source": "prior"}, "prior": {"class_path": "StrokePrior"}}
    for settings in (given, dict(reversed(given.items()))):
        with pytest.warns(FutureWarning):
            made = upgrade_settings("DPSD", settings, where="a.yaml")
        assert made == {"images": {"source": "prior", "prior": {"class_path": "StrokePrior"}}}


def test_what_is_named_otherwise_has_another_value_too() -> None:
    with pytest.warns(FutureWarning):
        assert upgrade_settings("DGD", {"entropy_term": "letter"}, where="a.yaml") == {
            "tangent_normal": {"entropy_term": "as_printed"}
        }


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--model.images=prior"], ["--model.images.source=prior"]),
        (["--model.images", "prior"], ["--model.images.source", "prior"]),
        (["--model.init_args.gamma=2"], ["--model.init_args.gradient_targets.gamma=2"]),
        (["--model.student_optimizer.lr", "0.1"], ["--model.optimizers.student.lr", "0.1"]),
        (["--model.generator.width=4"], ["--model.images.generator.width=4"]),
    ],
)
def test_flags_are_renamed(flags: list[str], expected: list[str]) -> None:
    with pytest.warns(FutureWarning):
        assert upgrade_arguments(["fit", "--model", "DPDFD", *flags]) == ["fit", "--model", "DPDFD", *expected]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--model=DPDFD", "--model.images.source=prior"],
        ["--model=DPDFD", '--model.images={"source": "prior"}'],
        ["--model=Teacher", "--model.images=prior"],
        ["--model.images=prior"],
        ["--config", "nowhere.yaml", "--trainer.max_epochs=3"],
    ],
)
def test_what_is_not_old_stays_as_it_is(arguments: list[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert upgrade_arguments(arguments) == arguments


def test_a_file_that_overrides_another_is_of_the_same_class(tmp_path: Path) -> None:
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text("model: {class_path: DPDFD, init_args: {teacher: a.ckpt}}\n")
    second.write_text("model: {init_args: {gamma: 7.0}}\ntrainer: {max_epochs: 2}\n")
    with pytest.warns(FutureWarning, match="second.yaml has the old name"):
        given = upgrade_arguments(["fit", "--config", str(first), f"--config={second}"])
    assert given[2] == str(first)
    content = json.loads(given[3].removeprefix("--config="))
    assert content == {"model": {"init_args": {"gradient_targets": {"gamma": 7.0}}}, "trainer": {"max_epochs": 2}}


@pytest.mark.parametrize("broken", [False, True])
def test_files_that_an_old_one_names_are_found_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    if broken:  # handed on as it is, and looked for in the working folder
        monkeypatch.setattr("lightning_modules.runtime.renamed.files_made_absolute", lambda value, folder: value)
    folder = Path("settings")
    folder.mkdir()
    for file, noise in ((folder / "ann.yaml", 1000), (Path("ann.yaml"), 1)):
        file.write_text(f"class_path: GradientAnnotator\ninit_args: {{noise_multiplier: {noise}}}\n")
    (folder / "t.ckpt").write_bytes(b"\x80\x01 weights")
    (folder / "old.yaml").write_text(
        "model: {class_path: DPDFD, init_args: {teacher: t.ckpt, images: prior, annotator: ann.yaml}}\n"
        "data: {class_path: Latent, init_args: {dataset: {class_path: Digits}, batch_size: 32}}\n"
    )
    with pytest.warns(FutureWarning, match="old name"):
        cli = _cli(["--config", str(folder / "old.yaml"), "--trainer.logger=false"], run=False)
    assert cli.model.annotator.noise_multiplier == (1 if broken else 1000)
    assert cli.model.hparams["teacher"] == "t.ckpt"


def test_a_file_of_before_runs_as_it_did(folder: Path) -> None:
    """The whole way: an old YAML gives the student that the new one gives."""
    noiseless: dict[str, Any] = {"noise_multiplier": 0.0}
    old = yaml.safe_load((OLD / "student_of_private.yaml").read_text())
    settings = old["model"]["init_args"]
    assert settings["images"] in ("generator", "prior", "both")  # the former form
    settings |= {"teacher": "teachers/digits.ckpt", "teacher_network": None}
    settings["annotator"]["init_args"] |= noiseless
    old["trainer"] = {"max_epochs": 1, "default_root_dir": "old"}
    old["data"]["init_args"] |= {"steps_per_epoch": 2, "batch_size": 8}
    Path("old.yaml").write_text(yaml.safe_dump(old))
    with pytest.warns(FutureWarning, match=r"model\.images is model\.images\.source now"):
        first = main(["fit", "--config", "old.yaml", *QUIET])
    new = {**old, "trainer": {"max_epochs": 1, "default_root_dir": "new"}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        new["model"]["init_args"] = upgrade_settings("DPDFD", settings, where="a test")
    Path("new.yaml").write_text(yaml.safe_dump(new))
    second = main(["fit", "--config", "new.yaml", *QUIET])
    assert first is not None and second is not None
    assert equal(networks(first), networks(second))


def test_a_checkpoint_of_before_is_read(folder: Path) -> None:
    file = OLD / "student_of_private.ckpt"
    kept = torch.load(file, weights_only=True)
    assert "images" in kept["hyper_parameters"] and not isinstance(kept["hyper_parameters"]["images"], dict)
    with pytest.warns(FutureWarning):
        module = DPDFD.load_from_checkpoint(file, map_location="cpu", weights_only=True)
    found = dict(module.state_dict())
    # Its generator's pixels had a mean of 0 and a standard deviation of 1, and they have them still.
    assert float(found.pop("generator.scale")) == 1 and float(found.pop("generator.shift")) == 0
    assert equal({name.replace("generator.network.", "generator."): found[name] for name in found}, kept["state_dict"])


def test_a_checkpoint_of_today_is_not_copied(folder: Path) -> None:
    distil(model={"images": "prior"}, steps=1)
    path = "run/checkpoints/last.ckpt"
    assert all(upgraded_checkpoint(file, plain_content(file)) == file for file in (path, "nowhere.ckpt"))
    assert checkpoint()["hyper_parameters"]["images"]["source"] == "prior"
