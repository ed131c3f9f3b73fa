"""Truthful statements about the privacy of published artefacts, for machines (JSON) and people (a page)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from privacy.checks import json_number, round_up
from privacy.events.base import Relation, Unit
from privacy.journal import write_atomically

FULLY_ADAPTIVE = (
    "target_epsilon = {target:g} was fixed before the first release from these data, and is what epsilon states: it "
    "holds however mechanisms, noise, lengths and later runs were chosen by earlier answers"
)
"""Assumption of a fully adaptive budget."""

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

OF_CLIENT = "one client: all records that its teacher was trained on"
"""The unit of a guarantee for clients."""
_OF_LEVEL = {"client": " It holds for a single record as well.", "person": f" The unit is {ONE_PERSON}."}


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
        return _page("page_labels.md", self)


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
        page = _page(
            "page.md",
            self,
            artefacts=", ".join(self.artefacts),
            ledger=f"{_count(self.trainings, 'training')} of teachers, {_count(self.runs, 'run')} on them",
            training=self.training or "not known",
            not_covered=_bullets(self.not_covered),
        )
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
        # What this run costs by itself, or with everything else in the ledger, if that differs.
        stated, own, everything = map(round_up, (self.epsilon, self.epsilon_of_run, self.epsilon_all_runs))
        if own != stated:
            text += (
                f" This run by itself costs {own}, if nothing about it was chosen by what other runs gave; the rest is "
                f"what else the ledger of {self.private_data} holds."
            )
        elif everything != stated:
            text += f" Together with all else in the ledger of {self.private_data}: {everything}."
        return text

    def write(self, folder: str | Path) -> tuple[Path, Path]:
        """Writes `guarantee.json` and `guarantee.md`, each atomically; returns both paths."""
        where = Path(folder)
        text = json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n"
        return write_atomically(where / "guarantee.json", text), write_atomically(
            where / "guarantee.md", self.to_markdown()
        )


def level_of(unit: str) -> str:
    """`client` or `person` if that is the unit of a guarantee, else `record`."""
    return {OF_CLIENT: "client", ONE_PERSON: "person"}.get(unit, "record")


def _plain(stated: Guarantee | LabelStatement) -> dict[str, Any]:
    """Values for JSON, infinities as "inf"."""
    return {key: json_number(value) if isinstance(value, float) else value for key, value in asdict(stated).items()}


def _numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: math.inf if value == "inf" else value for name, value in values.items()}


def _page(template: str, of: Guarantee | LabelStatement, **said: str) -> str:
    """Fills a page in with a statement's figures and words."""
    epsilons = {name: _epsilon(value) for name, value in vars(of).items() if name.startswith("epsilon")}
    text = Path(__file__).with_name(template).read_text(encoding="utf-8")
    return text.format(of=of, headline=of.headline(), assumptions=_bullets(of.assumptions), **epsilons, **said)


def _bullets(texts: Sequence[str]) -> str:
    return "\n".join(f"- {text}" for text in texts)


def _epsilon(value: float) -> str:
    return "infinite (nothing bounds it)" if math.isinf(value) else round_up(value)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
