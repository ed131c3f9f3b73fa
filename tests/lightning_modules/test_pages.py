"""Pages for those who begin, as they stand: every command and every line of Python on them is run."""

from __future__ import annotations

import json
import math
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from support.pages import DOCS, blocks, commands, run_command, small_sweeps
from torch import nn

from privacy import gaussian_epsilon

NET = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self, width=8, num_classes=10):
        super().__init__(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, num_classes))
"""


def stated(folder: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(folder, "guarantee.json").read_text(encoding="utf-8"))["guarantee"]
    return found


def test_from_python(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = blocks(DOCS / "from_python.md", "python")
    small = {"steps_per_epoch=100": "steps_per_epoch=2", "max_epochs=10": "max_epochs=1", "10_000": "512"}
    names: dict[str, Any] = {}
    for block in text:
        for before, after in small.items():
            block = block.replace(before, after)
        exec(compile(block, "from_python.md", "exec"), names)
    assert len(text) == 5
    # The page's "ten lines", imports aside.
    assert len([line for line in text[0].splitlines() if line and "import" not in line]) <= 10
    assert names["logits"].shape == (5, 10) and stated("my-student")["epsilon"] > 1000
    assert not any(name.startswith("_teacher") for name in names["student"].state_dict())
    assert Path("ledgers/my-digits.jsonl").is_file()
    assert abs(names["student"].guarantee().epsilon - 3) < 1e-3
    # It is the scope that the page names, not the teacher, that leaves the other student out.
    assert names["student"].session.account.epsilon(scope="private_data") > 1000
    assert "protects no record in any meaningful sense" in capsys.readouterr().out


def test_your_own_teacher(folder: Path) -> None:
    page = DOCS / "your_teacher.md"
    Path("path/to").mkdir(parents=True)
    Path("path/to/my.py").write_text(NET)
    names: dict[str, Any] = {}
    exec(NET, names)
    torch.save(nn.Sequential(*names["Net"](32)), "teacher.pt")
    for block in blocks(page, "python"):
        exec(compile(block, str(page), "exec"), {"torch": torch})
    small_sweeps(folder, "dpdfd_digits")
    fits, whole_ways = (
        [arguments for arguments in commands(page) if arguments[0] == name] for name in ("fit", "distill")
    )
    assert fits and len(fits) + len(whole_ways) == len(commands(page))
    for part in ("train", "test"):
        for label in range(10):
            Path("pictures", part, f"class{label}").mkdir(parents=True)
            Image.new("L", (40, 50), 20 * label).save(f"pictures/{part}/class{label}/1.png")
    for arguments in whole_ways:
        run_command([*arguments, "--data.dataset.size", "8", "--steps", "2", "--data.batch_size", "8"])
        assert Path("my-student/student.safetensors").is_file()
    for arguments in fits:
        cli = run_command(arguments)
        own = cli.model.teacher
        images = torch.rand(4, 1, 8, 8) * 2 - 1
        expected = torch.load("teacher.pt", weights_only=False)((images + 1) / 2)
        assert torch.allclose(own.logits(images), expected, atol=1e-5)
        assert cli.model.guarantee().private_data == "faces-2024"


def test_your_own_pictures(folder: Path) -> None:
    for number in range(40):
        Path("pictures", f"class{number % 2}").mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 50), (number, 100, 6 * number)).save(f"pictures/class{number % 2}/{number}.png")
    (arguments,) = commands(DOCS / "data.md")
    cli = run_command([*arguments, "--trainer.max_epochs=1", "--data.batch_size=8"])
    assert cli.model.num_classes == 2 and cli.model.image_shape == (3, 32, 32)


CHOSEN = ("teacher_digits", "dpdfd_digits", "methods/dpsd_digits", "dp_teacher_digits", "distillation_digits")
CHOSEN += ("methods/ensemble_linear_digits", "methods/distillation_ensemble_digits")


@pytest.mark.slow
def test_the_page_that_chooses(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small_sweeps(folder, *CHOSEN)
    Path("teachers/digits.ckpt").unlink()  # which the page makes
    found = commands(DOCS / "choosing.md")
    assert [arguments[0] for arguments in found].count("export") == 4 and found[-1][0] == "attack"
    for arguments in found[:-1]:
        run_command(arguments)
    # Each branch ends with what the page promises of it.
    assert abs(stated("my-teacher")["epsilon"] - 3) < 1e-3 and abs(stated("my-student")["epsilon"] - 3) < 1e-3
    assert 0 < stated("my-student-of-means")["epsilon"] <= 10
    assert 20 < stated("my-unprotected-student")["epsilon"] < math.inf  # above 20 the card says so
    assert "NOT PROTECTED" in Path("my-unprotected-student/README.md").read_text(encoding="utf-8")
    for protected in ("my-teacher", "my-student", "my-student-of-means"):
        assert "NOT PROTECTED" not in Path(protected, "README.md").read_text(encoding="utf-8")
    run_command([*found[-1], "--shadows", "8", "--records", "100", "--attacks", "lira", "rmia"])
    assert "| student | average | lira |" in capsys.readouterr().out


def saved(page: str, kind: str, *names: str) -> None:
    """Writes the page's first blocks of code into files, as its reader does."""
    for name, text in zip(names, blocks(DOCS / page, kind), strict=False):
        Path(name).write_text(text, encoding="utf-8")


def test_a_method_of_your_own(folder: Path) -> None:
    saved("own_method.md", "python", "noisy_one_hot.py", "test_noisy_one_hot.py")
    saved("own_method.md", "yaml", "noisy_one_hot.yaml")
    assert len(Path("noisy_one_hot.py").read_text(encoding="utf-8").splitlines()) <= 60
    for name, *options in commands(DOCS / "own_method.md"):
        small = ["--trainer.max_epochs=1", "--data.steps_per_epoch=2", "--data.batch_size=8"] if name == "fit" else []
        run_command([name, *options, *small])
    assert stated("my-student")["epsilon"] == pytest.approx(gaussian_epsilon((2 * 2 * 8) ** 0.5, 1e-5))
    runpy.run_path("test_noisy_one_hot.py")["test_the_price"]()


@pytest.mark.slow
def test_the_hospitals_tutorial(folder: Path, monkeypatch: pytest.MonkeyPatch, quick_whitening: None) -> None:
    pixels, labels = load_digits(n_class=2, return_X_y=True)
    pixels = np.kron(pixels.reshape(-1, 8, 8), np.ones((4, 4)))[:, 2:30, 2:30].astype(np.uint8) * 15
    parts = {"train": slice(0, 64), "test": slice(64, 80), "val": slice(80, 96)}
    content = {f"{part}_images": pixels[rows] for part, rows in parts.items()}
    np.savez("pneumoniamnist.npz", **content, **{f"{part}_labels": labels[rows, None] for part, rows in parts.items()})
    saved("tutorial_hospital.md", "python", "pictures.py", "net.py", "train.py")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "net", raising=False)
    for script in ("pictures.py", "train.py"):
        runpy.run_path(script)
    small = {
        "fit": ["--trainer.max_epochs=1", "--data.batch_size=16"],
        "distill": ["--steps", "2", "--data.batch_size", "8"],
    }
    for name, *options in commands(DOCS / "tutorial_hospital.md"):
        pool = ["--model.pool_size=16"] if "last.ckpt" in " ".join(options) else []
        run_command([name, *options, *small.get(name, []), *pool])
    assert stated("my-student")["epsilon"] == pytest.approx(3, rel=1e-3)
    assert stated("my-unprotected-student")["epsilon"] > 10  # of two steps of 8 images
    assert "a folder public, is public" in str(stated("my-unprotected-student")["assumptions"])
    del sys.modules["net"]


@pytest.mark.parametrize("page", [pytest.param("tutorial_researcher.md", marks=pytest.mark.slow), "experiments.md"])
def test_experiments(page: str, folder: Path) -> None:
    small_sweeps(folder, "teacher_digits", "dpdfd_digits", "methods/dpsd_digits")
    for text in blocks(DOCS / page, "yaml"):
        fewer = re.sub(r'    "(25|50)": .*\n', "", text.replace("[0, 1, 2]", "[0]"))
        Path("compare.yaml").write_text(fewer, encoding="utf-8")
    for arguments in commands(DOCS / page):
        if arguments == ["fit", "--config", "sweeps/teacher_digits.yaml"]:
            Path("teachers/digits.ckpt").unlink()
        run_command(arguments)
    if page == "tutorial_researcher.md":
        rendered = Path("runs/tables/results/compare.md").read_text(encoding="utf-8")
        assert rendered.count("| DPDFD | ") == rendered.count("| DPSD | ") == 1
        assert "Again: `LightningCLI tables run compare.yaml " in rendered
