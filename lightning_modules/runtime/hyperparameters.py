"""Hyperparameters that a checkpoint can hold without pickling code."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import IO, Any, TypeVar

from lightning import LightningModule
from lightning.fabric.utilities.cloud_io import _load as read_anywhere
from torch import nn

from lightning_modules.networks.named_code import require_known_code
from privacy.identity import CheckpointError

_Settings = TypeVar("_Settings")

SHORT = {
    "teacher": "path",
    "student": "network",
    "images": "source",
    "generator_phase.baseline": "path",
    "federation": "name",
    "clipping": "mode",
    # Networks come after the settings that they are part of.
    "network": "name",
    "teacher.network": "name",
    "student.network": "name",
    "images.generator": "name",
    "vae_phase.network": "name",
    "generator_phase.baseline.network": "name",
}
"""Settings of a model that a string may stand for, and the field that it is."""

_INSTANTIATOR = "lightning.pytorch.cli.instantiate_module"


class GuardedLoading:
    """Loading from a checkpoint that builds nothing but known classes and what is given to the call, for modules."""

    @classmethod
    def load_from_checkpoint(
        cls,
        checkpoint_path: str | Path | IO[bytes],
        map_location: Any = None,
        hparams_file: str | Path | None = None,
        strict: bool | None = None,
        weights_only: bool | None = None,
        named: Collection[str] = (),
        **kwargs: Any,
    ) -> Any:
        """See Lightning's. Nothing is unpickled, unless `weights_only` is False, by which you trust the file.

        Code of other packages that the file names is built where `named` has it, or the setting is given again.

        Raises:
            CheckpointError: The checkpoint names code that is not known, see `require_known_code`, or is of a script
                that gave an object (an annotator, a prior), which is not given again.
        """
        if weights_only is not False:
            content = read_anywhere(checkpoint_path, map_location="cpu", weights_only=True)
            if not isinstance(checkpoint_path, (str, Path)):
                checkpoint_path.seek(0)
            require_known_checkpoint(
                content,
                given=kwargs,
                named=[f"{cls.__module__}.{cls.__qualname__}", *named],
                where=str(checkpoint_path),
            )
            require_given(content.get("distillation", {}).get("objects", ()), kwargs, checkpoint=str(checkpoint_path))
        loaded: Any = super().load_from_checkpoint(  # type: ignore[misc]  # Lightning's
            checkpoint_path, map_location, hparams_file, strict, weights_only is not False, **kwargs
        )
        return loaded


def require_known_checkpoint(
    content: Mapping[str, Any], *, where: str, named: Collection[str] = (), given: Collection[str] = ()
) -> None:
    """Refuses a checkpoint whose settings, but for those `given` now, name code that is not known.

    Raises:
        CheckpointError: See `require_known_code`.
    """
    for section in ("hyper_parameters", "hparams", "module_arguments"):  # Lightning reads all of them
        settings = {name: value for name, value in dict(content.get(section) or {}).items() if name not in given}
        if settings.get("_instantiator") == _INSTANTIATOR:
            del settings["_instantiator"]
        for name, value in settings.items():
            try:
                require_known_code(value, named=named)
            except ValueError as error:
                raise CheckpointError(f"{where} is not loaded: of {name} {error}") from error


def keep_plain_hyperparameters(module: LightningModule) -> list[str]:
    """Drops from `module.hparams` what `torch.load(weights_only=True)` would refuse: networks, factories, annotators.

    Under the command line these are saved as `class_path` and `init_args`, which are plain and stay. In a script that
    passes objects, `load_from_checkpoint` needs the same objects again.

    Drops also what the class does not take: the command line offers every class all that the data tell, and a
    checkpoint that remembered more than its class accepts could not be resumed.

    Returns:
        Names of the settings that the class takes and that were dropped, such as `annotator` or `images.prior`: of a
        group of settings the plain ones stay. See `require_given`.
    """
    dropped: dict[str, None] = {}
    for values in (module.hparams, getattr(module, "_hparams_initial", None) or {}):
        for name, value in values.items():
            fields = _as_plain(value)
            if fields is not value:
                objects = [field for field, item in fields.items() if not _plain(item)]
                dropped |= dict.fromkeys(f"{name}.{field}" for field in objects)
                values[name] = {field: item for field, item in fields.items() if field not in objects}
    taken = _taken(type(module)) - {*getattr(module, "unused", ())} | {"_class_path", "_instantiator"}
    for name in [name for name, value in module.hparams.items() if not _plain(value) or name not in taken]:
        if name in taken:
            dropped[name] = None
        del module.hparams[name]
    initial = getattr(module, "_hparams_initial", None)
    if initial is not None:
        for name in [name for name in initial if name not in module.hparams]:
            del initial[name]
    return list(dropped)


def _taken(kind: type) -> set[str]:
    """Settings that a class takes: those of its constructor, and of the next one that this hands `**shared` on to."""
    names: set[str] = set()
    for constructor in (vars(one)["__init__"] for one in kind.__mro__ if "__init__" in vars(one)):
        parameters = inspect.signature(constructor).parameters
        names |= {*parameters}
        if all(one.kind is not inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
            break
    return names


def require_given(dropped: Iterable[str], given: Collection[str], *, checkpoint: str) -> None:
    """Refuses a checkpoint of a script whose objects are not given again: a default in their place is another run.

    Raises:
        CheckpointError: Something is missing.
    """
    missing = [name for name in dropped if name.partition(".")[0] not in given]
    if missing:
        arguments = ", ".join(f"{name}=..." for name in dict.fromkeys(name.partition(".")[0] for name in missing))
        raise CheckpointError(
            f"{checkpoint} is of a script that gave {', '.join(missing)} as objects, which a checkpoint cannot hold: "
            f"give load_from_checkpoint the same again ({arguments}). Without them it would go on with defaults"
        )


def _as_plain(value: Any) -> Any:
    """Settings of a script as a mapping of their fields, see `settings_of`; everything else as it is."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    return {field.name: _as_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}


def _plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _plain(item) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return all(_plain(item) for item in value)
    return value is None or type(value) in (bool, int, float, str)


def settings_of(kind: type[_Settings], given: Any, *, name: str) -> _Settings:
    """Settings as an object: one of these, a mapping of its fields, or what `SHORT` lets stand for one of them.

    Raises:
        TypeError: It is neither.
    """
    if isinstance(given, kind):
        return given
    if isinstance(given, Mapping):
        return kind(**given)
    if name in SHORT and isinstance(given, (str, nn.Module)):
        return kind(**{SHORT[name]: given})
    raise TypeError(f"{name} must be {kind.__name__}(...), got {given!r}")
