"""Pages of the documentation as programs: their commands and lines of Python, and runs small enough for a test."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import yaml

from lightning_modules.cli import main

DOCS = Path(__file__).parents[2] / "docs"

#: What makes a fit of `sweeps/` small, wherever it stands in the file.
SMALL: dict[str, Any] = {
    "max_epochs": 1,
    "steps_per_epoch": 2,
    "pool_size": 256,
    "queries": 64,
    "batch_size": 64,
    "T_max": 2,
}


def blocks(page: Path, kind: str) -> list[str]:
    """The page's blocks of code of one kind, `bash` or `python`, in their order."""
    return re.findall(rf"```{kind}\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def commands(page: Path) -> list[list[str]]:
    """The page's commands of `LightningCLI`, each as its arguments."""
    lines = "".join(blocks(page, "bash")).replace("\\\n", " ").splitlines()
    words = [shlex.split(line, comments=True) for line in lines]
    assert all(line[0] == "LightningCLI" for line in words if line)
    return [line[1:] for line in words if line]


def run_command(arguments: list[str]) -> Any:
    """Runs a command as a shell would, and refuses what would end with an error there."""
    try:
        return main(arguments)
    except SystemExit as end:
        assert not end.code, end.code
        return None


def small_sweeps(folder: Path, *names: str) -> None:
    """Writes `folder/sweeps/NAME.yaml`, found before ours, with fewer steps of smaller batches."""
    (folder / "sweeps").mkdir()
    for name in names:
        content = yaml.safe_load((DOCS.parent / "sweeps" / f"{name}.yaml").read_text(encoding="utf-8"))
        if content["data"]["class_path"] == "SyntheticSteps":
            content["data"]["init_args"].setdefault("steps_per_epoch", SMALL["steps_per_epoch"])
        file = folder / "sweeps" / f"{name}.yaml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(yaml.safe_dump(_small(content)), encoding="utf-8")


def _small(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {
        name: min(SMALL[name], inside) if name in SMALL and isinstance(inside, int) else _small(inside)
        for name, inside in value.items()
    }
