"""No circle of imports: each module can be the first that is imported."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def modules() -> dict[str, Path]:
    files = [
        file
        for package in ("lightning_modules", "privacy", "datamodules", "sweeps")
        for file in Path(ROOT, package).rglob("*.py")
    ]
    return {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file for file in files}


def imported(file: Path, known: dict[str, Path]) -> set[str]:
    """What a module imports when it is loaded itself, and the packages that these lie in."""
    found = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{one.name}" for one in node.names} & known.keys() or {node.module}
            parts = node.module.split(".")
            found |= {*names, *(".".join(parts[:end]) for end in range(1, len(parts)))}
    return found & known.keys()


def test_no_imports_run_in_a_circle() -> None:
    known = modules()
    # A package that is being imported is known to the modules in it.
    graph = {
        name: {one for one in imported(file, known) if one != name and not name.startswith(f"{one}.")}
        for name, file in known.items()
    }
    assert len(graph) > 100
    TopologicalSorter(graph).prepare()
    graph["lightning_modules.private_fit"].add("lightning_modules.callbacks.saving")
    graph["lightning_modules.private_fit"].add("lightning_modules.callbacks")
    with pytest.raises(CycleError, match=r"'lightning_modules\.callbacks'"):  # a package that imports what imports it
        TopologicalSorter(graph).prepare()
