from __future__ import annotations

from pathlib import Path

import pytest
from support.idx_files import write_mnist


@pytest.fixture
def mnist_root(tmp_path: Path) -> Path:
    """A folder with 200 training and 50 test images in MNIST's format."""
    return write_mnist(tmp_path / "data")
