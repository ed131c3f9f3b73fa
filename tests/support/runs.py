"""Small runs through the real entry point, and what they wrote."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import LightningModule, Trainer
from support.short_names import grouped
from torch import Tensor

from datamodules import Digits, SyntheticSteps
from lightning_modules.cli import main
from lightning_modules.cli.fit import TranscriptionCLI
from privacy.journal import write_atomically
from privacy.ledger import Ledger
from privacy.plan import Charge

QUIET = [
    "--trainer.accelerator=cpu",
    "--trainer.enable_progress_bar=false",
    "--trainer.enable_model_summary=false",
    "--trainer.num_sanity_val_steps=0",
]
BATCH_SIZE = 8
RESUME = "--ckpt_path=run/checkpoints/last.ckpt"
SMALL = {"class_path": "SmallCNN", "init_args": {"width": 4, "hidden": 16}}


@contextmanager
def working_in(folder: Path) -> Iterator[pytest.MonkeyPatch]:
    """Another working folder for a while, with its own ledgers, for runs that several tests share."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("TRANSCRIPTION_LEDGERS", str(folder / "ledgers"))
        yield patch


def shelve(folder: Path) -> None:
    """Takes the ledgers of shared runs out of reach: one test's ledger would be made part of another's."""
    (folder / "ledgers").rename(folder / "shelved")


def copy_runs(folder: Path, to: Path) -> Path:
    """Copies shared runs, with their ledgers, into a test's own folder."""
    shutil.copytree(folder, to, dirs_exist_ok=True)
    (to / "shelved").rename(to / "ledgers")
    return to


def trainer_settings(folder: str, epochs: int = 1, **settings: Any) -> dict[str, Any]:
    """A quiet trainer on the CPU, in `folder`."""
    return {
        "max_epochs": epochs,
        "accelerator": "cpu",
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
        "default_root_dir": folder,
        **settings,
    }


def configuration(
    folder: str = "run",
    *,
    model: dict[str, Any] | None = None,
    mechanism: dict[str, Any] | None = None,
    trainer: dict[str, Any] | None = None,
    dataset: str = "Digits",
    class_path: str = "DPDFD",
    steps: int = 3,
    epochs: int = 1,
) -> dict[str, Any]:
    """A tiny DPDFD run on digits with tiny networks; the arguments override its settings."""
    given: dict[str, Any] = {"teacher": "teachers/digits.ckpt", "student": SMALL}
    if class_path == "Distillation":
        given["pool_size"] = 30
    else:
        given["generator"] = {"class_path": "DAFLGenerator", "init_args": {"width": 4, "latent_dim": 8}}
        given["mechanism"] = mechanism or {}
    return {
        "seed_everything": 3,
        "trainer": trainer_settings(folder, epochs, log_every_n_steps=1, **(trainer or {})),
        "model": {"class_path": class_path, "init_args": grouped(class_path, **{**given, **(model or {})})},
        "data": {
            "class_path": "SyntheticSteps",
            "init_args": {"dataset": {"class_path": dataset}, "steps_per_epoch": steps, "batch_size": BATCH_SIZE},
        },
    }


def fit(config: dict[str, Any], *arguments: str) -> TranscriptionCLI:
    """Runs `fit` on a configuration, in this process."""
    path = Path("given.json")
    write_atomically(path, json.dumps(config))  # several processes write it at once, and one read half of it
    cli = main(["fit", "--config", str(path), *arguments])
    assert cli is not None
    return cli


def distil(folder: str = "run", *arguments: str, **settings: Any) -> TranscriptionCLI:
    """`fit` on `configuration(folder, **settings)`."""
    return fit(configuration(folder, **settings), *arguments)


def of_digits(kind: type, **settings: Any) -> Any:
    """A method for the digits as a script builds it, its settings by short names."""
    sizes = {"num_classes": 10, "image_shape": (1, 8, 8), "batch_size": BATCH_SIZE}
    return kind(**grouped(kind, **{**sizes, **settings}))


def fit_script(
    module: LightningModule, *, steps: int, epochs: int = 1, batch_size: int = BATCH_SIZE, **settings: Any
) -> None:
    """Fits a module on digits as a script does, with a quiet trainer that writes and evaluates nothing."""
    trainer = Trainer(
        **{
            **trainer_settings(".", epochs), "logger": False, "enable_checkpointing": False, "limit_val_batches": 0,
            **settings,
        }
    )  # fmt: skip
    trainer.fit(module, datamodule=SyntheticSteps(dataset=Digits(), steps_per_epoch=steps, batch_size=batch_size))


def interrupted(kind: type, step: int, go: Callable[[], Any], *, hook: str = "on_train_batch_end") -> None:
    """Runs a method, which is interrupted once `hook` was called with so many steps done."""
    method = getattr(kind, hook)

    def failing(self: Any, *arguments: Any) -> Any:
        found = method(self, *arguments)
        if self.steps_done == step:
            raise InterruptedError
        return found

    with pytest.MonkeyPatch.context() as patch, pytest.raises(InterruptedError):
        patch.setattr(kind, hook, failing)
        go()


def watched(monkeypatch: pytest.MonkeyPatch, kind: type, name: str) -> list[int]:
    """How many images each call of a method is of, from now on."""
    sizes: list[int] = []
    method = getattr(kind, name)

    def counted(self: Any, images: Tensor) -> Any:
        sizes.append(len(images))
        return method(self, images)

    monkeypatch.setattr(kind, name, counted)
    return sizes


def checkpoint(folder: str = "run") -> dict[str, Any]:
    """The last checkpoint of a run, read without unpickling code."""
    content: dict[str, Any] = torch.load(f"{folder}/checkpoints/last.ckpt", map_location="cpu", weights_only=True)
    return content


def csv_rows(path: str | Path) -> list[dict[str, str]]:
    """Rows of a table, by their columns' names."""
    return list(csv.DictReader(Path(path).read_text(encoding="utf-8").splitlines()))


def counted() -> Counter[Charge]:
    """What the ledger of the private data says of all runs."""
    return Ledger(path="ledgers/Digits-train.jsonl", private_data="Digits/train", run="reader").counts()


def charged() -> int:
    """Releases that the ledger of the private data counts."""
    return sum(counted().values())


def guarantee(folder: str = "run") -> dict[str, Any]:
    """What a run's folder states."""
    found: dict[str, Any] = json.loads(Path(folder, "public/guarantee.json").read_text(encoding="utf-8"))["guarantee"]
    return found


def result(folder: str = "run") -> dict[str, Any]:
    """What a finished fit wrote down."""
    found: dict[str, Any] = json.loads(Path(folder, "result.json").read_text(encoding="utf-8"))
    return found


def networks(cli: TranscriptionCLI) -> dict[str, Tensor]:
    """Every weight and buffer of a run's student and generator."""
    return {
        name: value for name, value in cli.model.state_dict().items() if name.split(".")[0] in ("student", "generator")
    }


def equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    """Whether two sets of tensors are the same bit for bit."""
    return first.keys() == second.keys() and all(torch.equal(value, second[name]) for name, value in first.items())


def teacher_weights(path: str | Path) -> list[Tensor]:
    """The teacher's tensors that are long enough to be recognised."""
    state = torch.load(path, map_location="cpu", weights_only=True)["state_dict"]
    return [value for value in state.values() if value.is_floating_point() and value.numel() >= 4]


def leaks(folder: str | Path, private: list[Tensor]) -> list[str]:
    """Files under `folder` that hold a private tensor: its bytes, the tensor itself, or its values as text."""
    found = []
    for file in sorted(path for path in Path(folder).rglob("*") if path.is_file()):
        content = file.read_bytes()
        inside = any(tensor.contiguous().numpy().tobytes() in content for tensor in private)
        if file.suffix == ".ckpt":
            loaded = tensors(torch.load(file, map_location="cpu", weights_only=True))
            inside |= any(torch.equal(tensor, other) for tensor in private for other in loaded)
        elif file.suffix in (".yaml", ".json", ".csv", ".md"):
            # Round numbers, as a time in seconds and most pixels are, are no trace.
            numbers = {float(text) for text in re.findall(r"-?\d+\.\d{6,}(?:e[+-]?\d+)?", content.decode())}
            inside |= any(value in numbers for tensor in private for value in tensor.flatten().tolist())
        if inside:
            found.append(str(file))
    return found


def tensors(value: Any) -> list[Tensor]:
    """All tensors of nested dictionaries and sequences."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        return [tensor for item in value.values() for tensor in tensors(item)]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in tensors(item)]
    return []
