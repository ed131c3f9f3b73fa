"""The data modules as a user configures them, by short class name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from jsonargparse import ArgumentParser
from lightning import LightningDataModule

from datamodules import FashionMNIST, MissingDataError, SyntheticSteps
from lightning_modules.cli import main
from lightning_modules.networks.fixed_features import WhitenedFeatures


def configured(*arguments: str) -> Any:
    parser = ArgumentParser()
    parser.add_subclass_arguments(LightningDataModule, "data")
    return parser.instantiate(parser.parse_args(list(arguments))).data


@pytest.mark.parametrize("infix", ["", "init_args."])
def test_the_settings_that_the_missing_data_message_names(infix: str) -> None:
    own = [f"--data.dataset.{infix}root=elsewhere", f"--data.dataset.{infix}download=true"]
    data = configured("--data=SyntheticSteps", "--data.dataset=FashionMNIST", *own)
    assert isinstance(data, SyntheticSteps) and isinstance(data.dataset, FashionMNIST)
    assert (data.dataset.root, data.dataset.download) == (Path("elsewhere"), True)


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
