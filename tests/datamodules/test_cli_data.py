"""The data modules as a user configures them: through LightningCLI, by short class name."""

from __future__ import annotations

from pathlib import Path

import pytest
from lightning import LightningDataModule, LightningModule
from lightning.pytorch.cli import LightningCLI
from support.data_files import write_folders

from datamodules import FashionMNIST, SyntheticSteps

QUIET = {"logger": False, "accelerator": "cpu", "enable_checkpointing": False}


@pytest.mark.parametrize("infix", ["", "init_args."])
def test_the_settings_that_the_missing_data_message_names(infix: str) -> None:
    own = [f"--data.dataset.{infix}root=elsewhere", f"--data.dataset.{infix}download=true"]
    data = linked("--data", "SyntheticSteps", "--data.dataset", "FashionMNIST", *own).datamodule
    assert isinstance(data, SyntheticSteps) and isinstance(data.dataset, FashionMNIST)
    assert (data.dataset.root, data.dataset.download) == (Path("elsewhere"), True)


class Shaped(LightningModule):
    """A model that takes its shapes from the data."""

    def __init__(self, *, num_classes: int, image_shape: tuple[int, int, int], batch_size: int) -> None:
        super().__init__()
        self.given = (num_classes, image_shape, batch_size)


class LinkedCLI(LightningCLI):
    def add_arguments_to_parser(self, parser: object) -> None:
        for name in ("num_classes", "image_shape", "batch_size"):
            parser.link_arguments(f"data.{name}", f"model.{name}", apply_on="instantiate")  # type: ignore[attr-defined]


def linked(*arguments: str) -> LinkedCLI:
    return LinkedCLI(
        Shaped, LightningDataModule, subclass_mode_data=True, run=False, save_config_callback=None,
        trainer_defaults=QUIET, args=list(arguments),
    )  # fmt: skip


def test_pictures_of_one_s_own_link_to_the_model_by_settings_alone(tmp_path: Path) -> None:
    write_folders(tmp_path / "insects", classes=("ants", "bees", "wasps"), count=2)
    for path in (tmp_path / "insects").rglob("*.png"):
        path.write_bytes(b"unread")
    own = ["--data.dataset", "ImageFolder", f"--data.dataset.root={tmp_path}/insects", "--data.dataset.size", "48"]
    own += ["--data.dataset.channels", "1", "--data.dataset.test_fraction", "0.5"]
    cli = linked("--data", "SyntheticSteps", *own, "--data.batch_size", "5")
    assert cli.model.given == (3, (1, 48, 48), 5)
    cli = linked("--data", "SyntheticSteps", *own, "--data.batch_size", "5", "--data.dataset.classes=[wasps, ants]")
    assert cli.model.given == (2, (1, 48, 48), 5) and cli.datamodule.name == "insects-ants-wasps"


def test_facts_that_follow_from_settings_link_to_the_model() -> None:
    assert linked("--data=CelebA", "--data.task=hair", "--data.size=32").model.given == (3, (3, 32, 32), 128)
    assert linked("--data=MedMNIST", "--data.subset=pathmnist", "--data.size=64").model.given == (9, (3, 64, 64), 128)
    assert linked("--data=SyntheticSteps", "--data.dataset=Digits").model.given == (10, (1, 8, 8), 256)
    assert linked("--data=COVIDx", "--data.channels=3").model.given == (4, (3, 64, 64), 128)
