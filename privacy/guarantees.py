"""What may truthfully be said about the privacy of published artefacts, for machines (JSON) and people (a page)."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from privacy.annotators import Annotator
from privacy.pipelines import Bound

__all__ = ["Guarantee", "json_number", "write_atomically"]

_PUBLIC = (
    "public by assumption: the number of private records, the number of classes, image shape and normalisation, the "
    "test split, any pretrained weights, and every setting in the configuration"
)
_ONE_DOOR = (
    "everything about the teacher left through the annotator: no teacher accuracy, teacher loss or agreement was used "
    "to choose a setting, a checkpoint or a run"
)
_GENERATOR = "noise came from the operating system's cryptographic generator"
_FLOATS = "as floating-point numbers, which are not hardened against attacks on their low bits"
_NOISE = f"{_GENERATOR}, {_FLOATS}"


def json_number(value: float) -> float | str:
    """JSON has no infinity: `inf` as the string "inf", every other number as itself."""
    if math.isnan(value) or value == -math.inf:
        raise ValueError(f"a privacy figure must be a number or infinity, got {value}")
    return "inf" if math.isinf(value) else value


def write_atomically(path: str | Path, text: str) -> Path:
    """Writes a text file so that a crash leaves either the old content or the new, never half of it."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as handle:
            handle.write(text)
            handle.flush()
            os.fsync(handle.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return target


_DP_SGD_RELATION = "add-or-remove of one training record"
_DP_SGD_SOURCE = (
    "post-processing of a teacher that was itself trained by DP-SGD: privacy-loss distribution of the Poisson-sampled "
    "Gaussian (Abadi et al. 2016; Koskela et al. 2020), rounded pessimistically"
)
_DP_SGD_ASSUMPTION = (
    "the teacher's file is the one its training wrote: its history of steps, noise and sample rates is true, and its "
    "settings were chosen without looking at the private data"
)


@dataclass(frozen=True)
class Guarantee:
    """A record-level statement, and beside it, marked as such, the paper's claim.

    Attributes:
        epsilon: Record-level ε that covers the artefacts; `inf` where nothing bounds it.
        delta: δ of both figures.
        unit: What one neighbouring change touches.
        relation: Neighbouring relation.
        private_data: Public name of the data the bound is about.
        artefacts: What the bound covers.
        mechanism: What was released.
        source: Theorem or paper behind ε.
        assumptions: What must be true for it to hold.
        not_covered: What the statement does not cover.
        epsilon_spent: Record-level ε of the releases made so far; below `epsilon` where a plan was not used up.
        epsilon_all_runs: Record-level ε of everything the private data's ledger holds.
        runs: Runs in that ledger.
        queries: Inputs that the teachers were asked about.
        claimed_epsilon: What the paper's theorem gives for the same releases: a claim, not a bound.
        claimed_source: That theorem.
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
    queries: int = 0
    claimed_epsilon: float = math.inf
    claimed_source: str = ""

    @classmethod
    def of_run(cls, annotator: Annotator, *, artefacts: Sequence[str], planned_calls: int | None) -> Guarantee:
        """The guarantee for what was computed from an annotator's answers alone.

        Args:
            annotator: After its last release (or before its first).
            artefacts: What was computed from its answers and public things alone.
            planned_calls: Calls of this run planned before its first, which are what ε covers: a run that somebody
                stopped early because of what they saw has used its whole plan. None where there was no plan; then the
                calls made so far count, and an assumption says so.

        Raises:
            LedgerError: The ledger cannot be read: nothing can be said.
        """
        account = annotator.account
        account.ledger.refresh()
        words = annotator.describe()
        covered = account.counts()
        assumptions = [_PUBLIC, _ONE_DOOR]
        if planned_calls is None:
            assumptions.append("the number of steps was not chosen by looking at the results")
        else:
            assumptions.append(
                "the number of steps planned before the first release was chosen without the private data"
            )
            covered[annotator.charge] += max(0, planned_calls - annotator.calls_made())
            covered = +covered
        on_teacher = account.rests_on_teacher(counts=covered)
        if annotator.noise.secure and (kind := words.get("noise", _FLOATS)):
            assumptions.append(f"{_GENERATOR}, {kind}")
        if assumption := words.get("assumption"):
            assumptions.append(assumption)
        if annotator.num_records is None:
            assumptions.append(
                f"delta = {account.delta:g} lies below one over the number of private records, which was not given"
            )
        if not account.ledger.durable:
            assumptions.append("the ledger was kept in memory: no other run and no crashed run has used this teacher")
        assumptions.extend(f"VOID: {reason}" for reason in account.unbounded(counts=covered))
        not_covered = [
            "the teacher itself, which must stay private",
            "what the ledger does not hold: other teachers of the same data, and copies of this one used elsewhere",
        ]
        if account.scope == "run":
            not_covered.append(
                "other runs from the same private data, if any of what they made is published too: the ledger's total "
                "is given above"
            )
        if on_teacher:
            assumptions.append(_DP_SGD_ASSUMPTION)
        return cls(
            epsilon=account.epsilon(counts=covered),
            delta=account.delta,
            unit=words["unit"],
            relation=_DP_SGD_RELATION if on_teacher else words["relation"],
            private_data=account.ledger.private_data,
            artefacts=tuple(artefacts),
            mechanism=words["mechanism"],
            source=_DP_SGD_SOURCE if on_teacher else words["source"],
            assumptions=tuple(assumptions),
            not_covered=tuple(not_covered),
            epsilon_spent=account.epsilon(),
            epsilon_all_runs=account.epsilon(scope="private_data"),
            runs=len(account.ledger.runs()),
            queries=account.queries(),
            claimed_epsilon=account.epsilon_published(),
            claimed_source=words["published_source"],
        )

    @classmethod
    def of_dp_sgd(
        cls,
        bound: Bound,
        *,
        delta: float,
        private_data: str,
        artefacts: Sequence[str],
        mechanism: str,
        planned: Bound,
        unbounded: Sequence[str] = (),
    ) -> Guarantee:
        """The guarantee of a model trained by DP-SGD.

        Args:
            bound: The steps made so far.
            delta: δ.
            private_data: Public name of the training data.
            artefacts: What the training gave.
            mechanism: What was released at each step.
            planned: All steps that were planned before the first, which ε covers: whoever stopped early has seen
                results.
            unbounded: Why nothing holds, where nothing does.
        """
        return cls(
            epsilon=planned.epsilon(delta),
            delta=delta,
            unit="one training record",
            relation=_DP_SGD_RELATION,
            private_data=private_data,
            artefacts=tuple(artefacts),
            mechanism=mechanism,
            source="privacy-loss distribution of the Poisson-sampled Gaussian (Abadi et al. 2016; Koskela et al. "
            "2020), rounded pessimistically",
            assumptions=(
                _PUBLIC,
                "the settings were chosen without the private data; each record was sampled by a coin of its own",
                *([] if unbounded else [_NOISE]),
                *(f"VOID: {reason}" for reason in unbounded),
            ),
            not_covered=(
                "the accuracy on the validation split, which is private as well and was looked at without charge",
                "other models trained on the same data, if they are published too",
            ),
            epsilon_spent=bound.epsilon(delta),
            epsilon_all_runs=planned.epsilon(delta),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, infinities as "inf"; the paper's claim apart from the guarantee."""
        values = asdict(self)
        claim = {"epsilon": values.pop("claimed_epsilon"), "source": values.pop("claimed_source")}
        values = {key: json_number(value) if isinstance(value, float) else value for key, value in values.items()}
        if not self.claimed_source:
            return {"guarantee": values, "published_claim": None}
        return {
            "guarantee": values,
            "published_claim": {
                "epsilon": json_number(claim["epsilon"]),
                "delta": self.delta,
                "source": claim["source"],
                "status": "a claim of the paper, not a guarantee: it bounds no record of the private data",
            },
        }

    def to_markdown(self) -> str:
        """The same as a page for a reader who has to decide whether the artefacts may be published."""
        lines = [
            "# Privacy guarantee",
            "",
            f"**{self.headline()}**",
            "",
            "| | |",
            "|---|---|",
            f"| record-level ε | {_figure(self.epsilon)} |",
            f"| δ | {self.delta:g} |",
            f"| unit | {self.unit} |",
            f"| neighbouring relation | {self.relation} |",
            f"| private data | {self.private_data} |",
            f"| covers | {', '.join(self.artefacts)} |",
            f"| released | {self.mechanism} |",
            f"| teacher queries | {self.queries} |",
            f"| derived from | {self.source} |",
            f"| ε of the releases made so far | {_figure(self.epsilon_spent)} |",
            f"| ε of all {self.runs} run(s) in the data's ledger together | {_figure(self.epsilon_all_runs)} |",
            "",
            "It holds if:",
            *(f"- {text}" for text in self.assumptions),
            "",
            "It does not cover:",
            *(f"- {text}" for text in self.not_covered),
            "",
        ]
        if self.claimed_source:
            lines += [
                "## The paper's own figure for the same releases",
                "",
                f"ε = {_figure(self.claimed_epsilon)} at δ = {self.delta:g}, by {self.claimed_source}. This is a claim "
                "of the paper, **not** a guarantee, and no part of the statement above: it does not count that one "
                "private record may have changed a teacher that was trained without privacy, and with it every "
                "answer. It is given so that results can be compared with the papers' tables.",
                "",
            ]
        return "\n".join(lines)

    def headline(self) -> str:
        """One sentence on what ε means here."""
        if math.isinf(self.epsilon):
            return (
                "Nothing bounds what these artefacts reveal about a single record of the private data "
                "(record-level ε is infinite)."
            )
        if self.epsilon > 20:
            return (
                f"Record-level ε = {self.epsilon:.6g} at δ = {self.delta:g}: a bound so large that it protects no "
                "record in any meaningful sense (a ratio of e^ε between what two neighbouring data sets may give)."
            )
        return f"Record-level ε = {self.epsilon:.6g} at δ = {self.delta:g}."

    def write(self, folder: str | Path) -> tuple[Path, Path]:
        """Writes `guarantee.json` and `guarantee.md`, each atomically; returns both paths."""
        where = Path(folder)
        text = json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n"
        return write_atomically(where / "guarantee.json", text), write_atomically(
            where / "guarantee.md", self.to_markdown()
        )


def _figure(value: float) -> str:
    return "infinite (nothing bounds it)" if math.isinf(value) else f"{value:.6g}"
