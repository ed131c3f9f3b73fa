"""The losses against plain float64 references, and their gradients where naive forms fail."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

from lightning_modules.losses import functional as losses
from lightning_modules.losses.functional import (
    class_balance,
    class_weights,
    decoupled_kd,
    decoupled_kd_as_printed,
    informativeness,
    logit_distance,
    logits_and_statistics,
    one_hot_loss,
)
from lightning_modules.losses.targets import class_shares, label_evidence
from lightning_modules.networks import DataLensClassifier
from privacy.events import RandomizedResponse
from privacy.mechanisms.base import ReproducibleNoise
from privacy.mechanisms.noisy_labels import randomized_response

FEW = settings(max_examples=40, deadline=None)


def logits_of(rows: int, classes: int, scale: float, seed: int) -> Tensor:
    return scale * torch.randn(rows, classes, generator=torch.Generator().manual_seed(seed))


def eq2(student: Tensor, teacher: Tensor, *, weight: float, zhao: bool = False) -> Tensor:
    """DPSD Eq. 2, term by term; with `zhao` its denominators 1 - p_j are 1 - p_r, as in Zhao et al."""
    losses = []
    for s, t in zip(student.double(), teacher.double(), strict=True):
        q, p = s.softmax(0), t.softmax(0)
        r = int(p.argmax())
        loss = p[r] * (p[r] / q[r]).log() + (1 - p[r]) * ((1 - p[r]) / (1 - q[r])).log()
        for j in range(len(p)):
            if j != r:
                i = r if zhao else j
                loss = loss + weight * p[j] / (1 - p[i]) * (p[j] * (1 - q[i]) / (q[j] * (1 - p[i]))).log()
        losses.append(loss)
    return torch.stack(losses)


@FEW
@given(st.integers(2, 12), st.floats(0.1, 4.0), st.integers(0, 10**6), st.floats(0.0, 10.0))
def test_decoupled_kd_is_its_definition(classes: int, scale: float, seed: int, beta: float) -> None:
    student, teacher = logits_of(5, classes, scale, seed), logits_of(5, classes, scale, seed + 1)
    expected = eq2(student, teacher, weight=beta, zhao=True)
    ours = decoupled_kd(student.double(), teacher.double(), beta=beta)
    assert ours.shape == (5,)
    torch.testing.assert_close(ours, expected, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(decoupled_kd(student, teacher, beta=beta).double(), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_the_printed_loss_is_its_formula_and_not_that_of_its_reference(classes: int) -> None:
    student, teacher = logits_of(6, classes, 1.0, 0).double(), logits_of(6, classes, 2.0, 1).double()
    printed = decoupled_kd_as_printed(student, teacher, beta=8.0)
    torch.testing.assert_close(printed, eq2(student, teacher, weight=8.0))
    torch.testing.assert_close(decoupled_kd(student, teacher), eq2(student, teacher, weight=8.0, zhao=True))
    assert not torch.allclose(printed, decoupled_kd(student, teacher), rtol=1e-2)


@FEW
@given(st.floats(-1e4, 1e4), st.floats(-1e4, 1e4), st.integers(2, 10), st.integers(0, 10**6))
def test_losses_and_gradients_are_finite_for_extreme_logits(low: float, high: float, classes: int, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    student = (torch.rand(4, classes, generator=draw) * (high - low) + low).requires_grad_()
    teacher = torch.rand(4, classes, generator=draw) * (low - high) + high
    for loss in (
        decoupled_kd(student, teacher).sum(),
        one_hot_loss(student),
        class_balance(student),
    ):
        assert loss.isfinite()
        assert torch.autograd.grad(loss, student)[0].isfinite().all()


def test_weights_give_every_class_that_is_there_as_much() -> None:
    answers = torch.eye(3)[[0, 0, 0, 2]]
    for power, rare in ((0.0, 1.0), (0.5, 3**0.5), (1.0, 3.0)):
        weights = class_weights(answers, power=power)
        torch.testing.assert_close(weights / weights[0], torch.tensor([1.0, 1.0, 1.0, rare]))


def test_terms_of_the_generators_loss_move_the_way_the_papers_say() -> None:
    certain, doubtful = torch.eye(4) * 20, torch.zeros(4, 4)
    assert one_hot_loss(certain) < 1e-6 < one_hot_loss(doubtful)
    assert class_balance(certain).item() == pytest.approx(-math.log(4), abs=1e-5)
    assert class_balance(doubtful).item() == pytest.approx(-math.log(4), abs=1e-5)
    assert class_balance(torch.eye(4)[:1].expand(4, 4) * 20).item() == pytest.approx(0.0, abs=1e-5)
    logits = logits_of(32, 5, 2.0, 3).double()
    mean = logits.softmax(1).mean(0)
    torch.testing.assert_close(class_balance(logits), (mean * mean.log()).sum(), rtol=1e-6, atol=1e-6)
    # As printed it makes each image doubtful, which the first term makes certain.
    assert class_balance(certain, of="image").abs() < 1e-6 and class_balance(doubtful, of="image") < -1.38


def test_activation_as_dgd_prints_it_is_a_sum_over_features() -> None:
    assert float(losses.activation(torch.tensor([[3.0, -4.0], [0.0, 0.0]]), norm="l1_sum")) == pytest.approx(7 / 2)


@pytest.mark.parametrize("size", [2, 4, 10])
def test_evidence_and_the_students_prediction_make_bayes_rule(size: int) -> None:
    """By the table of probabilities that the verifier enumerates."""
    torch.manual_seed(size)
    outputs, epsilon = torch.randn(40, 10).double(), 1.3
    candidates = torch.zeros(40, 10, dtype=torch.bool).scatter_(1, torch.randn(40, 10).topk(size, dim=1).indices, True)
    answers = torch.tensor([int(torch.nonzero(row)[i % size]) for i, row in enumerate(candidates)])
    found = (outputs + label_evidence(answers, candidates, epsilon=epsilon)).softmax(1)
    keep, other = RandomizedResponse(epsilon, size).probabilities
    for row in range(40):
        likelihood = [(keep if c == answers[row] else other) if candidates[row, c] else 1 / size for c in range(10)]
        joint = outputs[row].softmax(0) * torch.tensor(likelihood).double()
        assert torch.allclose(found[row], joint / joint.sum(), atol=1e-6)


def test_kd_is_the_divergence_and_vanishes_where_both_agree() -> None:
    torch.manual_seed(0)
    student, teacher = torch.randn(5, 4), torch.randn(5, 4)
    p, q = (teacher / 2).softmax(1), (student / 2).softmax(1)
    assert torch.allclose(losses.kd(student, teacher, temperature=2.0), 4 * (p * (p / q).log()).sum(1), atol=1e-6)
    assert torch.allclose(losses.kd(teacher, teacher), torch.zeros(5), atol=1e-6)


def test_output_gradients_are_of_each_row_alone() -> None:
    torch.manual_seed(0)
    outputs, answers = torch.randn(6, 4), torch.randn(6, 4)
    whole = losses.output_gradients(outputs, lambda free: losses.decoupled_kd(free, answers))
    alone = [
        losses.output_gradients(outputs[i : i + 1], lambda free, i=i: losses.decoupled_kd(free, answers[i : i + 1]))
        for i in range(6)
    ]
    assert torch.allclose(whole, torch.cat(alone), atol=1e-6)
    assert not whole.requires_grad


def test_logit_distance_sees_no_constant_and_is_of_each_row() -> None:
    first, second = torch.randn(5, 4), torch.randn(5, 4)
    assert torch.allclose(logit_distance(first, first + torch.arange(5.0)[:, None]), torch.zeros(5), atol=1e-10)
    moved = logit_distance(first, second + 3)
    assert torch.allclose(moved, logit_distance(first, second), atol=1e-5)
    # By hand: (1, -1, 0, 0) apart, mean 0.
    apart = torch.tensor([[1.0, -1.0, 0.0, 0.0]])
    assert logit_distance(apart, torch.zeros(1, 4)).item() == pytest.approx(0.5)


def test_shares_of_classes_are_told_from_noisy_labels() -> None:
    shares = torch.tensor([0.7, 0.25, 0.05, 0.0])
    labels = torch.repeat_interleave(torch.arange(4), (shares * 40_000).long())
    noise = ReproducibleNoise(seed=1)
    responses = randomized_response(labels, torch.ones(40_000, 4, dtype=torch.bool), epsilon=1.0, noise=noise)
    found = class_shares(responses, num_classes=4, epsilon=1.0)
    assert float(found.sum()) == pytest.approx(1) and torch.allclose(found, shares, atol=0.03)
    # Control: read as responses of another epsilon, or as they are, they are other shares.
    assert not torch.allclose(class_shares(responses, num_classes=4, epsilon=1.5), shares, atol=0.1)
    assert not torch.allclose(torch.bincount(responses) / 40_000, shares, atol=0.1)


def test_informativeness_is_the_mutual_information_over_its_largest_value() -> None:
    assert informativeness(50 * torch.eye(7).repeat(3, 1)) == pytest.approx(1)
    for nothing in (torch.zeros(20, 7), 50 * torch.eye(7)[[2] * 20], torch.tensor([[1e30, 0.0]] * 2)):
        assert informativeness(nothing) == pytest.approx(0, abs=1e-12)
    joint = torch.tensor([[0.4, 0.1], [0.2, 0.3]])  # of two images as likely as each other
    expected = sum(
        p * math.log(p / (row.sum().item() * joint[:, k].sum().item()))
        for row in joint
        for k, p in enumerate(row.tolist())
    )
    assert informativeness((joint / joint.sum(1, keepdim=True)).log()) == pytest.approx(
        expected / math.log(2), rel=1e-6
    )


def test_the_distance_to_statistics_of_one_layer_by_hand() -> None:
    layer: Any = nn.BatchNorm2d(2).eval()
    layer.running_mean += torch.tensor([1.0, -2.0])
    layer.running_var *= torch.tensor([3.0, 0.5])
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(8, 3)).eval()
    images = torch.randn(5, 2, 2, 2)
    channels = images.transpose(0, 1).flatten(1)
    expected = (channels.mean(1) - layer.running_mean).norm() + (channels.var(1) - layer.running_var).norm()
    logits, distance = logits_and_statistics(model, images)
    assert torch.equal(logits, model(images))
    assert float(distance.detach()) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize(
    "model",
    [
        DataLensClassifier(num_classes=3, image_shape=(1, 28, 28)),
        nn.Sequential(nn.BatchNorm2d(1, track_running_stats=False), nn.Flatten(), nn.Linear(784, 3)),
    ],
    ids=["none", "without statistics"],
)
def test_a_network_without_statistics_is_told_what_is_missing(model: nn.Module) -> None:
    with pytest.raises(ValueError, match="has no BatchNorm layer to compare"):
        logits_and_statistics(model, torch.randn(2, 1, 28, 28))
