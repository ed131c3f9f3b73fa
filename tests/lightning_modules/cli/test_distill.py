"""`LightningCLI distill`: from a teacher's file to a student's folder in one command."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

import pytest
import torch
from PIL import Image
from support.data_files import write_folders
from support.runs import QUIET, csv_rows

from datamodules.records import PartitionError
from lightning_modules import DPDFD, load_student
from lightning_modules.cli import main
from lightning_modules.cli.distill import facts_of
from lightning_modules.publishing import ExportError
from privacy.events import Release, SampledGaussian, Unbounded
from privacy.identity import CheckpointError, Training
from privacy.journal import LedgerError
from privacy.ledger import Ledger
from privacy.plan import Charge

DIGITS = ("--data", "Digits", "--to", "public", "--steps", "2", "--data.batch_size", "8")
NETWORK = """
from torch import nn

class Net(nn.Module):
    def __init__(self, hidden=4, kinds=2):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, hidden, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.head = nn.Linear(4 * hidden, kinds)

    def forward(self, images):
        return self.head(self.layers(images))
"""


def distil(*arguments: str) -> None:
    main(["distill", *arguments, *QUIET])


def test_a_teacher_of_ones_own_and_pictures_of_ones_own(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    Path("my_own_network.py").write_text(NETWORK)
    space: dict[str, type[torch.nn.Module]] = {}
    exec(NETWORK, space)
    torch.manual_seed(0)
    torch.save(space["Net"]().state_dict(), "model.pt")
    for label, colour in (("ants", (200, 30, 30)), ("bees", (20, 20, 220))):
        for part in ("train", "test"):
            Path("pictures", part, label).mkdir(parents=True)
            for number in range(6):
                Image.new("RGB", (16, 16), colour).save(Path("pictures", part, label, f"{number}.png"))
    given = ("--teacher", "model.pt", "--network", "my_own_network.py:Net", "--data", "ImageFolder:pictures/")
    Path("empty").mkdir()
    refused: dict[str, tuple[type[Exception], str]] = {
        "pictures/test": (PartitionError, r"^images.pool must lie outside of the folder of pictures"),
        "empty": (ValueError, "images.pool must be a data set or pictures .*empty has 0"),
    }
    for folder, (kind, said) in refused.items():
        public = ("--to", "public", "--pictures", folder, "--folder", "refused")
        with pytest.raises(kind, match=said):
            distil(*given, *public)
        with pytest.raises(kind, match=said):
            distil(*given, *public, "--dry-run")
    with monkeypatch.context() as before:  # a dry run accepted it
        before.setattr(DPDFD, "prepare_fit", lambda _: None)
        distil(*given, *public, "--dry-run")
    distil(*given, "--to", "public", "--steps", "3", "--data.batch_size", "8", "--dry-run")
    assert "outputs: 0 = ants, 1 = bees" in caplog.text and "The teacher is asked 24 images" in caplog.text
    caplog.clear()
    distil(*given, "--to", "public", "--steps", "2", "--data.batch_size", "8")
    assert "more --steps may bring it closer, at a larger ε." in caplog.text
    # The pictures' own size, and not one at which a network with adaptive pooling says something else.
    assert "Images of 3 x 16 x 16 (channels, height, width) in [-1, 1]; outputs: 0 = ants, 1 = bees" in caplog.text
    run = Path("runs/distill_imagefolder_pictures_model")
    assert re.search(r"Keep \S*pictures-\w+\.jsonl: it counts", caplog.text)
    with pytest.raises(CheckpointError, match=r"names 'my_own_network.py:Net', .*instead of its folder: --config"):
        main(["predict", str(run)])  # as of a folder that was received
    main(["predict", "--config", f"{run}/config.yaml", "--ckpt_path", f"{run}/checkpoints/last.ckpt"])
    rows = csv_rows(run / "predictions.csv")
    assert rows and list(rows[0])[:3] == ["id", "file", "class"] and len({row["file"] for row in rows}) == len(rows)
    assert all(Path("pictures", "test", row["file"]).is_file() for row in rows)
    network = load_student("public")
    assert network(torch.zeros(3, 3, 16, 16)).shape == (3, 2)
    config = json.loads(Path("public/config.json").read_text())
    assert config["class_names"] == ["ants", "bees"]
    assert "model.pt" not in Path("public/config.json").read_text()
    said = "\n".join(one.message for one in caplog.records)
    assert "Nothing is known to bound the teacher" in said and "As configured, 2 calls: record-level ε = " in said
    # Nobody asked for the paper's figure, a thousandth of the bound.
    assert not re.search("paper's own figure|ublished ε|ublished epsilon", said + Path("public/README.md").read_text())


def test_a_second_call_goes_on_and_replaces_the_folder_where_it_is_told_to(folder: Path) -> None:
    begin = ("--teacher", "teachers/digits.ckpt", *DIGITS)
    distil(*begin)
    Path("empty").mkdir()
    written = Path("runs/distill_digits_teachers_digits/public/guarantee.json").read_text()
    for more in ((), ("--dry-run",)):
        with pytest.raises(ExportError, match="force"):
            distil(*begin, *more)
        with pytest.raises(ValueError, match="noise_multiplier"):  # what else is wrong is said first
            distil(*begin, *more, "--model.mechanism.noise_multiplier=-1")
        with pytest.raises(ValueError, match="empty has 0"):
            distil(*begin, *more, "--pictures", "empty")
    # Nothing was left to train, and nothing more was charged.
    assert Path("runs/distill_digits_teachers_digits/public/guarantee.json").read_text() == written
    distil(*begin, "--force", "--model.student.network", "SmallCNN")
    assert Path("public/student.safetensors").is_file()
    with pytest.raises(CheckpointError, match=r"^Start a new run .* --folder.*lr_scheduler\.T_max was 2 and is 3: "):
        distil(*begin, "--to", "other", "--steps", "3")
    settings = ("--model.student.replay.steps=1", "--model.student.replay.stride=1.0", "--model.student.balance=0.5")
    with pytest.raises(CheckpointError, match=r"is 0\.5; .*is 1; .*is 1\.0; and 1 more: ") as refused:
        distil(*begin, "--to", "other", "--steps", "3", *settings)
    assert "T_max" not in str(refused.value)


def test_a_teacher_by_dp_sgd_bounds_its_student(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    small = ("--trainer.max_steps=2", "--trainer.max_epochs=1", "--model.target_epsilon=3")
    main(["fit", "--config", "sweeps/dp_teacher_digits.yaml", *small, *QUIET])
    write_folders(Path("pictures"))
    distil("--teacher", "teachers/digits_dp.ckpt", *DIGITS, "--model.pool_size", "64", "--pictures", "pictures")
    stated = json.loads(Path("public/guarantee.json").read_text())["guarantee"]
    assert 0 < stated["epsilon"] <= 3 and "a folder pictures, is public" in str(stated["assumptions"])
    said = "\n".join(one.message for one in caplog.records)
    assert "The teacher was trained by DP-SGD. Its ε = " in said and "Nothing is known" not in said
    # The control: of a teacher that was not, no such thing is said, nor given.
    distil("--teacher", "teachers/digits.ckpt", *DIGITS, "--force")
    assert json.loads(Path("public/guarantee.json").read_text())["guarantee"]["epsilon"] > 10


DIGITS_POOL = {"source": "pool", "prior": None, "pool": {"class_path": "Digits"}}
POOL = f"--config={json.dumps({'model': {'init_args': {'images': DIGITS_POOL}}})}"


@pytest.mark.parametrize(
    ("config", "settings", "words"),
    [
        ("methods/labeldp_digits", ["--model.images.source=generator"], "record-level ε = inf by this run"),
        ("methods/labeldp_digits", [], "(a bound)"),
        ("dpdfd_digits", ["--model.budget.delta=1e-3"], "no record-level ε holds: delta must lie below 1/N = 0.000697"),
        ("methods/dgd_digits", [POOL, "--model.images.pool_part=train"], "private records themselves (images.pool)"),
        ("methods/dgd_digits", [POOL, "--model.images.pool_part=test"], "(a bound)"),
    ],
)
def test_what_no_noise_covers_is_in_the_planned_cost(
    folder: Path, capsys: pytest.CaptureFixture[str], config: str, settings: list[str], words: str
) -> None:
    """A generator trained against the teacher itself was left out of it."""
    teacher = f"--model.teacher.path={'absent' if 'dgd' in config else 'teachers/digits'}.ckpt"
    main(["calibrate", "--config", f"sweeps/{config}.yaml", *settings, teacher, "--targets", "1"])
    said = capsys.readouterr().out
    assert words in said and (words == "(a bound)") is ("without noise" not in said and "= inf" not in said)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--to", "taken"), "--to taken: it holds files that are not an export"),
        (("--to", "teachers/digits.ckpt/public"), r"--to \S+: \S+ckpt is not a writable folder"),
        (
            ("--model.mechanism.noise_multiplier", "0"),
            "set --model.mechanism.noise_multiplier above 0, or add --unprotected",
        ),
    ],
)
def test_what_cannot_be_exported_is_said_before_the_fit(folder: Path, arguments: tuple[str, ...], said: str) -> None:
    Path("taken").mkdir()
    Path("taken", "thesis.txt").write_text("mine")
    with pytest.raises(ExportError, match=said):
        distil("--teacher", "teachers/digits.ckpt", *DIGITS, *arguments)
    assert not Path("runs/distill_digits_teachers_digits").exists()
    if "--model" in said:
        distil("--teacher", "teachers/digits.ckpt", *DIGITS, *arguments, "--unprotected")
        assert "NOT PROTECTED" in Path("public/README.md").read_text()


def written(folder: Path, releases: dict[Release, int], network: object) -> Path:
    training = Training(id="ab" * 8, releases=releases).to_dict()
    content = {"state_dict": {}, "training": training, "hyper_parameters": {"network": network}}
    torch.save(content, folder / "teacher.ckpt")
    return folder / "teacher.ckpt"


def test_no_bound_is_announced_where_the_noise_can_be_drawn_again(tmp_path: Path) -> None:
    """Without noise of its own a student would then have no bound at all."""
    noise = SampledGaussian(noise_multiplier=1.0, sample_rate=0.01)
    assert facts_of(written(tmp_path, {noise: 10}, None))[0] is not None
    for releases in ({Unbounded(reason="its seed is known"): 1}, {noise: 10, Unbounded(reason="its seed is known"): 1}):
        assert facts_of(written(tmp_path, releases, None))[:2] == (None, None)


def test_the_student_is_built_by_no_code_that_the_teachers_file_names(tmp_path: Path) -> None:
    noise: dict[Release, int] = {SampledGaussian(noise_multiplier=1.0, sample_rate=0.01): 10}
    own = "TwoConvNet"
    assert facts_of(written(tmp_path, noise, own))[1] == own
    told = {"name": "os.system", "arguments": {"command": "true"}}
    for spec in (told, "theirs.py:Net", {"class_path": "TwoConvNet", "init_args": {"a": "theirs.py:Net"}}):
        assert facts_of(written(tmp_path, noise, spec))[1] is None


def test_the_planned_cost_is_of_the_steps_that_a_fit_would_make(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Limits of the trainer were not looked at."""
    command = ["calibrate", "--config", "sweeps/dpdfd_digits.yaml", "--model.teacher.path=teachers/digits.ckpt"]
    main([*command, "--targets", "1", "--trainer.max_epochs=2", "--trainer.limit_train_batches=5"])
    assert "As configured, 10 calls" in capsys.readouterr().out
    for limit in ("max_steps=50", "max_epochs=null"):
        with pytest.raises(ValueError, match=r"^set trainer.max_epochs, and leave out trainer.max_steps"):
            main([*command, f"--trainer.{limit}"])


def test_the_planned_cost_is_of_the_fit_s_budget_and_ledger(
    folder: Path, ledgers: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It failed for a fully adaptive budget, and was silent about a ledger that is not the data's."""
    command = ["calibrate", "--config", "sweeps/dpdfd_digits.yaml", "--model.teacher.path=teachers/digits.ckpt"]
    command += ["--trainer.max_epochs=1", "--trainer.limit_train_batches=2", "--targets", "1"]
    for adaptive in (False, True):
        budget = {"accounting": "record", "scope": "private_data", "target_epsilon": "1e9", "fully_adaptive": adaptive}
        main([*command, *(f"--model.budget.{name}={value}".lower() for name, value in budget.items())])
        said = capsys.readouterr().out
        assert "by this run" in said and ("the least target that allows it" in said) is adaptive
    book = Ledger(path=ledgers / "Digits-train.jsonl", private_data="Digits/train", run="x")
    book.charge(Charge(release=Unbounded("released without noise")))
    main(command)
    assert "Digits-train.jsonl: inf" in capsys.readouterr().out.replace("\n", "")
    with pytest.raises(LedgerError, match="total is not known"):
        main([*command, "--model.budget.ledger=led.jsonl"])
