"""Pictures of the priors: drawn by the command, small, the same each time; those of the documents are up to date."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib import pyplot as plt

from lightning_modules.cli import main
from lightning_modules.cli.priors import COLOUR, PICTURES, picture
from lightning_modules.priors import FractalPrior

ROOT = Path(__file__).parents[3]


def _difference(first: Path, second: Path) -> float:
    """Mean absolute difference of two pictures' pixels, which lie between 0 and 1."""
    one, other = (plt.imread(path)[..., :3] for path in (first, second))
    return float(np.abs(one - other).mean()) if one.shape == other.shape else 1.0


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("priors") / "new"
    assert main(["priors", "--out", str(folder)]) is None
    return folder


@pytest.mark.parametrize("name", PICTURES)
def test_the_documents_show_what_the_priors_draw(drawn: Path, name: str) -> None:
    shown = ROOT / "docs" / "priors" / f"{name}.png"
    assert shown.stat().st_size < 60_000
    assert _difference(drawn / f"{name}.png", shown) < 0.01, "run: LightningCLI priors --out docs/priors"


def test_nothing_else_is_drawn_or_shown(drawn: Path) -> None:
    expected = {f"{name}.png" for name in PICTURES}
    assert {path.name for path in drawn.iterdir()} == expected
    assert {path.name for path in (ROOT / "docs" / "priors").iterdir()} == expected


def test_the_comparison_notices_another_prior(drawn: Path, tmp_path: Path) -> None:
    (tmp_path / "other.png").write_bytes(picture(FractalPrior(), COLOUR, columns=10))
    assert _difference(drawn / "dead_leaves.png", tmp_path / "other.png") > 0.05
