"""Each command once, one after another, as a user would on the digits; what each does is tested elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from support.runs import QUIET

from lightning_modules.cli import COMMANDS, FIT, main

SWEEPS = Path(__file__).parents[3] / "sweeps"
TINY = ("--trainer.max_epochs=1", "--data.steps_per_epoch=2", "--data.batch_size=8")
STUDENT = ("--config", "sweeps/dpdfd_digits.yaml", "--trainer.default_root_dir=run", *TINY)
TEACHER = ("--config", "sweeps/dp_teacher_digits.yaml", "--trainer.default_root_dir=teacher", "--trainer.max_epochs=1")


@pytest.mark.slow
def test_each_command_does_its_work(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning_modules.callbacks.figures.log_image", lambda *_, **__: None)  # W&B reads them
    tiny = {
        name.removeprefix("--"): yaml.safe_load(value) for name, value in (one.split("=") for one in (*TINY, *QUIET))
    }
    fits = {"student": {"config": "sweeps/dpdfd_digits.yaml", "set": tiny}}
    Path("two.yaml").write_text(yaml.safe_dump({"fits": fits, "folder": "piped"}))
    grid = yaml.safe_load((SWEEPS / "wandb" / "dpdfd_digits.yaml").read_text())
    points = {name: {"value": value} for name, value in {**tiny, "data.evaluation": "selection"}.items()}
    Path("grid.yaml").write_text(yaml.safe_dump({**grid, "parameters": points}))
    cell = ("--seeds", "0", "--cell", "dataset=Digits", "bounding=clip")
    steps = {
        "fit": (*STUDENT, *QUIET),
        "validate": ("run", *QUIET),
        "test": ("run", *QUIET),
        "predict": ("run", *QUIET),
        "export": ("run", "--to", "student"),
        "verify": ("student",),
        "ledger": ("show", "ledgers/Digits-train.jsonl"),
        "calibrate": (*STUDENT, "--targets", "1"),
        "distill": ("--teacher", "teachers/digits.ckpt", "--data", "Digits", "--to", "other", "--steps", "1", *QUIET),
        "pipeline": ("two.yaml",),
        "sweep": ("grid.yaml",),
        "tables": ("run", "dpdfd-fig2", "--preset", "smoke", *cell),
        "render": (),
        "attack": ("teacher", "--shadows", "8", "--records", "40", "--canaries", "8", "--attacks", "lira"),
    }
    assert {*steps} == {*FIT, *COMMANDS}
    main(["fit", *TEACHER, *QUIET])
    for command, arguments in steps.items():
        main([command, *arguments])
    made = ("run/predictions.csv", "student/README.md", "other/student.safetensors", "piped/student/result.json")
    made += ("runs/tables/results/dpdfd-fig2.md", "docs/results.md", "teacher/private/attack/attack.json")
    assert all(Path(file).is_file() for file in made) and list(Path().rglob("offline-run-*"))
