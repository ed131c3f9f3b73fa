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


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (["--data=CelebA", "--data.task=hair", "--data.size=32"], (3, (3, 32, 32), 128)),
        (["--data=MedMNIST", "--data.subset=pathmnist", "--data.size=64"], (9, (3, 64, 64), 128)),
        (["--data=SyntheticSteps", "--data.dataset=Digits"], (10, (1, 8, 8), 256)),
        (["--data=COVIDx", "--data.channels=3"], (4, (3, 64, 64), 128)),
    ],
)
def test_facts_that_a_model_is_linked_to_follow_from_settings(arguments: list[str], facts: tuple[Any, ...]) -> None:
    data = configured(*arguments)
    assert (data.num_classes, data.image_shape, data.batch_size) == facts
