"""Every documented setting of every class is set in a tiny fit, which logs just what its callbacks may monitor."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Trainer
from lightning.pytorch.callbacks import EarlyStopping, StochasticWeightAveraging
from lightning.pytorch.cli import ReduceLROnPlateau
from support.federations import small_network
from support.golden_guarantees import require_golden
from support.offered import offered
from support.runs import SMALL, trainer_settings
from torch import nn

import lightning_modules
from datamodules import Digits, PoissonSampled, Shards, SyntheticSteps
from lightning_modules.federated import LocalClients
from lightning_modules.losses.targets import LinearCandidates
from lightning_modules.networks import ConvVAE, DAFLGenerator, SmallCNN
from lightning_modules.priors import StrokePrior
from lightning_modules.teachers.private_teacher import PrivateEnsemble, PrivateTeacher
from lightning_modules.training.hyperparameters import _taken
from lightning_modules.training.manual_optimization import OptimizedGroup
from privacy import Budget, mechanisms
from privacy.ledger import Ledger
from privacy.mechanisms.base import SystemNoise

Given = dict[str, Any]

SGD, CYCLE = partial(torch.optim.SGD, lr=0.01), partial(torch.optim.lr_scheduler.OneCycleLR, max_lr=0.01)
UNVARIED: Given = {"class_prior": [0.1] * 10, "augment": False}
#: Schedules end with a fit of 2 epochs, or of 6 steps: a step more of them would fail.
TRAINED: Given = {"network": SMALL, "optimizer": SGD, "lr_scheduler": partial(CYCLE, total_steps=2)}
LEARNT: Given = {**TRAINED, "lr_scheduler": partial(CYCLE, total_steps=6)}
STUDENT: Given = {**LEARNT, "balance": 0.5, "replay": {"capacity": 16, "steps": 2, "stride": 2.0}}
CODES: Given = {"width": 4, "latent_dim": 8}
DAFL: Given = {"generator": partial(DAFLGenerator, **CODES)}
MADE: Given = {**DAFL, "source": "both", "prior": StrokePrior(), "optimizer": SGD}
BOTH: Given = {"student": STUDENT, "images": {**MADE, "lr_scheduler": partial(CYCLE, total_steps=6), "reset_every": 4}}
POOL: Given = {"images": {"source": "pool", "pool": Digits(), "pool_part": "test", "pool_varied": True}}
TERMS: Given = {"one_hot_weight": 2.0, "balance_weight": 1.0, "activation_weight": 0.2, "activation_norm": "l2"}
PRINTED: Given = {**TERMS, "balance_of": "image"}
LOSS: Given = {"generator_loss": {**PRINTED, "student_loss_weight": 1.0}}
AFTER: Given = {"gradient_targets": {"loss": "logits", "outputs": "probabilities"}, **LOSS}
ALONG: Given = {"gradient_targets": {"gamma": 2.0, "student_target": "gradients", "dkd_beta": 1.0}}
LABELS: Given = {"label_targets": {"schedule": LinearCandidates(begin=1, end=2), "noise_correction": False}}
OWN: Given = {**PRINTED, "student_loss_weight": 0}
UNION: Given = {"stages": {"noise_correction": False, "train_on": "union"}}
TAUGHT: Given = {"discriminator": "teacher", "pretraining_steps": 2, "statistics_weight": 1.0}
CLIPPED: Given = {"top_k": 3, "bounding": "clip", "norm_bound": 0.1, "noise_multiplier": 9.0, "stability": 1e-3}
CLIPPING: Given = {"bounding": "normalize", "stability": 0.1, "max_grad_norm": 1.0}
PIECES: Given = {"clipping": {**CLIPPING, "physical_batch_size": 7}, "noise": SystemNoise()}
LINEAR: Given = {"network": "LinearOnFeatures", "noise_multiplier": 1.0}
SHIFTED: Given = {"shift": 1, "label_smoothing": 0.1}
IN_POOL: Given = {"pool": Digits(), "pool_size": 9, "balance": 1.0}
FEDERATED: Given = {"federation": {"name": "x", "unit": "client", "num_records": 99, "min_clients": 2}}
BUDGET: Given = {"target_epsilon": math.inf, "delta": 1e-6, "accounting": "published", "scope": "run"}
ADAPTIVE: Given = {"budget": {"target_epsilon": 1e9, "fully_adaptive": True}}
SHORT: Given = {"lr_scheduler": partial(CYCLE, total_steps=1)}
PHASES: Given = {
    **{
        "student": TRAINED,
        "images": {**MADE, **SHORT},
        "generator_phase": {**OWN, "baseline": "student", "steps": 1, "images": 16},
    },
    "vae_phase": {"network": partial(ConvVAE, **CODES), "steps": 1},
    "query_phase": {"queries": 9, "selection": "confident", "candidates": 2, "rounds": 2, "steps_between": 1},
    "tangent_normal": {
        "tangent_weight": 1,
        "normal_weight": 1,
        "entropy_weight": 1,
        "entropy_term": "as_printed",
        "normals": "code",
    },
}
FEW: Given = {"vae_phase": {"steps": 0}, "query_phase": {"queries": 4}, "student_phase": {"query_distortion": 0.1}}
OF_DATA: Given = {"num_classes": 10, "image_shape": (1, 8, 8)}


def by(kind: str, /, **settings: Any) -> Given:
    budget = {**BUDGET, "ledger": "own.jsonl", "ledger_block": 2, "fully_adaptive": False, "published": True}
    return {"mechanism": {kind: {**settings, "noise": SystemNoise()}}, "budget": budget}


def asking(path: str, **other: Any) -> Given:
    inputs = {"mean": 0.5, "std": 0.5, "size": 10, "channels": 3}
    named = {"private_data": "x", "trial": False, "outputs": "probabilities", "input": inputs, **other}
    return {"teacher": {"path": path, **named}}


ONE, SEVERAL = asking("one"), asking("several")
FILE = asking("teacher.pt", network=SMALL, input={"range": [0, 1]})
SHARDS = asking("ensemble.ckpt", network=SMALL, input={"range": [-1, 1]})
#: Settings of one fit after another; `unit: person` is set in `teachers/test_persons.py`.
FITS: list[tuple[str, Given]] = [
    ("Teacher", {**TRAINED, "class_prior": [0.1] * 10, "augment": True}),
    ("TeacherEnsemble", {"network": SMALL, "optimizer": SGD, "steps": 2, "schedule": "linear", **SHIFTED}),
    ("TeacherEnsemble", {"network": "LinearOnFeatures", "ridge": 1.0, "teachers_at_once": 1}),
    ("DPSGDTeacher", {**TRAINED, **LINEAR, **PIECES, "loss": "inner_product", "unit": "record", "delta": 1e-6}),
    ("DPSGDTeacher", {"network": "LinearOnFeatures", "target_epsilon": 5.0, **UNVARIED}),
    ("DirectTraining", {**TRAINED, "gamma": 1.0, **by("DirectGradients", **CLIPPED)}),
    ("DirectTraining", {"class_prior": None, "augment": True, **by("DirectGradients", release="per_sample_full")}),
    ("DirectTraining", {"network": SMALL, **by("DirectLabels", epsilon=2.0)}),
    ("Distillation", {**ONE, "student": LEARNT, "pool_size": 9, **by("RawResponses")}),
    ("Distillation", {**FILE, "pool_size": 9, "prior": StrokePrior(), "loss": "kl", "temperature": 2.0}),
    ("Distillation", {**SEVERAL, **IN_POOL, "queries": 9, **by("NoisyMeanResponse", noise_multiplier=1.0)}),
    ("DPDFD", {**ONE, **ADAPTIVE}),
    ("DPDFD", {**FILE, **BOTH, **AFTER, **by("NoisyGradients")}),
    ("DPDFD", {**ONE, **POOL, **ALONG, **by("NoisyGradients", **CLIPPED)}),
    ("DPDFD", {**SEVERAL, **by("NoisyGradients", release="ensemble")}),
    ("DPSD", {**FILE, **BOTH, **AFTER, **by("NoisyGradients")}),
    ("DPSD", {**ONE, **POOL, **ALONG, **by("NoisyGradients", **CLIPPED, release="batch_mean_rows")}),
    ("DPSD", {**FILE, **LABELS, **by("NoisyLabels", epsilon=2.0), "discriminator": "teacher"}),
    (
        "DPSD",
        {**FILE, "balanced_answers": True, "fresh_latents": True, "xavier": True, **by("NoisyLabels", smallest=10)},
    ),
    ("LabelDP", {**FILE, **BOTH, "stages": {"threshold": 0.1}, "generator_training": {**OWN, **TAUGHT}}),
    ("LabelDP", {**ONE, **POOL, **UNION, **by("NoisyLabels", epsilon=2.0, smallest=2)}),
    ("DGD", {**SEVERAL, **PHASES, **by("NoisyVotes", scale=4.0, kind="gaussian", latent_epsilon=1.0)}),
    ("DGD", {**SHARDS, **POOL, **FEW}),
    ("FedDPSD", {"clients": None, **BOTH, **AFTER, **by("NoisyGradients", release="ensemble")}),
    ("FedDPSD", {"clients": None, **ALONG, **by("NoisyGradients", **CLIPPED)}),
    ("FedDPSD", {"clients": None, **LABELS, **FEDERATED, **by("NoisyLabels", epsilon=2.0, smallest=3)}),
]
DATA: dict[str, Callable[[], Any]] = {
    "Teacher": Digits,
    "TeacherEnsemble": lambda: Shards(dataset=Digits(), num_teachers=2, batch_size=40, steps_per_epoch=4),
    "DPSGDTeacher": lambda: PoissonSampled(dataset=Digits(), batch_size=8, steps_per_epoch=2),
    "DirectTraining": lambda: PoissonSampled(dataset=Digits(), batch_size=8, steps_per_epoch=2),
}


def given(settings: Given, above: str = "") -> Iterator[str]:
    """Names of the settings that a fit is given, those of groups with dots."""
    for name, value in settings.items():
        group = isinstance(value, dict) and value.keys() != {"class_path", "init_args"}
        yield from given(value, f"{above}{name}.") if group else [above + name]


def never_set(kind: type, *, name: str) -> set[str]:
    return {*offered(kind)} - {one for other, settings in FITS if other == name for one in given(settings)}


class Own(lightning_modules.DPDFD):
    """Has a setting more, and logs something more."""

    def __init__(self, *, other: int = 1, **shared: Any) -> None:
        super().__init__(**shared)

    def training_step(self, batch: int, batch_idx: int) -> None:
        super().training_step(batch, batch_idx)
        self.log("own/metric", 1.0)


def made(kind: Any, settings: Given) -> Any:
    """The module of a fit, whose networks are its own."""
    made, sizes = dict(settings), {"batch_size": 8} if "batch_size" in _taken(kind) else {}
    if "mechanism" in made:
        ((mechanism, own),) = made["mechanism"].items()
        made["mechanism"] = getattr(mechanisms, mechanism)(**own)
    if "budget" in made:
        made["budget"] = Budget(**made["budget"])
    if "teacher" in made:
        torch.save(small_network(0).state_dict(), "teacher.pt")
        networks = [SmallCNN(image_shape=(3, 10, 10), width=4, hidden=16) for _ in range(2)]
        given: Any = {"one": networks[0], "several": nn.ModuleList(networks)}
        made["teacher"] = {**made["teacher"], "path": given.get(made["teacher"]["path"], made["teacher"]["path"])}
    if "clients" in made:
        made["clients"] = LocalClients(teachers=[small_network(1), small_network(2)])
    return kind(**OF_DATA, **sizes, **made)


def fit(module: Any, name: str, *callbacks: Any, **given: Any) -> set[str]:
    """Names of what a fit of two epochs logs."""
    quiet = {**given, "logger": False, "enable_checkpointing": False, "limit_val_batches": 1, "log_every_n_steps": 1}
    trainer = Trainer(**trainer_settings(".", 2, **quiet, callbacks=[*callbacks]))
    data = DATA.get(name, lambda: SyntheticSteps(dataset=Digits(), steps_per_epoch=3, batch_size=8))
    trainer.fit(module, datamodule=data())
    return {*trainer.callback_metrics}


def charged() -> bool:
    return any(re.search('"reserve"|Sampled', file.read_text()) for file in Path().rglob("*.jsonl"))


@pytest.mark.parametrize("at_epochs", [True, False])
def test_what_is_monitored_is_there_when_it_is_looked_at(at_epochs: bool) -> None:
    one = EarlyStopping("test_split/accuracy", check_on_train_epoch_end=at_epochs)
    refused = pytest.raises(ValueError, match=r"monitor of EarlyStopping must be .*, got 'test_split/accuracy'")
    with refused if at_epochs else nullcontext():
        fit(made(lightning_modules.DPDFD, FILE), "DPDFD", one, check_val_every_n_epoch=2)
    assert charged() is not at_epochs


def listed_and_logged(module: Any, name: str) -> tuple[set[str], set[str]]:
    """Names of metrics that a refused fit lists, before anything is charged, and those that a fit logs."""
    with pytest.raises(ValueError, match="monitor of EarlyStopping must be") as refusal:
        fit(module, name, EarlyStopping(monitor="x"))
    assert not charged()
    return {*re.findall(r"\w+/\w+", str(refusal.value))}, fit(module, name)


@pytest.mark.parametrize("number", range(len(FITS)), ids=[name for name, _ in FITS])
def test_each_fit_works_logs_what_may_be_monitored_and_its_guarantee_is_what_it_was(
    number: int, trained_ensemble: Path
) -> None:
    name, settings = FITS[number]
    Path("ensemble.ckpt").write_bytes(trained_ensemble.read_bytes())
    torch.manual_seed(99)
    module = made(getattr(lightning_modules, name), settings)
    listed, logged = listed_and_logged(module, name)
    if hasattr(module, "guarantee"):
        require_golden(f"setting_{number}_{name}", module.guarantee())
    # A baseline without privacy ends the claim of a paper as soon as it is used.
    assert logged <= listed and listed - logged <= {"privacy/epsilon_published"}


@pytest.mark.parametrize("name", dict(FITS))
def test_each_setting_is_set_in_some_fit(name: str) -> None:
    assert never_set(getattr(lightning_modules, name), name=name) == set()
    assert never_set(Own, name="DPDFD") == {"other"}


def test_a_metric_that_is_not_stated_is_noticed() -> None:
    listed, logged = listed_and_logged(made(Own, {**FILE, "student": LEARNT}), "DPDFD")
    assert logged - listed == {"own/metric"}


@pytest.mark.parametrize("name", ["DPDFD", "DPSGDTeacher", "DirectTraining"])
def test_without_the_check_a_fit_fails_when_it_was_charged(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("private_fit", "teachers.dp_sgd"):
        monkeypatch.setattr(f"lightning_modules.{place}.require_monitored", lambda *_: None)
    with pytest.raises(RuntimeError, match="conditioned on metric `x` which is not available"):
        listed_and_logged(made(getattr(lightning_modules, name), dict(FITS)[name]), name)
    assert charged()


# --- what would fail in a later step ---


def unmet(num_classes: int, image_shape: tuple[int, int, int]) -> nn.Module:
    """A network with a weight that is not finite, and that no dry run meets."""
    network = SmallCNN(num_classes, image_shape, width=4, hidden=16)
    network.unmet = nn.Parameter(torch.tensor([math.nan]))
    return network


def plateau(monitor: str) -> Given:
    """A schedule that lowers the rate after each epoch, as nothing is good enough for it."""
    return {**TRAINED, "lr_scheduler": partial(ReduceLROnPlateau, monitor=monitor, patience=0, threshold=2.0)}


LBFGS: Given = {"optimizer": torch.optim.LBFGS}
INFINITE: Given = {"optimizer": partial(torch.optim.SGD, lr=math.inf)}
CLOSURE, METRIC = "optimizer fails .*'closure'", "lr_scheduler fails at step 1.*'metrics'"
NAN, ENDED = "the weights to train must be finite", r"lr_scheduler fails at step 2, .*total steps is 1"
LATER: list[tuple[str, Given, str]] = [
    ("Teacher", SHORT, f"model.{ENDED}"),
    ("TeacherEnsemble", LBFGS, f"model.{CLOSURE}"),
    ("DPSGDTeacher", {**plateau("train/loss"), **LINEAR}, f"model.{METRIC}"),
    ("DirectTraining", plateau("train/loss"), f"model.{METRIC}"),
    ("DPDFD", {**FILE, "student": plateau("train/student_loss")}, f"model.student.{METRIC}"),
    ("DPDFD", {**FILE, "student": {"network": unmet}}, f"model.student: {NAN}"),
    ("DPDFD", {**FILE, "images": SHORT}, f"model.images.{ENDED}"),
    ("DGD", {**SEVERAL, **PHASES, **by("NoisyVotes"), "student": {**TRAINED, **SHORT}}, f"model.student.{ENDED}"),
    ("DPDFD", {**FILE, "images": INFINITE}, "model.images.optimizer .* infinite after a step"),
]


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize(("name", "settings", "words"), LATER)
def test_what_fails_later_is_refused(name: str, settings: Given, words: str, broken: bool, monkeypatch: Any) -> None:
    """Before the ledger is opened."""
    module = made(getattr(lightning_modules, name), settings)
    if broken:
        monkeypatch.setattr(OptimizedGroup, "try_out", lambda *_, **__: None)
    with suppress(Exception) if broken else pytest.raises(ValueError, match=words):
        fit(module, name)
    assert bool([*Path().rglob("*.jsonl")]) is broken


@pytest.mark.parametrize("broken", [False, True])
def test_an_epoch_of_queries_that_no_plan_has_is_refused(broken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if broken:
        monkeypatch.setattr("lightning_modules.training.run.StochasticWeightAveraging", ())
    module = made(lightning_modules.DPDFD, {**FILE, "images": {"source": "prior"}})
    with nullcontext() if broken else pytest.raises(ValueError, match="StochasticWeightAveraging adds an epoch"):
        fit(module, "DPDFD", StochasticWeightAveraging(swa_lrs=0.01))
    assert module.steps_done > 6 if broken else not module.steps_done  # of two epochs of three steps


def test_a_teacher_s_schedule_follows_a_metric_that_is_logged() -> None:
    module = made(lightning_modules.Teacher, plateau("train/loss"))
    fit(module, "Teacher")
    assert module.trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.0001)
    with pytest.raises(ValueError, match=r"monitor of ReduceLROnPlateau must be .*train/loss, val/accuracy .*got 'x'"):
        fit(made(lightning_modules.Teacher, plateau("x")), "Teacher")
    with pytest.raises(ValueError, match=METRIC):  # torch's own names no metric
        fit(made(lightning_modules.Teacher, {"lr_scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau}), "Teacher")


@pytest.mark.parametrize("broken", [False, True])
def test_trying_moves_no_random_number(broken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if broken:
        monkeypatch.setattr(torch.random, "fork_rng", lambda **_: nullcontext())
    before = torch.get_rng_state()
    OptimizedGroup([nn.Parameter(torch.ones(1))], lambda weights: SGD(weights, lr=float(torch.rand(1)))).try_out()
    assert torch.equal(torch.get_rng_state(), before) is not broken


# --- a charge is on the disk before its noise is drawn ---


class Watched:
    """Counts the teacher's answers, and the draws of noise for which not all of them are charged on the disk."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers = self.draws = self.early = 0
        self.synced: dict[int, int] = {}
        words, fsync, one, several = SystemNoise.words, os.fsync, PrivateTeacher._respond, PrivateEnsemble.each

        def drawn(noise: SystemNoise, count: int) -> Any:
            file = Path("own.jsonl").stat()
            charged = Ledger(path="own.jsonl", private_data="x", run="reader", renamed=True).counts()
            early = sum(charged.values()) < max(1, self.answers) or self.synced[file.st_ino] < file.st_size
            self.draws, self.early = self.draws + 1, self.early + early
            return words(noise, count)

        def synced(descriptor: int) -> None:
            fsync(descriptor)
            self.synced[os.fstat(descriptor).st_ino] = os.fstat(descriptor).st_size

        def counting(answer: Callable[..., Any]) -> Callable[..., Any]:
            def counted(*given: Any) -> Any:
                self.answers += 1
                return answer(*given)

            return counted

        monkeypatch.setattr(SystemNoise, "words", drawn)
        monkeypatch.setattr(os, "fsync", synced)
        monkeypatch.setattr(PrivateTeacher, "_respond", staticmethod(counting(one)))
        monkeypatch.setattr(PrivateEnsemble, "each", counting(several))


NOISY = [(name, given) for name, given in FITS if "ledger" in given.get("budget", {}) and "teacher" in given]
NOISY = [(name, given) for name, given in NOISY if "RawResponses" not in given["mechanism"]]


@pytest.mark.parametrize("broken", ["", "charge", "fsync"])
@pytest.mark.parametrize(("name", "settings"), NOISY, ids=[name for name, _ in NOISY])
def test_a_charge_is_on_the_disk_before_its_noise(
    name: str, settings: Given, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if broken == "charge":
        monkeypatch.setattr(Ledger, "charge", lambda *_, **__: None)
    module = made(getattr(lightning_modules, name), settings)
    watched = Watched(monkeypatch)
    if broken == "fsync":
        monkeypatch.setattr(os, "fsync", lambda descriptor: watched.synced.setdefault(os.fstat(descriptor).st_ino, 1))
    fit(module, name)
    assert watched.draws >= watched.answers > 1 and bool(watched.early) is bool(broken)
