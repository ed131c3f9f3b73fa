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
configuration (its values: a comment is none) and its parents are what they were when it finished; one that was
interrupted goes on from its last checkpoint. What is run again charges the private data again, so it is named first.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentParser
from lightning.pytorch.utilities import rank_zero_info

from lightning_modules.runtime.paths import find_config
from sweeps.runner.digest import digest_of_pipeline_1
from sweeps.runner.engines import Engine, add_engine_arguments, engine_of
from sweeps.runner.fit import Fit
from sweeps.runner.pipeline_summary import summary
from sweeps.runner.plan import Plan, Task
from sweeps.runner.run_plan import run_plan
from sweeps.runner.store import CLAIMS, Store

__all__ = ["Fit", "Pipeline", "PipelineError", "pipeline"]


class PipelineError(ValueError):
    """A pipeline file that makes no sense."""


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
            if fit.name in known or not re.fullmatch(r"\w+", fit.name) or fit.name == CLAIMS:
                raise PipelineError(
                    f"{path}: fit names must be single words other than {CLAIMS} and differ, got {fit.name!r}"
                )
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

    def run(
        self,
        fit_once: Callable[[list[str]], Any],
        *,
        force: bool = False,
        keep: bool = False,
        results: Path | None = None,
        engine: Engine | None = None,
    ) -> None:
        """Runs what has not been run.

        Args:
            fit_once: Takes the arguments of one `fit` command.
            force: Run everything again.
            keep: Take what an earlier version finished as it is, whatever its configuration was.
            results: Folder into which each fit's record is copied as `<pipeline>_<fit>.json`, and the figure as
                `<pipeline>.png`; None for no copies.
            engine: What runs the fits; None is this process, which lets their errors through.

        Raises:
            PipelineError: An earlier version made some fits, of files that have changed since; or workers failed.
        """
        plan, since = self.plan(), time.time()
        if force:
            for name in plan.tasks:
                plan.store.clear(name)
        self._take_over(plan, keep=keep)
        progress = run_plan(plan, fit_once, since=since, engine=engine, say=rank_zero_info, strict=True)
        if not progress.finished or progress.failed:
            errors = [error for name in plan.tasks if (error := plan.store.failure(name, since=since)) is not None]
            raise PipelineError(f"{self.name}: not all fits were made: {(errors or ['a worker ended too early'])[0]}")
        folders = {fit.name: self.folder / fit.name for fit in self.fits}
        rank_zero_info(summary(folders, compare=self.compare, folder=self.folder))
        if results is not None:
            results.mkdir(parents=True, exist_ok=True)
            for name, folder in folders.items():
                shutil.copyfile(folder / "result.json", results / f"{self.name}_{name}.json")
            if (figure := self.folder / "figure.png").is_file():
                shutil.copyfile(figure, results / f"{self.name}.png")

    def plan(self) -> Plan:
        """Its fits, each in a folder of its own name."""
        digests: dict[str, str] = {}
        for fit in self.fits:
            digests[fit.name] = fit.digest({name: digests[name] for name in fit.parents})
        tasks = [
            Task(
                name=fit.name,
                fit=fit,
                digest=digests[fit.name],
                parents={name: name for name in fit.parents},
                note={"fit": fit.name},
            )
            for fit in self.fits
        ]
        return Plan(tasks, Store(self.folder), title=self.name)

    def _take_over(self, plan: Plan, *, keep: bool) -> None:
        """Gives what version 1 of the digest made the current digest.

        Raises:
            PipelineError: Its files have changed since. Version 1 hashed their text, so that nobody knows whether their
                values did: to run it again by itself might charge private data again for a comment.
        """
        unknown = []
        for name, task in plan.tasks.items():
            made = {alias: str(mark) for alias, mark in plan.made_of(task).items()}
            before = digest_of_pipeline_1(task.fit.config, task.fit.set, made)
            done, begun = plan.store.done(name), plan.store.begun(name)
            if begun is not None and "parents" not in begun and begun.get("digest") == before:
                plan.store.begin(name, digest=task.digest, parents=made)
            if done is None or "parents" in done or "made" not in done:
                continue
            if keep or done["digest"] == before:
                plan.store.finish(name, **task.note, digest=task.digest, parents=made, made=done["made"])
            else:
                unknown.append(name)
        if unknown:
            raise PipelineError(
                f"{self.folder}: {', '.join(unknown)} was made by an earlier version, whose files have changed since; "
                "whether in more than a comment is not known. --keep takes the fits that are there as they are; "
                "--force runs all again, and what they ask of private data is charged again"
            )


def _only(values: Any, allowed: set[str], where: str) -> None:
    if not isinstance(values, dict) or set(values) - allowed:
        got = sorted(values) if isinstance(values, dict) else type(values).__name__
        raise PipelineError(f"{where}: allowed keys are {sorted(allowed)}, got {got}")


def pipeline(args: Sequence[str], *, run: Callable[[list[str]], Any]) -> None:
    """The command `pipeline FILE [--force] [--jobs N] [--dask ADDRESS]`.

    Args:
        args: What follows the command.
        run: Runs one `fit` command in this process.
    """
    parser = ArgumentParser(
        prog="LightningCLI pipeline",
        allow_abbrev=False,
        description="Run fits in order, each once, in folders of their own.",
    )
    parser.add_argument("file", type=str, help="Pipeline file, for example sweeps/demo.yaml.")
    parser.add_argument("--force", action="store_true", help="Run every fit again.")
    parser.add_argument("--keep", action="store_true", help="Take what an earlier version finished as it is.")
    add_engine_arguments(parser.add_argument)
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
    steps.run(
        run,
        force=options.force,
        keep=options.keep,
        results=None if options.results is None else Path(options.results),
        engine=engine_of(options),
    )
