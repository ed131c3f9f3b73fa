"""Documents say what the records and the code say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from privacy.journal import write_atomically
from sweeps.runner.documents import render, render_text
from sweeps.runner.fit import RunnerError
from sweeps.runner.guarantee_tables import methods_table, papers_table, votes_table

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


def missing_files(text: str) -> list[str]:
    """Paths in backquotes, under a folder of the repository, that lead to nothing; `*` may stand for names."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    named = re.findall(rf"`((?:{FOLDERS})/[\w./*-]*)`", prose)
    paths = [path for path in named if path.endswith("/") or re.search(r"\.[a-z]+$", path)]
    tests = [name for name in re.findall(r"`(test_\w+\.py)`", prose) if not any((ROOT / "tests").rglob(name))]
    return [*(path for path in paths if not any(ROOT.glob(path))), *tests]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_files_that_a_page_names_exist(path: Path) -> None:
    assert missing_files(path.read_text(encoding="utf-8")) == []


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
    with pytest.raises(RunnerError, match="does not exist"):
        render_text("<!-- results: other -->\n<!-- end results -->", tmp_path)


def row(table: str, name: str) -> list[str]:
    (line,) = [line for line in table.splitlines() if line.startswith(f"| {name}")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_matrix_has_the_figures_known_from_elsewhere() -> None:
    table = methods_table()
    assert row(table, "DPDFD, DPSD data switch: `per_sample`")[1] == "676,029"
    assert row(table, "the same, `per_sample_full`")[1:3] == ["28.84", "28.84"]
    assert row(table, "mean directions")[1:] == ["–", "10", "–"]  # σ = 2√4096 / 2.00045
    assert row(table, "DPSD-T")[1] == "inf"
    assert row(table, "DGD, votes on a prior: 400 queries")[2] == "2.925"
    assert row(table, "DPDFD Algorithm 3, for labels")[1] == "23.4"
    # With a DP-SGD teacher no row costs more than the teacher alone, but for what reads the data anew.
    alone = re.search(r"alone: ([\d.]+)", table)
    assert alone is not None
    for line in table.splitlines()[2:]:
        last = line.strip("|").split("|")[-1].strip()
        assert last in ("–", alone.group(1)) or "baseline" in line


def test_the_papers_settings() -> None:
    table = papers_table()
    assert row(table, "DPDFD, DPSD data switch, C=0.001, T=59,680, `per_sample_full`")[1:] == ["1", "3,389"]
    assert row(table, "DPDFD, DPSD data switch, C=0.005, T=139,273, `per_sample_full`")[1:] == ["10", "7,640"]
    assert row(votes_table(), "27 |")[1:] == ["40", "1.281", "1.314", "0.6441"]
    assert row(table, "LabelDP, DPSD label switch")[2] == "1,698"
