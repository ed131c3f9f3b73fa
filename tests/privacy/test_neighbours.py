"""Events compose where they are about the same neighbours or a stated lemma says so, and otherwise they raise."""

from __future__ import annotations

import pytest

from privacy import Gaussian, RandomizedResponse, Release, Repeated, RevealedGaussian, SampledGaussian
from privacy.accounting.composition import compose
from privacy.events import release_from_dict
from privacy.events.base import IncompatibleNeighbours, Relation, Unit, common_neighbours

DELTA = 1e-5


ANY, REPLACED = (Unit.RECORD, Relation.ANY_CHANGE), (Unit.RECORD, Relation.REPLACE_ONE)
SAMPLED, LABEL = (Unit.RECORD, Relation.ADD_OR_REMOVE), (Unit.LABEL, Relation.REPLACE_ONE)


@pytest.mark.parametrize(
    ("events", "together"),
    [((), ANY), ((ANY, SAMPLED, ANY), SAMPLED), ((ANY, REPLACED), REPLACED), ((ANY, REPLACED, LABEL), LABEL)],
)
def test_what_composes(events: tuple[tuple[Unit, Relation], ...], together: tuple[Unit, Relation]) -> None:
    assert common_neighbours(events) == together


def test_a_bound_for_a_whole_client_is_one_for_its_records() -> None:
    clients = Gaussian(0.2).about(Unit.CLIENT, Relation.REPLACE_ONE)
    assert common_neighbours([(clients.unit, clients.relation)]) == (Unit.CLIENT, Relation.REPLACE_ONE)
    for other in (Gaussian(0.3), SampledGaussian(1.0, 0.01)):
        pairs = [(event.unit, event.relation) for event in (clients, other)]
        assert common_neighbours(pairs) == (Unit.RECORD, other.relation)
    together = compose({clients: 1, Gaussian(0.3): 1}, DELTA).epsilon
    assert together == compose({Gaussian(0.2): 1, Gaussian(0.3): 1}, DELTA).epsilon


def test_repeated_releases_are_about_what_a_single_one_is() -> None:
    batch = Repeated(RandomizedResponse(1.0, 10), 8).about(Unit.CLIENT, Relation.REPLACE_ONE)
    assert (batch.unit, batch.relation) == (Unit.CLIENT, Relation.REPLACE_ONE) == (batch.release.unit, batch.relation)
    assert release_from_dict(batch.to_dict()) == batch


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (SampledGaussian(1.0, 0.01), Gaussian(0.2, relation=Relation.REPLACE_ONE)),
        (SampledGaussian(1.0, 0.01), Gaussian(0.2, relation=Relation.ZERO_OUT)),
        (SampledGaussian(1.0, 0.01), RevealedGaussian(1.0, 0.05)),
        (RandomizedResponse(1.0, 10, relation=Relation.ZERO_OUT), RevealedGaussian(1.0, 0.05)),
        (Gaussian(0.2, unit=Unit.CLIENT, relation=Relation.ADD_OR_REMOVE), Gaussian(0.2)),
        (Gaussian(0.2, unit=Unit.CLIENT, relation=Relation.ZERO_OUT), Gaussian(0.2)),
        (SampledGaussian(1.0, 0.01, unit=Unit.PERSON), SampledGaussian(1.0, 0.01)),
        (SampledGaussian(1.0, 0.01, unit=Unit.PERSON), Gaussian(0.2)),
    ],
    ids=repr,
)
def test_what_does_not_compose_raises_however_it_is_asked(first: Release, second: Release) -> None:
    for event in (first, second):
        assert compose({event: 1}, DELTA).epsilon > 0
    both = {first: 1, second: 1}
    for ask in (
        lambda: compose(both, DELTA),
        lambda: compose({Repeated(first, 2): 1, second: 1}, DELTA),
    ):
        with pytest.raises(IncompatibleNeighbours):
            ask()
    # What has not happened is about nobody.
    assert compose({first: 1, second: 0}, DELTA) == compose({first: 1}, DELTA)


def test_what_is_written_names_its_neighbours() -> None:
    for values in ({}, {"unit": "record", "relation": "friends"}):
        with pytest.raises(ValueError, match=r"Relation|fields of 'gaussian' must be"):
            release_from_dict({"kind": "gaussian", "mu": 0.5, **values})
