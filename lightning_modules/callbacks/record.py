"""A run's measured result, with its curve and provenance, as a record."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer

from lightning_modules.callbacks.privacy import data_free
from lightning_modules.callbacks.saving import SaveConfig
from lightning_modules.private_fit import LearnsFromTeacher
from lightning_modules.training.evaluation import asks_for_auroc, measured_on, validation_metric
from lightning_modules.training.run import (
    callbacks_of,
    commit,
    datamodule_of,
    hardware,
    is_dev_run,
    run_folder,
    versions,
)
from privacy.checks import json_number
from privacy.guarantee import Guarantee
from privacy.journal import write_atomically


class Curves(Callback):
    """Accuracy and both ε over steps, for the result record.

    Attributes:
        history: One point per validation: `steps`, `accuracy`, `epsilon`, `epsilon_published`, `queries`.
    """

    def __init__(self) -> None:
        self.history: list[dict[str, float]] = []

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        accuracy = trainer.callback_metrics.get(validation_metric(trainer))
        if trainer.sanity_checking or trainer.state.fn != "fit" or accuracy is None:
            return
        module = data_free(pl_module)
        account = module.session.account
        self.history.append(
            {
                "steps": module.steps_done,
                "accuracy": float(accuracy),
                "epsilon": account.epsilon(),
                "epsilon_published": account.epsilon_published(),
                "queries": account.queries(),
            }
        )

    def state_dict(self) -> dict[str, Any]:
        """The points, so that a resumed run draws one curve."""
        return {"history": self.history}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.history = [dict(point) for point in state_dict["history"]]


class ResultRecord(Callback):
    """Writes accuracy, both ε and provenance into the run's `result.json` when a fit ends, for documents and tables."""

    def __init__(self) -> None:
        self._begun = 0.0
        self._seconds_before = 0.0

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Starts the clock.

        Raises:
            ValueError: The fit has no data module, and so no test split to measure on.
        """
        if datamodule_of(trainer) is None:
            raise ValueError("ResultRecord measures on a data module's test split: fit with one, or leave it out")
        self._begun = time.monotonic()

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
        guarantee: Guarantee | None = None
        uncharged: list[str] | None = None  # whatever is measured of a private model
        if isinstance(pl_module, LearnsFromTeacher):
            network, seed, steps = pl_module.student, pl_module.draw_seed, pl_module.steps_done
            guarantee, uncharged = pl_module.guarantee(), pl_module.session.uncharged_queries
            account = pl_module.session.account
            curves = next((callback for callback in callbacks_of(trainer) if isinstance(callback, Curves)), None)
            record |= {
                "scope": account.budget.scope,
                "queries": account.queries(scope="run"),
                "curve_metric": validation_metric(trainer),
                "curve": [
                    {name: json_number(value) for name, value in point.items()}
                    for point in (curves.history if curves else [])
                ],
            }
        else:
            network, seed, steps = pl_module, torch.initial_seed(), trainer.global_step
            own: Any = pl_module
            if hasattr(own, "guarantee") and hasattr(own, "uncharged_queries"):  # and may be measured on public images
                guarantee, uncharged = own.guarantee(), own.uncharged_queries
        home, device = pl_module.device, trainer.strategy.root_device
        # Lightning has moved it to the CPU by now, where thousands of patch filters take minutes.
        measured = measured_on(network.to(device), loader, device, auroc=asks_for_auroc(trainer))
        network.to(home)
        record |= {
            **measured,
            "uncharged_accesses": list(measured if uncharged is None else uncharged),
            **_stated(guarantee),
            "steps": steps,
            "seed": seed,
            "hardware": hardware(),
            "versions": versions(),
            "commit": commit(),
            "config": next((one.values for one in callbacks_of(trainer) if isinstance(one, SaveConfig)), None),
        }
        write_atomically(self.file_of(trainer), json.dumps(record, indent=2, ensure_ascii=False) + "\n")

    def file_of(self, trainer: Trainer) -> Path:
        """Path of a run's record."""
        return run_folder(trainer) / "result.json"

    @property
    def seconds(self) -> float:
        """Wall time of the fit, with what a resumed run had used before."""
        return self._seconds_before + (time.monotonic() - self._begun if self._begun else 0.0)

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": self.seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._seconds_before = float(state_dict["seconds"])


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
