"""Tables and figures of the papers, measured again; specs in `sweeps/tables`, printed figures in `sweeps/published`."""

from lightning_modules.tables.published import Published, footnotes, published
from lightning_modules.tables.rendering import render_results, render_table
from lightning_modules.tables.runner import run_table
from lightning_modules.tables.spec import SpecError, TableSpec

__all__ = [
    "Published",
    "SpecError",
    "TableSpec",
    "footnotes",
    "published",
    "render_results",
    "render_table",
    "run_table",
]
