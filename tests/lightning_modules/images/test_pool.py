"""Public images as queries of any method: how they are varied, resumed, stated, and kept apart from private ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support.data_files import write_folders
from support.runs import configuration, equal, fit, interrupted, networks

from datamodules import ImageFolder, SyntheticSteps
from datamodules.records import PartitionError
from lightning_modules import DPDFD
from lightning_modules import images as pools
from lightning_modules.images import PoolSource, varied

SHAPE = (1, 8, 8)


def transcribe(name: str = "run", *arguments: str, method: str = "DPDFD", **images: Any) -> Any:
    """Without noise: what is left is all that a resumed run has to draw again."""
    config = configuration(name, steps=2, class_path=method, mechanism={"noise_multiplier": 0.0})
    model = config["model"]["init_args"]
    model["images"] = {"source": "pool", "pool": "public", "pool_varied": True, **images}
    if method == "DPDFD":
        model["student"] = {"network": "DataLensClassifier", "replay": {"capacity": 64}}
    else:
        del model["mechanism"]
    return fit(config, *arguments)


def test_each_image_is_varied_in_its_own_way_and_as_the_seed_says() -> None:
    images = torch.linspace(-1, 1, 64).reshape(1, *SHAPE).repeat(200, 1, 1, 1)
    made, again, other = (varied(images, draw=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(made, again) and not torch.equal(made, other)
    assert len(made.unique(dim=0)) == 200 and made.abs().max() <= 1
    mirrored = made[..., -1].mean((1, 2)) < made[..., 0].mean((1, 2))
    assert 60 < int(mirrored.sum()) < 140
    images[1::2] = -1  # and what is mixed with its neighbour has something of it
    assert 15 < int((varied(images, draw=torch.Generator().manual_seed(1))[1::2].std((1, 2, 3)) < 1e-6).sum()) < 45


def test_a_resumed_run_goes_on_with_the_same_pictures(folder: Path) -> None:
    write_folders(Path("public"))
    whole = transcribe("whole")
    said = Path("whole/public/guarantee.md").read_text()
    assert "a folder public, is public and was there without the private data" in said
    assert whole.model.images.pixels.shape == (80, *SHAPE)
    interrupted(DPDFD, 1, transcribe)
    assert equal(networks(whole), networks(transcribe("run", "--ckpt_path=run/checkpoints/last.ckpt")))


@pytest.mark.parametrize("method", ["DPSD", "LabelDP"])
def test_other_methods_learn_from_pictures_too(folder: Path, method: str) -> None:
    write_folders(Path("public"))
    assert transcribe(method=method).model.steps_done == 2


@pytest.mark.parametrize("pool", ["Digits", "support.dp_teachers.OtherDigits"])
def test_accuracy_on_the_pool_itself_is_said_to_be_that(folder: Path, pool: str) -> None:
    said = transcribe(pool={"class_path": pool}).model.guarantee().assumptions
    assert any("that the student was trained on" in text for text in said) is (pool == "Digits")


def test_a_pool_that_is_the_private_data_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private: Any = {"pool": {"class_path": "Digits"}, "pool_part": "train"}
    with pytest.raises(ValueError, match="must be public, and its train part is the private data"):
        transcribe(**private)
    monkeypatch.setattr(DPDFD, "takes_private_pool", True)
    assert len(transcribe(**private).model.memory)  # which a checkpoint then holds


@pytest.mark.parametrize(
    "kind", ["inside", "above", "link", "data set", "data set above", "data set of links", "own links"]
)
def test_no_picture_of_the_private_folder_is_drawn(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = write_folders(tmp_path / "pictures" / "train")
    stated = ImageFolder(root=tmp_path / "pictures", size=8, channels=1).partition
    (tmp_path / "links").mkdir()
    (tmp_path / "links/1.png").symlink_to(inside / "ants/001.png")
    (tmp_path / "shared/train").mkdir(parents=True)
    for name in ("ants", "bees"):
        (tmp_path / "shared/train" / name).symlink_to(inside / name)
    linked = ImageFolder(root=tmp_path / "shared", size=8, channels=1)
    given: dict[str, Any] = {"inside": str(inside), "above": str(tmp_path), "link": str(tmp_path / "links")}
    divided: dict[str, Any] = {"size": 8, "channels": 1, "test_fraction": 0.5, "duplicates": "allow"}
    given["data set"] = ImageFolder(root=inside, **divided)
    given["data set above"] = ImageFolder(root=tmp_path, **divided, classes=["pictures", "shared"])
    given["data set of links"], given["own links"] = linked, str(inside)
    # Links that the private folder itself is made of are known where it is at hand.
    data = SyntheticSteps(dataset=linked) if kind == "own links" else None
    stated = linked.partition if kind == "own links" else stated
    pool = PoolSource(given[kind], part="train", image_shape=SHAPE, batch_size=4)
    with pytest.raises(PartitionError, match=r"outside of the folder of (pictures|shared), which holds private"):
        pool.open(private="", partitions=[stated], data=data)
    monkeypatch.setattr(pools, "require_outside", lambda *given, **named: None)
    pool.open(private="", partitions=[stated], data=data)
    assert len(pool.pixels) and not pool.is_private


@pytest.mark.parametrize(("resize", "mean"), [("crop", 1.0), ("stretch", 0.0)])
def test_pictures_are_prepared_as_those_of_the_data(resize: Any, mean: float, tmp_path: Path) -> None:
    own = ImageFolder(root=write_folders(tmp_path / "own"), size=8, channels=1, test_fraction=0.5, resize=resize)
    pool = PoolSource(str(tmp_path / "public"), part="test", image_shape=SHAPE, batch_size=4)
    with pytest.raises(ValueError, match=r"pictures for square images: .* has 0"):
        pool.open(private="", partitions=[])
    (tmp_path / "public").mkdir()
    Image.fromarray(np.uint8([[0, 255, 255, 0]] * 2)).save(tmp_path / "public/wide.png")
    pool.open(private="", partitions=[], data=SyntheticSteps(dataset=own))
    assert float(pool.pixels.mean()) == pytest.approx(mean, abs=0.05)
