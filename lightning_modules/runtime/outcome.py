"""Summary printed after a fit: its result, its price, where it is, and the commands to continue with."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning_modules.callbacks.record import role
from privacy.formatting import round_up

__all__ = ["outcome"]

#: Methods whose networks no command publishes.
_NEVER_PUBLISHED = ("Teacher", "TeacherEnsemble", "FedAvg", "DirectTraining")
_TEACHERS = ("Teacher", "TeacherEnsemble", "FedAvg", "DPSGDTeacher")


def outcome(record: Mapping[str, Any], *, folder: Path, checkpoint: Path | None) -> str:
    """A few lines for the user.

    Args:
        record: The run's `result.json`.
        folder: The run's.
        checkpoint: The last one that was written, if any.
    """
    accuracy = f"{100 * record['accuracy']:.2f} % of the test split"
    lines = [f"{role(record)}, {record['dataset']}: {accuracy} after {record['steps']:,} steps"]
    asked = folder / "private" / "uncharged_queries.json"
    if asked.is_file():
        measured = json.loads(asked.read_text(encoding="utf-8")).get("teacher_accuracy")
        if measured is not None:
            lines.append(f"its teacher: {100 * measured:.2f} %, measured without noise: keep this figure private")
    # A method's guarantee has printed its own, at length.
    if record["method"] in _TEACHERS:
        lines.append(f"record-level ε: {_epsilon(record)}")
    if checkpoint is not None:
        lines.append(f"checkpoint: {checkpoint}")
        config = folder / "config.yaml"
        if config.is_file():
            lines.append(f"test:    {_command('test', '--config', config, '--ckpt_path', checkpoint)}")
            more = _command("fit", "--config", config, "--ckpt_path", checkpoint)
            lines.append(f"go on:   {more} --trainer.max_epochs N")
        if record["method"] not in _NEVER_PUBLISHED:
            unbounded = ["--unprotected"] if math.isinf(float(record["epsilon_record"])) else []
            lines.append(f"publish: {_command('export', folder, '--to', 'DIR', *unbounded)}")
    return "\n".join(lines)


def _epsilon(record: Mapping[str, Any]) -> str:
    value = float(record["epsilon_record"])
    if math.isinf(value):
        return "inf: nothing bounds what it reveals about a training record; it must stay private"
    return f"{round_up(value)} at δ = {record['delta']:g}, for every training record; it may be published at that ε"


def _command(*words: object) -> str:
    return shlex.join(["LightningCLI", *map(str, words)])
