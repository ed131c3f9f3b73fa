"""Data as the command line finds them missing."""

from __future__ import annotations

import pytest

from datamodules import MissingDataError
from lightning_modules.cli import main
from lightning_modules.networks.fixed_features import WhitenedFeatures


def test_missing_files_are_named_before_a_model_computes_its_features(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of 8,000 procedural images took minutes before MNIST was found to be missing."""
    computed: list[str] = []
    monkeypatch.setattr(WhitenedFeatures, "_statistics_of", lambda *_: computed.append("") or 1 / 0)
    line = ["fit", "--config", "sweeps/methods/dp_teacher_mnist.yaml"]
    with pytest.raises(MissingDataError, match="MNIST: 4 file"):
        main(line)
    assert not computed
    # Negative control: before data that are to be downloaded they are computed.
    with pytest.raises(Exception, match="division by zero"):
        main([*line, "--data.dataset.download=true"])
    assert computed
