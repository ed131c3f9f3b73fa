"""Shadow pipelines: a run's recipe, its teacher's included, on random halves of the private records.

Each has the run's own seed, which is no secret, and with it the same initial weights and images for the student.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from gc import collect
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor

from datamodules.records import ImageDataset, bytes_of, id_fraction
from datamodules.shadowed import Shadowed
from lightning_modules.callbacks.saving import hyperparameters, noted_by_run, read_checkpoint
from lightning_modules.cli.configs import find_config, flat
from lightning_modules.cli.resuming import differences
from lightning_modules.training.run import folder_of_checkpoint, provenance
from privacy.attacks import Answers, Records, Shadows, answers_of
from privacy.identity import CheckpointError
from privacy.journal import write_atomically
from privacy.ledger_place import LEDGERS
from sweeps.runner.fit import hashed
from sweeps.runner.plan import Store

_NO_RECIPE = ("root", "download", "verify", "num_workers", "workers", "seed_everything")
LEFT_OUT = ("ModelCheckpoint", "ResultRecord", "ProgressBar", "ModelSummary")
"""Ends of the names of callbacks that write to configured files, which all runs would share, or that print progress."""
_HELD = ("teacher", "teachers", "baseline", "clients")
"""Settings that give a fit models that were trained before."""
PRIVATE = Path("private", "attack")
"""Folder of an attack's outputs within a run's folder."""
_SHADOWED = f"{Shadowed.__module__}.{Shadowed.__name__}"


class AttackError(ValueError):
    """A run cannot be attacked, or an option is out of range."""


@dataclass(frozen=True)
class QueriedRecords:
    """The records that models are queried with: private ones, canaries, and held-out ones as the population.

    Attributes:
        records: All of them, in this order.
        ids: (N,), their ids.
        kinds: (N,), their kinds: `record`, `mislabelled`, `noise` or `held out`.
    """

    records: Records
    ids: Tensor
    kinds: np.ndarray[Any, np.dtype[np.str_]]

    @property
    def digest(self) -> str:
        """SHA-256 of the records."""
        content = hashlib.sha256()
        for values in (self.ids, self.records.labels, self.records.images):
            content.update(bytes_of(values))
        return content.hexdigest()

    @staticmethod
    def choose(data: Shadowed, *, records: int) -> QueriedRecords:
        """Chooses `records` private records by their ids, the canaries, and as many held-out records."""
        data.dataset.setup("fit")
        private, held_out = (
            part.at(torch.argsort(id_fraction(part.ids, purpose="asked"))[:records])
            for part in (data.dataset.train_records, data.dataset.validation_records)
        )
        canaries = data.canaries()
        parts: list[ImageDataset] = [private, canaries, held_out]
        images, labels = zip(*(part.__getitems__(range(len(part))) for part in parts), strict=True)
        half = len(canaries) // 2
        counts = [len(private), half, len(canaries) - half, len(held_out)]
        return QueriedRecords(
            Records(torch.cat(images), torch.cat(labels)),
            torch.cat([part.ids for part in parts]),
            np.repeat(np.array(["record", "mislabelled", "noise", "held out"]), counts),
        )


@dataclass(frozen=True)
class Pipelines:
    """Shadow pipelines of one recipe.

    Attributes:
        recipe: Configurations of the fits by role, in order: a teacher and its student, or one model.
        canaries: Number of planted canaries.
        folders: Folder of each role's shadows; a teacher's are shared by all its students. Private.
        asked: Digest of the records that models are queried with.
    """

    recipe: Mapping[str, Mapping[str, Any]]
    canaries: int
    folders: Mapping[str, Path]
    asked: str = ""

    def store(self, role: str) -> Store:
        """The store of one role's shadows, one per combination of settings, records and library versions."""
        # Commits do not count: most change nothing here, and `attack.json` names those of all shadows.
        configs = list(self.recipe.values())[: list(self.recipe).index(role) + 1]
        return Store(self.folders[role] / hashed([configs, self.canaries, self.asked, provenance()["versions"]])[:16])

    def shadowed(self, number: int) -> dict[str, Any]:
        """Configuration of one shadow's fit on private data."""
        config: dict[str, Any] = json.loads(json.dumps(next(iter(self.recipe.values()))))
        data = config["data"]
        inside = data.get("init_args") or {}
        wrapped = inside.get("dataset", data)
        settings = {"dataset": wrapped, "number": number, "canaries": self.canaries}
        shadow = {"class_path": _SHADOWED, "init_args": settings}
        if "dataset" in inside:
            inside["dataset"] = shadow
        else:
            config["data"] = shadow
        return config

    def train(self, count: int, run: Callable[[list[str]], Any], asked: QueriedRecords) -> None:
        """Trains those of the first `count` shadows that are missing and queries each."""
        for number in range(count):
            if any([self._make(role, number, run, asked) for role in self.recipe]):
                print(f"[attack] shadow {number + 1} of {count}", flush=True)

    def _make(self, role: str, number: int, run: Callable[[list[str]], Any], asked: QueriedRecords) -> bool:
        """Makes one shadow, unless it exists or another process is making it or its teacher; whether it did."""
        name, first = f"shadow-{number:05d}", next(iter(self.recipe))
        store, teachers = self.store(role), self.store(first)
        folder, teacher, ledgers = store.folder(name), teachers.folder(name), store.root / "ledgers" / name
        # Each student counts from a copy, and finds no other: the teacher's own is where no file says.
        spent = teachers.root / "spent" / name
        with store.claim(name) as claim:
            if not claim or store.done(name) or (role != first and not teachers.done(name)):
                return False
            # A shadow that was killed starts again from scratch.
            for left in (folder, ledgers, *([spent] if role == first else [])):
                shutil.rmtree(left, ignore_errors=True)
            config = self.shadowed(number)
            # Not in the fit's own folder, which loggers expect to be empty at the start.
            line = ["fit", f"--config={store.root}/given/{name}.json", f"--trainer.default_root_dir={folder}"]
            if role != first:
                config = dict(self.recipe[role])
                line.append(f"--model.teacher.path={teacher}/checkpoints/last.ckpt")
                if spent.is_dir():
                    shutil.copytree(spent, ledgers)
            write_atomically(store.root / "given" / f"{name}.json", json.dumps(config))
            with _apart(ledgers):
                model = run(line).model
            if role == first and ledgers.is_dir():
                shutil.move(ledgers, spent)
            answers = answers_of(model, asked.records)
            if role != first:  # teachers' weights are kept for later students
                shutil.rmtree(folder / "checkpoints", ignore_errors=True)
            np.savez(folder / "answers.npz", confidences=answers.confidences, correct=answers.correct)
            store.finish(name, claim=_claim_of(folder), commit=provenance()["commit"])
        del model
        collect()  # see sweeps.runner.plan
        return True

    def answers(self, role: str, count: int, asked: QueriedRecords) -> Shadows:
        """Loads the answers of all shadows of one role.

        Raises:
            AttackError: Some are not finished, since another process is making them.
        """
        self.notes(role, count)
        found = []
        for number in range(count):
            with np.load(self.store(role).folder(f"shadow-{number:05d}") / "answers.npz") as held:
                found.append(Answers(held["confidences"], held["correct"]))
        return Shadows.of(found, self.coins(count, asked) & (asked.kinds != "held out"))

    def coins(self, count: int, asked: QueriedRecords) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Toss a coin per shadow and record, (K, N): with heads, a record that is not held out is a member."""
        heads = [id_fraction(asked.ids, purpose=f"shadow-{number}") < 0.5 for number in range(count)]
        return np.asarray(torch.stack(heads).numpy())

    def notes(self, role: str, count: int) -> list[dict[str, Any]]:
        """Loads the notes of each shadow of one role.

        Raises:
            AttackError: Some are not finished, since another process is making them.
        """
        found = [self.store(role).done(f"shadow-{number:05d}") for number in range(count)]
        if missing := found.count(None):
            raise AttackError(f"another process is still making {missing} shadow(s): run the same command again later")
        return [note for note in found if note is not None]

    def claim(self, role: str, count: int) -> dict[str, Any] | None:
        """Largest record-level claim of one role's shadows, which holds for all; None if a shadow has none."""
        claims: list[Any] = [note["claim"] for note in self.notes(role, count)]
        return None if None in claims else max(claims, key=lambda claim: float(claim["epsilon"]))


def recipe_of(run: Path, *, teacher: str | None) -> tuple[dict[str, dict[str, Any]], dict[str, Path]]:
    """Returns the configurations of a run's fits by role, without callbacks that write elsewhere, and shadows' folders.

    Args:
        run: Folder of a finished fit.
        teacher: Folder or configuration file of its teacher's fit, if the teacher's checkpoint is outside of it.

    Raises:
        AttackError: It is no such folder, or the teacher's training cannot be repeated.
    """
    config = _prepared(run)
    path = (config["model"].get("init_args") or {}).get("teacher")
    _require_retrained(config, but=("teacher", "teacher.path"))
    if path is None:
        if config["model"]["class_path"].endswith("TeacherEnsemble"):
            raise AttackError(f"{run} is an ensemble, whose votes nobody is shown: attack a student of them")
        return {"model": config}, {"model": run / PRIVATE}
    file = Path(path["path"] if isinstance(path, Mapping) else path)
    place = Path(teacher) if teacher is not None else folder_of_checkpoint(file)
    if place is None:
        raise AttackError(f"{file} lies in no run's folder: add --teacher with the folder or configuration of its fit")
    trained = _prepared(place)
    _require_retrained(trained)
    if teacher is not None:
        _require_recipe(trained, file)
    shared = place if place.is_dir() else run
    return {"teacher": trained, "student": config}, {"teacher": shared / PRIVATE, "student": run / PRIVATE}


def _require_recipe(config: Mapping[str, Any], file: Path) -> None:
    """Refuses a configuration that differs from the one recorded in a teacher's checkpoint."""
    try:
        content = read_checkpoint(file, command="test")
    except CheckpointError:
        return  # weights alone
    settings = hyperparameters(content)
    if not (kind := settings.pop("_class_path", "")):
        return
    found = differences({"model": {"class_path": kind, "init_args": settings}, **noted_by_run(content)}, config)
    differing = {name: values for name, values in found.items() if name.rpartition(".")[2] not in _NO_RECIPE}
    epochs = content["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"]
    most = config["trainer"].get("max_epochs")
    if most is not None and 0 <= most < epochs:  # with fewer epochs the fit may have been stopped early
        differing["trainer.max_epochs"] = epochs, most
    if differing:
        listed = "; ".join(f"{name} was {old!r} and is {new!r}" for name, (old, new) in differing.items())
        raise AttackError(f"--teacher is not what {file} was trained with: {listed}")


def _require_retrained(config: Mapping[str, Any], *, but: Sequence[str] = ()) -> None:
    """Refuses a fit that holds other finished models, which have seen all records, whatever a shadow's coins."""
    for name, value in flat(config["model"].get("init_args") or {}).items():
        holds = name.removesuffix(".path").rpartition(".")[2] in _HELD and value not in (None, "student")
        if holds and name not in but:
            text = f"model.{name}={value!r} was trained on the private records before"
            raise AttackError(f"{text}: shadows repeat a fit on them and a student of it, and nothing else")


def _prepared(place: Path) -> dict[str, Any]:
    file = place / "config.yaml" if place.is_dir() else Path(find_config(str(place)))
    if not file.is_file():
        raise AttackError(f"a fit's folder must hold its config.yaml, and {file} is not there")
    config: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    if not config.get("data") or not config.get("model"):
        raise AttackError(f"{file} names no model and no data")
    config = {name: config[name] for name in ("seed_everything", "trainer", "model", "data") if name in config}
    trainer = config.setdefault("trainer", {})
    for name in ("logger", "default_root_dir"):
        trainer.pop(name, None)
    given = trainer.pop("callbacks", None) or []
    callbacks = [_spec(callback) for callback in (given if isinstance(given, list) else [given])]
    trainer["callbacks"] = [entry for entry in callbacks if not entry["class_path"].endswith(LEFT_OUT)] or None
    trainer |= {"enable_progress_bar": False, "enable_model_summary": False}
    config["data"], config["model"] = _spec(config["data"]), _spec(config["model"])
    # Not the run's own ledger, which a budget may name.
    ((config["model"].get("init_args") or {}).get("budget") or {}).pop("ledger", None)
    inside = config["data"].get("init_args") or {}
    if "dataset" in inside:
        inside["dataset"] = _spec(inside["dataset"])
    return config


def _spec(value: Any) -> dict[str, Any]:
    return {"class_path": value} if isinstance(value, str) else dict(value)


@contextmanager
def _apart(ledgers: Path) -> Iterator[None]:
    """Use separate ledgers, so that students are not charged for others, and suppress a fit's output."""
    before = {LEDGERS: os.environ[LEDGERS]} if LEDGERS in os.environ else {}
    os.environ[LEDGERS] = str(ledgers.resolve())
    logging.disable(logging.WARNING)
    try:
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
        del os.environ[LEDGERS]
        os.environ.update(before)


def _claim_of(folder: Path) -> dict[str, Any] | None:
    """Returns the claim of a run by itself; None if it has none."""
    found = sorted(folder.rglob("guarantee.json"))
    if not found:
        return None
    guarantee = json.loads(found[0].read_text(encoding="utf-8"))["guarantee"]
    # The ledger also counts work that killed processes had begun.
    return {"epsilon": guarantee["epsilon_of_run"], **{name: guarantee[name] for name in ("delta", "unit", "relation")}}
