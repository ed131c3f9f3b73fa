"""Builds the guarantee from what was charged: which ε covers it, and under which conditions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from privacy.account import PrivacyAccount
from privacy.accounting.composition import known_epsilon
from privacy.checks import round_up
from privacy.events.base import Unit
from privacy.guarantee import FULLY_ADAPTIVE, OF_CLIENT, ONE_PERSON, RELATIONS, Guarantee, LabelStatement
from privacy.ledger import Ledger
from privacy.plan import Charge, Plan, unmade

if TYPE_CHECKING:  # they import torch
    from privacy.mechanisms.base import Description
    from privacy.session import PrivacySession

_PUBLIC = (
    "the following are public: the number of private records, the number of classes, image shape and normalisation, "
    "the weights before the first step and any put in between fits, and every setting in the configuration"
)
_TEST_PICTURES = (
    "TEST PICTURES ARE PUBLIC BY ASSUMPTION: accuracy on them was measured without noise, and epsilon protects nobody "
    "who is shown only there. A hospital tests on pictures that may be known, or holds a patient's out of training and "
    "test alike"
)

_NO_ACCESSES = (
    "during this run, information about a teacher was released only through the privacy session; outside it, no "
    "teacher accuracy, teacher loss or agreement with a teacher was used to choose a setting, a checkpoint or a run"
)

_NO_LABELS = (
    "during this run, labels were used only through the privacy session; outside it, nothing measured on private "
    "records was used to choose a setting, a checkpoint or a run"
)

_LABELS = (
    "the labels of different records are independent of each other, or only the change of one label is of interest; "
    "labels were used only through the privacy session, and not for initial weights, settings or features",
    "a record's label is queried only by this privacy session, and its number always refers to the same record",
)

NOISE_CHANGED = (
    "THE NOISE WAS CHANGED after the first release: neither the new noise nor the time of the change was chosen by "
    "looking at the results. Epsilon covers everything that was ever planned and everything that was released, each "
    "at its own noise, as if these noises had been fixed beforehand. Noise chosen by results would need a budget "
    "fixed before the first release (a privacy filter: Rogers et al. 2016; Feldman and Zrnic 2021), and there was "
    "none here"
)

_SAME_PERSON = (
    "a person or patient, or an image that occurs more than once: epsilon is for one record, which is one image. "
    "Several records of one person, near-duplicates of an image, and copies of the same images elsewhere, which may "
    "have another ledger, reveal more together than epsilon allows for one"
)

_OTHER_NAMES = (
    "a person whose pictures are counted as several persons', near-duplicates of a picture among those of other "
    "persons, and pictures of a person elsewhere, such as copies of a folder or another client's, which may have "
    "another ledger"
)

_SEVERAL_RUNS = (
    "where several runs or trainings compose, none was made, and neither its mechanism nor its noise or length chosen, "
    "because of what an earlier one released: budget.fully_adaptive does without this"
)
_ANOTHER_LEDGER = (
    "ANOTHER LEDGER: one that the teacher's training or the start of this run names is not available, and what else it "
    "holds is not counted: nothing computed from that is published"
)
_PLANNED = "the number of steps planned before the first release was chosen without the private data"
_GENERATOR = "noise came from the operating system's cryptographic generator"
_N_NOT_GIVEN = "delta = {delta:g} is below one over the number of private records, which was not given"
_IN_MEMORY = "the ledger was kept in memory: no other run and no crashed run has used this teacher"
_OTHER_RUNS = (
    "other runs and teachers from the same private data, if anything they produced is published too: the ledger's "
    "total is given above, and holds if none was made or chosen because of what an earlier one released"
)

POST_PROCESSING = (
    "post-processing of a teacher trained with DP-SGD (Abadi et al. 2016): all planned steps of its training, "
    "composed by privacy-loss distributions or RDP and rounded pessimistically"
)

_BY_FILTERS = (
    "; fully adaptive: privacy filters within the target (Rogers et al. 2016; Feldman and Zrnic 2021; Smith and "
    "Thakurta 2022)"
)

_DP_SGD_ASSUMPTION = (
    "the teacher's file is as its training wrote it: its planned steps, noise and sample rates are true, and its "
    "settings were chosen without looking at the private data"
)


def guarantee_of(
    session: PrivacySession,
    *,
    artefacts: Sequence[str],
    assumptions: Sequence[str] = (),
    not_covered: Sequence[str] = (),
) -> Guarantee:
    """Guarantee of what was computed only from the releases of a session's run and public information.

    Args:
        session: The session.
        artefacts: What was computed.
        assumptions: Conditions besides the session's.
        not_covered: What else is not covered.

    Raises:
        LedgerError: The ledger cannot be read: nothing can be said.
    """
    session.ledger.sync()
    return state_guarantee(
        session.account,
        described(session),
        session.plan,
        artefacts=artefacts,
        secure=session.mechanism.source.secure,
        replaced=session.ledger_was_replaced,
        uncharged_queries=session.uncharged_queries,
        assumptions=list(dict.fromkeys([*assumptions, *session.assumptions])),
        not_covered=not_covered,
        source_of_labels=session.mechanism.source_of_labels,
    )


def described(session: PrivacySession) -> Description:
    """Description of a session's mechanism as its run was charged for it, since resuming may have changed its noise.

    As it is set now if nothing was charged.
    """
    now, calls = session.mechanism.describe(session.shape), Counter[str]()
    for charge, count in session.account.counts(scope="run").items():
        if charge.words:
            calls[charge.words] += count
    if len(calls) < 2:
        return replace(now, mechanism=next(iter(calls), now.mechanism))
    each = [f"{count:,} call{'' if count == 1 else 's'}: {words}" for words, count in calls.items()]
    return replace(now, mechanism="; ".join(each))


def epsilons(session: PrivacySession, counts: Mapping[Charge, int] | None = None) -> dict[str, float]:
    """Returns ε by their names in logs: of the releases so far, and of the plan, which the guarantee states.

    The published one of the releases so far stands beside them, unless it is infinite, which is no claim, and that
    for labels, where the mechanism has one. `counts` replace both.
    """
    account = session.account
    planned = session.covering() if counts is None else counts
    published = account.epsilon_published(counts=counts)
    name, stated = epsilon_metric(account.neighbours(counts=planned)[0]), account.epsilon(counts=planned)
    found = {name: account.epsilon(counts=counts), f"{name}_planned": account.stated(stated)}
    if account.budget.published and math.isfinite(published):
        found["privacy/epsilon_published"] = published
    if session.mechanism.source_of_labels:
        found["privacy/epsilon_label"] = account.epsilon_label(counts=counts)
    return found


def epsilon_metric(unit: Unit) -> str:
    """Name of ε in logs, which tells person-level from record-level figures."""
    return "privacy/epsilon_person" if unit is Unit.PERSON else "privacy/epsilon"


def noise_changed(account: PrivacyAccount, plan: Plan) -> bool:
    """Whether a run's releases were made, or planned, with several noises."""
    charges = {*account.counts(scope="run"), *plan.charges}
    return len({charge.words for charge in charges if charge.words}) > 1


def state_guarantee(
    account: PrivacyAccount,
    words: Description,
    plan: Plan,
    *,
    artefacts: Sequence[str],
    secure: bool = True,
    spent: float | None = None,
    uncharged_queries: Sequence[str] = (),
    assumptions: Sequence[str] = (),
    not_covered: Sequence[str] = (),
    replaced: bool = False,
    source_of_labels: str = "",
) -> Guarantee:
    """Builds the guarantee for what was computed only from the charged releases and public information.

    Args:
        account: What was charged.
        words: Description of the mechanism.
        plan: What the run planned before its first release, all of which ε covers: a run that is stopped early
            because of what it released has used its whole plan. If there was none, or something was added later, an
            assumption says so.
        artefacts: What was computed.
        secure: Whether the noise cannot be reproduced.
        spent: Record-level ε of the releases made so far; None computes it from the account.
        uncharged_queries: Unaccounted queries of this run to private data or models, in words.
        assumptions: Further conditions.
        not_covered: What else is not covered.
        replaced: Whether another ledger was used before, which is not available.
        source_of_labels: How an ε for labels alone is derived, which is then stated separately.
    """
    of_teacher, ledger = not source_of_labels, account.ledger
    made = account.counts(scope="run")
    left = unmade(plan.charges, made)
    covered, of_run = account.spent() + left, made + left
    calls = sum(count for charge, count in made.items() if charge.queries)
    planned = not plan.changed and (calls <= plan.calls if plan.calls is not None else bool(plan.charges))
    runs, trainings = len(ledger.runs()), len(ledger.releases_by_training())
    # From the charges, not a setting: other runs in the ledger may protect single records.
    unit, relation = account.neighbours(counts=covered)
    epsilon = account.stated(account.epsilon(counts=covered))
    claimed = account.epsilon_published() if account.budget.published else math.inf
    by_itself = min(epsilon, account.stated(account.epsilon(counts=of_run)))
    # A person-level ε does not hold for another stated unit.
    other_unit = unit is not Unit.PERSON and account.neighbours(counts=of_run)[0] is Unit.PERSON
    releases, by_bound = account.covering(covered)
    inherited = of_teacher and account.training != ledger.run
    own_training = ledger.releases_of(account.training or "")
    teacher_epsilon = known_epsilon(own_training, account.budget.delta) if own_training else math.inf
    accesses = [f"ACCESSED WITHOUT CHARGE: {access}" for access in uncharged_queries]
    conditions = [
        _PUBLIC,
        _TEST_PICTURES,
        *(accesses or [_NO_ACCESSES if of_teacher else _NO_LABELS]),
        *(
            [FULLY_ADAPTIVE.format(target=account.budget.target_epsilon)]
            if account.budget.fully_adaptive
            else [
                _PLANNED if planned else "the number of steps was not chosen by looking at the results",
                *([NOISE_CHANGED] if noise_changed(account, plan) else []),
                *([_SEVERAL_RUNS] if account.budget.scope == "private_data" and max(runs, trainings) > 1 else []),
            ]
        ),
        *([f"{_GENERATOR}, {words.noise}"] if secure and words.noise else []),
        *([words.assumption] if words.assumption else []),
        *([_N_NOT_GIVEN.format(delta=account.budget.delta)] if account.num_records is None else []),
        *about_place(ledger, replaced=replaced),
        *([_IN_MEMORY] if ledger.path is None else []),
        *assumptions,
        *(f"VOID: {reason}" for reason in account.unbounded(counts=covered)),
        *([_DP_SGD_ASSUMPTION] if by_bound and inherited else []),
        *(["what the guarantees of the other runs in the ledger assume"] if by_itself < epsilon else []),
    ]
    only_it = {charge.training for charge, count in covered.items() if count} <= {account.training}
    excluded = [
        *([_about_teacher(teacher_epsilon, account.budget.delta, covers_it=only_it)] if inherited else []),
        *not_covered,
        _OTHER_NAMES if unit is Unit.PERSON else _SAME_PERSON,
        "releases that the ledger does not record, such as those of a copy of a teacher used elsewhere",
        *([_OTHER_RUNS] if account.budget.scope == "run" or account.epsilon_of_ledger() > epsilon else []),
    ]
    return Guarantee(
        epsilon=epsilon,
        delta=account.budget.delta,
        unit={Unit.CLIENT: OF_CLIENT, Unit.PERSON: ONE_PERSON}.get(unit, words.unit),
        relation=RELATIONS.get((unit, relation), words.relation),
        private_data=ledger.private_data,
        artefacts=tuple(artefacts),
        mechanism=words.mechanism,
        source=(POST_PROCESSING if account.training in by_bound and inherited else words.source)
        + (_BY_FILTERS if account.budget.fully_adaptive else ""),
        assumptions=tuple(conditions),
        not_covered=tuple(excluded),
        epsilon_spent=account.stated(account.epsilon()) if spent is None else spent,
        # Plans are in the ledger; a script that only states one must not get a smaller ε.
        epsilon_all_runs=max(account.stated(account.epsilon_of_ledger()), epsilon),
        runs=runs,
        trainings=trainings,
        training=account.training or "",
        queries=account.queries(),
        claimed_epsilon=claimed,
        claimed_source=words.published_source if account.budget.published else "",
        run=ledger.run,
        queries_of_run=account.queries(scope="run"),
        teacher_epsilon=teacher_epsilon,
        teacher_releases=_listed(own_training),
        epsilon_of_run=epsilon if other_unit else by_itself,
        releases=_listed(releases),
        claims=() if math.isinf(claimed) else _listed(account.claims()),
        fully_adaptive=account.budget.fully_adaptive,
        labels=None
        if of_teacher
        else LabelStatement(
            epsilon=account.epsilon_label(counts=covered),
            delta=account.budget.delta,
            source=source_of_labels,
            # What voids the bound for a record need not void that for its label.
            assumptions=(*(text for text in conditions if not text.startswith("VOID")), *_LABELS),
            epsilon_spent=account.epsilon_label(),
        ),
    )


def about_place(ledger: Ledger, *, replaced: bool = False) -> list[str]:
    """What a ledger does not count since it is another one, or lies where it does; for the console too."""
    return [*([_ANOTHER_LEDGER] if replaced else []), *ledger.notes]


def _about_teacher(epsilon: float, delta: float, *, covers_it: bool) -> str:
    """What holds for the teacher itself, which depends on its own training and not on its queries."""
    if math.isinf(epsilon):
        return "a teacher itself, which must stay private: nothing bounds what it reveals about a record"
    together = ". Publishing it with what is covered here costs no more, since all of that is computed from it"
    return (
        "the teacher itself, which has a guarantee of its own: it was trained by DP-SGD and may be published at its "
        f"ε = {round_up(epsilon)} (δ = {delta:g}), for the unit and under the assumptions stated there"
        f"{together if covers_it else ''}"
    )


def _listed(counted: Mapping[Any, int]) -> tuple[tuple[Mapping[str, Any], int], ...]:
    return tuple((one.to_dict(), count) for one, count in counted.items() if count)
