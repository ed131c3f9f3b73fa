"""Pretraining on procedural images through the command line: it learns, resumes to the bit, and says what it is of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Trainer
from support.pretrained import pretrain, pretraining
from support.runs import QUIET, checkpoint, equal, fit
from torch import Tensor, nn

from lightning_modules import ProceduralImages, ProceduralPretraining
from lightning_modules.networks import ResNetEncoder
from lightning_modules.networks.pretraining_file import PROVENANCE, SECTION, build_encoder
from lightning_modules.priors import DeadLeavesPrior, FractalPrior, ImagePrior, MixturePrior
from lightning_modules.procedural_images import draw_pool
from privacy.identity import CheckpointError
from privacy.processes import ProcessesError
from sweeps.runner.pipeline_summary import summary


def weights(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def test_a_checkpoint_declares_what_it_was_made_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    mixture = {
        "class_path": "MixturePrior",
        "init_args": {"priors": [{"class_path": "DeadLeavesPrior"}, {"class_path": "FractalPrior"}]},
    }
    made = pretrain("run", epochs=2, prior=mixture, seed=5)
    content = checkpoint()
    said = content[SECTION]
    assert said["provenance"] == PROVENANCE == "procedural images only"
    assert said["seed"] == 5 and said["num_images"] == 64 and said["steps"] == 8
    assert [part["class"].rsplit(".", 1)[1] for part in said["prior"]["priors"]] == ["DeadLeavesPrior", "FractalPrior"]
    # The encoder is built again by its description, and its weights fit.
    encoder = build_encoder(said["encoder"], image_shape=(3, 8, 8))
    encoder.load_state_dict(
        {name.removeprefix("encoder."): v for name, v in content["state_dict"].items() if name.startswith("encoder.")}
    )
    images = torch.rand(3, 3, 8, 8)
    assert torch.allclose(encoder.eval()(images), made.encoder.eval()(images), atol=1e-5)
    # There is nothing private to name, to charge or to bound.
    assert not {"private_data", "training", "releases", "distillation"} & content.keys()
    record = json.loads(Path("run/result.json").read_text())
    assert record["epsilon_record"] == 0 and record["uncharged_accesses"] == [] and record["provenance"] == PROVENANCE
    assert 0 <= record["accuracy"] <= 1 and record["accuracy_of"] == "held-out pairs of views"
    # How well pairs are told is no accuracy of a classifier, and stands in no column of those.
    told = summary({"encoder": Path("run")}, compare=None, folder=Path())
    assert "encoder of" in told and f"{100 * record['accuracy']:.2f}" not in told
    assert not Path("run/public").exists() and not (tmp_path / "ledgers").exists()


class OwnPrior(DeadLeavesPrior):
    """A prior of anyone's, which might read photographs."""


def test_images_of_anyones_prior_are_not_vouched_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = ProceduralPretraining(image_shape=(3, 8, 8), encoder=ResNetEncoder)
    own = MixturePrior(priors=[FractalPrior(), OwnPrior()])
    run(module, images(prior=own))
    assert module.provenance is None
    assert torch.load("saved.ckpt", weights_only=True)[SECTION]["provenance"] is None
    # Whoever goes on from there with images of this package's does not take it back.
    again = ProceduralPretraining(image_shape=(3, 8, 8), encoder=ResNetEncoder)
    run(again, images(prior=MixturePrior(priors=[FractalPrior(), DeadLeavesPrior()])), resume="saved.ckpt")
    assert again.provenance is None


@pytest.mark.parametrize("resumed", [True, False])
@pytest.mark.parametrize("before", [True, False])
def test_a_declaration_needs_every_fit_to_be_of_this_packages_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resumed: bool, before: bool
) -> None:
    """Resumed from a file that declares it, or the same object once more: anyone's images in either fit are enough."""
    monkeypatch.chdir(tmp_path)

    def provenance(*priors: ImagePrior) -> list[str | None]:
        made, saved = [module() for _ in priors], None
        for number, prior in enumerate(priors):
            run(made[number if resumed else 0], images(prior=prior), resume=saved, epochs=number + 1)
            saved = "saved.ckpt" if resumed else None
        last = made[-1 if resumed else 0]
        return [last.provenance, torch.load("saved.ckpt", weights_only=True)[SECTION]["provenance"]]

    def module() -> ProceduralPretraining:
        return ProceduralPretraining(
            image_shape=(3, 8, 8), encoder=ResNetEncoder, lr_scheduler=torch.optim.lr_scheduler.ConstantLR
        )

    priors = [OwnPrior(), DeadLeavesPrior()] if before else [DeadLeavesPrior(), OwnPrior()]
    assert provenance(*priors) == [None, None]
    assert provenance(DeadLeavesPrior(), DeadLeavesPrior()) == [PROVENANCE, PROVENANCE]


class OwnEncoder(ResNetEncoder):
    """A network of anyone's, which might come with weights."""


def test_weights_of_anyones_network_are_not_vouched_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = ProceduralPretraining(image_shape=(3, 8, 8), encoder=OwnEncoder)
    run(module, images())
    assert module.provenance is None


def images(**changed: Any) -> ProceduralImages:
    return ProceduralImages(**{"image_shape": (3, 8, 8), "num_images": 32, "held_out": 8, "batch_size": 16, **changed})


def run(
    module: ProceduralPretraining, data: Any, *, resume: str | None = None, epochs: int = 1, **trainer: Any
) -> None:
    made = Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, num_sanity_val_steps=0, default_root_dir="script", **trainer,
    )  # fmt: skip
    made.fit(module, datamodule=data, ckpt_path=resume)
    made.save_checkpoint("saved.ckpt")


class OtherImages(ProceduralImages):
    """Might give anything."""


def test_other_data_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a trainer that it is not made for: before any image is drawn."""
    module = ProceduralPretraining(image_shape=(3, 8, 8))
    monkeypatch.setattr("lightning_modules.procedural_images.draw_pool", None)
    with pytest.raises(ValueError, match="ProceduralImages itself, got OtherImages"):
        run(module, OtherImages(image_shape=(3, 8, 8)))
    with pytest.raises(ValueError, match=r"trainer\.precision must be one of 32, .*got 64-true"):
        run(module, images(), precision="64-true")


def test_several_processes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ProceduralPretraining(image_shape=(3, 8, 8))
    monkeypatch.setattr(Trainer, "world_size", 2)
    with pytest.raises(ProcessesError, match=r"got 2 processes: set --trainer\.devices 1"):
        run(module, images())


def test_it_learns_to_tell_pairs() -> None:
    torch.manual_seed(0)
    data = images(num_images=256, held_out=64, batch_size=64, image_shape=(3, 16, 16))
    module = ProceduralPretraining(image_shape=(3, 16, 16), encoder=lambda **made: ResNetEncoder(width=8, **made))
    before = module.figures(data.test_dataloader())
    trainer = Trainer(
        max_epochs=12, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, datamodule=data)
    after = module.figures(data.test_dataloader())
    assert after["loss"] < before["loss"] - 0.5 and after["accuracy"] > before["accuracy"], (before, after)
    # Before, all embeddings were about the same one.
    assert after["uniformity"] < -1.5 < -0.5 < before["uniformity"]


@pytest.mark.parametrize("stop", ["end", "middle"])
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: str) -> None:
    monkeypatch.chdir(tmp_path)
    whole = weights(pretrain("whole", epochs=3))
    step, steps = ProceduralPretraining.training_step, []

    def interrupted(self: ProceduralPretraining, batch: Tensor, batch_idx: int) -> Tensor:
        steps.append(batch)
        if len(steps) == (5 if stop == "end" else 7):
            raise RuntimeError("cut short")
        return step(self, batch, batch_idx)

    with monkeypatch.context() as patch:
        patch.setattr(ProceduralPretraining, "training_step", interrupted)
        with pytest.raises(RuntimeError, match="cut short"):
            pretrain("cut", epochs=3)
    resumed = pretrain("cut", "--ckpt_path", "cut/checkpoints/last.ckpt", epochs=3)
    assert equal(whole, weights(resumed))
    # The control: other images give other weights.
    assert not equal(whole, weights(pretrain("other", epochs=3, seed=1)))


def test_another_schedule_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pretrain("run")
    with pytest.raises(CheckpointError, match="one cycle over 4 steps"):
        pretrain("run", "--ckpt_path", "run/checkpoints/last.ckpt", epochs=2)


def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = ProceduralPretraining(image_shape=(3, 8, 8))
    run(module, images())
    content = torch.load("saved.ckpt", weights_only=True)
    del content[SECTION]
    torch.save(content, "other.ckpt")
    with pytest.raises(CheckpointError, match="of no ProceduralPretraining"):
        run(ProceduralPretraining(image_shape=(3, 8, 8)), images(), resume="other.ckpt")


@pytest.mark.slow
def test_a_compiled_encoder_is_the_same_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = pretraining("compiled")
    config["trainer"]["callbacks"] = [{"class_path": "Compile", "init_args": {"backend": "aot_eager"}}]
    plain, compiled = weights(pretrain("plain")), weights(fit(config, *QUIET).model)
    assert plain.keys() == compiled.keys()
    for name, value in plain.items():
        torch.testing.assert_close(compiled[name], value, atol=1e-3, rtol=1e-3)


def test_half_precision_and_other_channels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = ProceduralPretraining(image_shape=(1, 12, 10))
    run(module, images(image_shape=(1, 12, 10)), precision="bf16-mixed")
    assert all(value.dtype in (torch.float32, torch.int64) for value in module.state_dict().values())
    assert next(module.encoder.parameters()).is_contiguous(memory_format=torch.channels_last)
    assert all(bool(value.isfinite().all()) for value in module.state_dict().values())


def test_a_pool_is_the_same_on_any_number_of_cores() -> None:
    def pool(count: int, workers: int, seed: int = 0) -> Tensor:
        prior: ImagePrior = DeadLeavesPrior(leaves=3)
        return draw_pool(prior, count, image_shape=(3, 4, 4), seed=seed, name="pool", workers=workers)

    one = pool(600, 1)
    assert one.dtype == torch.uint8 and torch.equal(one, pool(600, 3)) and torch.equal(one[:310], pool(310, 2))
    assert not torch.equal(one, pool(600, 1, seed=1))
    assert len(one.flatten(1).unique(dim=0)) == 600
    drawn = DeadLeavesPrior(leaves=3).sample(
        250, image_shape=(3, 4, 4), generator=torch.Generator().manual_seed(0), device="cpu"
    )
    assert abs(float(one.float().mean()) / 127.5 - 1 - float(drawn.mean())) < 0.05


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"temperature": 0.0}, "temperature must be above 0"),
        ({"embedding": 0}, "embedding must be 1 or more"),
        ({"encoder": lambda **_: nn.Flatten()}, "must give maps of features"),
        ({"encoder": lambda **_: nn.Conv2d(1, 4, 3)}, "cannot take images of shape"),
    ],
)
def test_settings_without_a_meaning_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ProceduralPretraining(image_shape=(3, 8, 8), **given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"batch_size": 64}, "batch_size must not exceed num_images"),
        ({"image_shape": (3, 8)}, "image_shape must be three"),
        ({"held_out": 1}, "held_out must be an integer of at least 2"),
    ],
)
def test_data_without_a_meaning_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        images(**given)
