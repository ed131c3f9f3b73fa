"""DP-SGD: the noise is there and of the stated scale, records are clipped, and students inherit the guarantee."""

from __future__ import annotations

import functools
import math
from typing import Any, cast

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import LearningRateMonitor
from opacus.accountants import PRVAccountant, RDPAccountant
from support.dp_teachers import SMALL, dp_sgd, train
from support.runs import checkpoint, distil, fit, fit_script, guarantee, result, working_in
from support.seeded import p_value

from datamodules import Digits, PoissonSampled
from datamodules.poisson_sampled import require_batches_as_drawn
from lightning_modules import DPDFD, DPSGDTeacher, TeacherConfig
from lightning_modules.images import Images
from lightning_modules.networks import SmallCNN
from lightning_modules.student import StudentConfig
from lightning_modules.teachers.clipped_network import ClippedNetwork
from lightning_modules.teachers.files import TeacherError
from lightning_modules.teachers.private_teacher import PrivateTeacher
from privacy import Budget, BudgetExceeded
from privacy.mechanisms import NoisyGradients

REPRODUCIBLE = {"class_path": "ReproducibleNoise", "init_args": {"seed": 1}}


def configuration(
    folder: str = "run", *, epochs: int = 1, steps: int = 1, batch: int = 128, same_coins: bool = False, **model: Any
) -> dict[str, Any]:
    coins = {"class_path": "ReproducibleNoise", "init_args": {"seed": 5}} if same_coins else None
    data = {"batch_size": batch, "steps_per_epoch": steps, "noise": coins}
    return dp_sgd(folder, epochs, data=data, **{"noise_multiplier": 1.0, **model})


def weights(config: dict[str, Any], *arguments: str) -> torch.Tensor:
    cli = fit(config, *arguments)
    assert cli.model is not None
    return torch.cat([parameter.detach().flatten() for parameter in cli.model.network.parameters()])


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


@pytest.mark.parametrize("clipping", ["flat", "ghost"])
def test_a_record_moves_a_step_by_no_more_than_its_clipping_norm(start: torch.Tensor, clipping: str) -> None:
    def length(norm: float) -> float:
        bounded = {"mode": clipping, "max_grad_norm": norm}
        config = configuration(clipping=bounded, noise_multiplier=1e-6, batch=1275)
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


class OwnStep(DPSGDTeacher):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step(Views.on_after_batch_transfer(cast(Views, self), batch, 0), batch_idx)


class OwnSetup(Views):
    def setup(self, stage: str) -> None:
        """Forgets that of the base class."""


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
        (OwnStep, PoissonSampled, Callback),
        (OwnSetup, PoissonSampled, Callback),
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
        with pytest.raises(ValueError, match=r"must not be overridden for DP-SGD, and (\w*Views|Own\w+|MixUp) does"):
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


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("begun", ["new", "fitted", "loaded"])
def test_weights_of_another_training_are_no_begin(monkeypatch: pytest.MonkeyPatch, begun: str, broken: bool) -> None:
    def teacher() -> DPSGDTeacher:
        return DPSGDTeacher(num_classes=10, image_shape=(1, 8, 8), network=SMALL, noise_multiplier=1.0)

    def further(module: DPSGDTeacher, *, save: str | None = None, **settings: Any) -> float:
        data = PoissonSampled(dataset=Digits(), batch_size=128, steps_per_epoch=2)
        train(module, data, save=save, **settings)
        return module.guarantee().epsilon

    if broken:
        monkeypatch.setattr(ClippedNetwork, "_digest", lambda *_: b"")
    alone, twice = further(other := teacher(), save="other.ckpt"), further(other)
    warm = teacher()
    if begun != "new":
        further(warm, save="own.ckpt")
    if begun == "loaded":
        warm = DPSGDTeacher.load_from_checkpoint("own.ckpt", network=SMALL)
    before = {name: value.clone() for name, value in warm.state_dict().items()}
    warm.load_state_dict(torch.load("other.ckpt", weights_only=True)["state_dict"])
    if broken:  # the steps behind these weights are not counted
        assert further(warm) == (alone if begun == "new" else twice)
        return
    with pytest.raises(ValueError, match=r"weights are not those that it was built with.*load_from_checkpoint"):
        further(warm)
    warm.load_state_dict(before)
    further(warm)  # its own are not refused, nor those of a checkpoint, in one fit after another
    assert further(warm, epochs=2, resume="other.ckpt") == twice < further(warm)


def test_normalised_gradients_cost_what_clipped_ones_do_and_the_guarantee_says_which(start: torch.Tensor) -> None:
    def length(bounding: str, norm: float) -> float:
        bounded = {"bounding": bounding, "max_grad_norm": norm}
        config = configuration(bounding, clipping=bounded, noise_multiplier=1e-6, batch=1275)
        return float((weights(config) - start).norm())

    # All 1275 records take part: the mean of gradients of norm C at most, and not that of the gradients themselves.
    assert length("normalize", 1e3) <= 1e3 * (1 + 1e-3)
    assert length("normalize", 1e3) > 20 * length("clip", 1e3)
    states = [guarantee(name) for name in ("normalize", "clip")]
    assert states[0]["epsilon"] == states[1]["epsilon"]
    assert "gradients normalised to 1000" in states[0]["mechanism"]
    assert "gradients clipped to 1000" in states[1]["mechanism"]


def test_physical_batches_and_ghost_clipping_change_nothing(start: torch.Tensor) -> None:
    settings: dict[str, Any] = {"noise": REPRODUCIBLE, "steps": 3, "same_coins": True}
    whole = weights(configuration("whole", **settings))
    assert torch.allclose(
        weights(configuration("pieces", clipping={"physical_batch_size": 17}, **settings)), whole, atol=1e-5
    )
    assert torch.allclose(weights(configuration("ghost", clipping={"mode": "ghost"}, **settings)), whole, atol=1e-4)
    assert not torch.allclose(whole, start, atol=1e-3)


def test_an_empty_batch_is_a_step_of_noise(start: torch.Tensor) -> None:
    moved = weights(configuration(steps=5, batch=1)) - start
    assert torch.isfinite(moved).all()
    assert float(moved.std()) == pytest.approx(0.1 * math.sqrt(5), rel=0.2)


def test_epsilon_is_that_of_opacus() -> None:
    cli = fit(configuration(epochs=2, steps=20, noise_multiplier=1.5))
    teacher = cli.model
    assert isinstance(teacher, DPSGDTeacher)
    assert teacher.accountant.history == [(1.5, pytest.approx(128 / 1275), 40)]
    epsilons = {}
    for name, accountant in (("prv", PRVAccountant()), ("rdp", RDPAccountant())):
        accountant.history = list(teacher.accountant.history)
        epsilons[name] = accountant.get_epsilon(delta=1e-5)
    assert teacher.epsilon() == pytest.approx(epsilons["prv"], rel=0.02)
    assert teacher.epsilon() <= epsilons["rdp"]
    assert guarantee()["epsilon"] == pytest.approx(teacher.epsilon())
    assert guarantee()["relation"] == "add-or-remove of one training record"


def test_noise_is_calibrated_to_the_plan_and_the_plan_is_what_is_guaranteed() -> None:
    cli = fit(configuration(epochs=3, steps=2, noise_multiplier=None, target_epsilon=2.0))
    teacher = cli.model
    assert isinstance(teacher, DPSGDTeacher)
    assert 1.99 < teacher.epsilon() <= 2.0
    ((noise, rate, _),) = teacher.accountant.history
    teacher.accountant.history = [(noise, rate, 1)]
    assert teacher.guarantee().epsilon > 1.99
    assert teacher.epsilon() < 1.5


def test_a_student_inherits_the_smaller_epsilon() -> None:
    fit(configuration("teacher", epochs=2, steps=5, noise_multiplier=None, target_epsilon=3.0))
    teacher = "teacher/checkpoints/last.ckpt"
    # Much noise: the answers alone are cheaper than the teacher.
    distil("noisy", model={"teacher": teacher}, mechanism={"noise_multiplier": 1e4, "release": "per_sample_full"})
    assert guarantee("noisy")["epsilon"] < 0.1
    distil("student", model={"teacher": teacher}, mechanism={"target_epsilon": 3.0, "noise_multiplier": 0.0})
    stated = guarantee("student")
    assert 2.98 < stated["epsilon"] <= 3.0 and "DP-SGD" in stated["source"]
    assert result("student")["epsilon_record"] == stated["epsilon"]
    # Below the teacher's own epsilon nothing helps but noise.
    with pytest.raises(BudgetExceeded):
        distil("refused", model={"teacher": teacher}, mechanism={"target_epsilon": 2.0})


@pytest.mark.parametrize("broken", [False, True])
def test_a_student_of_cheaper_answers_has_no_weight_of_its_teacher(
    monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    teacher = DPSGDTeacher(num_classes=10, image_shape=(1, 8, 8), network=SMALL, noise_multiplier=1.0)
    train(teacher, PoissonSampled(dataset=Digits(), batch_size=128, steps_per_epoch=2), save="teacher.ckpt")

    def epsilon(noise: float) -> float:
        module = DPDFD(
            num_classes=10, image_shape=(1, 8, 8), batch_size=8, student=StudentConfig(network=SMALL),
            teacher=TeacherConfig(path="teacher.ckpt", network=SMALL), images=Images(source="prior"),
            mechanism=NoisyGradients(noise_multiplier=noise, release="per_sample_full"), budget=Budget(scope="run"),
        )  # fmt: skip
        module.student.load_state_dict(teacher.network.state_dict())
        fit_script(module, steps=1)
        return module.guarantee().epsilon

    if broken:
        monkeypatch.setattr(PrivateTeacher, "require_unlike", lambda *_: [])
        assert epsilon(1e4) < 0.1 < teacher.guarantee().epsilon
        return
    with pytest.raises(TeacherError, match=r"begins as a weight of teacher .* no noise of this run covers"):
        epsilon(1e4)
    assert epsilon(0.0) == teacher.guarantee().epsilon  # which covers its weights as well


@pytest.mark.parametrize("settings", [{"noise": REPRODUCIBLE}, {"same_coins": True}])
def test_reproducible_noise_or_coins_void(settings: dict[str, Any]) -> None:
    fit(configuration(**settings))
    assert guarantee()["epsilon"] == "inf" and any("VOID" in text for text in guarantee()["assumptions"])


@pytest.mark.slow
def test_what_was_void_stays_void_on_resume() -> None:
    fit(configuration("part", noise=REPRODUCIBLE))
    secure = configuration("part", epochs=2, noise={"class_path": "SystemNoise"})
    cli = fit(secure, "--ckpt_path=part/checkpoints/last.ckpt")
    assert isinstance(cli.model, DPSGDTeacher)
    assert cli.model.epsilon() == math.inf
    assert fit(configuration("other", epochs=2)).model.epsilon() < math.inf


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match=r"model\.network: BatchNorm mixes the records.*GroupNorm.*LinearOnFeatures"):
        DPSGDTeacher(num_classes=10, image_shape=(1, 8, 8), noise_multiplier=1.0, network=SmallCNN)
    with pytest.raises(ValueError, match="one of target_epsilon and noise_multiplier"):
        DPSGDTeacher(num_classes=10, image_shape=(1, 8, 8), target_epsilon=1.0, noise_multiplier=1.0)
    bounded: tuple[tuple[dict[str, Any], str], ...] = (
        ({"bounding": "normalize", "mode": "ghost"}, r"bounding=normalize needs clipping\.mode=flat"),
        ({"granularity": 0.1, "mode": "linear"}, r"granularity=0\.1 needs clipping\.mode=flat"),
        ({"stability": 0.0}, "stability must be above 0"),
        ({"mode": "both"}, "mode must be auto, flat, ghost or linear, got 'both'"),
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
