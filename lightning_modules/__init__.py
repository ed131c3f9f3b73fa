"""Lightning modules that distil a model trained on sensitive data into one that can be published."""

from __future__ import annotations

import ast
import importlib
import importlib.util
from pathlib import Path
from typing import Any

from lightning_modules.quiet import quiet

quiet()

#: Modules of what the package exports, by the stub beside this file. They are imported on use: Lightning takes seconds,
#: and a command's help needs none of it.
_STUB = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
_MODULES = {name.name: str(one.module) for one in _STUB.body if isinstance(one, ast.ImportFrom) for name in one.names}
__all__ = [*_MODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    if not name.startswith("_") and importlib.util.find_spec(f"{__name__}.{name}"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
