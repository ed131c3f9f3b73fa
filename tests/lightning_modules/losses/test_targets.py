"""What the noisy gradient is of, and what is made of it: each setting does what it says, and not the default's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.sessions import session_of
from torch import Tensor

from lightning_modules.losses.targets import GradientTargets, teacher_answers
from privacy.mechanisms import NoisyGradients, NoisyLabels, Shape
from privacy.mechanisms.base import Mechanism
from privacy.mechanisms.bounding import GRADIENT_BOUNDINGS

C = 1e-3
MECHANISM, SOFT = NoisyGradients(norm_bound=C), NoisyGradients(norm_bound=C, stability=0.3)


def logits(seed: int, rows: int = 6, classes: int = 5) -> Tensor:
    return torch.randn(rows, classes, generator=torch.Generator().manual_seed(seed))


def by_differences(loss: Any, at: Tensor, *, step: float = 1e-5) -> Tensor:
    """The gradient of each sample's loss, by central differences in float64."""
    found = torch.empty_like(at, dtype=torch.float64)
    for column in range(at.shape[1]):
        moved = torch.zeros(at.shape[1], dtype=torch.float64)
        moved[column] = step
        found[:, column] = (loss(at.double() + moved) - loss(at.double() - moved)) / (2 * step)
    return found


# --- probabilities ---


def kl(p: Tensor, q: Tensor) -> Tensor:
    return (p * (p / q).log()).sum(1)


def test_the_gradient_is_with_respect_to_probabilities() -> None:
    student, teacher = logits(0), logits(1)
    p, q = teacher.double().softmax(1), student.softmax(1)
    found = GradientTargets(outputs="probabilities", loss="kd").gradients(student, teacher)
    expected = by_differences(lambda free: kl(p, free / free.sum(1, keepdim=True)), q)
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-4)
    # Entries as free numbers: the same up to a multiple of ones.
    apart = found.double() - by_differences(lambda free: kl(p, free), q)
    torch.testing.assert_close(apart, apart[:, :1].expand_as(apart), rtol=1e-3, atol=1e-3)
    assert not torch.allclose(found, GradientTargets(loss="kd").gradients(student, teacher), atol=1e-2)


def test_targets_are_a_step_from_the_probabilities_back_in_the_simplex() -> None:
    outputs, released = logits(0), C * logits(1)
    settings = GradientTargets(outputs="probabilities", gamma=0.1 / C)
    targets = settings.annotation(outputs, released, MECHANISM).targets
    raw = outputs.softmax(1) - 0.1 * logits(1)
    assert (raw < 0).any() and not torch.allclose(raw.sum(1), torch.ones(6))  # as printed it is no distribution
    kept = raw.clamp_min(0)
    torch.testing.assert_close(targets, kept / kept.sum(1, keepdim=True))
    torch.testing.assert_close(targets.sum(1), torch.ones(6))
    default = GradientTargets(gamma=0.1 / C).annotation(outputs, released, MECHANISM).targets
    assert not torch.allclose(targets, default, atol=1e-3)


def test_a_followed_gradient_moves_no_common_part_of_the_logits() -> None:
    settings = GradientTargets(student_target="gradients")
    session = session_of(NoisyGradients, Shape(6, 5), norm_bound=C, noise_multiplier=0.0, top_k=2)
    outputs = logits(0)
    released = session.release(session.mechanism, settings.gradients(outputs, logits(1)))
    assert float(released.sum(1).abs().max()) > 0.1 * C  # a masked gradient has one
    made = settings.annotation(outputs, released, MECHANISM)
    torch.testing.assert_close(made.gradients.sum(1), torch.zeros(6), atol=1e-5, rtol=0)
    torch.testing.assert_close((outputs - made.gradients).softmax(1), made.targets)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"outputs": "probabilities", "student_target": "gradients"},
            "student_target='gradients' needs outputs='logits'",
        ),
        ({"student_target": "answers"}, "or loss='kd' and gamma=null, got 'dkd' and None"),
    ],
)
def test_settings_without_meaning_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GradientTargets(**given)


def test_answers_are_the_teachers_whatever_the_student_thinks() -> None:
    settings = GradientTargets(loss="kd", student_target="answers")
    student, teacher = logits(0), 3 * logits(1)
    gradients = settings.gradients(student, teacher).double()
    released = GRADIENT_BOUNDINGS["normalize"].bound(gradients, norm_bound=C, stability=0.3)
    made = settings.annotation(student, released, SOFT)
    torch.testing.assert_close(made.targets.double(), teacher.double().softmax(1), rtol=0, atol=1e-6)
    wrong = settings.annotation(student, released, NoisyGradients(norm_bound=C, stability=0.1)).targets
    assert not torch.allclose(wrong.double(), teacher.double().softmax(1), atol=1e-2)


def test_answers_of_noisy_rows_are_the_nearest_distributions() -> None:
    rows, student = logits(2, rows=50), logits(0, rows=50).softmax(1)
    made = teacher_answers(student, rows, stability=0.3)
    torch.testing.assert_close(made.sum(1), torch.ones(50))
    assert float(made.min()) >= 0
    lengths = rows.norm(dim=1, keepdim=True)
    free = student - rows / lengths * 0.3 / (1 / lengths.clamp_max(2**0.5 / (2**0.5 + 0.3)) - 1)
    for other in (student, torch.eye(5)[torch.arange(50) % 5], 0.9 * made + 0.1 * student):
        assert ((made - free).norm(dim=1) <= (other - free).norm(dim=1) + 1e-6).all()


def test_answers_of_several_teachers_are_what_they_agree_on() -> None:
    """Two who say the same count as one; of others most have a class that one of them says."""
    settings = GradientTargets(loss="kd", student_target="answers")
    student, one, other = logits(0, rows=50), 5 * logits(1, rows=50), 5 * logits(2, rows=50)
    for teachers in (torch.stack([one, one]), torch.stack([one, other])):
        rows = settings.gradients(student, teachers).flatten(0, 1)
        bounded = GRADIENT_BOUNDINGS["normalize"].bound(rows, norm_bound=C, stability=0.3).view(teachers.shape)
        made = settings.annotation(student, bounded.mean(0), SOFT).targets.argmax(1)
        said = teachers.argmax(2) == made
        assert said.any(0).float().mean() > 0.9
        assert bool(said.all()) == torch.equal(*teachers)


@pytest.mark.parametrize(
    ("mechanism", "message"),
    [
        (NoisyLabels(), "needs the data switch"),
        (NoisyGradients(stability=0.3, bounding="clip"), "or ensemble, got 'clip' and 'per_sample'"),
        (NoisyGradients(stability=0.3, release="batch_mean"), "got 'normalize' and 'batch_mean'"),
        (NoisyGradients(), r"mechanism\.stability of 0\.01 or more, got 0\.0001"),
    ],
)
def test_answers_need_gradients_that_can_be_solved(mechanism: Mechanism, message: str) -> None:
    settings = GradientTargets(loss="kd", student_target="answers")
    settings.require(NoisyGradients(stability=0.3))
    with pytest.raises(ValueError, match=message):
        settings.require(mechanism)
