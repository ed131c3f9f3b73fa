from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privacy.accounting.composition import compose
from privacy.accounting.pipelines import Bound, composed, disjoint, post_processing, released, unbounded
from privacy.events import Gaussian, LaplaceVotes, Release, SampledGaussian

DELTA = 1e-5
mus = st.floats(0.01, 3.0)


def gaussian(mu: float, count: int = 1) -> Bound:
    return released({Gaussian(mu): count})


@given(own=mus, source=mus)
def test_post_processing_is_the_smaller(own: float, source: float) -> None:
    bound = post_processing(gaussian(own), gaussian(source))
    assert bound.epsilon(DELTA) == min(gaussian(own).epsilon(DELTA), gaussian(source).epsilon(DELTA))


@given(first=mus, second=mus)
def test_what_is_computed_anew_composes_and_is_never_the_smaller(first: float, second: float) -> None:
    bound = composed(gaussian(first), gaussian(second))
    assert bound.epsilon(DELTA) == pytest.approx(gaussian(math.hypot(first, second)).epsilon(DELTA), rel=1e-9)
    # Negative control: who takes two looks at the data for post-processing of one, understates.
    assert post_processing(gaussian(first), gaussian(second)).epsilon(DELTA) < bound.epsilon(DELTA)


@given(shards=st.lists(mus, min_size=1, max_size=5))
def test_disjoint_shards_cost_the_worst(shards: list[float]) -> None:
    assert disjoint(map(gaussian, shards)).epsilon(DELTA) == gaussian(max(shards)).epsilon(DELTA)


def test_the_worst_shard_is_chosen_after_composition_not_before() -> None:
    """Two shards whose order at δ turns around once something else is composed with them."""
    shards = [released({LaplaceVotes(2.0): 1}), gaussian(0.45)]
    assert shards[0].epsilon(DELTA) < shards[1].epsilon(DELTA)
    other = gaussian(1.5)
    both = composed(disjoint(shards), other).epsilon(DELTA)
    assert both == max(composed(shard, other).epsilon(DELTA) for shard in shards)


def test_a_private_teacher_makes_its_generator_unbounded_and_a_dp_teacher_does_not() -> None:
    generator = unbounded("trained against the teacher")
    answers = gaussian(0.2)
    assert composed(generator, answers).epsilon(DELTA) == math.inf
    assert not composed(generator, answers).bounded
    teacher = released({SampledGaussian(1.0, 0.01): 100})
    student = post_processing(composed(generator, answers), teacher)
    assert student.bounded
    assert student.epsilon(DELTA) == teacher.epsilon(DELTA)


def test_a_baseline_by_dp_sgd_composes_with_the_votes() -> None:
    counts: dict[Release, int] = {SampledGaussian(1.0, 0.01): 100, LaplaceVotes(40.0): 27}
    baseline, votes = released({SampledGaussian(1.0, 0.01): 100}), released({LaplaceVotes(40.0): 27})
    bound = composed(baseline, votes).epsilon(DELTA)
    assert bound == compose(counts, DELTA).epsilon
    assert bound > max(baseline.epsilon(DELTA), votes.epsilon(DELTA))


def test_many_equal_shards_are_one_case() -> None:
    assert len(disjoint([gaussian(0.1)] * 250).ways) == 1


def test_no_shard_at_all() -> None:
    with pytest.raises(ValueError, match="at least one shard"):
        disjoint([])
