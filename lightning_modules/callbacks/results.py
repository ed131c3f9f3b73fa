"""A run's results as files: its record, with curve and provenance, and tables of predictions."""

from __future__ import annotations

import csv
import io
import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from lightning_modules.callbacks.saving import SaveConfig
from lightning_modules.private_fit import LearnsFromTeacher
from lightning_modules.training.evaluation import asks_for_auroc, measured_on, validation_metric
from lightning_modules.training.run import (
    callbacks_of,
    datamodule_of,
    folder_of_checkpoint,
    is_dev_run,
    processes_of,
    provenance,
    run_folder,
)
from privacy.checks import json_number
from privacy.guarantee import Guarantee
from privacy.journal import write_atomically

_PRIVATE = (
    "PRIVATE: these are responses of a teacher that nothing bounds. No ledger counts them, and they must neither be "
    "published nor be used to choose anything"
)


class ResultRecord(Callback):
    """Writes accuracy, both ε and provenance into the run's `result.json` when a fit ends, for documents and tables.

    Attributes:
        history: One point per validation of a student's fit: `steps`, `accuracy`, `epsilon`, `epsilon_published`,
            `queries`.
    """

    def __init__(self) -> None:
        self.history: list[dict[str, Any]] = []
        self._begun = 0.0
        self._seconds_before = 0.0
        #: Steps after which the weights were last seen finite, and first seen not to be.
        self._finite: list[int] = [0]

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Starts the clock.

        Raises:
            ValueError: The fit has no data module, and so no test split to measure on.
        """
        if datamodule_of(trainer) is None:
            raise ValueError("ResultRecord measures on a data module's test split: fit with one, or leave it out")
        self._begun = time.monotonic()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        accuracy = trainer.callback_metrics.get(validation_metric(trainer))
        if not isinstance(pl_module, LearnsFromTeacher) or trainer.state.fn != "fit" or accuracy is None:
            return
        if not trainer.sanity_checking:
            spent = pl_module.session.account
            point = {"steps": pl_module.steps_done, "accuracy": float(accuracy), "queries": spent.queries()}
            epsilons = {"epsilon": spent.epsilon(), "epsilon_published": spent.epsilon_published()}
            self.history.append({**point, **{name: json_number(value) for name, value in epsilons.items()}})

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Says in which epoch weights became NaN or infinite."""
        if len(self._finite) > 1:
            return
        steps = getattr(pl_module, "steps_done", trainer.global_step)
        if all(bool(torch.isfinite(weight).all()) for weight in pl_module.parameters()):
            self._finite = [steps]
        else:
            self._finite.append(steps)
            rank_zero_warn(f"Weights have become NaN or infinite between steps {self._finite[0]:,} and {steps:,}")

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.is_global_zero or is_dev_run(trainer):
            return
        data = datamodule_of(trainer)
        record: dict[str, Any] = {
            "paper": getattr(pl_module, "paper", ""),
            "method": type(pl_module).__name__,
            "dataset": data.name,
            "wall_seconds": round(self.seconds, 2),
        }
        data.setup("test")
        loader = data.test_dataloader()  # only this process measures
        own: Any = pl_module if hasattr(pl_module, "guarantee") else None
        if isinstance(pl_module, LearnsFromTeacher):
            network, seed, steps = pl_module.student, pl_module.draw_seed, pl_module.steps_done
            account = pl_module.session.account
            record |= {
                "scope": account.budget.scope,
                "queries": account.queries(scope="run"),
                "curve_metric": validation_metric(trainer),
                "curve": self.history,
            }
        else:
            network, seed, steps = pl_module, torch.initial_seed(), trainer.global_step
        home, device = pl_module.device, trainer.strategy.root_device
        # Lightning has moved it to the CPU by now, where thousands of patch filters take minutes.
        measured = measured_on(network.to(device), loader, device, auroc=asks_for_auroc(trainer))
        network.to(home)
        for logger in trainer.loggers:
            if not isinstance(logger, CSVLogger):  # which would move its columns for one row
                figures = {f"test/{name}": value for name, value in measured.items() if isinstance(value, float)}
                logger.log_metrics(figures, step=trainer.global_step)
        record |= {
            **measured,
            "class_names": names_of(data, len(measured["recall"])),
            "uncharged_accesses": list(own.uncharged_queries if own else measured),  # all of a private model
            **_stated(own.guarantee() if own else None),
            "steps": steps,
            **({"not_finite_between": self._finite} if len(self._finite) > 1 else {}),
            "seed": seed,
            **provenance(),
            "config": next((one.values for one in callbacks_of(trainer) if isinstance(one, SaveConfig)), None),
        }
        text = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
        write_atomically(run_folder(trainer) / "result.json", text)

    @property
    def seconds(self) -> float:
        """Wall time of the fit, with what a resumed run had used before."""
        return self._seconds_before + (time.monotonic() - self._begun if self._begun else 0.0)

    def state_dict(self) -> dict[str, Any]:
        """So that a resumed run has one curve and the time of all its parts."""
        return {"seconds": self.seconds, "history": self.history, "finite": self._finite}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._seconds_before = float(state_dict["seconds"])
        self.history = [dict(point) for point in state_dict["history"]]
        self._finite = list(state_dict["finite"])


def _stated(guarantee: Guarantee | None) -> dict[str, Any]:
    """Values of a guarantee for the record: ε of the run and of all runs, and a claim if any."""
    if guarantee is None:
        return {"epsilon_record": "inf", "delta": 0.0, "unit": "one training record"}
    labels, source = guarantee.labels, guarantee.claimed_source
    claim = {"epsilon_published": json_number(guarantee.claimed_epsilon), "published_claim": source} if source else {}
    epsilon = json_number(guarantee.epsilon)
    # For a person who stays, it bounds no record.
    of_unit = {"epsilon_record": "inf", "epsilon_person": epsilon} if guarantee.level == "person" else {}
    return {
        "epsilon_record": epsilon,
        **of_unit,
        "epsilon_of_run": json_number(guarantee.epsilon_of_run),
        "epsilon_all_runs": json_number(guarantee.epsilon_all_runs),
        "statement": guarantee.headline(),
        **({} if labels is None else {"epsilon_label": json_number(labels.epsilon)}),
        **claim,
        "delta": guarantee.delta,
        "unit": guarantee.unit,
        "run": guarantee.run,
    }


def epsilon_of(record: Mapping[str, Any]) -> float:
    """ε of a record, for the unit that it names."""
    return float(record.get("epsilon_person", record["epsilon_record"]))


def useless(record: Mapping[str, Any]) -> str:
    """Says that a classifier is no better than guessing, or hardly, if it is not; otherwise the text is empty.

    It is not if its accuracy may be that of always saying the most frequent class, and its balanced accuracy, which a
    rare class raises as much as a frequent one, that of chance: by 95 % intervals. It hardly is if balanced accuracy is
    below twice that of chance, and a tenth of the way from chance to 1.
    """
    majority, balanced = record["majority_share"], record["balanced_accuracy"]
    known = [(value, count) for value, count in zip(record["recall"], record["class_images"], strict=True) if count]
    chance = 1 / len(known)
    spread = 1.96 * math.sqrt(sum(value * (1 - value) / count for value, count in known)) / len(known)
    rare = majority > 1.01 * chance and balanced - spread > chance  # what an accuracy below the majority's may hide
    guessing = record["accuracy_interval"][0] <= majority and not rare
    if not guessing and balanced >= chance + min(chance, 0.1 * (1 - chance)):
        return ""
    return (
        f"USELESS: {percent(record['accuracy'])} of {record['test_images']:,} test images is "
        f"{'no' if guessing else 'hardly'} better than always saying "
        f"{record['class_names'][record['majority_class']]}: {percent(majority)}"
    )


def judged(record: Mapping[str, Any]) -> list[str]:
    """Describes what a record's accuracy alone hides, in lines."""
    names, found = record["class_names"], useless(record)
    recalls = sorted((value, name) for value, name in zip(record["recall"], names, strict=True) if value is not None)
    low, high = map(percent, record["accuracy_interval"])
    area = f", AUC {record['auroc']:.3f}" if "auroc" in record else ""
    return [
        *([found] if found else []),
        f"95 % interval: {low} to {high} ({record['test_images']:,} images); always saying "
        f"{names[record['majority_class']]}: {percent(record['majority_share'])}",
        f"balanced accuracy: {percent(record['balanced_accuracy'])}{area}; {'lowest ' if len(recalls) > 5 else ''}"
        f"recall: {', '.join(f'{name} {percent(value)}' for value, name in recalls[:5])}",
    ]


def percent(share: float) -> str:
    """Writes a share of images.

    >>> percent(0.62501)
    '62.50 %'
    """
    return f"{100 * share:.2f} %"


def role(record: Mapping[str, Any]) -> str:
    """Description of what a record is about."""
    teachers = {
        "Teacher": "teacher, private",
        "DPSGDTeacher": "teacher by DP-SGD",
        "TeacherEnsemble": "ensemble of teachers, private",
        "FedAvg": "mean of the clients' models, private",
        "DirectTraining": "directly trained model (only labels are protected)",
    }
    return teachers.get(record["method"], f"student by {record['method']}")


class PredictionWriter(BasePredictionWriter):
    """Writes `predictions.csv`: id or position, file, class, its name, and the probability of each class.

    The file is written to the checkpoint's run folder. Predictions of a private teacher, which nothing bounds, go into
    `private/` there.
    """

    def __init__(self) -> None:
        super().__init__(write_interval="batch")
        self._rows: list[tuple[int, str, list[float]]] = []

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._rows = []

    def write_on_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        prediction: Any,
        batch_indices: Sequence[int] | None,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int,
    ) -> None:
        """Keeps the probabilities of one batch, shape (B, c)."""
        if dataloader_idx:
            raise ValueError("predict writes one table, and the data have more than one loader: predict each alone")
        rows = prediction.detach().double().cpu().tolist()
        positions = list(batch_indices) if batch_indices else range(len(self._rows), len(self._rows) + len(rows))
        loaders = trainer.predict_dataloaders
        records = getattr(loaders[0] if isinstance(loaders, (list, tuple)) else loaders, "dataset", None)
        ids, names = getattr(records, "ids", None), getattr(records, "names", None)
        numbers = positions if ids is None else ids[torch.as_tensor(positions)].tolist()
        files = [names[position] if names else "" for position in positions]
        self._rows += zip(map(int, numbers), files, rows, strict=True)

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        rows = [row for given in processes_of(trainer).gather(self._rows) for row in given]
        if not trainer.is_global_zero:
            return
        # Predictions of students, and of teachers by DP-SGD, are covered by a guarantee.
        epsilon = getattr(pl_module, "epsilon", None) or (lambda: math.inf)
        private = hasattr(pl_module, "own_training") and not math.isfinite(float(epsilon()))
        given = trainer.ckpt_path
        folder = (given and folder_of_checkpoint(Path(given))) or run_folder(trainer)
        path = folder / ("private" if private else "") / "predictions.csv"
        path.parent.mkdir(mode=0o700, exist_ok=True)
        names = names_of(datamodule_of(trainer), len(rows[0][2]) if rows else 0)
        write_atomically(path, table(sorted(rows), names))
        rank_zero_info(f"{len(rows):,} predictions: {path}" + (f"\n{_PRIVATE}." if private else ""))


def names_of(data: Any, count: int) -> list[str]:
    """Names of the `count` classes of a data module: their numbers, if it has none or names of other ones."""
    names = getattr(data, "class_names", None) or ()
    return [*names] if len(names) == count else [*map(str, range(count))]


def table(rows: Sequence[tuple[int, str, list[float]]], class_names: Sequence[str]) -> str:
    """Formats rows of an id or position, a file name (may be empty) and probabilities (c) as CSV."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["id", "file", "class", "class_name", *(f"p({name})" for name in class_names)])
    for number, file, probabilities in rows:
        label = max(range(len(probabilities)), key=probabilities.__getitem__)
        writer.writerow([number, file, label, class_names[label], *(f"{value:.6g}" for value in probabilities)])
    return text.getvalue()
