"""Truthful statements about the privacy of published artefacts, for machines (JSON) and people (a page)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from privacy.account import PrivacyAccount
from privacy.accounting.composition import known_epsilon
from privacy.checks import json_number, round_up
from privacy.description import MechanismDescription
from privacy.journal import write_atomically
from privacy.ledger import Ledger
from privacy.neighbours import Relation, Unit
from privacy.plan import Charge

_PUBLIC = (
    "the following are public: the number of private records, the number of classes, image shape and normalisation, "
    "the test split, the weights before the first step and any put in between fits, and every setting in the "
    "configuration"
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
FULLY_ADAPTIVE = (
    "target_epsilon = {target:g} was fixed before the first release from these data, and is what epsilon states: it "
    "holds however mechanisms, noise, lengths and later runs were chosen by earlier answers"
)

_ANOTHER_LEDGER = (
    "ANOTHER LEDGER: one that the teacher's training, the start of this run or another ledger names is not available, "
    "and what else it holds is not counted: nothing computed from that is published"
)
_N_NOT_GIVEN = "delta = {delta:g} is below one over the number of private records, which was not given"
_IN_MEMORY = "the ledger was kept in memory: no other run and no crashed run has used this teacher"
_OTHER_RUNS = (
    "other runs and teachers from the same private data, if anything they produced is published too: the ledger's "
    "total is given above, and holds if none was made or chosen because of what an earlier one released"
)

MEANINGFUL_EPSILON = 20.0
"""A larger record-level ε protects no record in any meaningful sense."""

ONE_PERSON = "one person with all pictures"
"""The unit of a guarantee for persons."""

RELATIONS: Mapping[tuple[Unit, Relation], str] = {
    (Unit.RECORD, Relation.ADD_OR_REMOVE): "add-or-remove of one training record",
    (Unit.RECORD, Relation.REPLACE_ONE): "replacement of one training record",
    (Unit.RECORD, Relation.ZERO_OUT): "zero-out of one training record",
    (Unit.LABEL, Relation.REPLACE_ONE): "replacement of the label of one training record",
    (Unit.CLIENT, Relation.REPLACE_ONE): "replacement of all records of one client; which clients there are is public",
    (Unit.PERSON, Relation.ADD_OR_REMOVE): f"add-or-remove of {ONE_PERSON}",
}
"""Descriptions of relations that are more specific than a mechanism's own description."""

_OF_CLIENT = "one client: all records that its teacher was trained on"
_OF_LEVEL = {"client": " It holds for a single record as well.", "person": f" The unit is {ONE_PERSON}."}

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


@dataclass(frozen=True)
class LabelStatement:
    """The guarantee for labels if nothing bounds a record: a separate statement, never the record-level one.

    Attributes:
        epsilon: ε that covers the artefacts; `inf` if nothing bounds it.
        delta: δ.
        source: How ε is derived.
        assumptions: Conditions under which it holds.
        unit: What one neighbouring change touches.
        relation: Neighbouring relation.
        epsilon_spent: ε of the releases made so far.
    """

    epsilon: float
    delta: float
    source: str
    assumptions: Sequence[str]
    unit: str = "the label of one training record"
    relation: str = "replacement of the label; images, and which record was in which batch, are treated as public"
    epsilon_spent: float = math.inf

    def headline(self) -> str:
        """One sentence on what ε means here."""
        if math.isinf(self.epsilon):
            return "No bound is known for labels either."
        return (
            f"For labels only, against someone who knows every image: ε = {round_up(self.epsilon)} at "
            f"δ = {self.delta:g}"
            + (", which protects no label in any meaningful sense." if self.epsilon > MEANINGFUL_EPSILON else ".")
        )

    def to_markdown(self) -> str:
        return f"""
## Labels

{self.headline()} **Nothing bounds a record**: images are not protected at all.

| | |
|---|---|
| label-level ε | {_epsilon(self.epsilon)} |
| δ | {self.delta:g} |
| unit | {self.unit} |
| neighbouring relation | {self.relation} |
| derived from | {self.source} |
| ε of the releases made so far | {_epsilon(self.epsilon_spent)} |

It holds if:
{_bullets(self.assumptions)}
"""


@dataclass(frozen=True)
class Guarantee:
    """A record-level statement and, marked as such, the paper's claim.

    Attributes:
        epsilon: Record-level ε that covers the artefacts; `inf` if nothing bounds it.
        delta: δ of both figures.
        unit: What one neighbouring change touches.
        relation: Neighbouring relation.
        private_data: Public name of the protected data.
        artefacts: What the bound covers.
        mechanism: What was released.
        source: Theorem or paper behind ε.
        assumptions: Conditions under which it holds.
        not_covered: What the statement does not cover.
        epsilon_spent: Record-level ε of the releases made so far; below `epsilon` if the plan was not used up. In the
            scope of all runs it counts the plans of the others.
        epsilon_all_runs: Record-level ε of everything in the private data's ledger: DP-SGD trainings, ensembles and
            queries together.
        runs: Number of runs in that ledger that queried a teacher.
        trainings: Number of teacher trainings in that ledger.
        training: Identity of the training that the statement describes.
        queries: Number of inputs that the teachers were queried with.
        claimed_epsilon: ε of the paper's theorem for the same releases: a claim, not a bound.
        claimed_source: That theorem.
        run: Identity of the run that made the artefacts.
        queries_of_run: Number of inputs with which this run queried the teachers.
        teacher_epsilon: Record-level ε of the teacher's own training, at which the teacher itself may be published;
            `inf` if nothing bounds that training.
        teacher_releases: The releases of that training, with their counts.
        labels: The guarantee for labels, if a method protects only labels.
        epsilon_of_run: Cost of the run by itself, with the training of its teacher; it holds if neither the run nor its
            settings were chosen by what other runs on the data gave.
        releases: The releases that ε composes, from `Release.to_dict`, with their counts.
        claims: The claims behind the paper's figure, from `Claim.to_dict`, with their counts.
        fully_adaptive: Whether ε is a target within which filters allowed the releases, see `Budget`.
    """

    epsilon: float
    delta: float
    unit: str
    relation: str
    private_data: str
    artefacts: Sequence[str]
    mechanism: str
    source: str
    assumptions: Sequence[str] = field(default_factory=tuple)
    not_covered: Sequence[str] = field(default_factory=tuple)
    epsilon_spent: float = math.inf
    epsilon_all_runs: float = math.inf
    runs: int = 1
    trainings: int = 0
    training: str = ""
    queries: int = 0
    claimed_epsilon: float = math.inf
    claimed_source: str = ""
    run: str = ""
    queries_of_run: int = 0
    teacher_epsilon: float = math.inf
    teacher_releases: Sequence[tuple[Mapping[str, Any], int]] = ()
    labels: LabelStatement | None = None
    epsilon_of_run: float = math.inf
    releases: Sequence[tuple[Mapping[str, Any], int]] = ()
    claims: Sequence[tuple[Mapping[str, Any], int]] = field(default_factory=tuple)
    fully_adaptive: bool = False

    @classmethod
    def of(
        cls,
        account: PrivacyAccount,
        words: MechanismDescription,
        *,
        artefacts: Sequence[str],
        covered: Mapping[Charge, int],
        planned: bool,
        noise_changed: bool = False,
        secure: bool = True,
        num_records: int | None = None,
        spent: float | None = None,
        of_run: Mapping[Charge, int] | None = None,
        uncharged_queries: Sequence[str] = (),
        assumptions: Sequence[str] = (),
        not_covered: Sequence[str] = (),
        of_teacher: bool = True,
        replaced: bool = False,
        source_of_labels: str = "",
    ) -> Guarantee:
        """Builds the guarantee for what was computed only from the charged releases and public information.

        Args:
            account: What was charged.
            words: Description of the mechanism.
            artefacts: What was computed.
            covered: Charges that ε covers: all that were planned before the first one, since a run that is stopped
                early because of what it released has used its whole plan.
            planned: Whether there was such a plan; if there was none, or something was added later, an assumption says
                so.
            noise_changed: Whether releases were made, or planned, with several noises.
            secure: Whether the noise cannot be reproduced.
            num_records: N, if δ is known to lie below 1/N.
            spent: Record-level ε of the releases made so far; None computes it from the account.
            of_run: Charges of this run within `covered`; None means all.
            uncharged_queries: Unaccounted queries of this run to private data or models, in words.
            assumptions: Further conditions.
            not_covered: What else is not covered.
            of_teacher: Whether a teacher was queried, which must then be described, rather than trained by the charged
                releases.
            replaced: Whether another ledger was used before, which is not available.
            source_of_labels: How an ε for labels alone is derived, which is then stated separately.

        Raises:
            LedgerError: The ledger cannot be read: nothing can be stated.
        """
        account.ledger.refresh()
        # From the charges, not a setting: other runs in the ledger may protect single records.
        unit, relation = account.neighbours(counts=covered)
        epsilon, claimed = account.stated(account.epsilon(counts=covered)), account.epsilon_published()
        by_itself = epsilon if of_run is None else min(epsilon, account.stated(account.epsilon(counts=of_run)))
        # A person-level ε does not hold for another stated unit.
        other_unit = unit is not Unit.PERSON and of_run and account.neighbours(counts=of_run)[0] is Unit.PERSON
        releases, by_bound = account.covering(covered)
        inherited = of_teacher and account.training != account.ledger.run
        own_training = account.ledger.releases_of(account.training or "")
        teacher_epsilon = known_epsilon(own_training, account.budget.delta) if own_training else math.inf
        accesses = [f"ACCESSED WITHOUT CHARGE: {access}" for access in uncharged_queries]
        conditions = [
            _PUBLIC,
            *(accesses or [_NO_ACCESSES if of_teacher else _NO_LABELS]),
            *_about_releases(words, account, planned=planned, noise_changed=noise_changed, secure=secure),
            *([_N_NOT_GIVEN.format(delta=account.budget.delta)] if num_records is None else []),
            *about_place(account.ledger, replaced=replaced),
            *([] if account.ledger.durable else [_IN_MEMORY]),
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
        return cls(
            epsilon=epsilon,
            delta=account.budget.delta,
            unit={Unit.CLIENT: _OF_CLIENT, Unit.PERSON: ONE_PERSON}.get(unit, words.unit),
            relation=RELATIONS.get((unit, relation), words.relation),
            private_data=account.ledger.private_data,
            artefacts=tuple(artefacts),
            mechanism=words.mechanism,
            source=(POST_PROCESSING if account.training in by_bound and inherited else words.source)
            + (_BY_FILTERS if account.budget.fully_adaptive else ""),
            assumptions=tuple(conditions),
            not_covered=tuple(excluded),
            epsilon_spent=account.stated(account.epsilon()) if spent is None else spent,
            # Plans are in the ledger; a script that only states one must not get a smaller ε.
            epsilon_all_runs=max(account.stated(account.epsilon_of_ledger()), epsilon),
            runs=len(account.ledger.runs()),
            trainings=len(account.ledger.releases_by_training()),
            training=account.training or "",
            queries=account.queries(),
            claimed_epsilon=claimed,
            claimed_source=words.published_source,
            run=account.ledger.run,
            queries_of_run=account.queries(scope="run"),
            teacher_epsilon=teacher_epsilon,
            teacher_releases=_listed(own_training),
            epsilon_of_run=epsilon if other_unit else by_itself,
            releases=_listed(releases),
            claims=() if math.isinf(claimed) else _listed(account.claims()),
            fully_adaptive=account.budget.fully_adaptive,
            labels=None if not source_of_labels else _of_labels(account, covered, source_of_labels, conditions),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values with infinities as "inf", and the paper's claim separate from the guarantee."""
        values = _plain(self)
        del values["labels"]
        claim = {
            "epsilon": values.pop("claimed_epsilon"),
            "delta": self.delta,
            "source": values.pop("claimed_source"),
            "claims": values.pop("claims"),
            "status": "a claim of the paper, not a guarantee: it bounds no record of the private data",
        }
        beside = {} if self.labels is None else {"label_guarantee": _plain(self.labels)}
        return {"guarantee": values, **beside, "published_claim": claim if self.claimed_source else None}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Guarantee:
        claim, labels = content["published_claim"], content.get("label_guarantee")
        return cls(
            **_numbers(content["guarantee"]),
            claimed_epsilon=math.inf if claim is None else float(claim["epsilon"]),
            claimed_source="" if claim is None else claim["source"],
            claims=() if claim is None else claim["claims"],
            labels=labels and LabelStatement(**_numbers(labels)),
        )

    def to_markdown(self) -> str:
        """The guarantee as a page, for deciding whether the artefacts may be published."""
        ledger = f"{_count(self.trainings, 'training')} of teachers, {_count(self.runs, 'run')} on them"
        page = f"""\
# Privacy guarantee

**{self.headline()}**

| | |
|---|---|
| {self.level}-level ε | {_epsilon(self.epsilon)} |
| δ | {self.delta:g} |
| unit | {self.unit} |
| neighbouring relation | {self.relation} |
| private data | {self.private_data} |
| covers | {", ".join(self.artefacts)} |
| released | {self.mechanism} |
| teacher queries | {self.queries_of_run} by this run, {self.queries} by all that ε covers |
| derived from | {self.source} |
| ε of the releases made so far | {_epsilon(self.epsilon_spent)} |
| ε of this run by itself, if nothing about it was chosen by what others gave | {_epsilon(self.epsilon_of_run)} |
| ε of everything in the data's ledger ({ledger}) together | {_epsilon(self.epsilon_all_runs)} |
| identity of the teacher's training | {self.training or "not known"} |

It holds if:
{_bullets(self.assumptions)}

It does not cover:
{_bullets(self.not_covered)}
"""
        if self.labels is not None:
            page += self.labels.to_markdown()
        if self.claimed_source:
            page += f"\n## The paper's own figure for the same releases\n\n{self._claim()}\n"
        return page

    def _claim(self) -> str:
        """What the paper claims for the same releases, and why that is not a bound."""
        if math.isinf(self.claimed_epsilon):
            return (
                f"There is none: {self.claimed_source}, covers noised releases of one kind; these were made without "
                "noise, or are of several kinds."
            )
        left_out = (
            "it ignores that one private record may have changed a teacher trained without privacy, and with it every "
            "response"
            if math.isinf(self.teacher_epsilon)
            else "it counts this run's queries, as if a record affected one response, and not the teacher's own "
            "training, which was by DP-SGD and bounds all its responses"
        )
        if self.labels is not None:
            left_out = "it ignores that each update multiplies what is released by a Jacobian of private images"
        return (
            f"ε = {_epsilon(self.claimed_epsilon)} at δ = {self.delta:g}, by {self.claimed_source}. This is a claim of "
            f"the paper, **not** a guarantee, and no part of the statement above: {left_out}. It is given so that "
            "results can be compared with the papers' tables."
        )

    @property
    def level(self) -> str:
        return level_of(self.unit)

    def headline(self) -> str:
        """What ε means here, and which part of it is this run's own."""
        at = f"{self.level.capitalize()}-level ε = {round_up(self.epsilon)} at δ = {self.delta:g}"
        if math.isinf(self.epsilon):
            text = (
                "Nothing bounds what these artefacts reveal about a single record of the private data "
                "(record-level ε is infinite)."
            ) + ("" if self.labels is None else f" {self.labels.headline()}")
        elif self.epsilon > MEANINGFUL_EPSILON:
            text = (
                f"{at}: a bound so large that it protects no {self.level} in any meaningful sense (one may change the "
                "odds of any outcome by a factor of e^ε)."
            )
        else:
            text = f"{at}." + _OF_LEVEL.get(self.level, "")
        return f"{text} {self.of_others()}".rstrip()

    def of_others(self) -> str:
        """Cost of this run by itself, or with everything else in the ledger, if they differ from ε; else empty."""
        stated, own, everything = map(round_up, (self.epsilon, self.epsilon_of_run, self.epsilon_all_runs))
        if own != stated:
            return (
                f"This run by itself costs {own}, if nothing about it was chosen by what other runs gave; the rest is "
                f"what else the ledger of {self.private_data} holds."
            )
        if everything != stated:
            return f"Together with all else in the ledger of {self.private_data}: {everything}."
        return ""

    def write(self, folder: str | Path) -> tuple[Path, Path]:
        """Writes `guarantee.json` and `guarantee.md`, each atomically; returns both paths."""
        where = Path(folder)
        text = json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n"
        return write_atomically(where / "guarantee.json", text), write_atomically(
            where / "guarantee.md", self.to_markdown()
        )


def level_of(unit: str) -> str:
    """`client` or `person` if that is the unit of a guarantee, else `record`."""
    return {_OF_CLIENT: "client", ONE_PERSON: "person"}.get(unit, "record")


def _about_releases(
    words: MechanismDescription, account: PrivacyAccount, *, planned: bool, noise_changed: bool, secure: bool
) -> list[str]:
    """Conditions on the number of releases, on their noise, and on what was released before."""
    generator = "noise came from the operating system's cryptographic generator"
    steps = (
        "the number of steps planned before the first release was chosen without the private data"
        if planned
        else "the number of steps was not chosen by looking at the results"
    )
    ledger = account.ledger
    several = account.budget.scope == "private_data" and max(len(ledger.runs()), len(ledger.releases_by_training())) > 1
    fixed = [steps, *([NOISE_CHANGED] if noise_changed else []), *([_SEVERAL_RUNS] if several else [])]
    return [
        *([FULLY_ADAPTIVE.format(target=account.budget.target_epsilon)] if account.budget.fully_adaptive else fixed),
        *([f"{generator}, {words.noise}"] if secure and words.noise else []),
        *([words.assumption] if words.assumption else []),
    ]


def about_place(ledger: Ledger, *, replaced: bool = False) -> list[str]:
    """What a ledger does not count since it is another one, or lies where it does; for the console too."""
    return [*([_ANOTHER_LEDGER] if replaced or ledger.lost else []), *ledger.notes]


def _of_labels(
    account: PrivacyAccount, covered: Mapping[Charge, int], source: str, conditions: Sequence[str]
) -> LabelStatement:
    # What voids the bound for a record need not void that for its label.
    holds = [text for text in conditions if not text.startswith("VOID")]
    return LabelStatement(
        epsilon=account.epsilon_label(counts=covered),
        delta=account.budget.delta,
        source=source,
        assumptions=(*holds, *_LABELS),
        epsilon_spent=account.epsilon_label(),
    )


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


def _plain(stated: Guarantee | LabelStatement) -> dict[str, Any]:
    """Values for JSON, infinities as "inf"."""
    return {key: json_number(value) if isinstance(value, float) else value for key, value in asdict(stated).items()}


def _numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: math.inf if value == "inf" else value for name, value in values.items()}


def _listed(counted: Mapping[Any, int]) -> tuple[tuple[Mapping[str, Any], int], ...]:
    return tuple((one.to_dict(), count) for one, count in counted.items() if count)


def _bullets(texts: Sequence[str]) -> str:
    return "\n".join(f"- {text}" for text in texts)


def _epsilon(value: float) -> str:
    return "infinite (nothing bounds it)" if math.isinf(value) else round_up(value)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
