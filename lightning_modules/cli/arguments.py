"""Prepares arguments for the parser: finds installed files and expands short forms, so that options add to them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml
from jsonargparse import Namespace, _actions, _typehints, get_loader, set_loader, set_parsing_settings
from jsonargparse._util import merge_config
from lightning import LightningModule
from lightning.pytorch.utilities import rank_zero_info

from lightning_modules.cli.resuming import flat
from lightning_modules.networks.network import nested
from lightning_modules.runtime.hyperparameters import SHORT
from lightning_modules.runtime.paths import find_configs

_TYPES: Any = _typehints


def prepare_arguments(args: Sequence[str]) -> list[str]:
    """Rewrite a command's arguments so that strings of `SHORT` and null are passed as configurations.

    jsonargparse 4.53 reads null in an option as the class path "None", but null in a configuration as null.
    """
    prepared: list[str] = []
    left = find_configs(args)
    first = True
    while left:
        argument = left.pop(0)
        option, equals, value = argument.partition("=")
        if option == "--config" and (equals or left):
            value = value if equals else left.pop(0)
            content = {} if first else _content(value)
            parts = list(_parts(content))
            prepared += [f"--config={json.dumps(content) if parts else value}", *parts]
            first = False
            continue
        if not option.startswith("--model") or not (equals or left):
            prepared.append(argument)
            continue
        whole, inside, part = option.partition(".arguments.")
        if part:  # jsonargparse 4.53 takes a.b for all of a
            prepared.append(f"{whole}{inside}/{part.replace('.', '/')}{equals}{value}")
            continue
        if not equals:
            value = left.pop(0)
        name = option.removeprefix("--model").removeprefix(".").removeprefix("init_args.")
        if name and (name in SHORT or (value == "null" and "." in name)) and not value.startswith("{"):
            content = _with({}, name, None if value == "null" else value)
            prepared.append(f"--config={json.dumps({'model': {'init_args': content}})}")
        elif not name and value.startswith("{"):
            prepared.append(f'--config={{"model": {value}}}')
        else:
            prepared += [argument] if equals else [argument, value]
    return prepared


def _content(config: str) -> dict[str, Any]:
    """Read a configuration, a file or JSON, as plain values; empty if the parser will refuse it."""
    try:
        found = yaml.safe_load(config if config.lstrip().startswith("{") else Path(config).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return found if isinstance(found, dict) else {}


def _parts(settings: dict[str, Any], path: str = "-") -> Iterator[str]:
    """Remove arguments for networks that an earlier file names and yield them as options, which add to that file's."""
    for name, value in list(settings.items()):
        if name == "arguments" and "name" not in settings and isinstance(value, dict):
            yield from _leaves(settings.pop(name), f"{path}.arguments.")
        elif isinstance(value, dict):
            yield from _parts(value, path if name == "init_args" else f"{path}{'.' if path != '-' else '-'}{name}")


def _leaves(value: Any, option: str) -> Iterator[str]:
    if isinstance(value, dict) and value and "class_path" not in value:
        for name, inner in value.items():
            yield from _leaves(inner, f"{option}/{name}")
    else:
        yield f"{option}={json.dumps(value)}"


def merged(config: Namespace) -> Namespace:
    """Merge options for parts of networks' arguments into the configuration."""
    for name, value in list(config.items()):
        if name.endswith(".arguments") and isinstance(value, dict):
            config[name] = nested(value)
    return config


@contextmanager
def checked_classes() -> Iterator[None]:
    """State what becomes of a class's settings if a later argument names another class, or refuse to lose them.

    jsonargparse 4.53 keeps those that both classes take, drops the others, and says neither.

    Raises:
        ValueError: A model, or a class that is named without its own settings, does not take some of them.
    """
    discard = _TYPES.discard_init_args_on_class_path_change
    said: dict[str, tuple[str, str | None]] = {}  # by the change, which jsonargparse makes in several passes

    def checked(parser: Any, before: Any, now: Any) -> None:
        if not before or not before.get("init_args") or before["class_path"] in (None, now["class_path"]):
            return
        before = _TYPES.subclass_spec_as_namespace(before)
        had, given = flat(before.init_args.as_dict()), flat(_TYPES.Namespace(now.get("init_args") or {}).as_dict())
        discard(parser, before, now)
        has, new, old = flat(before.init_args.as_dict()), _TYPES.import_object(now["class_path"]), before.class_path
        takes = _defaults(now["class_path"])
        # Below another class, whose change is stated by itself.
        other = tuple(f"{key}." for key in has.keys() & given.keys() if has[key] != given[key])
        kept = _unlike(takes, has, [name for name in has.keys() - given.keys() if not name.startswith(other)])
        lost = _unlike(_defaults(old), had, had.keys() - has.keys() - given.keys())
        parts = [f", {how} its {', '.join(names)}" for how, names in (("with", kept), ("without", lost)) if names]
        remedy = None
        if lost and LightningModule in getattr(new, "__mro__", ()):
            remedy = f"no mechanism or budget is dropped: write a configuration for {new.__name__} alone"
        elif lost and takes and "init_args" not in now:
            remedy = f"give its own settings with it, as {{class_path: {new.__name__}, init_args: {{...}}}}"
        if parts:
            text = f"{new.__name__} instead of {old.rpartition('.')[2]}{''.join(parts)}"
            said.setdefault(f"{old} {now['class_path']} {had}", (text, remedy))

    def merged_checked(parser: Any, source: Namespace, target: Namespace) -> Namespace:
        had, now = flat(target.as_dict()), flat(source.as_dict())
        for key in [key for key in had.keys() & now.keys() if key.endswith(".name") and had[key] != now[key]]:
            inside = f"{key.removesuffix('name')}arguments"
            if left := sorted({*had.get(inside, ())} - {*now.get(inside, ())}):
                said[f"{key} {now[key]}"] = (f"{now[key]} instead of {had[key]}, without its {', '.join(left)}", None)
        return merge_config(parser, source, target)

    printed: SystemExit | None = None
    try:
        with patch.object(_TYPES, discard.__name__, checked), patch.object(_actions, "merge_config", merged_checked):
            yield
    except SystemExit as end:  # of --print_config, whose configuration would lose them as silently
        if end.code:
            raise
        printed = end
    for text, remedy in said.values():
        if remedy:
            raise ValueError(f"{text}: {remedy}")
        rank_zero_info(f"{text}.")
    if printed is not None:
        raise printed


def _defaults(class_path: str) -> dict[str, Any]:
    return flat(_TYPES.ActionTypeHint.get_class_parser(class_path).get_defaults(skip_validation=True).as_dict())


def _unlike(defaults: Mapping[str, Any], settings: Mapping[str, Any], names: Collection[str]) -> list[str]:
    """Which of the named settings differ from the defaults, without parts of those that do as a whole."""
    found = sorted(name for name in names if settings[name] != defaults.get(name))
    return [name for name in found if not any(name.startswith(f"{whole}.") for whole in found)]


def written_out(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Replace each string of `SHORT` in a model's settings by a mapping."""
    found = dict(settings)
    for path, field in SHORT.items():
        value = _at(found, path)
        if isinstance(value, str) and (path, value) != ("generator_phase.baseline", "student"):
            # A newly named network does not inherit the previous one's arguments.
            found = _with(found, path, {field: value, **({"arguments": {}} if path.endswith("network") else {})})
    return found


def _at(settings: Any, path: str) -> Any:
    """Return the value of a dotted name, or None."""
    for name in path.split("."):
        settings = settings.get(name) if isinstance(settings, Mapping) else None
    return settings


def _with(settings: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return a copy with another value for a dotted name."""
    name, _, rest = path.partition(".")
    inner = settings.get(name)
    return {**settings, name: _with(inner if isinstance(inner, Mapping) else {}, rest, value) if rest else value}


def _load(text: str) -> Any:
    content = get_loader("yaml")(text)
    model = content.get("model") if isinstance(content, dict) else None
    if isinstance(model, dict):
        inside = model.get("init_args")
        content["model"] = (
            {**model, "init_args": written_out(inside)} if isinstance(inside, dict) else written_out(model)
        )
    return content


# A network's arguments stay plain values; the network's own parser builds objects from them.
set_parsing_settings(instantiate_subclass_spec_in_any=False)

PARSER_MODE = "yaml_written_out"
set_loader(PARSER_MODE, _load, exceptions=(yaml.YAMLError,))
