"""What a resumed fit may change: nothing is dropped in silence, it is applied or refused by name.

Lightning's command line takes a checkpoint's hyperparameters over whatever the user gave. Here the user's configuration
is what runs, and each difference from the checkpoint's is either one that a resumed run can apply, or refused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from privacy.identity import CheckpointError

__all__ = [
    "APPLIED",
    "APPLIED_OF_DATA",
    "find_checkpoint",
    "hyperparameters",
    "noted_by_run",
    "read_checkpoint",
    "refuse_differences",
    "refuse_other_architecture",
    "refuse_other_data",
    "take_back_unfinished_step",
]

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
    "clients.address",
    "clients.certificates",
    "clients.insecure",
    "clients.timeout",
    "clients.wait",
    "teacher_checks.trial",
    "teacher_checks.accuracy",
    "queries",
    "query_phase.queries",
    "workers",
    "teachers_at_once",
    "physical_batch_size",
)
"""Settings of which a resumed run takes the new value: budgets are held from then on, each release is charged for the
noise that it was made with, and how a server is reached changes none of it."""

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


APPLIED_OF_DATA = (
    *("root", "download", "verify", "cache", "num_workers", "eval_batch_size"),
    *("batch_size", "steps_per_epoch", "evaluation"),
)
"""The same of the data, of a wrapped data set as well: where its files lie, how it is read and evaluated, and sizes
that are applied from the next step on, or that a teacher's own checks refuse."""


def find_checkpoint(given: str | None, *, command: str, places: Sequence[Path]) -> Path | None:
    """The file that `--ckpt_path` means; None for a fit that begins anew.

    Args:
        given: What was given: a path, or `last`, the newest file of `places`.
        command: fit, validate, test or predict.
        places: Files that this configuration writes its last checkpoint to.

    Raises:
        CheckpointError: There is no such file, or none was given to a command that is of no use without.
    """
    if given is None:
        if command == "fit":
            return None
        raise CheckpointError(
            f"{command} is about what a checkpoint holds, and none was given: add --ckpt_path, for example "
            f"--ckpt_path {places[0] if places else 'runs/dpdfd_digits/version_0/checkpoints/last.ckpt'}"
        )
    if given == "last":
        if not places:
            raise CheckpointError(
                "ckpt_path last means the newest checkpoint in trainer.default_root_dir, which is not set: set it, or "
                "give the file, such as runs/dpdfd_digits/version_0/checkpoints/last.ckpt"
            )
        found = [place for place in places if place.is_file()]
        if not found and command != "fit":
            raise CheckpointError(f"ckpt_path last: there is no {' or '.join(map(str, places))}")
        return max(found, key=lambda place: place.stat().st_mtime) if found else None
    path = Path(given)
    if path.is_file():
        return path
    inside = path / "checkpoints" / "last.ckpt"
    hint = f": it is a folder. Did you mean {inside}?" if inside.is_file() else ""
    raise CheckpointError(f"ckpt_path must be `last` or a checkpoint's file, and {given} is none{hint}")


def read_checkpoint(path: str | Path, *, command: str) -> dict[str, Any]:
    """What a checkpoint of a fit holds.

    Args:
        path: The file; read without unpickling code.
        command: fit, validate, test or predict: what the checkpoint is for.

    Raises:
        CheckpointError: It cannot be read, is cut short, or is a file of another kind.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise CheckpointError(
            f"ckpt_path {path} cannot be read as a checkpoint ({type(error).__name__}): it is cut "
            "short, damaged or a file of another kind: give checkpoints/last.ckpt of a run's folder"
        ) from error
    needed = {"state_dict", "pytorch-lightning_version", "loops"} | (
        {"optimizer_states"} if command == "fit" else set()
    )
    if not isinstance(content, dict) or not needed <= content.keys():
        missing = ", ".join(sorted(needed - content.keys() if isinstance(content, dict) else needed))
        raise CheckpointError(
            f"ckpt_path {path} is no checkpoint that {command} can go by: it holds no {missing}. Give checkpoints/"
            "last.ckpt of a run's folder; weights alone can be a teacher (model.teacher), and are never resumed"
        )
    return content


def hyperparameters(content: Mapping[str, Any]) -> dict[str, Any]:
    """Class and settings that a checkpoint of the command line holds; empty where it holds none."""
    found = content.get("hyper_parameters")
    settings = dict(found) if isinstance(found, Mapping) else {}
    settings.pop("_instantiator", None)
    return settings


def noted_by_run(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """What `SaveConfig` has noted of the run: its folder, its seed and the settings of its data; else empty."""
    noted = (content.get("callbacks") or {}).get("SaveConfig")
    return noted if isinstance(noted, Mapping) else {}


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
        if _plain(old) != _plain(new) and name not in _CHECKED_OTHERWISE and not _is_left_open(name, old, new)
    }
    _refuse({f"model.{name}": values for name, values in differing.items() if name not in APPLIED}, checkpoint)
    return sorted(differing)


def _is_left_open(name: str, old: Any, new: Any) -> bool:
    return name in _LEFT_OPEN and _LEFT_OPEN[name] in (old, new)


def refuse_other_data(
    content: Mapping[str, Any],
    now: Mapping[str, Any],
    *,
    seed: Any,
    callbacks: Sequence[Mapping[str, Any]],
    checkpoint: str,
) -> list[str]:
    """Compares what a checkpoint says of data, seed and callbacks with the fit that goes on from it.

    Args:
        content: The checkpoint's.
        now: `class_path` and `init_args` of the data.
        seed: `seed_everything`.
        callbacks: `trainer.callbacks`, each with `class_path` and `init_args`.
        checkpoint: Its path, for messages.

    Returns:
        Names of the settings that differ and are applied.

    Raises:
        CheckpointError: Settings that cannot be changed by resuming.
    """
    noted = noted_by_run(content)
    # Of what a teacher is trained on its name and size are checked, wherever its class lies.
    own = {"data", "data.dataset"} if "training" in content else set()
    differing = {
        name: values
        for name, values in _pairs(_flat({"data": noted.get("data") or {}}), _flat({"data": now})).items()
        if _plain(values[0]) != _plain(values[1]) and name not in own
    }
    refused = {name: values for name, values in differing.items() if name.rsplit(".", 1)[-1] not in APPLIED_OF_DATA}
    before = noted.get("seed_everything")
    if type(before) is int and type(seed) is int and before != seed:
        refused["seed_everything"] = (before, seed)
    for name, old, new in _patience(content, callbacks):
        if old != new:
            refused[name] = (old, new)
    _refuse(refused, checkpoint)
    return sorted(differing)


def _patience(content: Mapping[str, Any], callbacks: Sequence[Mapping[str, Any]]) -> list[tuple[str, Any, Any]]:
    """Of each `EarlyStopping` the patience before and now: its state holds it, and would win over what is given."""
    found = []
    for callback in callbacks:
        settings = callback.get("init_args") or {}
        if _class_name(callback.get("class_path")) != "EarlyStopping":
            continue
        watched = {"monitor": settings.get("monitor"), "mode": settings.get("mode", "min")}
        state = (content.get("callbacks") or {}).get(f"EarlyStopping{watched!r}") or {}
        if "patience" in state:
            name = f"trainer.callbacks.EarlyStopping({settings.get('monitor')}).patience"
            found.append((name, state["patience"], settings.get("patience", 3)))
    return found


def refuse_other_architecture(
    before: Mapping[str, Any], now: Mapping[str, Any], *, given: Collection[str], command: str, checkpoint: str
) -> None:
    """Refuses settings that were given to `test` or `validate` and are not what was trained.

    The model is then what the checkpoint says, so that a setting of another value would be dropped in silence. Budgets,
    noise and the teacher play no part in what is measured.

    Args:
        before: Settings of the checkpoint.
        now: Settings of the command.
        given: Names of those that somebody has written, in a file or as an option; the others are defaults.
        command: For messages.
        checkpoint: Its path, for messages.

    Raises:
        CheckpointError: With the names and both values.
    """
    kept = ("annotator", "optimizer", "lr_scheduler", "optimizers", *APPLIED, *_CHECKED_OTHERWISE)
    differing = {
        f"model.{name}": (old, new)
        for name, (old, new) in _pairs(_flat(before), _flat(now)).items()
        if _plain(old) != _plain(new)
        and any(name == one or name.startswith(f"{one}.") for one in given)
        and not any(name == one or name.startswith(f"{one}.") for one in kept)
    }
    _refuse(differing, checkpoint, why=f"{command} measures what was trained, and that is not it", otherwise="")


def _refuse(
    settings: Mapping[str, tuple[Any, Any]],
    checkpoint: str,
    *,
    why: str = "a run cannot be resumed with this changed",
    otherwise: str = ", or start a new run without --ckpt_path",
) -> None:
    if settings:
        listed = "; ".join(f"{name} was {old!r} and is {new!r}" for name, (old, new) in sorted(settings.items()))
        raise CheckpointError(f"{listed}: {why}. Give what {checkpoint} was begun with{otherwise}")


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if name.startswith("_"):
            continue
        if isinstance(value, Mapping) and "class_path" in value:
            flat[f"{prefix}{name}"] = _class_name(value["class_path"])
            flat |= _flat(value.get("init_args") or {}, prefix=f"{prefix}{name}.")
        elif isinstance(value, Mapping) and name != "arguments":
            flat |= _flat(value, prefix=f"{prefix}{name}.")
        else:  # arguments of a `ForeignNetwork`, which have no defaults here: one that is not there is a difference
            flat[f"{prefix}{name}"] = value
    return flat


def _class_name(path: Any) -> str:
    return str(path).rsplit(".", 1)[-1]


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
