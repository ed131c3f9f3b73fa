"""A measured result as a record, written by the run that measured it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from lightning import Callback, LightningModule, Trainer

from datamodules.images import whole
from lightning_modules.callbacks.config import resolved_config
from lightning_modules.callbacks.data_free import is_data_free
from lightning_modules.callbacks.figures import Curves
from lightning_modules.evaluation import asks_for_auroc, measured_on, validation_metric
from lightning_modules.runtime.runs import (
    callbacks_of,
    commit,
    datamodule_of,
    hardware,
    is_dev_run,
    run_folder,
    versions,
)
from privacy.files import write_atomically
from privacy.formatting import json_number
from privacy.guarantee import Guarantee, LabelStatement

__all__ = ["ResultRecord", "role"]


@runtime_checkable
class _Guaranteed(Protocol):
    """A module that says itself what holds of it: `DPSGDTeacher`, `DirectTraining`."""

    uncharged_queries: list[str]

    def guarantee(self) -> Guarantee:
        """See there."""


class ResultRecord(Callback):
    """Writes accuracy, both ε and provenance as JSON when a fit ends. Documents and tables are made from such files.

    Args:
        path: The file, for example `results/dpdfd_mnist_prior.json`; None is `result.json` in the run's folder.
        note: Free text that is kept with the record.
    """

    def __init__(self, *, path: str | None = None, note: str = "") -> None:
        self.path = path
        self.note = note
        self._begun = 0.0
        self._seconds_before = 0.0

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Starts the clock.

        Raises:
            ValueError: The fit has no data module, and so no test split to measure on.
        """
        if datamodule_of(trainer) is None:
            raise ValueError(
                "ResultRecord measures on the test split of a data module: fit with datamodule=..., or leave it out"
            )
        self._begun = time.monotonic()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measures on the test split and writes."""
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
        loader = whole(data.test_dataloader())  # only this process measures
        if is_data_free(pl_module):
            account = pl_module.annotator.account
            guarantee = pl_module.guarantee()
            curves = next((callback for callback in callbacks_of(trainer) if isinstance(callback, Curves)), None)
            record |= {
                **measured_on(pl_module.exportable_student, loader, pl_module.device, auroc=asks_for_auroc(trainer)),
                "uncharged_accesses": list(pl_module.run.uncharged_queries),
                "epsilon_record": json_number(guarantee.epsilon),
                "epsilon_published": json_number(guarantee.claimed_epsilon),
                "published_claim": guarantee.claimed_source,
                **_whose(guarantee),
                "delta": account.budget.delta,
                "unit": guarantee.unit,
                "run": guarantee.run,
                "scope": account.budget.scope,
                "steps": pl_module.steps_done,
                "queries": account.queries(scope="run"),
                "curve_metric": validation_metric(trainer),
                "curve": [
                    {name: json_number(value) for name, value in point.items()}
                    for point in (curves.history if curves else [])
                ],
            }
        else:
            measured = measured_on(pl_module, loader, pl_module.device, auroc=asks_for_auroc(trainer))
            # What has a guarantee may be measured on public images.
            bound = pl_module.guarantee() if isinstance(pl_module, _Guaranteed) else None
            epsilon = "inf" if bound is None else json_number(bound.epsilon)
            uncharged = pl_module.uncharged_queries if isinstance(pl_module, _Guaranteed) else list(measured)
            labels = None if bound is None else bound.labels
            claim = {
                "epsilon_published": epsilon,
                **({} if labels is None or bound is None else _of_labels(labels, bound)),
            }
            record |= {
                **measured,
                "uncharged_accesses": list(uncharged),
                "epsilon_record": epsilon,
                **claim,
                "delta": 0.0 if bound is None else bound.delta,
                "unit": "one training record",
                **({} if bound is None else {"run": bound.run, **_whose(bound)}),
                "steps": trainer.global_step,
            }
        seed = torch.initial_seed() if not is_data_free(pl_module) else pl_module.draw_seed
        record |= {
            "seed": seed,
            "hardware": hardware(),
            "versions": versions(),
            "commit": commit(),
            "note": self.note,
            "config": resolved_config(trainer),
        }
        write_atomically(self.file_of(trainer), json.dumps(record, indent=2, ensure_ascii=False) + "\n")

    def file_of(self, trainer: Trainer) -> Path:
        """Path of a run's record."""
        return Path(self.path) if self.path else run_folder(trainer) / "result.json"

    @property
    def seconds(self) -> float:
        """Wall time of the fit, with what a resumed run had used before."""
        return self._seconds_before + (time.monotonic() - self._begun if self._begun else 0.0)

    def state_dict(self) -> dict[str, Any]:
        """The time used so far."""
        return {"seconds": self.seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Inverse of `state_dict`."""
        self._seconds_before = float(state_dict["seconds"])


def _whose(guarantee: Guarantee) -> dict[str, Any]:
    """The record-level ε of the run alone and of all that the ledger holds, and in words which of them is stated."""
    return {
        "epsilon_of_run": json_number(guarantee.epsilon_of_run),
        "epsilon_all_runs": json_number(guarantee.epsilon_all_runs),
        "statement": guarantee.headline(),
    }


def _of_labels(labels: LabelStatement, bound: Guarantee) -> dict[str, Any]:
    """Additional fields of a record where only labels are protected."""
    return {
        "epsilon_label": json_number(labels.epsilon),
        "epsilon_published": json_number(bound.claimed_epsilon),
        "published_claim": bound.claimed_source,
    }


def role(record: Mapping[str, Any]) -> str:
    """What a record describes, in words."""
    teachers = {
        "Teacher": "teacher, private",
        "DPSGDTeacher": "teacher by DP-SGD",
        "TeacherEnsemble": "ensemble of teachers, private",
        "FedAvg": "mean of the clients' models, private",
        "DirectTraining": "model by direct training, private but for what is said of labels",
    }
    return teachers.get(record["method"], f"student by {record['method']}")
