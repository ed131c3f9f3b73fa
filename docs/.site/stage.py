"""Lays the site's pages out in `build/pages`: `docs/`, the README as start, measured results, a reference by package.

Nothing of it is stored twice: results are rendered into `results/`, and the reference follows the names that a
package imports as themselves (`from x import A as A`).
"""

from __future__ import annotations

import ast
import re
import shutil
from pathlib import Path

from latex2mathml.converter import convert

_ROOT = Path(__file__).parents[2]
_PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "CONTRIBUTING.md", "CHANGELOG.md": "CHANGELOG.md"}
_PACKAGES = (
    *("lightning_modules", "lightning_modules.networks", "lightning_modules.priors", "datamodules", "privacy"),
)


def main() -> None:
    """Replaces what an earlier build left."""
    pages = _ROOT / "build" / "pages"
    shutil.rmtree(pages, ignore_errors=True)
    shutil.copytree(_ROOT / "docs", pages, ignore=shutil.ignore_patterns(".site"))
    shutil.copytree(_ROOT / "results", pages / "results", ignore=shutil.ignore_patterns("*.json", "*.jsonl", "*.csv"))
    for path, place in _PAGES.items():
        shutil.copy(_ROOT / path, pages / place)
    for page in pages.rglob("*.md"):
        wide = "---\nhide: [toc]\n---\n\n" if "results" in page.parts[len(pages.parts) :] else ""
        page.write_text(wide + _equations(_links(page.read_text(encoding="utf-8"))), encoding="utf-8")
    (pages / "api").mkdir()
    for package in _PACKAGES:
        (pages / "api" / f"{package}.md").write_text(_reference(package), encoding="utf-8")


def _links(text: str) -> str:
    """Links from where the pages lie in the site: `docs/` is its root, and `results/` lies in it."""
    text = re.sub(r"\]\(docs/", "](", text)
    text = re.sub(r"\]\(\.\./(?=results|CONTRIBUTING|CHANGELOG)", "](", text)
    text = re.sub(r"\]\(\.\./docs/", "](../", text)
    text = re.sub(r"(?<=[ |(])\[(\d+)\](?!\()", r"\\[\1\\]", text)  # notes of tables, which look like references
    return re.sub(r"\[([^\]]*)\]\((?:\.\./)?(?:CITATION\.cff|LICENSE)\)", r"`\1`", text)


def _equations(text: str) -> str:
    """LaTeX as MathML, which browsers show without a script; GitHub shows the LaTeX itself by MathJax."""
    return re.sub(
        r"```math\n(.*?)```", lambda found: f"<div>{convert(found[1].strip(), display='block')}</div>", text, flags=re.S
    )


def _reference(package: str) -> str:
    folder = _ROOT / package.replace(".", "/")
    module, *stub = (ast.parse(one.read_text(encoding="utf-8")) for one in sorted(folder.glob("__init__.py*")))
    imported = [one for one in [module, *stub][-1].body if isinstance(one, ast.ImportFrom)]
    exported = sorted({name.name for one in imported for name in one.names if name.asname == name.name})
    parts = [f"# {package}", ast.get_docstring(module) or "", *(f"::: {package}.{name}" for name in exported)]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    main()
