"""The data modules as a user configures them, by short class name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from jsonargparse import ArgumentParser
from lightning import LightningDataModule

from datamodules import FashionMNIST, SyntheticSteps


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
