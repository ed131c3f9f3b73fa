"""Values that a type allows and no run can use are refused when settings are made, by name and with what is allowed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from lightning_modules import DPDFD, DPSD, FedDPSD
from lightning_modules.dgd.phases import GeneratorPhase, QueryPhase, StudentPhase, VAEPhase
from lightning_modules.labeldp import GeneratorTraining
from lightning_modules.losses.functional import GeneratorLoss
from lightning_modules.losses.targets import GradientTargets
from lightning_modules.setting_checks import check_choice, check_number, check_whole_number
from lightning_modules.teachers.config import TeacherConfig
from privacy.mechanisms import DirectGradients, DirectLabels

COUNTS = [
    (GeneratorPhase, "generator_phase", "steps", 0),
    (VAEPhase, "vae_phase", "steps", 0),
    *((QueryPhase, "query_phase", name, 1) for name in ("queries", "candidates", "rounds", "steps_between")),
    (GeneratorTraining, "generator_training", "pretraining_steps", 0),
]
WEIGHTS = [
    (GeneratorPhase, "generator_phase", "activation_weight"),
    (StudentPhase, "student_phase", "query_distortion"),
    (GeneratorTraining, "generator_training", "statistics_weight"),
    (GeneratorLoss, "generator_loss", "student_loss_weight"),
    (GradientTargets, "gradient_targets", "dkd_beta"),
    (GradientTargets, "gradient_targets", "gamma"),
]


@pytest.mark.parametrize(("kind", "group", "name", "least"), COUNTS)
def test_a_count_is_a_whole_number(kind: Callable[..., Any], group: str, name: str, least: int) -> None:
    with pytest.raises(ValueError, match=rf"{group}\.{name} must be {least} or more and a whole number, got -1"):
        kind(**{name: -1})


@pytest.mark.parametrize(("kind", "group", "name"), WEIGHTS)
def test_a_weight_is_a_finite_number(kind: Callable[..., Any], group: str, name: str) -> None:
    with pytest.raises(ValueError, match=rf"{group}\.{name} must be .*finite.*, got nan"):
        kind(**{name: math.nan})
    assert getattr(kind(**{name: 0.5}), name) == 0.5


@pytest.mark.parametrize(
    ("method", "allowed"),
    [
        (DPDFD, "NoisyGradients"),
        (DPSD, "NoisyGradients or NoisyLabels"),
    ],
)
def test_a_mechanism_is_of_the_methods_kind(method: Callable[..., Any], allowed: str) -> None:
    other, teacher = DirectLabels(), TeacherConfig(path="x.ckpt")
    with pytest.raises(ValueError, match=f"mechanism must be a {allowed}, got DirectLabels"):
        method(num_classes=10, image_shape=(1, 8, 8), batch_size=4, teacher=teacher, mechanism=other)


@pytest.mark.parametrize("method", [DPDFD, DPSD, FedDPSD])
def test_a_mechanism_that_is_priced_for_labels_alone_is_not_a_teachers(method: Callable[..., Any]) -> None:
    whose = {"clients": []} if method is FedDPSD else {"teacher": TeacherConfig(path="x.ckpt")}
    with pytest.raises(ValueError, match=r"mechanism must be a NoisyGradients.*got DirectGradients"):
        method(num_classes=10, image_shape=(1, 8, 8), batch_size=4, mechanism=DirectGradients(), **whose)


def test_a_word_is_one_of_those_that_are_named() -> None:
    with pytest.raises(ValueError, match=r"generator_loss\.activation_norm must be l1 or l2, got 'l3'"):
        GeneratorLoss(activation_norm="l3")  # type: ignore[arg-type]


def test_what_is_allowed_is_let_through_up_to_its_bounds() -> None:
    check_choice("x", "b", ("a", "b", "c"))
    check_whole_number("x", 3, least=3)
    for given, bounds in ((-5, {}), (0, {"least": 0}), (2.0, {"least": 1, "most": 2}), (1e-9, {"above": 0})):
        check_number("x", given, **bounds)
    check_number("x", None, null="1")
    check_whole_number("x", None, least=0, null="never")
    for given, bounds, words in (
        (-1, {"least": 0}, "0 or more and finite"),
        (2.1, {"least": 1, "most": 2}, "a number between 1 and 2"),
        (0, {"above": 0}, "above 0 and finite"),
        (1.0, {"least": 0, "below": 1}, "0 or more and below 1"),
    ):
        with pytest.raises(ValueError, match=f"x must be {words}, got {given}"):
            check_number("x", given, **bounds)
    for given in (None, math.inf, "1"):
        with pytest.raises(ValueError, match=f"x must be a finite number, got {given!r}"):
            check_number("x", given)
    for given in (1.5, math.nan, True, "2"):
        with pytest.raises(ValueError, match=f"x must be 0 or more and a whole number, got {given!r}"):
            check_whole_number("x", given, least=0)
    with pytest.raises(ValueError, match="x must be 0 or more and a whole number, or null for never, got -1"):
        check_whole_number("x", -1, least=0, null="never")
