"""Fits in order, each in a folder of its own, done once: `LightningCLI pipeline sweeps/demo.yaml`.

A pipeline file:

    folder: runs/demo
    fits:
      - name: teacher
        config: sweeps/teacher_digits.yaml
        set: {trainer.callbacks: null}
      - name: student
        config: sweeps/dpdfd_digits.yaml
        set: {model.teacher: "{teacher}/checkpoints/last.ckpt"}

`{name}` stands for the folder of an earlier fit, which thereby becomes a parent. A fit is skipped where its
configuration and its
parents are what they were when it finished; one that was interrupted goes on from its last checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentParser
from lightning.pytorch.utilities import rank_zero_info

from lightning_modules.runtime.paths import find_config
from privacy.files import write_atomically
from sweeps.runner.report import summary

__all__ = ["Fit", "Pipeline", "PipelineError", "pipeline"]

_PLACE = re.compile(r"\{(\w+)\}")


class PipelineError(ValueError):
    """A pipeline file that makes no sense."""


@dataclass(frozen=True)
class Fit:
    """One fit of a pipeline.

    Attributes:
        name: Its folder's name.
        config: Configuration files, later ones override earlier ones.
        set: Dotted parameters that override the files.
    """

    name: str
    config: Sequence[str]
    set: Mapping[str, Any] = field(default_factory=dict)

    @property
    def parents(self) -> list[str]:
        """Names of the fits that this one's settings refer to."""
        return sorted({match for value in self.set.values() for match in _PLACE.findall(json.dumps(value))})

    def command(self, folder: Path, places: Mapping[str, str], *, resume: Path | None = None) -> list[str]:
        """The arguments of the command line that makes it.

        Args:
            folder: Where its files go.
            places: Folder of each fit that its settings refer to.
            resume: Checkpoint to go on from.
        """
        arguments = ["fit"]
        for config in self.config:
            arguments += ["--config", config]
        arguments.append(f"--trainer.default_root_dir={folder}")
        for name, value in self.set.items():
            filled = _fill(value, places)
            arguments.append(f"--{name}={filled if isinstance(filled, str) else json.dumps(filled)}")
        if resume is not None:
            arguments.append(f"--ckpt_path={resume}")
        return arguments


@dataclass(frozen=True)
class Pipeline:
    """Fits in order.

    Attributes:
        folder: Where their folders lie.
        fits: The fits.
        name: The pipeline's name.
        compare: Title of a figure with the curves of all its students, or None.
    """

    name: str
    folder: Path
    fits: Sequence[Fit]
    compare: str | None = None

    @classmethod
    def read(cls, path: str | Path) -> Pipeline:
        """Reads a pipeline file.

        Raises:
            PipelineError: Unknown keys, a fit without name or config, a name used twice or referred to before its fit.
        """
        file = Path(find_config(str(path)))
        if not file.is_file():
            raise PipelineError(f"pipeline file {path} does not exist")
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
        _only(values, {"folder", "fits", "compare"}, f"{path}")
        fits: list[Fit] = []
        for position, entry in enumerate(values.get("fits") or []):
            _only(entry, {"name", "config", "set"}, f"{path}, fit {position + 1}")
            if "name" not in entry or "config" not in entry:
                raise PipelineError(f"{path}, fit {position + 1}: `name` and `config` are needed, got {sorted(entry)}")
            config = [entry["config"]] if isinstance(entry["config"], str) else list(entry["config"])
            if absent := [name for name in config if not Path(find_config(name)).is_file()]:
                raise PipelineError(f"{path}, fit {position + 1}: configuration {', '.join(absent)} does not exist")
            fit = Fit(name=str(entry["name"]), config=tuple(config), set=entry.get("set") or {})
            known = {other.name for other in fits}
            if fit.name in known or not re.fullmatch(r"\w+", fit.name):
                raise PipelineError(f"{path}: fit names must be single words and differ, got {fit.name!r}")
            if missing := set(fit.parents) - known:
                raise PipelineError(
                    f"{path}, fit {fit.name}: refers to {sorted(missing)}, known before it: {sorted(known)}"
                )
            fits.append(fit)
        if not fits:
            raise PipelineError(f"{path}: `fits` is empty")
        return cls(
            name=file.stem,
            folder=Path(values.get("folder") or f"runs/{file.stem}"),
            fits=tuple(fits),
            compare=values.get("compare"),
        )

    def run(self, fit_once: Callable[[list[str]], Any], *, force: bool = False, results: Path | None = None) -> None:
        """Runs what has not been run.

        Args:
            fit_once: Takes the arguments of one `fit` command.
            force: Run everything again.
            results: Folder into which each fit's record is copied as `<pipeline>_<fit>.json`, and the figure as
                `<pipeline>.png`; None for no copies.
        """
        made: dict[str, str] = {}
        for position, fit in enumerate(self.fits):
            folder = self.folder / fit.name
            digest = self.digest(fit, made)
            label = f"[{position + 1}/{len(self.fits)}] {fit.name}"
            done = _stamp(folder / "done.json")
            if not force and "made" in done and done.get("digest") == digest:
                rank_zero_info(f"{label}: done before, skipped ({folder})")
            else:
                rank_zero_info(f"{label}: {folder}")
                resume = None if force else self._resumable(folder, digest)
                if resume is None:
                    # What an earlier configuration left must not be taken for this one's.
                    for stale in (
                        "done.json",
                        "checkpoints/last.ckpt",
                        "result.json",
                        "public/guarantee.json",
                        "public/guarantee.md",
                    ):
                        (folder / stale).unlink(missing_ok=True)
                write_atomically(folder / "begun.json", json.dumps({"digest": digest}))
                fit_once(self.arguments(fit, resume=resume))
                done = {"digest": digest, "made": uuid.uuid4().hex}
                write_atomically(folder / "done.json", json.dumps(done))
            made[fit.name] = done["made"]
        folders = {fit.name: self.folder / fit.name for fit in self.fits}
        rank_zero_info(summary(folders, compare=self.compare, folder=self.folder))
        if results is not None:
            results.mkdir(parents=True, exist_ok=True)
            for name, folder in folders.items():
                shutil.copyfile(folder / "result.json", results / f"{self.name}_{name}.json")
            if (figure := self.folder / "figure.png").is_file():
                shutil.copyfile(figure, results / f"{self.name}.png")

    def arguments(self, fit: Fit, *, resume: Path | None = None) -> list[str]:
        """The command line of one fit."""
        places = {other.name: str(self.folder / other.name) for other in self.fits}
        return fit.command(self.folder / fit.name, places, resume=resume)

    def digest(self, fit: Fit, made: Mapping[str, str]) -> str:
        """Hash of a fit's files and settings, and of which making of each parent it builds on."""
        files = [Path(find_config(config)).read_text(encoding="utf-8") for config in fit.config]
        content = [files, dict(fit.set), {name: made[name] for name in fit.parents}]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def _resumable(self, folder: Path, digest: str) -> Path | None:
        checkpoint = folder / "checkpoints" / "last.ckpt"
        return checkpoint if _stamp(folder / "begun.json").get("digest") == digest and checkpoint.is_file() else None


def _stamp(path: Path) -> dict[str, str]:
    stamp: dict[str, str] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return stamp


def _only(values: Any, allowed: set[str], where: str) -> None:
    if not isinstance(values, dict) or set(values) - allowed:
        got = sorted(values) if isinstance(values, dict) else type(values).__name__
        raise PipelineError(f"{where}: allowed keys are {sorted(allowed)}, got {got}")


def _fill(value: Any, places: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return _PLACE.sub(lambda match: places[match.group(1)], value)
    if isinstance(value, list):
        return [_fill(item, places) for item in value]
    if isinstance(value, dict):
        return {key: _fill(item, places) for key, item in value.items()}
    return value


def pipeline(args: Sequence[str], *, run: Callable[[list[str]], Any]) -> None:
    """The command `pipeline FILE [--force]`.

    Args:
        args: What follows the command.
        run: Runs one `fit` command in this process.
    """
    parser = ArgumentParser(
        prog="LightningCLI pipeline", description="Run fits in order, each once, in folders of their own."
    )
    parser.add_argument("file", type=str, help="Pipeline file, for example sweeps/demo.yaml.")
    parser.add_argument("--force", action="store_true", help="Run every fit again.")
    parser.add_argument(
        "--folder", type=str, default=None, help="Where the fits' folders lie, in place of the file's own."
    )
    parser.add_argument(
        "--results", type=str, default=None, help="Copy each fit's record and the figure into this folder."
    )
    options = parser.parse_args(list(args))
    steps = Pipeline.read(options.file)
    if options.folder is not None:
        steps = replace(steps, folder=Path(options.folder))
    steps.run(run, force=options.force, results=None if options.results is None else Path(options.results))
