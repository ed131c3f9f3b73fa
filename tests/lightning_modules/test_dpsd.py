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
    fit_script,
    leaks,
    of_digits,
    teacher_weights,
)
from support.variants import FixedGradients, generator_gap, two_teachers
from torch import Tensor

from lightning_modules import DPSD
from lightning_modules.cli.fit import TranscriptionCLI
from lightning_modules.losses.targets import LinearCandidates, class_shares
from privacy.accounting.composition import compose
from privacy.events import RandomizedResponse
from privacy.mechanisms import NoisyLabels, Shape

DATA = {"class_path": "NoisyGradients", "init_args": {"top_k": 3}}
LABEL = {"class_path": "NoisyLabels", "init_args": {"smallest": 3}}


def run(folder: str = "run", *arguments: str, kind: str = "DPSD", steps: int = 3, **model: Any) -> TranscriptionCLI:
    path = kind if kind == "DPSD" else f"support.label_variants.{kind}"
    return distil(folder, *arguments, class_path=path, steps=steps, model={"mechanism": DATA, **model})


@pytest.mark.parametrize("xavier", [True, False])
def test_student_and_generator_may_start_by_xavier(xavier: bool) -> None:
    torch.manual_seed(1)
    module = of_digits(DPSD, teacher="teachers/none.ckpt", xavier=xavier)
    for network in (module.student, module.generator):
        (first, *_) = [layer for layer in network.modules() if isinstance(layer, torch.nn.Conv2d | torch.nn.Linear)]
        bound = (6 / sum(torch.nn.init._calculate_fan_in_and_fan_out(first.weight))) ** 0.5
        assert (0.9 * bound < float(first.weight.detach().abs().max()) <= bound) is xavier


def _fitted(kind: type[DPSD], teacher: torch.nn.Module, mechanism: Any, *, steps: int = 1, **settings: Any) -> DPSD:
    seed_everything(5)
    module: DPSD = of_digits(kind, teacher=teacher, mechanism=mechanism, **settings)
    fit_script(module, steps=steps)
    return module


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
