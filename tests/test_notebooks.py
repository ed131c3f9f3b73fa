"""The notebooks are clean, and run from their first cell to their last."""

from __future__ import annotations

import ast
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
#: The longest a cell may take on a busy machine, in seconds.
PATIENCE = 600


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_clean(path: Path) -> None:
    nbformat.validate(book := nbformat.read(path, as_version=4))
    for cell in book.cells:
        if cell.cell_type == "code":
            assert not cell.outputs and cell.execution_count is None
            ast.parse("\n".join(line for line in cell.source.splitlines() if not line.startswith("%")))


@pytest.mark.slow
@pytest.mark.timeout(2 * PATIENCE)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nbclient import NotebookClient

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("MPLBACKEND", raising=False)  # the kernel shows its figures
    book = nbformat.read(path, as_version=4)
    place = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(book, timeout=PATIENCE, kernel_name="python3", resources=place).execute()
    shown = "\n".join(str(output) for cell in book.cells for output in cell.get("outputs", []))
    published = tmp_path / "runs" / path.stem / "published"
    assert (published / "student.safetensors").is_file() and "guarantee.md" in shown
    if path.stem == "private_teacher":
        assert "Record-level ε = 3 at" in shown and "student, without data" in shown
    else:
        assert "claim): 0." in shown and "image/png" in shown and "protects no record in any meaningful sense" in shown
