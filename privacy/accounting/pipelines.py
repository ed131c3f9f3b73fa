"""What a chain of stages costs: post-processing, composition, disjoint shards.

A bound is a choice between ways to argue (the smallest valid one counts), and each way knows the cases that a record
may be in (the worst one counts). Only when δ is given does it become an ε, so that stages are composed as mechanisms
and no two ε are ever added.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from privacy.accounting.composition import compose
from privacy.events import Release, Unbounded

__all__ = ["Bound", "composed", "disjoint", "post_processing", "released", "unbounded"]

Case = frozenset[tuple[Release, int]]


@dataclass(frozen=True)
class Bound:
    """Record-level bound of an artefact. Build it with the functions of this module.

    Attributes:
        ways: Ways to argue, each the set of cases a record may be in; a case is what is released about such a record.
    """

    ways: frozenset[frozenset[Case]]

    def epsilon(self, delta: float) -> float:
        """ε at δ: the smallest way to argue, each by its worst case.

        Raises:
            ValueError: δ is not in (0, 1).
        """
        return min(max(compose(dict(case), delta).epsilon for case in way) for way in self.ways)

    @property
    def bounded(self) -> bool:
        """Whether any way to argue bounds every case."""
        return any(all(release.bounded for case in way for release, _ in case) for way in self.ways)


def released(counts: Mapping[Release, int]) -> Bound:
    """An artefact computed only from these releases and public information.

    >>> from privacy.events import Gaussian
    >>> round(released({Gaussian(0.32): 1}).epsilon(1e-5), 4)
    1.2151
    """
    case: Case = frozenset((release, count) for release, count in counts.items() if count)
    return Bound(frozenset({frozenset({case})}))


def unbounded(reason: str) -> Bound:
    """An artefact computed from private data without noise, such as a generator trained against a private teacher.

    >>> unbounded("generator trained against the teacher").epsilon(1e-5)
    inf
    """
    return released({Unbounded(reason): 1})


def post_processing(own: Bound, *sources: Bound) -> Bound:
    """An artefact with a bound of its own, computed only from `sources`, one of which would do: the smaller ε.

    A student's responses are bounded by their noise, and by the teacher's own guarantee where it has one.

    >>> from privacy.events import Gaussian
    >>> teacher, answers = released({Gaussian(0.02): 1}), released({Gaussian(50.0): 1})
    >>> post_processing(answers, teacher).epsilon(1e-5) == teacher.epsilon(1e-5)
    True
    >>> generator = unbounded("trained against the teacher")
    >>> post_processing(generator, teacher).epsilon(1e-5) == teacher.epsilon(1e-5)
    True
    """
    return Bound(frozenset(way for bound in (own, *sources) for way in bound.ways))


def composed(*bounds: Bound) -> Bound:
    """Artefacts that are published together, or one that is computed from all of them, each from the private data anew.

    >>> from privacy.events import Gaussian
    >>> votes, baseline = released({Gaussian(0.2): 3}), released({Gaussian(0.3): 1})
    >>> both = released({Gaussian((3 * 0.2**2 + 0.3**2) ** 0.5): 1})
    >>> abs(composed(votes, baseline).epsilon(1e-5) - both.epsilon(1e-5)) < 1e-9
    True
    """
    ways = set()
    for choice in itertools.product(*(bound.ways for bound in bounds)):
        ways.add(frozenset(_sum(cases) for cases in itertools.product(*choice)))
    return Bound(frozenset(ways))


def disjoint(bounds: Iterable[Bound]) -> Bound:
    """Artefacts of disjoint shards, each record in one of them: the worst shard.

    Raises:
        ValueError: No shard at all.

    >>> from privacy.events import Gaussian
    >>> shards = [released({Gaussian(mu): 1}) for mu in (0.1, 0.3, 0.2)]
    >>> disjoint(shards).epsilon(1e-5) == released({Gaussian(0.3): 1}).epsilon(1e-5)
    True
    """
    # Equal shards are one case: 250 of them must not become 250 factors of a product.
    kinds = list(dict.fromkeys(bounds))
    if not kinds:
        raise ValueError("bounds must hold at least one shard")
    if math.prod(len(bound.ways) for bound in kinds) > 4096:
        raise ValueError(
            f"bounds: {len(kinds)} different shards with several ways to argue each are too many to compare"
        )
    ways = itertools.product(*(bound.ways for bound in kinds))
    return Bound(frozenset(frozenset().union(*choice) for choice in ways))


def _sum(cases: Iterable[Case]) -> Case:
    total: Counter[Release] = Counter()
    for case in cases:
        for release, count in case:
            total[release] += count
    return frozenset(total.items())
