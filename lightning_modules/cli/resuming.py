"""Which settings a resumed fit may change: differences from the saved configuration are applied or refused.

Lightning's command line lets a checkpoint's hyperparameters override the user's. Here the user's configuration is used.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch.utilities import rank_zero_info

from lightning_modules.callbacks.saving import hyperparameters, noted_by_run, read_checkpoint
from lightning_modules.cli.configs import flat
from lightning_modules.training.hyperparameters import require_known_checkpoint
from privacy.identity import CheckpointError

MAY_CHANGE = {
    # Budgets apply from then on, and each release is charged for the noise that it was made with.
    "model.budget": "target_epsilon accounting scope delta ledger ledger_block published",
    "model.mechanism": "noise noise_multiplier scale",
    "model.query_phase": "queries",
    # Locations. Teachers are compared by identity, not by path.
    "model.teacher": "path trial",
    "model.generator_phase": "baseline",
    "model.generator_phase.baseline": "path",
    "model.clients": "target_epsilon noise",
    # What does not change results, or what a method compares itself.
    "model.clipping": "physical_batch_size",
    "model": "queries target_epsilon delta noise teacher teachers_at_once batch_size num_classes image_shape",
    "data": "noise steps_per_epoch evaluation",
}
"""Settings that may change, by group, as `flat` names them; every other difference is refused."""

_OF_DATA = ("root", "download", "verify", "num_workers", "batch_size")
"""Locations and sizes of a data set, which may change as well: of the data, of those that they wrap, and of a pool."""

_CHANGED = "a run cannot be resumed with this changed"


def may_change(name: str) -> bool:
    """Whether a resumed fit may change a setting."""
    group, _, field = name.rpartition(".")
    of_data = group in ("model.images.pool", "model.pool") or f"{group}.".replace("dataset.", "") == "data."
    return field in MAY_CHANGE.get(group, "").split() or (of_data and field in _OF_DATA)


def require_same(
    path: Path, now: Mapping[str, Any], *, command: str, arguments: Sequence[str], named: Collection[str]
) -> dict[str, Any]:
    """Compares a checkpoint with the configuration `now` of a command.

    Args:
        path: The checkpoint.
        now: The configuration, as plain values.
        command: A fit may change what `may_change` allows. The others measure what was trained, whatever files say; an
            option that differs is a mistake.
        arguments: Of the command line.
        named: Texts in the configuration, see `require_known_code`.

    Returns:
        The settings of what was trained; empty for a script's checkpoint, which does not record them.

    Raises:
        CheckpointError: It is of another class, settings differ that must not, or it names unknown code.
    """
    content = read_checkpoint(path, command=command)
    trained = hyperparameters(content)
    if not trained.get("_class_path"):
        return {}
    before = {"model": {"class_path": trained.pop("_class_path"), "init_args": trained}, **noted_by_run(content)}
    if flat(before)["model"] != flat(now)["model"]:
        classes = before["model"]["class_path"], now["model"]["class_path"]
        raise CheckpointError("{} is of {}, and the configuration is for {}".format(path, *classes))
    differing = differences(before, now)
    epochs = content["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"]
    planned = now["trainer"]["max_epochs"] if command == "fit" else None
    done = ("model.mechanism.", "model.budget.") if epochs == planned else ()  # no release is left to apply it to
    fixed = {name: values for name, values in differing.items() if name.startswith(done) or not may_change(name)}
    options = {one.removeprefix("--").partition("=")[0].replace("init_args.", "") for one in arguments}
    given = {name: fixed[name] for name in fixed if any(f"{option}.".startswith(f"{name}.") for option in options)}
    if command != "fit":
        refuse(given, path, why=f"{command} measures what was trained, and that is not it", otherwise="")
        require_known_checkpoint(content, where=str(path), named=named)
        return trained
    refuse(given | fixed, path, why="the fit is done, and this would change nothing of it" if done else _CHANGED)
    if planned not in (None, -1) and planned < epochs:  # before anything in the run's folder is overwritten
        raise CheckpointError(f"trainer.max_epochs must be at least the {epochs} of {path}, got {planned}")
    if differing:
        rank_zero_info(f"Changed by resuming, and applied from here on: {', '.join(differing)}.")
    return trained


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Returns settings that both configurations have with different values, as (before, now) by dotted name."""
    old, new = flat(before), flat(now)
    return {name: (old[name], new[name]) for name in sorted(old.keys() & new.keys()) if old[name] != new[name]}


def refuse(
    differing: Mapping[str, tuple[Any, Any]],
    checkpoint: Path,
    *,
    why: str = _CHANGED,
    otherwise: str = "start a new run (without --ckpt_path; `distill`: with another --folder), or ",
) -> None:
    """Refuses changed settings, if there are any.

    Raises:
        CheckpointError: A setting has changed; the error has up to three names with both values.
    """
    if differing:
        listed = [f"{name} was {old!r} and is {new!r}" for name, (old, new) in differing.items()]
        more = f"; and {len(listed) - 3} more" if len(listed) > 3 else ""
        remedy = f"{otherwise}use the values that {checkpoint} was started with"
        raise CheckpointError(f"{remedy[0].upper()}{remedy[1:]}. {'; '.join(listed[:3])}{more}: {why}")
