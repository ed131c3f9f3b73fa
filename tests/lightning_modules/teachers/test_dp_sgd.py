"""DP-SGD: the noise is there and of the stated scale, records are clipped, and students inherit the guarantee."""

from __future__ import annotations

import copy
import functools
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import LearningRateMonitor
from support.dp_teachers import SMALL, dp_sgd, train
from support.runs import checkpoint, fit, guarantee, trainer_settings, working_in
from support.seeded import p_value
from torch.utils.data import DataLoader

from datamodules import Digits, PoissonSampled
from datamodules.poisson_sampled import PoissonBatches, require_batches_as_drawn
from lightning_modules import DPSGDTeacher
from lightning_modules.teachers import dp_sgd as dp_sgd_module
from lightning_modules.teachers.dp_sgd_steps import KnownWeights
from privacy import SampledGaussian, Unbounded, compose
from privacy.mechanisms.base import ReproducibleNoise

REPRODUCIBLE = {"class_path": "ReproducibleNoise", "init_args": {"seed": 1}}


def configuration(
    folder: str = "run", *, epochs: int = 1, steps: int = 1, batch: int = 128, same_coins: bool = False, **model: Any
) -> dict[str, Any]:
    coins = {"class_path": "ReproducibleNoise", "init_args": {"seed": 5}} if same_coins else None
    data = {"batch_size": batch, "steps_per_epoch": steps, "noise": coins}
    return dp_sgd(folder, epochs, data=data, **{"noise_multiplier": 1.0, **model})


def weights(config: dict[str, Any], *arguments: str) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in fit(config, *arguments).model.network.parameters()])


def small() -> DPSGDTeacher:
    return DPSGDTeacher(num_classes=10, image_shape=(1, 8, 8), network=SMALL, noise_multiplier=1.0)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> torch.Tensor:
    """The weights before the first step: those of a run whose step has no length."""
    folder = tmp_path_factory.mktemp("still")
    with working_in(folder):
        return weights(configuration(optimizer={"class_path": "torch.optim.SGD", "init_args": {"lr": 1e-30}}))


def test_a_step_has_noise_of_the_stated_scale(start: torch.Tensor) -> None:
    moved = (weights(configuration(clipping={"max_grad_norm": 0.2}, noise_multiplier=500.0)) - start).numpy()
    right = 500.0 * 0.2 / 128  # so much noise that gradients of norm 0.2 do not show
    assert p_value(moved, right) > 1e-8  # this noise has no seed
    assert max(p_value(moved, right * 2 / 3), p_value(moved, right * 3 / 2)) < 1e-20


@pytest.mark.parametrize("gamma", [0.0, 0.5])
def test_the_noisy_steps_follow_a_schedule_by_epochs_after_resuming_as_well(start: torch.Tensor, gamma: float) -> None:
    schedule = {"class_path": "torch.optim.lr_scheduler.StepLR", "init_args": {"step_size": 1, "gamma": gamma}}
    first = weights(configuration(lr_scheduler=schedule))
    resumed = weights(configuration(epochs=3, lr_scheduler=schedule), "--ckpt_path=run/checkpoints/last.ckpt")
    assert not torch.equal(first, start)
    assert torch.equal(resumed, first) is (gamma == 0)  # whose steps have no length after the first epoch
    assert checkpoint()["optimizer_states"][0]["param_groups"][0]["lr"] == gamma**3


def test_a_record_moves_a_step_by_no_more_than_its_clipping_norm(start: torch.Tensor) -> None:
    def length(norm: float) -> float:
        config = configuration(clipping={"max_grad_norm": norm}, noise_multiplier=1e-6, batch=1275)
        return float((weights(config) - start).norm())

    # All 1275 records take part, so the mean of clipped gradients is at most the clipping norm.
    assert length(0.01) <= 0.01 * (1 + 1e-3)
    # Negative control: with a norm that clips nothing, a step is far longer.
    assert length(1e6) > 0.1


class Views(DPSGDTeacher):
    """Repeats records where Lightning has a place for augmentation: here the first, in place of the others."""

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return tuple(part[:1].repeat_interleave(4 * len(part), 0) for part in batch) if self.training else batch


class OtherViews(PoissonSampled):
    on_after_batch_transfer = Views.on_after_batch_transfer
    training = True


class MixUp(Callback):
    """One record in the place of all."""

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        for part in batch:
            part[:] = part[0].clone()


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize(
    ("module", "data", "callback"),
    [
        (Views, PoissonSampled, Callback),
        (DPSGDTeacher, OtherViews, Callback),
        (DPSGDTeacher, PoissonSampled, MixUp),
    ],
)
def test_code_that_may_change_batches_is_refused(
    monkeypatch: pytest.MonkeyPatch, module: Any, data: Any, callback: Any, broken: bool
) -> None:
    teacher = module(
        num_classes=10, image_shape=(1, 8, 8), network=SMALL, noise_multiplier=1e-6, clipping={"max_grad_norm": 0.01},
        optimizer=functools.partial(torch.optim.SGD, lr=1.0),
    )  # fmt: skip
    sampled = data(dataset=Digits(), batch_size=1275, steps_per_epoch=1)
    require_batches_as_drawn(Trainer(callbacks=[LearningRateMonitor()]))  # Lightning's own only look
    if not broken:
        with pytest.raises(ValueError, match=r"must not be overridden for DP-SGD, and (\w*Views|MixUp) does"):
            train(teacher, sampled, callbacks=[callback()])
        return
    monkeypatch.setattr("datamodules.poisson_sampled.is_overridden", lambda *_: False)
    monkeypatch.setattr("datamodules.poisson_sampled._CALLBACKS_HOOK", "on_train_start")
    before = [parameter.detach().clone() for parameter in teacher.network.parameters()]
    train(teacher, sampled, callbacks=[callback()])
    after = [parameter.detach() for parameter in teacher.network.parameters()]
    moved = torch.stack([(now - then).norm() for now, then in zip(after, before, strict=True)]).norm()
    # The mean of clipped gradients is at most 0.01, and that only where all records say the same.
    assert float(moved) > (0.0099 if callback is MixUp else 0.02)


class Repeated(PoissonSampled):
    """One record fills each batch."""

    def train_dataloader(self) -> Any:
        loader: Any = DataLoader(self.dataset.loaded_records, batch_size=64, sampler=[0] * 128, collate_fn=tuple)
        loader.batches = super().train_dataloader().batches
        return loader


class FourTimes(PoissonBatches):
    def __iter__(self) -> Iterator[list[int]]:
        return (4 * drawn for drawn in super().__iter__())


class OwnBatches(PoissonSampled):
    """The loader with other batches: each record four times."""

    def train_dataloader(self) -> Any:
        loader = super().train_dataloader()
        loader.batches.__class__ = FourTimes
        return loader


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("own", [Repeated, OwnBatches])
def test_batches_of_another_sampler_are_refused(monkeypatch: pytest.MonkeyPatch, own: Any, broken: bool) -> None:
    teacher, data = small(), own(dataset=Digits(), batch_size=64)
    if not broken:
        with pytest.raises(ValueError, match="train_dataloader must not be overridden for DP-SGD"):
            train(teacher, data)
    monkeypatch.setattr(dp_sgd_module, "require_batches_as_drawn", lambda *_: None)
    if not broken:  # nor within a fit, by a callback
        with pytest.raises(ValueError, match="must give a PoissonLoader at the sample_rate"):
            train(teacher, data)
        return
    monkeypatch.setattr(dp_sgd_module, "require_poisson", lambda *_: None)
    train(teacher, data)
    assert teacher.guarantee().epsilon < 10


class Changes(Callback):
    """Lets a setting differ from what the first epoch's steps were made with, and notes what is really drawn."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.drawn: Counter[Any] = Counter()
        self.seeded = ReproducibleNoise(seed=0)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.current_epoch != 1:
            return
        if self.what == "batch_size":
            trainer.datamodule.batch_size = 4
        elif self.what == "noise_multiplier":
            pl_module.noise_multiplier = 0.7
        elif self.what == "coins":
            trainer.train_dataloader.batches.noise = self.seeded
        else:
            pl_module.noise = self.seeded

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        batches = trainer.train_dataloader.batches
        known = self.seeded in (batches.noise, pl_module.noise)
        sampled = SampledGaussian(pl_module.noise_multiplier, batches.sample_rate)
        self.drawn[Unbounded("seeded") if known else sampled] += 1


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("what", ["batch_size", "noise_multiplier", "coins", "noise"])
def test_a_step_is_charged_as_it_is_drawn(monkeypatch: pytest.MonkeyPatch, what: str, broken: bool) -> None:
    teacher, data, changes = small(), PoissonSampled(dataset=Digits(), batch_size=64), Changes(what)
    settings = {**trainer_settings(".", -1), "max_steps": 30, "logger": False, "callbacks": [changes]}
    if broken:  # the first step's charge for all
        monkeypatch.setattr(DPSGDTeacher, "_require_as_charged", lambda self: None)
        monkeypatch.setattr(DPSGDTeacher, "_step", SampledGaussian(1.0, 64 / 1275))
    refused = what in ("batch_size", "coins") and not broken
    with pytest.raises(ValueError, match=r"PoissonLoader at the sample_rate") if refused else nullcontext():
        Trainer(**settings).fit(teacher, data)
    if what != "batch_size" and not refused:  # which changes the loader's next batches, not those of this fit
        really = compose(changes.drawn, teacher.delta).epsilon
        assert (teacher.guarantee().epsilon == really) is not broken


class OwnOptimizer(DPSGDTeacher):
    def configure_optimizers(self) -> Any:
        """Forgets that of the base class, with what it checks."""
        return torch.optim.SGD(self.network.parameters(), lr=0.1)


@pytest.mark.parametrize("broken", [False, True])
def test_an_optimizer_of_ones_own_does_not_do_without_the_checks(monkeypatch: pytest.MonkeyPatch, broken: bool) -> None:
    monkeypatch.setattr(OwnOptimizer, "_prepared", broken)
    teacher = OwnOptimizer(num_classes=10, image_shape=(1, 8, 8), network=SMALL, noise_multiplier=1.0, delta=0.9)
    data = PoissonSampled(dataset=Digits(), batch_size=64, steps_per_epoch=2)
    said = "configure_optimizers of OwnOptimizer must call that of its base class"
    with nullcontext() if broken else pytest.raises(ValueError, match=said):
        train(teacher, data)
        assert teacher.epsilon() < 0.1 and math.isinf(teacher.guarantee().epsilon)  # of a delta that bounds nothing


class DetectsAnomalies(Callback):
    """After `on_train_start`, which a derived class may override without calling this class's."""

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        torch.autograd.set_detect_anomaly(True)


def test_anomaly_detection_that_begins_later_is_refused_too() -> None:
    data = PoissonSampled(dataset=Digits(), batch_size=64, steps_per_epoch=2)
    with pytest.raises(ValueError, match=r"trainer\.detect_anomaly must be false"):
        train(small(), data, callbacks=[DetectsAnomalies()])


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("begun", ["new", "loaded"])
def test_weights_of_another_training_are_no_begin(monkeypatch: pytest.MonkeyPatch, begun: str, broken: bool) -> None:
    def further(module: DPSGDTeacher, *, save: str | None = None, **settings: Any) -> float:
        data = PoissonSampled(dataset=Digits(), batch_size=128, steps_per_epoch=2)
        train(module, data, save=save, **settings)
        return module.guarantee().epsilon

    if broken:
        monkeypatch.setattr(KnownWeights, "_of", lambda *_: b"")
    alone, twice = further(other := small(), save="other.ckpt"), further(other)
    warm = small()
    if begun != "new":
        further(warm, save="own.ckpt")
    if begun == "loaded":
        warm = DPSGDTeacher.load_from_checkpoint("own.ckpt", network=SMALL)
    before = {name: value.clone() for name, value in warm.state_dict().items()}
    warm.load_state_dict(torch.load("other.ckpt", weights_only=True)["state_dict"])
    if broken:  # the steps behind these weights are not counted
        assert further(warm) == (alone if begun == "new" else twice)
        return
    for _ in range(2):  # nor are they its own by having been refused
        with pytest.raises(ValueError, match=r"weights are not those that it was built with.*load_from_checkpoint"):
            further(warm)
    warm.load_state_dict(before)
    further(warm)  # its own are not refused, nor those of a checkpoint, in one fit after another
    assert further(warm, epochs=2, resume="other.ckpt") == twice < further(warm)


@pytest.mark.parametrize("broken", [False, True])
def test_another_network_is_no_begin(monkeypatch: pytest.MonkeyPatch, broken: bool) -> None:
    if broken:  # the network that was built is trained, and another one published under its epsilon
        monkeypatch.setattr(KnownWeights, "require", lambda *_: None)
    module = small()
    module.network = copy.deepcopy(module.network)
    data = PoissonSampled(dataset=Digits(), batch_size=128, steps_per_epoch=1)
    with nullcontext() if broken else pytest.raises(ValueError, match="weights are not those that it was built with"):
        train(module, data)


def test_an_empty_batch_is_a_step_of_noise(start: torch.Tensor) -> None:
    moved = weights(configuration(steps=5, batch=1)) - start
    assert torch.isfinite(moved).all()
    assert float(moved.std()) == pytest.approx(0.1 * math.sqrt(5), rel=0.2)


@pytest.mark.parametrize("settings", [{"noise": REPRODUCIBLE}, {"same_coins": True}])
def test_reproducible_noise_or_coins_void(settings: dict[str, Any]) -> None:
    fit(configuration(**settings))
    assert guarantee()["epsilon"] == "inf" and any("VOID" in text for text in guarantee()["assumptions"])


@pytest.mark.slow
def test_what_was_void_stays_void_on_resume() -> None:
    fit(configuration("part", noise=REPRODUCIBLE))
    secure = configuration("part", epochs=2, noise={"class_path": "SystemNoise"})
    cli = fit(secure, "--ckpt_path=part/checkpoints/last.ckpt")
    assert cli.model.epsilon() == math.inf
    assert fit(configuration("other", epochs=2)).model.epsilon() < math.inf


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="one of target_epsilon and noise_multiplier"):
        DPSGDTeacher(num_classes=10, image_shape=(1, 8, 8), target_epsilon=1.0, noise_multiplier=1.0)
    bounded: tuple[tuple[dict[str, Any], str], ...] = (
        ({"stability": 0.0}, "stability must be above 0"),
        ({"bounding": "both"}, "bounding must be clip or normalize, got 'both'"),
    )
    for clipping, message in bounded:
        with pytest.raises(ValueError, match=message):
            DPSGDTeacher(num_classes=10, image_shape=(1, 8, 8), noise_multiplier=1.0, clipping=clipping)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="delta must lie below 1/N"):
        fit(configuration(delta=1e-2))
    plain = configuration()
    plain["data"] = {"class_path": "Digits"}
    with pytest.raises(ValueError, match="PoissonSampled"):
        fit(plain)
