"""What a distillation must not do with the teacher and the private images."""

from __future__ import annotations

import copy
import pickle
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Callback, LightningModule, Trainer, seed_everything
from support.dp_teachers import SMALL, train, trainer_settings
from support.label_variants import FixedLabels
from support.runs import (
    BATCH_SIZE,
    checkpoint,
    configuration,
    distil,
    equal,
    fit,
    fit_script,
    leaks,
    networks,
    of_digits,
    teacher_weights,
)
from support.variants import FixedGradients, MoodyTeacher, two_teachers
from torch import nn
from torch.nn import functional

from datamodules import Digits, ImageDataModule, PoissonSampled, SyntheticSteps
from lightning_modules import DPDFD, DPSD, DPSGDTeacher, FedDPSD, LabelDP
from lightning_modules.base import DataFreeDistillation
from lightning_modules.dgd.phases import GeneratorPhase
from lightning_modules.federated import LocalClients
from lightning_modules.losses.targets import LinearCandidates
from lightning_modules.teachers.config import TeacherConfig
from lightning_modules.teachers.private_teacher import PrivateTeacher
from privacy.account import Budget
from privacy.identity import CheckpointError
from privacy.mechanisms import NoisyGradients


def test_no_file_of_a_run_holds_the_teacher(folder: Path) -> None:
    distil()
    private = teacher_weights("teachers/digits.ckpt")
    written = {path.name for path in Path("run").rglob("*") if path.is_file()}
    assert written >= {"last.ckpt", "hparams.yaml", "config.yaml", "metrics.csv", "result.json"}
    assert leaks("run", private) == []
    assert not any("teacher" in name for name in checkpoint()["state_dict"])
    distil("held", class_path="support.variants.LeakyDPDFD")
    assert leaks("held", private) == ["held/checkpoints/last.ckpt"], "a submodule is found"


def test_the_search_finds_a_single_weight_as_text(folder: Path) -> None:
    private = teacher_weights("teachers/digits.ckpt")
    Path("run").mkdir()
    Path("run/metrics.csv").write_text(f"step,weight\n0,{private[0].flatten()[0].item()}\n")
    Path("run/raw.bin").write_bytes(b"x" + private[-1].numpy().tobytes())
    assert leaks("run", private) == ["run/metrics.csv", "run/raw.bin"]


def test_a_module_is_not_pickled_with_its_teacher(folder: Path) -> None:
    module = distil().model
    for write in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match="never written"):
            write(module)


def test_a_teacher_given_in_a_script_is_kept_apart_before_the_fit() -> None:
    module = of_digits(DPDFD, teacher=MoodyTeacher(), mechanism=NoisyGradients(), images="prior")
    assert not any("teacher" in name for name in module.state_dict())
    assert not {"teacher", "mechanism"} & set(module.hparams)
    with pytest.raises(TypeError, match="never written"):
        pickle.dumps(module)
    with pytest.raises(TypeError, match="never written"):
        pickle.dumps(GeneratorPhase(baseline=TeacherConfig(path=MoodyTeacher())))
    with pytest.raises((AttributeError, pickle.PicklingError, TypeError)):
        pickle.dumps(LocalClients(teachers=[MoodyTeacher()]))


def test_no_private_image_is_read(folder: Path) -> None:
    distil(dataset="support.variants.LockedDigits")
    assert checkpoint()["distillation"]["steps_done"] == 3
    with pytest.raises(PermissionError, match="a private image was read"):
        distil(dataset="support.variants.LockedDigits", class_path="support.variants.PeekingDPDFD")


def test_no_fit_validates_on_private_records(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = configuration(trainer={"limit_train_batches": 2})
    config["data"] = {"class_path": "Digits", "init_args": {"batch_size": BATCH_SIZE}}
    with pytest.raises(ValueError, match="must be SyntheticSteps in a student's fit"):
        fit(config)
    monkeypatch.setattr("lightning_modules.training.evaluation.SyntheticSteps", object)
    assert "val/accuracy" in fit(config).trainer.callback_metrics  # without the check a callback may choose by it


class HeldOut:
    """Validates on records that were held out of the teacher's training, as any Lightning module may."""

    dataset: ImageDataModule

    def val_dataloader(self) -> Any:
        self.dataset.setup("validate")
        return self.dataset.val_dataloader()


class OfTeachers(HeldOut, PoissonSampled):
    pass


def test_own_loaders_of_what_is_evaluated_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {"dataset": Digits(), "batch_size": 64, "steps_per_epoch": 1}
    with pytest.raises(ValueError, match=r"val_dataloader must not be overridden, and HeldOut does"):
        OfTeachers(**given)
    monkeypatch.setattr("datamodules.wrapped._OF_EVALUATION", ())
    module = DPSGDTeacher(num_classes=10, image_shape=(1, 8, 8), network=SMALL, noise_multiplier=1.0)
    train(module, OfTeachers(**given))
    # Measured on private records, and the guarantee says nothing of it.
    assert "test_split/accuracy" in module.trainer.callback_metrics
    assert not any("ACCESSED" in text and "accuracy" in text for text in module.guarantee().assumptions)


@pytest.mark.parametrize("seeded", [False, True])
def test_one_seed_gives_the_same_images_and_never_the_same_noise(
    folder: Path, seeded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: it is the source of the noise that tells two runs apart; one that repeats voids the guarantee."""
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    update = DPDFD.update_student

    def recording(self: DPDFD, images: torch.Tensor) -> torch.Tensor:
        seen.append((images.clone(), update(self, images)))
        return seen[-1][1]

    monkeypatch.setattr(DPDFD, "update_student", recording)
    noise = {"noise": {"class_path": "ReproducibleNoise", "init_args": {"seed": 1}}} if seeded else {}
    model = {"images": "generator" if seeded else "prior"}
    ended = [networks(distil(name, model=model, mechanism=noise)) for name in ("one", "two")]
    for (images, targets), (again, others) in zip(seen[:3], seen[3:], strict=True):
        assert torch.equal(images, again) and torch.equal(targets, others) is seeded
    assert equal(*ended) is seeded
    assert ("VOID" in Path("two/public/guarantee.md").read_text()) is seeded


class Undetached(DataFreeDistillation):
    """Uses the released targets' values in the generator's loss, with the teacher still in their graph."""

    def generator_loss(self, images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        answer = self.teacher._network_of(0)(images).softmax(dim=1)
        return functional.cross_entropy(self.student(images), targets + answer - answer.detach())


class WellInformed(DataFreeDistillation):
    """Makes the teacher's class a candidate."""

    def draw_images(self, step: int, latents: torch.Tensor | None) -> torch.Tensor:
        self._drawn = super().draw_images(step, latents)
        return self._drawn

    def candidates(self, outputs: torch.Tensor) -> Any:
        told = functional.one_hot(self.teacher.logits(self._drawn).argmax(dim=1), self.num_classes)
        return super().candidates(outputs + 1e3 * told)  # type: ignore[misc]


def mutant(kind: type, how: type) -> type:
    return type(how.__name__ + kind.__name__, (how, kind), {})


def gap(kind: type, mechanism: type, **settings: Any) -> float:
    """Largest difference between the generator's gradients after a fit, under two teachers and one released target."""
    found = []
    for teacher in two_teachers():
        seed_everything(5)
        module = of_digits(kind, teacher=teacher, mechanism=mechanism(), **settings)
        fit_script(module, steps=1)
        found.append([parameter.grad.clone() for parameter in module.optimized_groups()["generator"].parameters])
    assert all(float(gradient.abs().max()) > 0 for gradient in (found[0][0], found[0][-1]))
    return max(float((one - other).abs().max()) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize(("kind", "mechanism"), [(DPDFD, FixedGradients), (DPSD, FixedGradients), (DPSD, FixedLabels)])
def test_the_generator_learns_of_the_teacher_through_released_targets_alone(kind: type, mechanism: type) -> None:
    assert gap(kind, mechanism, student_loss_weight=1.0) == 0
    assert gap(mutant(kind, Undetached), mechanism) > 0, "a target that is not detached is noticed"
    if mechanism is FixedLabels:
        assert gap(kind, mechanism, discriminator="teacher") > 0, "a teacher that discriminates is noticed"


def candidates(kind: type, **settings: Any) -> list[torch.Tensor]:
    """Of every step, under either teacher."""
    found = []
    for teacher in two_teachers():
        seed_everything(5)
        mechanism = FixedLabels(smallest=3 if issubclass(kind, DPSD) else 2)
        fit_script(of_digits(kind, teacher=teacher, mechanism=mechanism, **settings), steps=2, epochs=2)
        found.append(torch.stack(mechanism.seen))
    return found


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (DPSD, {"schedule": LinearCandidates(begin=0, end=3), "images": "both"}),
        (LabelDP, {"threshold": 0.1, "images": "prior"}),
    ],
)
def test_candidates_are_the_student_s_alone(kind: type, settings: dict[str, Any]) -> None:
    """Another teacher, the same answers: the same candidates, in every step."""
    first, second = candidates(kind, **settings)
    assert torch.equal(first, second) and len(first) == 4
    sizes = first.sum(dim=2)
    assert sizes[:, 0].tolist() == [10, 8, 6, 3] if kind is DPSD else int(sizes.min()) >= 2
    told = candidates(mutant(kind, WellInformed), **settings)
    assert not torch.equal(*told), "candidates that know the teacher are noticed"


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("kind", ["its layers", "a warm start"])
def test_a_student_begins_with_no_weight_of_the_teacher(
    folder: Path, kind: str, broken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be published as it is, at any price."""
    body = nn.Sequential(nn.Flatten(), nn.Linear(64, 8))
    teacher, weights = nn.Sequential(body, nn.Linear(8, 10)), copy.deepcopy(body.state_dict())

    def network(num_classes: int, image_shape: tuple[int, int, int]) -> nn.Module:
        if kind.endswith("layers"):
            return nn.Sequential(body, nn.Linear(8, 10))
        own = nn.Sequential(nn.Flatten(), nn.Linear(64, 8))
        own.load_state_dict(weights)
        return nn.Sequential(own, nn.Linear(8, 10))

    if broken:
        monkeypatch.setattr("lightning_modules.networks.network._address", lambda _: 0)
        monkeypatch.setattr(PrivateTeacher, "require_unlike", lambda *_: None)

    def begun() -> torch.Tensor:
        module = of_digits(DPDFD, teacher=teacher, images="prior", student=network)
        before = next(module.student.parameters()).clone()
        fit_script(module, steps=1)
        return before

    said = r"belongs to another as well|begins as a weight of the teacher"
    with nullcontext() if broken else pytest.raises(ValueError, match=said):
        assert torch.equal(begun(), weights["1.weight"])


class WarmStart(Callback):
    """Begins with a private network, which is at hand when a fit begins."""

    def __init__(self, private: nn.Module) -> None:
        self.weights = copy.deepcopy(private.state_dict())

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        pl_module.student.load_state_dict(self.weights)  # type: ignore[union-attr]


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("kind", [DPDFD, FedDPSD])
@pytest.mark.parametrize("fits", [1, 2])
def test_no_weight_of_the_teacher_comes_in_later(
    folder: Path, kind: Any, fits: int, broken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a callback, or between two fits."""
    torch.manual_seed(0)
    teacher = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    held = {"teacher": teacher} if kind is DPDFD else {"clients": LocalClients(teachers=[teacher])}
    module = of_digits(kind, images="prior", student=lambda *_: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), **held)
    warm = WarmStart(teacher)
    if fits == 2:
        fit_script(module, steps=1)
        module.student.load_state_dict(warm.weights)
    if broken:
        monkeypatch.setattr(PrivateTeacher, "require_unlike", lambda *_: [])
    with nullcontext() if broken else pytest.raises(ValueError, match="begins as a weight of the teacher"):
        fit_script(module, steps=1, default_root_dir="warm", callbacks=[warm] if fits == 1 else [])
    assert [path.name for path in Path("warm").rglob("*.pt")] == (["student.pt"] if broken else [])
    if broken:  # one step away from the teacher
        apart = torch.load("warm/public/student.pt")["1.weight"] - warm.weights["1.weight"]
        assert float(apart.abs().max()) < 0.01


class StopsAfterOne(Callback):
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        trainer.should_stop = True


@pytest.mark.parametrize("broken", [False, True])
def test_a_fit_that_is_refused_publishes_no_other_runs_student(
    folder: Path, broken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights of the checkpoint are in the module before it is known whose they are."""
    teacher = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    def module(noise: float) -> DPDFD:
        mechanism = NoisyGradients(noise_multiplier=noise, release="per_sample_full")
        made: DPDFD = of_digits(DPDFD, teacher=teacher, images="prior", mechanism=mechanism, budget=Budget(scope="run"))
        return made

    other, own = module(0.1), module(1e4)
    fit_script(other, steps=1, epochs=-1, callbacks=[StopsAfterOne()])  # no plan tells what it cost
    other.trainer.save_checkpoint("other.ckpt")
    fit_script(own, steps=1)
    if broken:
        monkeypatch.setattr(DPDFD, "begun", property(lambda _: True, lambda *_: None), raising=False)
    trainer = Trainer(**trainer_settings("refused", 2), logger=False)
    with pytest.raises(CheckpointError, match="and this session is open for run"):
        trainer.fit(own, SyntheticSteps(dataset=Digits(), steps_per_epoch=1, batch_size=8), ckpt_path="other.ckpt")
    assert Path("refused/public/student.pt").exists() is broken
    if broken:
        published, stated = torch.load("refused/public/student.pt"), own.guarantee().epsilon
        assert all(torch.equal(value, published[name]) for name, value in other.student.state_dict().items())
        assert stated < 1 < other.guarantee().epsilon


def test_frozen_weights_in_common_are_told_on_the_page(folder: Path) -> None:
    """They may be a public feature extractor's, or a copy of what the teacher has learnt."""
    body = nn.Sequential(nn.Flatten(), nn.Linear(64, 8)).requires_grad_(False)
    networks = [nn.Sequential(copy.deepcopy(body), nn.Linear(8, 10)) for _ in range(2)]
    module = of_digits(DPDFD, teacher=networks[0], images="prior", student=lambda *_: networks[1])
    fit_script(module, steps=1)
    told = "2 frozen weights of a teacher, model.student: '0.1.weight' first, are published as they are"
    assert f"ACCESSED WITHOUT CHARGE: {told}" in module.guarantee().assumptions


def test_the_teacher_answers_in_eval_mode_without_gradients() -> None:
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Dropout(0.5), torch.nn.Linear(64, 10))
    teacher = PrivateTeacher(network.train(), private_data="x")
    images = torch.ones(2, 1, 8, 8, requires_grad=True)
    first = teacher.logits(images)
    network.train()
    assert torch.equal(first, teacher.logits(images)) and not first.requires_grad
