"""Values that a type allows and no run can use are refused when settings are made, by name and with what is allowed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from lightning_modules import DPDFD, DPSD, FedDPSD
from lightning_modules.dgd.phases import GeneratorPhase, QueryPhase
from lightning_modules.federated.feddpsd import FederationConfig
from lightning_modules.losses.functional import GeneratorLoss
from lightning_modules.losses.targets import GradientTargets
from lightning_modules.teachers.config import TeacherConfig
from privacy.checks import check_choice, check_count, check_number
from privacy.mechanisms import DirectGradients, DirectLabels, Mechanism

COUNT, FINITE = "and a whole number, got -1", "finite.*, got nan"
REFUSED: list[tuple[Callable[..., Any], str, Any, str]] = [
    (GeneratorPhase, "generator_phase.steps", -1, COUNT),
    *((QueryPhase, f"query_phase.{name}", -1, COUNT) for name in ("queries", "candidates", "rounds", "steps_between")),
    (GeneratorLoss, "generator_loss.student_loss_weight", math.nan, FINITE),
    (GradientTargets, "gradient_targets.gamma", math.nan, FINITE),
    (GeneratorLoss, "generator_loss.activation_norm", 3, "l1_sum or l2, got 3"),
    (FederationConfig, "federation.name", " ", "a name, got ' '"),
]


@pytest.mark.parametrize(("kind", "name", "given", "words"), REFUSED, ids=[name for _, name, _, _ in REFUSED])
def test_what_no_run_can_use_is_refused_by_name(kind: Callable[..., Any], name: str, given: Any, words: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be .*{words}"):
        kind(**{name.partition(".")[2]: given})


@pytest.mark.parametrize(
    ("method", "allowed"),
    [(DPDFD, "NoisyGradients"), (DPSD, "NoisyGradients or NoisyLabels"), (FedDPSD, "NoisyGradients or NoisyLabels")],
)
@pytest.mark.parametrize("other", [DirectLabels(), DirectGradients()])  # the second is priced for labels alone
def test_a_mechanism_is_of_the_methods_kind(method: Callable[..., Any], allowed: str, other: Mechanism) -> None:
    whose = {"clients": []} if method is FedDPSD else {"teacher": TeacherConfig(path="x.ckpt")}
    with pytest.raises(ValueError, match=f"mechanism must be a {allowed}, got {type(other).__name__}"):
        method(num_classes=10, image_shape=(1, 8, 8), batch_size=4, mechanism=other, **whose)


def test_what_is_allowed_is_let_through_up_to_its_bounds() -> None:
    check_choice("x", "b", ("a", "b", "c"))
    check_count("x", 3, minimum=3)
    for given, bounds in ((-5, {}), (0, {"least": 0}), (2.0, {"least": 1, "most": 2}), (1e-9, {"above": 0})):
        check_number("x", given, **bounds)
    check_number("x", None, null="1")
    check_count("x", None, minimum=0, null="never")
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
            check_count("x", given, minimum=0)
    with pytest.raises(ValueError, match="x must be 0 or more and a whole number, or null for never, got -1"):
        check_count("x", -1, minimum=0, null="never")
