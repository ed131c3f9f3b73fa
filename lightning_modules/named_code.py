"""Code by its name: `package.Name`, or `path/to/file.py:Name`; and which of it a file from elsewhere may have built."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from abc import ABC
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml
from lightning import LightningDataModule
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torchvision.models import get_model_builder, list_models

from privacy.checks import did_you_mean
from privacy.identity import CheckpointError

_OURS = ("lightning_modules.", "privacy.", "datamodules.", "sweeps.")
_KNOWN = (*_OURS, "torch.nn.", "torch.optim.", "torchvision.models.")
_KINDS = (nn.Module, Optimizer, LRScheduler, LightningDataModule)
_DATA = ("ckpt", "pt", "pth", "pt2", "safetensors", "onnx", "jsonl")


def named_object(name: str) -> Any:
    """Resolves a dotted name, or `path/to/file.py:Name`.

    Raises:
        ValueError: It does not exist.
    """
    found: Any = None
    file, colon, attribute = name.rpartition(":")
    if colon and file.endswith(".py"):
        found = _module_of(Path(file), name)
        above, last = [], attribute
    else:
        if "." not in name or not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(f"{name!r} names no class or function: give package.Name, or path/to/file.py:Name")
        path, *above, last = name.split(".")
    try:
        if not colon:
            find_named([name])
            found = importlib.import_module(path)
        for part in above:
            path += f".{part}"
            found = getattr(found, part) if hasattr(found, part) else importlib.import_module(path)
        return getattr(found, last)
    except (ImportError, AttributeError) as error:
        hint = did_you_mean(last, dict.fromkeys(dir(found))) or "; of a file give path/to/file.py:Name"
        why = f"there is no {last}" if colon and isinstance(error, AttributeError) else error
        raise ValueError(f"{name} cannot be imported: {why}{hint}") from error


class _NamedModules(MetaPathFinder):
    """Finds the user's modules that were named, see `find_named`."""

    def __init__(self) -> None:
        self.folders: dict[str, Path] = {}

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        folder = None if path else self.folders.get(fullname)
        return None if folder is None else PathFinder.find_spec(fullname, [str(folder)])


_NAMED = _NamedModules()


def find_named(texts: Iterable[str]) -> None:
    """Lets modules of the working folder be imported that the user names, and what their code imports from beside it.

    The folder does not join `sys.path`, where the imports of other packages would find the user's files.

    Args:
        texts: Names such as `my.Net`, and any other texts, which are left alone.
    """
    for text in texts:
        first, dot, _ = text.partition(".")
        if dot and first.isidentifier():
            _find(first, Path.cwd())


def _find(name: str, folder: Path) -> None:
    files = [file] if (file := folder / f"{name}.py").is_file() else [*(folder / name).glob("*.py")]
    if not files or _NAMED.folders.get(name) == folder:
        return
    if _NAMED not in sys.meta_path:
        sys.meta_path.append(_NAMED)  # last, after everything that is installed
    _NAMED.folders[name] = folder
    importlib.invalidate_caches()
    for file in files:
        _find_imports(file, folder)


def _find_imports(file: Path, folder: Path) -> None:
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return  # the import itself says where
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level:
            _find(str(node.module).partition(".")[0], folder)
        elif isinstance(node, ast.Import):
            for imported in node.names:
                _find(imported.name.partition(".")[0], folder)


def _module_of(file: Path, name: str) -> ModuleType:
    if not file.is_file():
        raise ValueError(f"{name}: there is no file {file} (in {Path.cwd()})")
    path = file.resolve()
    # A changed file becomes a new module, so that a notebook can edit it and continue.
    identity = re.sub(r"\W", "_", f"_network_file_{path}_{path.stat().st_mtime_ns}")
    if identity in sys.modules:
        return sys.modules[identity]
    module = sys.modules[identity] = ModuleType(identity)
    module.__file__ = str(path)
    _find_imports(path, path.parent)
    try:
        # Not by a loader, which reuses stale bytecode if a file changes within a second.
        exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)
    except Exception as error:
        del sys.modules[identity]
        raise ValueError(f"{name} cannot be imported: {type(error).__name__}: {error}") from error
    return module


def require_known_code(spec: Any, *, named: Collection[str] = ()) -> None:
    """Refuses a description of objects from a file if anything but known classes could be built from it.

    Known are the networks, optimizers, data modules and settings of this package, `torch.nn`, `torch.optim` and
    `torchvision.models`, and the names that the user gives in this command. Names are resolved, since a module may
    re-export objects from elsewhere. Every text is checked, since parsers read text as names, as settings and as paths
    of settings files. Nothing outside these packages is imported, and nothing is called.

    Args:
        spec: `class_path` and `init_args`, or any plain values that contain them.
        named: Names that the user gives, as written.

    Raises:
        ValueError: The description names other code.
    """
    text = unknown_code(spec, named=named)
    if text is not None:
        raise ValueError(
            f"it names {text[-80:]!r}, and code that a file names is not run, except networks, optimizers and "
            "settings of this package, torch and torchvision, and names given in this command"
        )


def unknown_code(spec: Any, *, named: Collection[str] = ()) -> str | None:
    """Returns the first name that `require_known_code` refuses, or None."""
    trusted = {_absolute(name) for name in named}
    texts = (text for text in texts_in(spec) if _absolute(text) not in trusted)
    return next((text for text in texts if not _is_known(text)), None)


def code_named_in(config: Path, *, named: Collection[str] = ()) -> str | None:
    """The first code in a run's configuration that is neither known nor named in this command; see `unknown_code`."""
    library = ("lightning.pytorch.callbacks.", "lightning.pytorch.loggers.")
    texts = texts_in(yaml.safe_load(config.read_text(encoding="utf-8"))) if config.is_file() else ()
    return unknown_code([one for one in texts if not one.startswith(library)], named=named)


def require_known_run(config: Path, *, named: Collection[str]) -> None:
    """Refuses the configuration in a run's folder if it names such code.

    Raises:
        CheckpointError: It does.
    """
    if (code := code_named_in(config, named=named)) is not None:
        raise CheckpointError(
            f"{config}: it names {code[-80:]!r}, and code that a file names is not run; if you trust it, give both "
            f"files instead of its folder: --config {config} --ckpt_path {config.parent / 'checkpoints' / 'last.ckpt'}"
        )


def texts_in(spec: Any, *, read: frozenset[Path] = frozenset(), suffixes: tuple[str, ...] = ("",)) -> Iterator[str]:
    """Yields every text in plain values, including settings within a text and in files that a text names.

    Args:
        spec: The values.
        read: Files that are not read again.
        suffixes: How the names of files end that are read; by default any, as parsers do.
    """
    if isinstance(spec, Mapping):
        spec = list(spec.values())
    if isinstance(spec, (list, tuple, set, frozenset)):
        for value in spec:
            yield from texts_in(value, read=read, suffixes=suffixes)
    elif isinstance(spec, (str, Path)):
        text = str(spec)
        yield text
        held = _held(text)
        if held != text:
            yield from texts_in(held, read=read, suffixes=suffixes)
        file = Path(text)
        try:
            new = text.endswith(suffixes) and file not in read and file.is_file()
            held = _held(file.read_text(encoding="utf-8")) if new else text
        except (OSError, ValueError):
            return  # a text that is not a path, or a binary file, which holds no settings
        if not isinstance(held, str):
            yield from texts_in(held, read=read | {file}, suffixes=suffixes)


def _held(text: str) -> Any:
    """Parses a text as YAML; returns it unchanged if it is not YAML."""
    try:
        return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, ValueError):
        return text


def _absolute(name: str) -> str:
    file, colon, attribute = name.rpartition(":")
    return f"{Path(file).resolve()}:{attribute}" if colon and file.endswith(".py") else name


def _is_known(text: str) -> bool:
    """Whether a text names no code, or only code that may be built."""
    if ".py:" in text:
        return False
    parts = text.split(".")
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        return True
    if not text.startswith(_KNOWN):
        # A file such as `test.ckpt`, although there is a module or a folder of that name.
        is_file = len(parts) == 2 and parts[1] in _DATA and not any(Path(parts[0]).glob(f"{parts[1]}*"))
        try:
            module = find_spec(parts[0])  # of a name without a dot, for which nothing is imported
        except ValueError:
            return False  # a module that was made by hand, such as `__main__`
        own = any(Path(parts[0] + end).is_file() for end in (".py", "/__init__.py"))  # in the working folder
        if module is None and not own:
            return not Path(parts[0]).is_dir() or is_file
        plain = not own and module is not None and module.origin is None
        return is_file and (plain or parts[0] in (*sys.stdlib_module_names, "test"))
    if any(part.startswith("__") for part in parts):
        return False
    try:
        found = named_object(text)
    except ValueError:
        return True  # the name does not exist, so a parser finds nothing either
    if not inspect.isclass(found):
        return any(found is get_model_builder(name) for name in list_models())
    if not f"{found.__module__}.".startswith(_KNOWN):
        return False
    ours = any(ABC in base.__bases__ and base.__module__.startswith(_OURS) for base in found.__mro__)
    return ours or issubclass(found, _KINDS) or (is_dataclass(found) and found.__module__.startswith(_OURS))
