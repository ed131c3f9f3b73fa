"""No circle of imports: each module can be the first that is imported."""

from __future__ import annotations

import ast
from pathlib import Path

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


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Modules that remain when those whose imports are all complete are taken away again and again."""
    left = dict(graph)
    while done := [name for name, needs in left.items() if not needs & left.keys()]:
        left = {name: needs for name, needs in left.items() if name not in done}
    return sorted(left)


def test_no_imports_run_in_a_circle() -> None:
    known = modules()
    # A package that is being imported is known to the modules in it.
    graph = {
        name: {one for one in imported(file, known) if one != name and not name.startswith(f"{one}.")}
        for name, file in known.items()
    }
    assert len(graph) > 100 and circle(graph) == []
    graph["lightning_modules.private_fit"].add("lightning_modules.callbacks.saving")
    graph["lightning_modules.private_fit"].add("lightning_modules.callbacks")
    assert "lightning_modules.callbacks" in circle(graph), "a package that imports what imports it is noticed"
