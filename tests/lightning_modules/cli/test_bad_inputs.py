"""Every bad input ends with one line that names what to change."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from support.bad_inputs import BAD, FIT, Bad

from lightning_modules.cli import main


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


@pytest.mark.parametrize(
    "arguments",
    [
        ("pipeline", "sweeps/demo.yaml", "--fold", "here"),
        ("render", "README.md", "--che"),
        ("ledger", "show", "ledgers/x.jsonl", "--del", "1"),
        ("tables", "list", "--fo"),
        ("export", ".", "--unprot"),
        ("calibrate", "--config", "sweeps/dpdfd_digits.yaml", "--targ", "1"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_no_command_takes_an_option_cut_short(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2 and "error: " in capsys.readouterr().err
    assert {path.name for path in Path.cwd().iterdir()} <= {"teachers", "ledgers"}
