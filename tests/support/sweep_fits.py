"""A small table, and what stands in for the command line that its fits would run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SPEC: dict[str, Any] = {
    "title": "Students",
    "fits": {
        "teacher": {"config": "teacher.yaml"},
        "student": {"config": "student.yaml", "set": {"model.teacher.path": "{teacher}/checkpoints/last.ckpt"}},
    },
    "axes": {"size": {"1": {"student": {"size": 1}}, "2": {"student": {"size": 2}}, "3": {"student": {"size": 3}}}},
    "presets": {"smoke": {}},
}


class Fits:
    """Stands in for the command line: writes the record that a fit would, and remembers what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[dict[str, str]] = []
        self.errors: dict[str, BaseException] = {}

    def __call__(self, arguments: list[str]) -> None:
        asked = dict(argument[2:].split("=", 1) for argument in arguments if "=" in argument)
        self.asked.append(asked)
        size = asked.get("size", "teacher")
        folder = Path(asked["trainer.default_root_dir"])
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        (folder / "checkpoints" / "last.ckpt").write_text("half")
        if size in self.errors:
            raise self.errors[size]
        accuracy = 0.75 if size == "teacher" else 0.5  # a teacher is better than its students
        record = {"accuracy": accuracy, "wall_seconds": 8.0, "seed": 0, "versions": {"torch": "2"}, "unit": "record"}
        (folder / "result.json").write_text(json.dumps(record))

    @property
    def sizes(self) -> list[str]:
        return [asked.get("size", "teacher") for asked in self.asked]
