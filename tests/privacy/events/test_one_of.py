"""One of several trainings: the largest counts, whichever that is once everything is composed."""

from __future__ import annotations

from support.closed_forms import rdp_compose

from privacy import Gaussian, OneOf, SampledGaussian, compose
from privacy.events import Release
from privacy.neighbours import Relation, Unit

DELTA = 1e-5
MANY: dict[Release, int] = {SampledGaussian(5.0, 0.05): 91}
FEW: dict[Release, int] = {SampledGaussian(0.5, 0.001): 1}
EITHER = OneOf.of([MANY, FEW])


def epsilon(counts: dict[Release, int]) -> float:
    return compose(counts, DELTA).epsilon


def test_by_itself_it_costs_what_the_worst_training_costs() -> None:
    assert epsilon({EITHER: 1}) == max(epsilon(MANY), epsilon(FEW)) == epsilon(MANY)


def test_which_training_is_the_worst_follows_from_what_else_is_composed() -> None:
    """Choosing it once, by its own epsilon, would understate what two federations of the same clients cost."""
    others: dict[Release, int] = {SampledGaussian(0.5, 0.001): 1}
    truth = max(epsilon({**MANY, **others}), epsilon({SampledGaussian(0.5, 0.001): 2}))
    assert epsilon({EITHER: 1, **others}) == truth
    twice = {EITHER: 2}
    wrong = epsilon({SampledGaussian(5.0, 0.05): 182})
    ways = [
        epsilon({SampledGaussian(5.0, 0.05): 182}),
        epsilon({**MANY, **FEW}),
        epsilon({SampledGaussian(0.5, 0.001): 2}),
    ]
    assert epsilon(twice) == max(ways) >= wrong
    assert max(ways) > wrong * 1.01, "the choice by itself is too small here"


def test_of_more_ways_than_are_gone_through_it_is_composed_by_renyi() -> None:
    assert compose({EITHER: 20}, DELTA).method == "rdp"
    assert epsilon({EITHER: 20}) == rdp_compose({EITHER: 20}, DELTA) >= epsilon({SampledGaussian(5.0, 0.05): 20 * 91})


def test_numbers_of_any_size_are_composed_at_once() -> None:
    """A budget is tried with a thousand million calls; nothing may be gone through one by one."""
    many = 10**9
    assert epsilon({Gaussian(1e-9): many}) == epsilon({OneOf.of([{Gaussian(1e-9): 1}]): many})
    assert compose({EITHER: many}, DELTA).method == "rdp"


def test_order_of_the_trainings_is_nothing_and_it_is_about_what_they_are_about() -> None:
    assert OneOf.of([MANY, FEW]) == OneOf.of([FEW, MANY]) == OneOf.of([FEW, MANY, FEW])
    assert (EITHER.unit, EITHER.relation) == (Unit.RECORD, Relation.ADD_OR_REMOVE)
