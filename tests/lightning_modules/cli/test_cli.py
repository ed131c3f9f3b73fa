"""The command line: short names, merged files, printed configurations, messages in place of tracebacks."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from support.runs import QUIET, configuration, fit

from lightning_modules.cli import main
from lightning_modules.cli.configs import find_configs
from lightning_modules.cli.fit import TranscriptionCLI
from lightning_modules.networks import SmallCNN, Whitening


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        main(["fit", *arguments, "--print_config"])
    assert not end.value.code
    config: dict[str, Any] = yaml.safe_load(capsys.readouterr().out)
    return config


def test_short_names_and_short_options(folder: Path) -> None:
    line = (
        "fit --model DPDFD --model.teacher.path teachers/digits.ckpt --model.images.source prior "
        "--model.budget.target_epsilon 1 --model.budget.accounting published "
        "--model.student.network SmallCNN --model.student.network.width 4 "
        "--model.student.optimizer Adam --model.student.optimizer.lr 0.01 --trainer.max_epochs 1 "
        "--data SyntheticSteps --data.dataset Digits --data.steps_per_epoch 1 --data.batch_size 8"
    )
    run = main([*line.split(), *QUIET])
    assert run is not None and isinstance(run.model.student, SmallCNN)
    assert run.model.session.budget.target_epsilon == 1 and run.model.session.budget.accounting == "published"
    assert run.trainer.optimizers[0].param_groups[0]["lr"] == 0.01
    made = Path("runs/dpdfd_digits/version_0")
    assert (made / "result.json").is_file()
    main(["test", str(made)])
    assert list(made.parent.iterdir()) == [made]  # the newest version is the newest fit
    with pytest.raises(ValueError, match=r"teachers is not the folder of a run, .*there is no teachers/config\.yaml"):
        main(["test", "teachers"])
    other = ["calibrate", "--resume", str(made)]
    assert find_configs(other) == other  # a run is trusted by `fit` and its measures alone, which look at what it names
    more = main(["fit", "--resume", str(made), "--trainer.max_epochs", "2"])
    assert more is not None and more.model.steps_done == 2


def test_later_files_and_options_override_earlier_ones(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("more.yaml").write_text("model: {init_args: {gradient_targets: {gamma: 7.0}}}\ntrainer: {max_epochs: 4}\n")
    config = printed(capsys, "--config", "sweeps/dpdfd_digits.yaml", "--config", "more.yaml", "--trainer.max_epochs=9")
    model, trainer = config["model"], config["trainer"]
    assert model["init_args"]["gradient_targets"]["gamma"] == 7 and trainer["max_epochs"] == 9
    assert model["init_args"]["images"]["source"] == "prior"
    assert "num_classes" not in model["init_args"]
    assert not {"optimizer", "lr_scheduler"} & set(config)


def test_an_option_or_a_file_for_a_part_of_a_networks_arguments_leaves_the_others(folder: Path) -> None:
    """All of `features`, or of `whitening`, was replaced: another network, without a word."""
    features = {"class_path": "Patches", "init_args": {"filters": 20, "patch": 3}}
    arguments = {"features": features, "whitening": {"images": 30, "mirrored": True}, "prior": "StrokePrior"}
    model = {
        "class_path": "DPSGDTeacher",
        "init_args": {"network": {"class_path": "LinearOnFeatures", "init_args": arguments}},
    }
    model["init_args"]["target_epsilon"] = 1.0  # type: ignore[index]
    Path("net.yaml").write_text(yaml.safe_dump({"model": model, "data": {"class_path": "PoissonSampled"}}))
    options = ["features.init_args.filters=10", "whitening.power=0.5"]
    line = ["fit", "--config", "net.yaml", *(f"--model.network.init_args.{option}" for option in options), *QUIET]
    Path("more.yaml").write_text("model: {init_args: {network: {init_args: {whitening: {shifts: 1}, prior: null}}}}")
    line[3:3] = ["--config", "more.yaml"]
    line += ["--data.dataset=Digits", "--data.batch_size=512"]
    extractor = TranscriptionCLI(line[1:], run=False).model.network.feature_extractor
    assert extractor.whitening == Whitening(power=0.5, images=30, mirrored=True, shifts=1)
    assert extractor.plain.filters.shape == (10, 1, 3, 3)


def test_a_teacher_is_kept_unless_asked_and_is_for_its_owner_alone(folder: Path) -> None:
    """One of 98.9 % was replaced by one of 10.5 %, without a word."""
    keep = {
        "class_path": "ModelCheckpoint",
        "init_args": {"dirpath": "mine", "filename": "t", "enable_version_counter": False},
    }
    config = configuration(steps=1, trainer={"callbacks": [keep]})
    fit(config)
    file = Path("mine/t.ckpt")
    first = file.read_bytes()
    assert [path.stat().st_mode & 0o777 for path in (file, file.parent)] == [0o600, 0o700]
    with pytest.raises(ValueError, match=r"mine/t\.ckpt exists, .*move it, or add --force"):
        fit(config, "--seed_everything=4")
    assert file.read_bytes() == first
    fit(config, "--seed_everything=4", "--force")
    assert file.read_bytes() != first
    fit(config, "--seed_everything=4", "--ckpt_path=last", "--trainer.max_epochs=2")


def test_bfloat16_on_a_processor_without_it_is_told(folder: Path) -> None:
    """A step took nine times as long, without a word."""
    with warnings.catch_warnings(record=True) as told:
        fit(configuration(steps=1), "--trainer.precision=bf16-mixed", "--trainer.accelerator=cpu")
    told_so = any("This processor has no bfloat16" in str(one.message) for one in told)
    assert told_so is not torch.ops.mkldnn._is_mkldnn_bf16_supported()
    with warnings.catch_warnings(record=True) as told:
        fit(configuration(steps=1), "--trainer.precision=32-true", "--trainer.accelerator=cpu", "--force")
    assert not any("This processor has no bfloat16" in str(one.message) for one in told)
