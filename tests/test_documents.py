"""Documents say what the records and the code say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from privacy.journal import write_atomically
from sweeps.runner.documents import render, render_text
from sweeps.runner.guarantee_tables import methods_table

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
#: Where a path in a document leads to a file; `public/` and the like are of a run.
FOLDERS = "benchmarks|datamodules|docs|examples|experiments|lightning_modules|privacy|results|sweeps|tests"
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "results" / "leaks.md", *(ROOT / "docs").glob("*.md")])


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_a_document_is_as_results_have_it_and_its_links_lead_somewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert render_text(text, ROOT / "results") == text, f"run: LightningCLI render {path.relative_to(ROOT)}"
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        if "://" not in target:
            assert (path.parent / target).exists(), target


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_files_that_a_page_names_exist(path: Path) -> None:
    """Paths in backquotes, under a folder of the repository; `*` may stand for names."""
    prose = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    named = re.findall(rf"`((?:{FOLDERS})/[\w./*-]*)`", prose)
    paths = [name for name in named if name.endswith("/") or re.search(r"\.[a-z]+$", name)]
    assert [name for name in paths if not any(ROOT.glob(name))] == []
    assert all(any((ROOT / "tests").rglob(name)) for name in re.findall(r"`(test_\w+\.py)`", prose))


def test_a_page_has_the_figures_of_its_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    record = {
        "method": "DPDFD", "dataset": "Digits", "accuracy": 0.5, "epsilon_published": 1.0, "epsilon_record": "inf",
        "published_claim": "DPDFD Theorem 3", "delta": 1e-5, "steps": 10, "wall_seconds": 1.0, "hardware": "CPU",
        "versions": {"torch": "2"}, "seed": 0, "commit": "abc",
    }  # fmt: skip
    write_atomically(Path("results/run.json"), json.dumps(record))
    page = Path("page.md")
    page.write_text("before\n<!-- results: run -->\n<!-- end results -->\nafter\n")
    render(["page.md"])
    text = page.read_text()
    assert "50.00 %" in text and "| inf |" in text and text.startswith("before") and text.endswith("after\n")
    page.write_text(text.replace("50.00", "99.00"))
    render(["page.md"])
    assert page.read_text() == text
    with pytest.raises(FileNotFoundError, match=r"other\.json"):
        render_text("<!-- results: other -->\n<!-- end results -->", tmp_path)


def test_with_a_teacher_by_dp_sgd_no_row_costs_more_than_the_teacher_alone() -> None:
    """But for what reads the data anew."""
    table = methods_table()
    alone = re.search(r"alone: ([\d.]+)", table)
    assert alone is not None
    for line in table.splitlines()[2:]:
        last = line.strip("|").split("|")[-1].strip()
        assert last in ("–", alone.group(1)) or "baseline" in line
