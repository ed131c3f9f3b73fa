"""Where images come from: the statistics and resets of a generator, and public pools that are no private data."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support.data_files import write_folders
from support.dp_teachers import OtherDigits
from support.runs import configuration, equal, fit, interrupted, networks
from torch import Tensor

import datamodules
from datamodules import Digits, ImageDataModule, ImageFolder, SyntheticSteps
from datamodules.records import PartitionError
from lightning_modules import DPDFD, images as images_module
from lightning_modules.images import Images, PoolSource, SyntheticSource, varied
from lightning_modules.losses.functional import informativeness
from lightning_modules.networks import DAFLGenerator
from lightning_modules.priors import DeadLeavesPrior, ImagePrior, MixturePrior, StrokePrior
from lightning_modules.training.randomness import Draws

GRAY = (1, 28, 28)


def _source(shape: tuple[int, int, int] = GRAY, **settings: Any) -> SyntheticSource:
    settings.setdefault("generator", partial(DAFLGenerator, width=4, latent_dim=8))
    return SyntheticSource(Images(**settings), image_shape=shape, batch_size=8)


def _pixels(source: Any) -> Tensor:
    with torch.no_grad():
        images: Tensor = source.generator(torch.randn(64, source.latent_dim))
    return images


@pytest.mark.parametrize("kind", ["generator", "both"])
def test_a_generator_has_the_statistics_of_the_prior(kind: Any) -> None:
    images = _pixels(_source(source=kind))
    drawn = StrokePrior().sample(1024, image_shape=GRAY, generator=torch.Generator().manual_seed(7), device="cpu")
    assert float(images.mean()) == pytest.approx(float(drawn.mean()), abs=0.02)
    assert float(images.std()) == pytest.approx(float(drawn.std()), rel=0.05)
    assert float(images.mean()) < -0.5  # and not the 0 that DAFL's last layer gives
    one, other = (_source((3, 16, 16), source=kind, prior=DeadLeavesPrior()).generator for _ in range(2))
    assert one.scale.shape == (3, 1, 1) and torch.equal(one.scale, other.scale) and torch.equal(one.shift, other.shift)


@pytest.mark.parametrize(
    ("dataset", "prior"),
    [
        ("Digits", "StrokePrior"), ("FashionMNIST", "SilhouettePrior"), ("CIFAR10", "GeneralPrior"),
        ("ImageFolder", "BroadPrior"), ("OtherDigits", "StrokePrior"), ("Own", "BroadPrior"),
    ],
)  # fmt: skip
def test_the_prior_is_that_for_the_data_unless_given(dataset: str, prior: str, tmp_path: Path) -> None:
    """With a folder in place of the digits, strokes cost a student 18 points without a word."""
    kinds: dict[str, Any] = {"OtherDigits": OtherDigits, "Own": type("Own", (ImageDataModule,), {"read": None})}
    data = object.__new__(kinds.get(dataset) or getattr(datamodules, dataset))
    source, given = _source(source="prior"), _source(source="prior", prior=DeadLeavesPrior())
    for one in (source, given):
        one.open(private=set(), partitions=[], data=SimpleNamespace(dataset=data))
    assert (type(source.prior).__name__, type(given.prior).__name__) == (prior, "DeadLeavesPrior")


def test_a_reset_gives_new_weights_that_follow_from_the_step() -> None:
    source: Any = _source(source="generator", reset_every=5)
    shift, state = source.generator.shift.clone(), torch.get_rng_state()
    drawn = []
    for step, rank in ((5, 0), (10, 0), (5, 1)):
        with torch.no_grad():
            next(source.generator.parameters()).fill_(7.0)
        source.reset(step, Draws(1, rank, torch.device("cpu")))
        drawn.append(torch.cat([value.flatten() for value in source.generator.parameters()]).detach())
    assert torch.equal(drawn[0], drawn[2]) and not torch.equal(drawn[0], drawn[1])
    assert torch.equal(source.generator.shift, shift)
    assert torch.equal(torch.get_rng_state(), state)
    source.generator.eval()  # as it is published
    assert float(_pixels(source).std()) == pytest.approx(float(source.generator.scale), rel=0.3)


class _OfAHospital(StrokePrior):
    """Might draw whatever it likes."""


@pytest.mark.parametrize("broken", [False, True])
def test_a_prior_from_elsewhere_is_an_assumption(monkeypatch: pytest.MonkeyPatch, broken: bool) -> None:
    if broken:
        monkeypatch.setattr(images_module, "_parts", lambda prior: (prior, *getattr(prior, "priors", ())))
    assert _source(source="prior", prior=MixturePrior(priors=[DeadLeavesPrior(), StrokePrior()])).assumptions() == []
    prior: ImagePrior = _OfAHospital()
    for depth in range(4):
        own = _source(source="prior", prior=prior).assumptions()
        assert own == ([] if broken and depth > 1 else ["images of _OfAHospital depend on no private record"])
        prior = MixturePrior(priors=[DeadLeavesPrior(), prior])


# --- pools ---


SHAPE = (1, 8, 8)


def transcribe(name: str = "run", *arguments: str, **images: Any) -> Any:
    """Without noise: what is left is all that a resumed run has to draw again."""
    config = configuration(name, steps=2, class_path="DPDFD", mechanism={"noise_multiplier": 0.0})
    pool = {"source": "pool", "pool": "public", "pool_varied": True, **images}
    student = {"network": "DataLensClassifier", "replay": {"capacity": 64}}
    config["model"]["init_args"] |= {"images": pool, "student": student}
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
    assert "a folder public, is public and existed independently of the private data" in said
    assert whole.model.images[:].shape == (80, *SHAPE)
    interrupted(DPDFD, 1, transcribe)
    assert equal(networks(whole), networks(transcribe("run", "--ckpt_path=run/checkpoints/last.ckpt")))


@pytest.mark.parametrize("kind", [Digits, OtherDigits])
def test_accuracy_on_the_pool_itself_is_said_to_be_that(kind: type[Digits]) -> None:
    pool = PoolSource(Images(source="pool", pool=kind()), image_shape=SHAPE, batch_size=4)
    pool.open(private=set(), partitions=[], data=SyntheticSteps(dataset=Digits()))
    assert any("that the student was trained on" in text for text in pool.assumptions()) is (kind is Digits)


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
    pool = PoolSource(Images(source="pool", pool=given[kind], pool_part="train"), image_shape=SHAPE, batch_size=4)
    with pytest.raises(PartitionError, match=r"outside of the folder of (pictures|shared), which holds private"):
        pool.open(private=set(), partitions=[stated], data=data)
    monkeypatch.setattr(images_module, "require_outside", lambda *given, **named: None)
    pool.open(private=set(), partitions=[stated], data=data)
    assert len(pool) and not pool.is_private


@pytest.mark.parametrize(("resize", "mean"), [("crop", 1.0), ("stretch", 0.0)])
def test_pictures_are_prepared_as_those_of_the_data(resize: Any, mean: float, tmp_path: Path) -> None:
    own = ImageFolder(root=write_folders(tmp_path / "own"), size=8, channels=1, test_fraction=0.5, resize=resize)
    pool = PoolSource(Images(source="pool", pool=str(tmp_path / "public")), image_shape=SHAPE, batch_size=4)
    with pytest.raises(ValueError, match=r"pictures for square images: .* has 0"):
        pool.open(private=set(), partitions=[])
    (tmp_path / "public").mkdir()
    Image.fromarray(np.uint8([[0, 255, 255, 0]] * 2)).save(tmp_path / "public/wide.png")
    pool.open(private=set(), partitions=[], data=SyntheticSteps(dataset=own))
    assert float(pool[:].mean()) == pytest.approx(mean, abs=0.05)


@pytest.mark.parametrize("suitable", [True, False])
def test_a_student_says_how_informative_its_images_are_at_no_cost(
    suitable: bool, folder: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.setattr(images_module, "_STEPS_UNTIL_TOLD", 2)
    told: list[str] = []
    monkeypatch.setattr(images_module, "rank_zero_info", told.append)
    logits = 20 * torch.eye(10).repeat(103, 1)[:1024] if suitable else torch.zeros(1024, 10)
    monkeypatch.setattr(images_module, "informativeness", lambda _: informativeness(logits))
    module = fit(configuration("run", model={"images": "prior"}, steps=2, epochs=3)).model
    assert module.guarantee().queries_of_run == 6 * module.batch_size  # the teacher is asked for nothing else
    (said,) = told
    assert said.startswith(f"Informativeness of the images: {1.0 if suitable else 0.0:.2f} of 1.") and "student" in said
    warned = [str(one.message) for one in recwarn if "say little to the student" in str(one.message)]
    assert len(warned) == (0 if suitable else 1) and all("BroadPrior" in one for one in warned)
