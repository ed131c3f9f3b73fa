"""What a resumed fit may change: nothing is dropped in silence, it is applied or refused by name.

Lightning's command line takes a checkpoint's hyperparameters over whatever the user gave. Here the user's configuration
is what runs, and each difference from the checkpoint's is either one that a resumed run can apply, or refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from privacy.identity import CheckpointError
from privacy.moved import RENAMED_CLASSES, RENAMED_SETTINGS

__all__ = ["APPLIED", "read_hyperparameters", "refuse_differences", "take_back_unfinished_step"]

APPLIED = (
    "annotator.target_epsilon",
    "annotator.accounting",
    "annotator.scope",
    "annotator.delta",
    "annotator.ledger_block",
    "annotator.noise_multiplier",
    "annotator.epsilon",
    "annotator.scale",
    "annotator.threshold",
    "annotator.threshold_scale",
    "annotator.max_responses",
    "annotator.noise",
    "noise",
    "queries",
    "query_phase.queries",
    "workers",
    "teachers_at_once",
    "physical_batch_size",
)
"""Settings of which a resumed run takes the new value: budgets are held from then on, and each release is charged for
the noise that it was made with."""

# The same teacher may lie elsewhere now: its identity is checked, not its path. What the data tell the model is known
# when it is built: weights of other shapes do not fit, and each release is charged for the batch that it was made of.
_CHECKED_OTHERWISE = (
    "teacher",
    "generator_phase.baseline",
    "annotator.ledger",
    "num_classes",
    "image_shape",
    "batch_size",
)

# A setting that was left open, in a checkpoint or now, goes on as the training began, which the module finds out.
_LEFT_OPEN = {"clipping": "auto"}


def read_hyperparameters(checkpoint: str | Path) -> dict[str, Any]:
    """Class and settings that a checkpoint of the command line holds; empty where it holds none.

    Raises:
        CheckpointError: It cannot be read.
    """
    try:
        content = torch.load(checkpoint, map_location="cpu", weights_only=True)
    except Exception as error:
        raise CheckpointError(
            f"ckpt_path {checkpoint} cannot be read as a checkpoint ({type(error).__name__}: {error})"
        ) from error
    found = content.get("hyper_parameters") if isinstance(content, dict) else None
    settings = dict(found) if isinstance(found, Mapping) else {}
    settings.pop("_instantiator", None)
    return settings


def refuse_differences(
    before: Mapping[str, Any], now: Mapping[str, Any], *, class_before: str, class_now: str, checkpoint: str
) -> list[str]:
    """Compares the settings of a checkpoint with those of the fit that goes on from it.

    Args:
        before: Settings of the checkpoint.
        now: Settings of the fit.
        class_before: Name of the checkpoint's class.
        class_now: Name of the fit's class.
        checkpoint: Its path, for messages.

    Returns:
        Names of the settings that differ and are applied.

    Raises:
        CheckpointError: Another class, or settings that cannot be changed by resuming.
    """
    if class_before.rsplit(".", 1)[-1] != class_now.rsplit(".", 1)[-1]:
        raise CheckpointError(f"{checkpoint} is of {class_before}, and the configuration is for {class_now}")
    differing = {
        name: (old, new)
        for name, (old, new) in _pairs(_flat(before), _flat(now)).items()
        if _plain(old) != _plain(new) and name not in _CHECKED_OTHERWISE and _LEFT_OPEN.get(name) not in (old, new)
    }
    refused = {name: values for name, values in differing.items() if name not in APPLIED}
    if refused:
        listed = "; ".join(f"model.{name} was {old!r} and is {new!r}" for name, (old, new) in sorted(refused.items()))
        raise CheckpointError(
            f"{listed}: a run cannot be resumed with this changed. Give what {checkpoint} was begun with, or start "
            "a new run without --ckpt_path"
        )
    return sorted(differing)


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if name.startswith("_"):
            continue
        if name in RENAMED_SETTINGS:
            if value is None:
                continue
            name = RENAMED_SETTINGS[name]
        if isinstance(value, Mapping) and "class_path" in value:
            flat[f"{prefix}{name}"] = _class_name(value["class_path"])
            flat |= _flat(value.get("init_args") or {}, prefix=f"{prefix}{name}.")
        elif isinstance(value, Mapping):
            flat |= _flat(value, prefix=f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _class_name(path: Any) -> str:
    """Of a class its current name counts, wherever its module lies."""
    name = str(path).rsplit(".", 1)[-1]
    return RENAMED_CLASSES.get(name, name)


def _pairs(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    # What one of them does not know is a setting of another version, or its default.
    return {name: (before[name], now[name]) for name in before.keys() & now.keys()}


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _class_name(item) if key == "class_path" else _plain(item) for key, item in value.items()}
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


def take_back_unfinished_step(checkpoint: dict[str, Any]) -> None:
    """Lets a run that was interrupted within a step do that step again.

    Lightning would go on with the batch after it: one step fewer, no validation at the end of that epoch. What the
    interrupted step was charged stays charged.

    Args:
        checkpoint: Of a run that ended within a step; changed in place.
    """
    loops = checkpoint.get("loops", {}).get("fit_loop", {})
    progress = loops.get("epoch_loop.batch_progress")
    if progress is None or progress["current"]["ready"] <= progress["current"]["processed"]:
        return
    for counts in (progress["total"], progress["current"]):
        counts["ready"] = counts["started"] = counts["processed"] = counts["completed"]
    progress["is_last_batch"] = False
    for state in loops["state_dict"].get("combined_loader", []):
        if "next" in state:
            state["next"] = progress["current"]["completed"]
