"""The data modules as a user configures them: through LightningCLI, by short class name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lightning import LightningDataModule, LightningModule
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.demos.boring_classes import BoringModel

from datamodules import MNIST, Digits, FashionMNIST, Latent


def data_from(arguments: list[str]) -> LightningDataModule:
    cli = LightningCLI(
        BoringModel,
        LightningDataModule,
        subclass_mode_data=True,
        run=False,
        save_config_callback=None,
        trainer_defaults={"logger": False, "accelerator": "cpu", "enable_checkpointing": False},
        args=arguments,
    )
    return cli.datamodule


def test_a_short_name_and_flat_options() -> None:
    data = data_from(
        ["--data", "MNIST", "--data.root", "elsewhere", "--data.batch_size", "64", "--data.download", "true"]
    )
    assert isinstance(data, MNIST)
    assert (data.root, data.batch_size, data.download) == (Path("elsewhere"), 64, True)


@pytest.mark.parametrize("infix", ["", "init_args."])
def test_the_settings_that_the_missing_data_message_names(infix: str) -> None:
    data = data_from(
        [
            *("--data", "Latent", "--data.dataset", "FashionMNIST"),
            *(f"--data.dataset.{infix}root", "elsewhere"),
            *(f"--data.dataset.{infix}download", "true"),
        ]
    )
    assert isinstance(data, Latent) and isinstance(data.dataset, FashionMNIST)
    assert (data.dataset.root, data.dataset.download) == (Path("elsewhere"), True)


def test_a_nested_config_and_an_option_over_it(tmp_path: Path) -> None:
    config = {
        "data": {
            "class_path": "Latent",
            "init_args": {
                "dataset": {"class_path": "Digits", "init_args": {"val_fraction": 0.2}},
                "steps_per_epoch": 7,
                "evaluation": "test",
            },
        }
    }
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps(config))
    data = data_from(["--config", str(path), "--data.dataset.eval_batch_size", "100", "--data.batch_size", "32"])
    assert isinstance(data, Latent) and isinstance(data.dataset, Digits)
    assert (data.steps_per_epoch, data.batch_size, data.evaluation) == (7, 32, "test")
    assert (data.dataset.val_fraction, data.dataset.eval_batch_size) == (0.2, 100)


class Shaped(LightningModule):
    """A model that takes its shapes from the data."""

    def __init__(self, *, num_classes: int, image_shape: tuple[int, int, int], batch_size: int) -> None:
        super().__init__()
        self.given = (num_classes, image_shape, batch_size)


class LinkedCLI(LightningCLI):
    def add_arguments_to_parser(self, parser: object) -> None:
        for name in ("num_classes", "image_shape", "batch_size"):
            parser.link_arguments(f"data.{name}", f"model.{name}", apply_on="instantiate")  # type: ignore[attr-defined]


def test_public_facts_link_to_the_model_without_files() -> None:
    cli = LinkedCLI(
        Shaped,
        LightningDataModule,
        subclass_mode_data=True,
        run=False,
        save_config_callback=None,
        trainer_defaults={"logger": False, "accelerator": "cpu", "enable_checkpointing": False},
        args=["--data", "Latent", "--data.dataset", "Digits", "--data.batch_size", "5"],
    )
    assert cli.model.given == (10, (1, 8, 8), 5)
