"""Tables of guarantees for `docs/privacy.md` and `docs/dgd.md`, computed by the code that accounts for runs.

Every ε is record-level at δ = 1e-5 unless it is called published.
"""

from __future__ import annotations

from collections.abc import Mapping

from privacy.accounting.composition import compose
from privacy.checks import short_epsilon
from privacy.events import (
    Gaussian,
    LaplaceVotes,
    RandomizedResponse,
    Release,
    RevealedGaussian,
    SampledGaussian,
    Unbounded,
)
from privacy.mechanisms.noisy_gradients import GradientReleases, output_gradient_mu
from privacy.published import published_dgd_epsilon, published_dpdfd_epsilon
from sweeps.runner.markdown import short_claim, table

DELTA = 1e-5
_STEPS, _ROWS, _SIGMA = 200, 256, 100.0
_ANSWER_SIGMA = 63.99
_GENERATOR = Unbounded("generator trained against the private teacher")

Counts = Mapping[Release, int]
"""Releases about a record, with their numbers."""


def methods_table() -> str:
    """Record-level ε of methods by kinds of teacher, with one reference setting per row."""
    dp: Counts = {SampledGaussian(1.0, 0.01): 1000}
    votes: Counts = {LaplaceVotes(40.0): 400}
    #: Releases with one private teacher, and with n teachers on disjoint shards; None: not applicable.
    rows: list[tuple[str, Counts | None, Counts | None]] = [
        (f"DPDFD, DPSD data switch: `per_sample`, σ={_SIGMA:g}, {_STEPS} steps of {_ROWS} (generator against the "
         "student, or prior)", _gradients("per_sample"), None),
        (f"the same, `per_sample_full`; for n teachers `ensemble`, σ={_SIGMA:g}",
         _gradients("per_sample_full"), _gradients("ensemble")),
        ("the same, `batch_mean` (distils nothing)", _gradients("batch_mean"), None),
        (f"mean directions of n teachers' logits with noise, σ={_ANSWER_SIGMA:g}: 4096 images",
         None, {Gaussian(output_gradient_mu("ensemble", 4096, _ANSWER_SIGMA)): 1}),
        ("DPSD label switch: 1000 responses at ε=1, k=10", _answers(1000, 10), _answers(1000, 10)),
        ("DPSD-T (generator against the teacher)", {_GENERATOR: 1, **_answers(1000, 10)}, None),
        ("LabelDP with its generator (against the teacher): 1000 responses at ε=1, k from 2",
         {_GENERATOR: 1, **_answers(1000, 2)}, None),
        ("LabelDP on a prior, or with the generator against the student", _answers(1000, 2), None),
        ("DGD, votes on a prior: 400 queries, Laplace b=40", None, votes),
        ("DGD, votes on a prior: 100 queries, Gaussian σ=40", None, {Gaussian(2**0.5 / 40.0): 100}),
        ("DGD as published: generator against a baseline on all data, 400 Laplace votes",
         None, {Unbounded("baseline trained without privacy"): 1, **votes}),
        ("DPDFD Algorithm 3, direct training on private images, for records",
         {Unbounded("private images enter the Jacobian"): 1}, None),
        ("DPDFD Algorithm 3, for labels only: σ=2, q=0.01, 1000 steps",
         {RevealedGaussian(1.0, 0.01): 1000}, None),
    ]  # fmt: skip

    def of_dp_sgd(name: str, one: Counts | None) -> str:
        if "as published" in name:
            return _cell({**dp, **votes})
        if one is None or "Algorithm 3" in name:
            return _cell(None)
        # Responses are also post-processing of the teacher's DP-SGD training: either bound holds.
        return short_epsilon(min(_epsilon(one), _epsilon(dp)))

    teachers = ["one private teacher", "n teachers on disjoint shards"]
    figures = [*teachers, f"DP-SGD teacher (alone: {short_epsilon(_epsilon(dp))})"]
    cells = [[name, _cell(one), _cell(many), of_dp_sgd(name, one)] for name, one, many in rows]
    return "\n".join(table(["method and setting"], figures, cells)) + "\n"


def papers_table() -> str:
    """Published ε by the papers' theorems at the papers' settings, with the record-level ε of the same run."""
    rows: list[tuple[str, float, Counts]] = []
    releases: tuple[GradientReleases, ...] = ("per_sample", "per_sample_full", "batch_mean")
    for norm_bound, steps in ((1e-3, 59680), (5e-3, 139273)):
        published = published_dpdfd_epsilon(norm_bound, 10, _ROWS, steps, _SIGMA, DELTA)
        for release in releases:
            name = f"DPDFD, DPSD data switch, C={norm_bound:g}, T={steps:,}, `{release}`"
            rows.append((name, published, _gradients(release, steps)))
    rows += [
        ("LabelDP, DPSD label switch, ε=1, 10 000 labels drawn once, k=10", 1.0, _answers(10_000, 10)),
        ("LabelDP, ε=1, 10 000 labels, k from 2", 1.0, _answers(10_000, 2)),
    ]
    cells = [[name, short_claim(published), short_epsilon(_epsilon(counts))] for name, published, counts in rows]
    return "\n".join(table(["run"], ["published ε (a claim)", "record-level ε (a bound)"], cells)) + "\n"


def votes_table() -> str:
    """ε of DGD's votes over their number and over the noise, by both of its accountings (Fig. 8, below) and bounded."""
    claimed = ["published ε, by the moments accountant (a claim)", "by Sec. III-E's formula"]
    cells = []
    runs = [(queries, 40) for queries in (27, 400, 1000, 1300, 3000)]
    for queries, scale in (*runs, *((1000, scale) for scale in (10, 20, 30, 60, 80))):
        claims = [published_dgd_epsilon(queries, 2 / scale, DELTA, advanced=advanced) for advanced in (False, True)]
        bound = _epsilon({LaplaceVotes(float(scale)): queries})
        cells.append([f"{queries:,}", str(scale), *map(short_claim, claims), short_epsilon(bound)])
    figures = ["queries", "Laplace scale 2/ε₀", *claimed, "record-level ε (a bound)"]
    return "\n".join(table([], figures, cells)) + "\n"


def _gradients(release: GradientReleases, steps: int = _STEPS) -> Counts:
    return {Gaussian(output_gradient_mu(release, _ROWS, _SIGMA)): steps}


def _answers(count: int, candidates: int) -> Counts:
    return {RandomizedResponse(1.0, candidates): count}


def _epsilon(counts: Counts) -> float:
    return compose(counts, DELTA).epsilon


def _cell(counts: Counts | None) -> str:
    return "–" if counts is None else short_epsilon(_epsilon(counts))
