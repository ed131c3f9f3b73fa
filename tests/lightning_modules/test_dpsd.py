"""DPSD: what each switch releases, what its candidates and its latent inputs come from, and what DPSD-T costs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import seed_everything
from support.label_variants import FixedLabels, UndetachedDPSD, WellInformedDPSD
from support.runs import (
    BATCH_SIZE,
    checkpoint,
    distil,
    equal,
    fit_script,
    grouped,
    interrupted,
    leaks,
    networks,
    teacher_weights,
)
from support.variants import FixedGradients, MoodyTeacher, generator_gap, two_teachers
from torch import Tensor

from lightning_modules import DPSD
from lightning_modules.cli.fit import TranscriptionCLI
from lightning_modules.images import Images
from lightning_modules.losses.labels import ConfidentCandidates, FixedCandidates, LinearCandidates, class_shares
from lightning_modules.losses.targets import Annotation
from privacy.accounting.composition import compose
from privacy.events import RandomizedResponse
from privacy.mechanisms import NoisyLabels, Shape
from privacy.published import RdpSlope, WholeRun

DATA = {"class_path": "NoisyGradients", "init_args": {"top_k": 3}}
LABEL = {"class_path": "NoisyLabels", "init_args": {"smallest": 3}}
LAST = "--ckpt_path=run/checkpoints/last.ckpt"


def run(folder: str = "run", *arguments: str, kind: str = "DPSD", steps: int = 3, **model: Any) -> TranscriptionCLI:
    path = kind if kind == "DPSD" else f"support.label_variants.{kind}"
    return distil(folder, *arguments, class_path=path, steps=steps, model={"mechanism": DATA, **model})


def _module(**settings: Any) -> DPSD:
    torch.manual_seed(1)
    given = grouped(DPSD, teacher=MoodyTeacher(), **settings)
    return DPSD(num_classes=10, image_shape=(1, 8, 8), batch_size=6, **given)


def test_labels_have_no_gradients_to_follow() -> None:
    assert _module(student_follows="gradients").gradient_targets.student_target == "gradients"
    with pytest.raises(ValueError, match="needs the data switch"):
        _module(mechanism=NoisyLabels(), student_follows="gradients")


@pytest.mark.parametrize(
    ("mechanism", "claim"), [(DATA, RdpSlope), (LABEL, WholeRun)], ids=["data switch", "label switch"]
)
@pytest.mark.parametrize("images", ["prior", "both"])
def test_each_switch_runs_on_each_kind_of_images(folder: Path, mechanism: Any, claim: type, images: str) -> None:
    model = run(mechanism=mechanism, images=images).model
    assert model.session.calls_made() == 3
    (charge,) = model.session.account.counts()
    assert isinstance(charge.claim, claim) and charge.claim.source.startswith("DPSD Theorem")
    assert 0 < model.session.account.epsilon() < math.inf
    assert leaks("run", teacher_weights("teachers/digits.ckpt")) == []


def _fitted(kind: type[DPSD], teacher: torch.nn.Module, mechanism: Any, *, steps: int = 1, **settings: Any) -> DPSD:
    seed_everything(5)
    given = grouped(DPSD, teacher=teacher, mechanism=mechanism, **settings)
    module = kind(num_classes=10, image_shape=(1, 8, 8), batch_size=8, **given)
    fit_script(module, steps=steps)
    return module


@pytest.mark.parametrize(
    "settings", [{"source": "generator"}, {"source": "generator", "reset_every": 1}, {"source": "prior"}]
)
def test_a_generator_that_is_never_reset_is_warned_of(
    settings: dict[str, Any], recwarn: pytest.WarningsRecorder, folder: Path
) -> None:
    _fitted(DPSD, MoodyTeacher(), FixedLabels(smallest=3), images=Images(**settings))
    warned = any("images.reset_every is null" in str(one.message) for one in recwarn)
    assert warned == (settings == {"source": "generator"})


def _same_candidates(kind: type[DPSD]) -> bool:
    mechanisms = [FixedLabels(smallest=3), FixedLabels(smallest=3)]
    for teacher, mechanism in zip(two_teachers(), mechanisms, strict=True):
        _fitted(kind, teacher, mechanism, steps=4, schedule=LinearCandidates(begin=0, end=3), images="both")
    first, second = (mechanism.seen for mechanism in mechanisms)
    assert [int(rows[0].sum()) for rows in first] == [10, 8, 6, 3]
    return all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_candidates_are_the_student_s_alone(folder: Path) -> None:
    """Another teacher, the same answers: the same candidates, in every step."""
    assert _same_candidates(DPSD)
    assert not _same_candidates(WellInformedDPSD), "candidates that know the teacher are noticed"


def _gap(kind: type[DPSD], mechanism: type, **settings: Any) -> float:
    """Of Z's gradients as well."""

    def fitted(teacher: torch.nn.Module) -> DPSD:
        module = _fitted(kind, teacher, mechanism(), **settings)
        assert module.latents is not None and module.latents.grad is not None
        return module

    return generator_gap(fitted)


@pytest.mark.parametrize("mechanism", [FixedGradients, FixedLabels])
def test_the_generator_learns_of_the_teacher_through_released_targets_alone(folder: Path, mechanism: type) -> None:
    assert _gap(DPSD, mechanism, student_loss_weight=1.0) == 0
    assert _gap(UndetachedDPSD, mechanism) > 0, "a target that is not detached is noticed"
    if mechanism is FixedLabels:
        assert _gap(DPSD, mechanism, discriminator="teacher") > 0, "a teacher that discriminates is noticed"


def _latents(cli: TranscriptionCLI) -> torch.Tensor:
    kept: torch.Tensor = cli.model.latents.detach().clone()
    return kept


def test_latent_inputs_are_trained_and_kept(folder: Path) -> None:
    begun, ended = (_latents(run(str(steps), steps=steps)) for steps in (1, 3))
    assert begun.shape == (BATCH_SIZE, 8) and not torch.equal(begun, ended)
    assert torch.equal(checkpoint("3")["state_dict"]["latents"], ended)


@pytest.mark.slow
def test_latent_inputs_survive_an_interruption(folder: Path) -> None:
    settings: dict[str, Any] = {
        "mechanism": {"noise_multiplier": 0.0},
        "images": "both",
        "student": "DataLensClassifier",
        "steps": 4,
    }
    whole = run("whole", **settings)
    interrupted(DPSD, 2, lambda: run("run", **settings))
    resumed = run("run", LAST, **settings)
    assert equal(networks(whole), networks(resumed)) and torch.equal(_latents(whole), _latents(resumed))


@pytest.mark.parametrize("mechanism", [DATA, LABEL])
def test_a_teacher_that_discriminates_is_bounded_by_nothing(folder: Path, mechanism: Any) -> None:
    cli = run(mechanism=mechanism, discriminator="teacher")
    account = cli.model.session.account
    assert account.epsilon() == math.inf
    assert account.epsilon_published() == account.epsilon_published(counts={cli.model.session.cost: 3})
    assert cli.model.session.calls_made() == 3 and not cli.model.session.plan.changed
    assert "VOID: the generator was trained against the private teacher" in Path("run/public/guarantee.md").read_text()
    assert leaks("run", teacher_weights("teachers/digits.ckpt")) == []
    if mechanism is LABEL:  # taken by the back door it would look bounded: the account knows what is charged
        assert run("taken", kind="BackDoorDPSD", mechanism=LABEL).model.session.account.epsilon(scope="run") < math.inf


def _epsilon(folder: str, schedule: dict[str, Any]) -> float:
    value: float = run(folder, mechanism=LABEL, schedule=schedule, images="prior").model.session.account.epsilon()
    return value


def test_sizes_fixed_beforehand_are_charged_as_they_are_and_others_as_the_smallest(folder: Path) -> None:
    """Three steps of k = 10, 7 and 3; a schedule that follows the student stays at 10, but might not have."""
    made = {k: BATCH_SIZE for k in (10, 7, 3)}
    settings = {"class_path": "LinearCandidates", "init_args": {"begin": 0, "end": 2}}
    expected = compose({RandomizedResponse(1.0, k): count for k, count in made.items()}, 1e-5).epsilon
    assert _epsilon("linear", settings) == pytest.approx(expected)
    smallest = compose({RandomizedResponse(1.0, 3): 3 * BATCH_SIZE}, 1e-5).epsilon
    Path("ledgers/Digits-train.jsonl").unlink()
    assert _epsilon("confident", {"class_path": "ConfidentCandidates"}) == pytest.approx(smallest)
    assert expected < smallest


def test_schedules_reach_k_and_begin_with_all_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    vague, sure = torch.full((50, 10), 0.1), torch.eye(10).repeat(5, 1)

    def sizes(schedule: Any, probabilities: torch.Tensor, steps: int = 40) -> list[int]:
        return [schedule.size(probabilities, step=step, smallest=3) for step in range(steps)]

    assert set(sizes(FixedCandidates(), vague)) == {3}
    linear = sizes(LinearCandidates(begin=5, end=20), vague)
    assert linear[:6] == [10] * 6 and linear[20:] == [3] * 20 and linear == sorted(linear, reverse=True)
    assert set(sizes(ConfidentCandidates(), vague)) == {10}
    assert set(sizes(ConfidentCandidates(), sure)) == {3}
    half = 0.5 * vague + 0.5 * sure  # 0.55, and 0.05 of each other class
    monkeypatch.setattr("lightning_modules.losses.labels._COVERAGE", 0.72)
    assert sizes(ConfidentCandidates(), half, 1) == [5]


def test_an_image_that_the_student_is_sure_of_has_fewer_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning_modules.losses.labels._COVERAGE", 0.72)
    probabilities = torch.cat([torch.full((1, 10), 0.1), torch.eye(10)[:1], 0.05 + 0.5 * torch.eye(10)[:1]])

    def sizes(**settings: Any) -> list[int]:
        schedule = ConfidentCandidates(**settings)
        found: list[int] = schedule.sizes(probabilities, step=0, smallest=3).tolist()
        return found

    assert sizes(per_image=True) == [8, 3, 5]
    assert sizes() == [5, 5, 5]  # one for the batch


def test_noisy_answers_are_corrected_for_or_taken_as_they_are(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    targets: list[torch.Tensor] = []
    annotate = DPSD.annotate

    def watched(self: DPSD, outputs: torch.Tensor, images: torch.Tensor) -> Annotation:
        made = annotate(self, outputs, images)
        targets.append(made.targets)
        return made

    monkeypatch.setattr(DPSD, "annotate", watched)
    for correction in (True, False):
        run(str(correction), mechanism=LABEL, images="prior", steps=1, noise_correction=correction)
    corrected, plain = targets
    assert set(plain.unique().tolist()) == {0.0, 1.0}
    assert ((corrected > 0) & (corrected < 1)).all() and torch.allclose(corrected.sum(dim=1), torch.ones(BATCH_SIZE))


class BySurest(LinearCandidates):
    """Follows the student, and says nothing of it."""

    def size(self, probabilities: torch.Tensor, *, step: int, smallest: int) -> int:
        return smallest if probabilities.max() > 0.5 else 10


def test_a_schedule_made_of_a_fixed_one_is_not_fixed_by_inheritance() -> None:
    class Renamed(LinearCandidates):
        pass

    assert Renamed().fixed_beforehand and not BySurest().fixed_beforehand


ALL = {"class_path": "NoisyLabels", "init_args": {"smallest": 10, "epsilon": 2.0}}


def test_balanced_answers_follow_from_released_labels_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    released, answers = [], []
    answer = NoisyLabels.answer

    def watched(self: NoisyLabels, shape: Shape, logits: Tensor, *arguments: Any, **settings: Any) -> Tensor:
        answers.append(logits.argmax(dim=1))
        released.append(answer(self, shape, logits, *arguments, **settings))
        return released[-1]

    monkeypatch.setattr(NoisyLabels, "answer", watched)
    model = run(mechanism=ALL, balanced_answers=True, schedule={"class_path": "FixedCandidates"}).model

    def offsets(labels: list[Tensor]) -> Tensor:
        found = torch.zeros(10)
        for step in labels:
            found = 0.99 * found + 0.5 * (class_shares(step, num_classes=10, epsilon=2.0) - 0.1)
        return found

    assert torch.allclose(model.offsets, offsets(released), atol=1e-5)
    # Control: from the answers before noise they would be others.
    assert not torch.allclose(model.offsets, offsets(answers), atol=0.1)
    saved = checkpoint("run")["state_dict"]["offsets"]
    assert torch.equal(saved, model.offsets)


@pytest.mark.parametrize("mechanism", [DATA, LABEL])
def test_balanced_answers_need_all_classes_as_candidates(mechanism: Any) -> None:
    with pytest.raises(ValueError, match="all 10 classes as candidates"):
        run(mechanism=mechanism, balanced_answers=True)


def test_a_class_that_is_answered_too_often_is_answered_less(folder: Path) -> None:
    """The teacher's answers, without noise, of one batch before and after its shares were learnt."""
    model = _module(mechanism=NoisyLabels(epsilon=50.0, smallest=10), balanced_answers=True)
    assert model.offsets is not None
    logits = torch.randn(500, 10, generator=torch.Generator().manual_seed(1)) + torch.linspace(0, 3, 10)

    def spread() -> float:
        return float(torch.bincount((logits - model.offsets).argmax(1), minlength=10).float().std())

    before = spread()
    for _ in range(100):
        model.balance((logits - model.offsets).argmax(1))
    assert spread() < before / 3
