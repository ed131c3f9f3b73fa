"""Every bad input ends with one line that names what to change."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lightning_modules.cli import main

Bad = tuple[str, tuple[str, ...], Callable[[], object] | None, str]
"""What is wrong, in words; the arguments; what is done before; a part of what is said."""

FIT = ("fit", "--config", "sweeps/dpdfd_digits.yaml", "--trainer.max_epochs=1")


MNIST = ("fit", "--config", "sweeps/teacher_mnist.yaml", "--trainer.max_epochs=1")
DPSD = ("fit", "--config", "sweeps/methods/dpsd_digits.yaml", "--trainer.max_epochs=1")
DISTILL = ("distill", "--teacher=teachers/digits.ckpt", "--to=out")
MECHANISM, BUDGET = "--model.mechanism", "--model.budget"

# fmt: off
BAD: list[Bad] = [
    ("negative noise, where the mechanism may be of two classes", (*DPSD, f"{MECHANISM}.noise_multiplier=-1"), None,
     "noise_multiplier, if not 0, must be a number between 1e-30 and 1e+30, got -1.0"),
    ("δ above one in the number of records", (*FIT, f"{BUDGET}.delta=0.01", f"{BUDGET}.accounting=record"), None,
     "delta must lie below 1/N = 0.000697 for the 1435 records of Digits/train"),
    ("ε of 0", (*FIT, f"{BUDGET}.target_epsilon=0"), None,
     "target_epsilon must be above 0, or null for no limit, got 0.0"),
    ("a number that is none", (*FIT, "--trainer.max_epochs=many"), None, "trainer.max_epochs must be int, got many"),
    ("a checkpoint that is missing", (*FIT, "--ckpt_path=missing.ckpt"), None,
     "ckpt_path must be `last` or a checkpoint's file, and missing.ckpt is not a file"),
    ("steps that no plan knows", (*FIT, "--trainer.max_steps=2"), None, "trainer.max_steps must be left out, got 2"),
    ("double precision", (*FIT, "--trainer.precision=64"), None,
     "trainer.precision must be one of 32-true, 32, bf16-mixed, got 64"),
    ("clipping, for which Lightning advises automatic optimization", (*FIT, "--trainer.gradient_clip_val=1"), None,
     "not supported for manual optimization. Remove `Trainer(gradient_clip_val=1)`. (--debug"),
    ("a method spelt wrong", ("fit", "--model=DPDFDD"), None,
     "model: there is no class DPDFDD that fits here: did you mean DPDFD?"),
    ("a network spelt wrong", (*FIT, "--model.student.network=SmalCNN"), None,
     "model.student.network: there is no class SmalCNN that fits here: did you mean SmallCNN?"),
    ("a setting spelt wrong", (*FIT, "--model.images.sorce=prior"), None,
     "model: there is no setting images.sorce: did you mean images.source (Literal["),
    ("a setting of the trainer spelt wrong in a file", (*FIT, '--config={"trainer": {"max_epoch": 3}}'), None,
     "there is no setting trainer.max_epoch: did you mean trainer.max_epochs ("),
    ("a setting of an optimizer that is not chosen", (*FIT, "--model.student.optimizer.lr=0.1"), None,
     "model.student.optimizer: there is no setting lr yet: choose the class first"),
    ("a text for a group of settings", (*FIT, "--model.teacher=teachers/digits.ckpt"), None,
     "model.teacher is a group of settings: give model.teacher.path"),
    ("a choice that is none", (*FIT, "--model.images.source=priors"), None,
     "model.images.source must be one of 'generator'"),
    ("a configuration that is not YAML", ("fit", "--config", "broken.yaml"),
     lambda: Path("broken.yaml").write_text("model: {class_path: DPDFD\ntrainer: 3\n"),
     "--config broken.yaml: line 2, column 8 is not YAML: did not find expected"),
    ("a part of a folder of pictures", (*DISTILL, "--data=ImageFolder:pictures/train"),
     lambda: Path("pictures/train").mkdir(parents=True), "pictures/train has no folders train and test"),
    ("data that are missing", MNIST, None, "MNIST: 4 file(s) missing in data/MNIST/raw:"),
    ("a run's folder that is a file", (*FIT, "--trainer.default_root_dir=occupied"),
     lambda: Path("occupied").write_text("a file where a folder is wanted"),
     "the run's folder occupied cannot be written (File exists)"),
]
# fmt: on


def said(bad: Bad, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """What the command line ends with: one line, status 1 or 2, no traceback. Of missing data the first of a list."""
    _, arguments, before, _ = bad
    if before is not None:
        before()
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["LightningCLI", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    shown = capsys.readouterr()
    code = end.value.code
    assert code not in (0, None) and "Traceback" not in shown.out + shown.err
    line = code if isinstance(code, str) else shown.err.strip().splitlines()[-1]
    if "file(s) missing" in line:  # lists the files and the ways to get them, one below the other
        line = line.splitlines()[0]
    return line.replace(str(Path.cwd()), ".")


@pytest.mark.parametrize("bad", BAD, ids=[one[0] for one in BAD])
def test_one_line_says_what_to_change(
    bad: Bad, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = said(bad, capsys, monkeypatch)
    assert line.startswith("error: ") and "\n" not in line and len(line) < 700
    internals = r"Union|Namespace|NestedArg|<class|jsonargparse|MisconfigurationException|Parser key|Errno"
    assert not re.search(internals, line)
    assert bad[3] in line


@pytest.mark.parametrize("arguments", [("--debug",), ()])
def test_debug_shows_the_traceback_that_is_left_out_otherwise(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setenv("JSONARGPARSE_DEBUG", "false")
    monkeypatch.setattr(sys, "argv", ["LightningCLI", *FIT, "--data.batch_size=0", *arguments])
    with pytest.raises(ValueError if arguments else SystemExit, match="batch_size must be"):
        main()


def test_a_good_input_is_not_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: the same command without a bad value."""
    monkeypatch.setattr(sys, "argv", ["LightningCLI", *FIT, "--data.steps_per_epoch=1", "--data.batch_size=8"])
    assert main() is None


def test_what_needs_no_lightning_is_refused_before_it_is_imported(folder: Path) -> None:
    """A missing file took eight seconds, of which Lightning's import took seven."""
    said = (
        "import sys; from lightning_modules.cli import main\ntry: main({})\nexcept ValueError as error: print(error)\n"
    )
    missing = (*FIT, "--model.teacher.path=no.ckpt"), ("fit", "--config=no.yaml"), ("export", "no", "--to=x")
    for arguments in (*missing, ("test", "no"), ("test",), ("fti",)):
        command = [sys.executable, "-c", f"{said.format(list(arguments))}assert 'torch' not in sys.modules"]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=True)
        assert re.search(r"no\.ckpt does not exist|no such|there is no no|needs a run|mean fit\?", done.stdout)
