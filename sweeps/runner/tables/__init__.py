"""Tables and figures of the papers, measured again; specs in `sweeps/tables`, printed figures in `sweeps/reported`."""

from sweeps.runner.tables.order import Turn, in_order
from sweeps.runner.tables.published import Published, footnotes, published
from sweeps.runner.tables.records import run_table
from sweeps.runner.tables.rendering import render_results, render_table
from sweeps.runner.tables.run_tables import run_tables
from sweeps.runner.tables.spec import SpecError, TableSpec

__all__ = [
    "Published",
    "SpecError",
    "TableSpec",
    "Turn",
    "footnotes",
    "in_order",
    "published",
    "render_results",
    "render_table",
    "run_table",
    "run_tables",
]
