"""Hyperparameters that a checkpoint can store without pickling code."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import Any

from lightning import LightningModule

from lightning_modules.named_code import require_known_code
from lightning_modules.networks.network import described
from privacy.identity import CheckpointError
from privacy.mechanisms.base import Mechanism

_INSTANTIATOR = "lightning.pytorch.cli.instantiate_module"


def require_known_checkpoint(
    content: Mapping[str, Any], *, where: str, named: Collection[str] = (), given: Collection[str] = ()
) -> None:
    """Refuses a checkpoint whose settings name unknown code, except for settings `given` now.

    Raises:
        CheckpointError: See `require_known_code`.
    """
    for section in ("hyper_parameters", "hparams", "module_arguments"):  # Lightning reads all of them
        settings = {name: value for name, value in dict(content.get(section) or {}).items() if name not in given}
        for name, value in settings.items():
            try:
                require_known_code(value, named=[*named, _INSTANTIATOR] if name == "_instantiator" else named)
            except ValueError as error:
                raise CheckpointError(f"{where} is not loaded: of {name} {error}") from error


def keep_plain_hyperparameters(module: LightningModule) -> list[str]:
    """Drops from `module.hparams` what `torch.load(weights_only=True)` would refuse: networks, factories, mechanisms.

    The command line saves these as `class_path` and `init_args`, which are plain and stay. After a script that passes
    objects, `load_from_checkpoint` needs the same objects again.

    It also drops settings that the class does not take: the command line offers all facts of the data to every class,
    and a checkpoint with more settings than its class accepts could not be resumed.

    Returns:
        Names of dropped settings that the class takes, such as `mechanism` or `images.prior`; plain settings of a group
        stay. See `require_given`.
    """
    dropped: dict[str, None] = {}
    for name, value in module.hparams.items():
        fields = _as_plain(value)
        if fields is not value:
            objects = [field for field, item in fields.items() if not _plain(item)]
            dropped |= dict.fromkeys(f"{name}.{field}" for field in objects)
            module.hparams[name] = {field: item for field, item in fields.items() if field not in objects}
    taken = _taken(type(module)) - {*getattr(module, "unused", ())} | {"_class_path", "_instantiator"}
    for name in [name for name, value in module.hparams.items() if not _plain(value) or name not in taken]:
        if name in taken:
            dropped[name] = None
        del module.hparams[name]
    vars(module)["_hparams_initial"] = copy.deepcopy(module.hparams)  # as `save_hyperparameters` does
    return list(dropped)


def _taken(kind: type) -> set[str]:
    """Settings that a class takes: parameters of its constructor and of those that get its `**shared`."""
    names: set[str] = set()
    for constructor in (vars(one)["__init__"] for one in kind.__mro__ if "__init__" in vars(one)):
        parameters = inspect.signature(constructor).parameters
        names |= {*parameters}
        if all(one.kind is not inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
            break
    return names


def require_given(dropped: Iterable[str], given: Collection[str], *, checkpoint: str) -> None:
    """Refuses a script's checkpoint whose objects are not given again: with defaults it would be another run.

    Raises:
        CheckpointError: An object is missing.
    """
    missing = [name for name in dropped if name.partition(".")[0] not in given]
    if missing:
        arguments = ", ".join(f"{name}=..." for name in dict.fromkeys(name.partition(".")[0] for name in missing))
        raise CheckpointError(
            f"{checkpoint} is of a script that gave {', '.join(missing)} as objects, which a checkpoint cannot store: "
            f"give load_from_checkpoint the same again ({arguments}). Without them it would continue with defaults"
        )


def _as_plain(value: Any) -> Any:
    """Converts a settings dataclass to a mapping of its fields, see `settings_of`, and a network to its description."""
    if isinstance(value, (type, partial)):
        return described(value) or value
    if not dataclasses.is_dataclass(value) or isinstance(value, Mechanism):
        return value
    return {field.name: _as_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}


def _plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _plain(item) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return all(_plain(item) for item in value)
    return value is None or type(value) in (bool, int, float, str)
