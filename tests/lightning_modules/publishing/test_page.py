"""The page on using a student, as it stands: every command and every line of Python on it is run."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from support.data_files import picture

from lightning_modules.cli import main

PAGE = Path(__file__).parents[3] / "docs" / "use_your_student.md"


def test_the_page_runs(runs: Path, with_onnx: None) -> None:
    Path("runs/my_run").mkdir(parents=True)
    shutil.copytree("generated", "runs/my_run/version_0")
    picture(np.zeros((12, 16), dtype=np.uint8), Path("new-pictures/1.png"))
    blocks = re.findall(r"```(bash|python)\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    names: dict[str, Any] = {}
    given = []
    for kind, text in blocks:
        if kind == "bash":
            command, *arguments = shlex.split(text)
            assert command == "LightningCLI"
            main(arguments)
            continue
        exec(compile(text, str(PAGE), "exec"), names)
        if "network" in names:
            given.append(names["network"](torch.zeros(5, 1, 8, 8)))
    assert len(blocks) == 6 and torch.allclose(given[0], given[1], atol=1e-4)
    assert torch.allclose(torch.from_numpy(names["logits"]), given[0], atol=1e-4)
    assert Path("runs/my_run/version_0/predictions.csv").is_file()
    listed = set(re.findall(r"`([\w.]+/?)`", PAGE.read_text(encoding="utf-8")))
    assert {f"{path.name}/" if path.is_dir() else path.name for path in Path("my-student").iterdir()} <= listed
