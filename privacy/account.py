"""What has been spent on a private data set, and whether another release may be made."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from privacy.accounting.composition import known_epsilon
from privacy.checks import check_choice, check_count, check_delta, check_number
from privacy.events import LabelOnly, Release, Unbounded
from privacy.events.base import Relation, Unit, shared_neighbours
from privacy.identity import CheckpointError, Training, UnnamedTraining
from privacy.ledger import Ledger, identify
from privacy.ledger_place import LedgerPlace
from privacy.plan import Charge
from privacy.published import Claim, published_epsilon

Accounting = Literal["record", "published"]
Scope = Literal["private_data", "run"]

_APART = (
    "what is covered protects several units, such as records in one training and persons in another, and no epsilon "
    "covers both; budget.scope=run states that of one run"
)


class BudgetExceeded(RuntimeError):
    """A release was refused because it would have cost more than the target."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What a run may spend, and where it is counted.

    Attributes:
        target_epsilon: ε at which the run stops; None for no limit.
        delta: δ of every ε, below one over the number N of private records. With `published` accounting of a teacher
            that nothing bounds it may be larger, as the papers' is for CelebA and ImageNet: no other ε holds then.
        accounting: Which ε the target limits: `record`, which bounds a record (or a person, if the teacher was trained
            for persons), or `published`, a paper's claim.
        scope: `private_data` counts every run on the same private data, `run` only this one. The ε of several published
            students compose: `run` is for research tables, and the guarantee says what it leaves out.
        ledger: The file of a new ledger; None is the data's own place (`LedgerPlace`), which no other file replaces.
        ledger_block: Calls that one synced line of the ledger reserves, and that a crash may cost; None is the
            mechanism's default.
        fully_adaptive: Let ε hold also if mechanisms, noise, lengths and runs were chosen by earlier answers, such as
            by a server: it is then `target_epsilon`, fixed beforehand, and filters stop within it. Allows fewer
            releases; see `fully_adaptive_epsilon`.
        published: Whether the figure of the method's paper, a claim that bounds no record, is stated beside the bound.
    """

    target_epsilon: float | None = None
    delta: float = 1e-5
    accounting: Accounting = "record"
    scope: Scope = "private_data"
    ledger: str | None = None
    ledger_block: int | None = None
    fully_adaptive: bool = False
    published: bool = True

    def __post_init__(self) -> None:
        check_delta(self.delta)
        check_number("target_epsilon", self.target_epsilon, above=0, infinite=True, null="no limit")
        check_choice("accounting", self.accounting, get_args(Accounting))
        check_choice("scope", self.scope, get_args(Scope))
        if self.ledger in ("", "None", "null"):  # what a command line makes of null: a new, empty ledger
            raise ValueError(f"ledger must be a file, got {self.ledger!r}: leave it out for the private data's own")
        fixed = self.target_epsilon is not None and (self.accounting, self.scope) == ("record", "private_data")
        if self.fully_adaptive and not fixed:
            raise ValueError(
                "fully_adaptive needs a target_epsilon, accounting=record and scope=private_data, got "
                f"{self.target_epsilon}, {self.accounting} and {self.scope}"
            )

    @property
    def filters(self) -> tuple[float, float] | None:
        """Target ε and δ of the privacy filters of a fully adaptive budget."""
        target = self.target_epsilon if self.fully_adaptive else None
        return None if target is None else (target, self.delta)


@dataclass(kw_only=True, eq=False)
class PrivacyAccount:
    """Computes both ε from a ledger, and refuses a charge that would take the chosen one past the target.

    Everything computed from a teacher is post-processing of its training, and costs at most what that released. Such a
    bound covers only charges of **its own training**; charges of different trainings compose.

    Args:
        ledger: Where releases are counted.
        budget: What may be spent.
        training: Identity of the training that this run's charges belong to.
        num_records: N; if δ is not below 1/N, no ε is stated but the papers' own.
    """

    ledger: Ledger
    budget: Budget = Budget()
    training: str | None = None
    num_records: int | None = None

    def __post_init__(self) -> None:
        self.void = void_delta(self.budget.delta, self.num_records, self.ledger.private_data)

    def counts(self, *, scope: Scope | None = None) -> Counter[Charge]:
        """Charges in a scope; None is the scope of the budget."""
        return self.ledger.counts(run=self.ledger.run if (scope or self.budget.scope) == "run" else None)

    def spent(self, *, scope: Scope | None = None) -> Counter[Charge]:
        """Charges in a scope; with all runs in it, also what the other runs planned but did not release.

        Another run may have been stopped early because of its releases, so it costs its whole plan.
        """
        others = (scope or self.budget.scope) == "private_data"
        return self.counts(scope=scope) + (self.ledger.unmade(others=True) if others else Counter())

    def epsilon(self, *, scope: Scope | None = None, counts: Mapping[Charge, int] | None = None) -> float:
        """Record-level ε at δ of `counts`, by default of everything spent so far; `inf` if nothing bounds it."""
        return self.epsilon_of(self.covering(self.spent(scope=scope) if counts is None else counts)[0])

    def epsilon_label(self, *, scope: Scope | None = None, counts: Mapping[Charge, int] | None = None) -> float:
        """ε at δ of `counts` if neighbours differ in the label of one record and everything else is known.

        By default of everything spent so far; `inf` if nothing bounds it. Only the releases' own bounds for labels are
        used, not the bound of a teacher's training.
        """
        releases: Counter[Release] = Counter()
        for charge, count in (self.spent(scope=scope) if counts is None else counts).items():
            of_label = charge.release.for_labels
            if of_label is None and count:
                return math.inf
            if of_label is not None:
                releases[of_label] += count
        return self.epsilon_of(releases)

    def epsilon_of(self, releases: Mapping[Release, int]) -> float:
        """ε at δ of these releases alone, for the unit that they share; `inf` if they share none, or δ allows any."""
        if self.void and releases:
            return math.inf
        return known_epsilon(releases, self.budget.delta, adaptive=self.budget.fully_adaptive)

    def stated(self, epsilon: float) -> float:
        """What holds of releases of this ε: if fully adaptive, the target within which filters allowed them."""
        if self.budget.filters is None:
            return epsilon
        target = self.budget.filters[0]
        return target if epsilon <= target else math.inf

    def epsilon_of_ledger(self, *others: Ledger) -> float:
        """Record-level ε at δ of everything in the ledger, and in others: DP-SGD trainings and plans of all runs."""
        bounds: dict[str, Counter[Release]] = {}
        queried: Counter[Charge] = Counter()
        for ledger in (*others, self.ledger):
            for training, releases in ledger.releases_by_training().items():
                bounds[training] = bounds.get(training, Counter()) | releases  # one may know less of it
            queried += ledger.counts() + ledger.unmade()
        # Queries of a teacher whose own training is counted are post-processing of that training.
        everything = sum(bounds.values(), Counter[Release]())
        for charge, count in queried.items():
            if not bounds.get(charge.training or ""):
                everything[charge.release] += count
        return self.epsilon_of(everything)

    def neighbours(self, *, counts: Mapping[Charge, int] | None = None) -> tuple[Unit, Relation]:
        """Unit and neighbouring relation of the ε of `counts`; any change of a record if they share none."""
        shared = shared_neighbours(self.covering(self.spent() if counts is None else counts)[0])
        return shared or (Unit.RECORD, Relation.ANY_CHANGE)

    def covering(self, counts: Mapping[Charge, int]) -> tuple[Counter[Release], set[str | None]]:
        """Releases that cover `counts`, and the trainings that are counted by their own bound.

        Each training is counted by the smaller of the two, or by its bound for whole persons; trainings compose.
        """
        total: Counter[Release] = Counter()
        by_bound: set[str | None] = set()
        by_training: dict[str | None, Counter[Release]] = {}
        for charge, count in counts.items():
            if count > 0:
                by_training.setdefault(charge.training, Counter())[charge.release] += count
        for training, releases in by_training.items():
            bound = self.ledger.releases_of(training)
            if bound and (
                # Which is the smaller would depend on the answers.
                self.budget.fully_adaptive
                or all(release.unit is Unit.PERSON and release.bounded for release in bound)
                or self.epsilon_of(bound) <= self.epsilon_of(releases)
            ):
                by_bound.add(training)
                total.update(bound)
            else:
                total.update(releases)
        if self.void and total:
            total[Unbounded(self.void)] = 1
        return total, by_bound

    def epsilon_published(self, *, scope: Scope | None = None, counts: Mapping[Charge, int] | None = None) -> float:
        """ε that the papers' own theorems give at δ: claims, not bounds. `inf` if no theorem covers the charges."""
        charges = self.counts(scope=scope) if counts is None else counts
        if any(charge.claim is None for charge in charges):
            return math.inf
        return published_epsilon(self.claims(charges), self.budget.delta)

    def claims(self, counts: Mapping[Charge, int] | None = None) -> Counter[Claim]:
        """Claims that the papers' theorems count for `counts`, by default the charges in the account's scope."""
        claims: Counter[Claim] = Counter()
        for charge, count in (self.counts() if counts is None else counts).items():
            if charge.claim is not None:
                claims[charge.claim] += count
        return claims

    def unbounded(self, *, counts: Mapping[Charge, int] | None = None) -> list[str]:
        """Reasons why no record-level ε holds for `counts`, by default everything spent so far; empty if one does."""
        releases, _ = self.covering(self.spent() if counts is None else counts)
        charged = {_reason(release) for release in releases if not release.bounded}
        return sorted(charged if shared_neighbours(releases) else {*charged, _APART})

    def queries(self, *, scope: Scope | None = None) -> int:
        """Number of inputs that the teachers were queried with."""
        return sum(charge.queries * count for charge, count in self.counts(scope=scope).items())

    def epsilon_after(self, charge: Charge, more: int) -> float:
        """The ε that the target limits, if `more` further releases of this kind were charged."""
        # A theorem's claim covers what was released; no paper counts what was only planned.
        counts = self.spent() if self.budget.accounting == "record" else self.counts()
        counts[charge] += more
        epsilon = self.epsilon if self.budget.accounting == "record" else self.epsilon_published
        return epsilon(counts=+counts)

    def affordable(self, charge: Charge, *, limit: int) -> int:
        """Largest number of further releases of this kind, up to `limit`, that stays within the target."""
        target = self.budget.target_epsilon
        if target is None or self.epsilon_after(charge, limit) <= target:
            return limit
        # NaN does not fit.
        return bisect_left(range(1, limit), True, key=lambda more: not self.epsilon_after(charge, more) <= target)

    def grant(self, charge: Charge) -> int:
        """Number of releases of this kind that may be charged at once, under the ledger's lock: see `Ledger.charge`.

        Raises:
            BudgetExceeded: Not one stays within the target.
            LedgerError: A run in the ledger went by privacy filters with another target.
        """
        # Under the lock: two runs must not both be granted the rest of one budget.
        if self.budget.filters is not None:
            self.ledger.require_filters(self.budget.filters)
        if not (count := self.affordable(charge, limit=self.ledger.block)):
            raise BudgetExceeded(self.refusal(charge))
        return count

    def require(self, charge: Charge, *, calls: int = 1) -> None:
        """Refuses so many releases of this kind.

        Raises:
            BudgetExceeded: They exceed the target, or no ε covers them; the message says what could be changed.
        """
        if shared_neighbours(self.covering(self.spent() + Counter({charge: 1}))[0]) is None:
            raise BudgetExceeded(f"no ε holds for what this run would release: {_APART}")
        if self.affordable(charge, limit=calls) < calls:
            raise BudgetExceeded(self.refusal(charge, calls=calls))

    def refusal(self, charge: Charge, *, calls: int = 1) -> str:
        """One paragraph on why `calls` more releases of this kind do not fit."""
        more = "one more step" if calls == 1 else f"the {calls:,} calls that it begins with"
        budget, data = self.budget, self.ledger.private_data
        where = "by this run" if budget.scope == "run" else f"from {data} by all runs in its ledger"
        spent = self.epsilon() if budget.accounting == "record" else self.epsilon_published()
        text = (
            f"target_epsilon={budget.target_epsilon:g} ({budget.accounting} accounting, delta={budget.delta:g}) leaves "
            f"no room for {more}: spent {where}: {spent:.6g}; with {more}: {self.epsilon_after(charge, calls):.6g}."
        )
        if not charge.release.bounded and self.unbounded(counts={charge: 1}):
            text += f" No record-level ε holds here at all: {_reason(charge.release)}."
        elif budget.accounting == "record":
            text += (
                " To stay within it, raise noise_multiplier (of labels: lower epsilon), lower the batch "
                "size, or transcribe a teacher trained with differential privacy; `accounting: published` stops by the "
                "paper's figure instead, which bounds no record."
            )
        return text


def admitted(training: Training | UnnamedTraining | None, ledger: Ledger) -> str | None:
    """Records a training in a ledger, and returns its identity.

    Raises:
        LedgerError: Another ledger knows it, or it could not be recorded: nothing may be used.
    """
    if training is None:
        return None
    named = training
    if isinstance(named, UnnamedTraining):
        named = Training(identify(ledger, named.digest, kind=named.kind), kind=named.kind)
    ledger.register(named)
    LedgerPlace(ledger.path).file(training=training)  # another run may have begun one at the same time
    return named.id


def void_delta(delta: float, num_records: int | None, private_data: str) -> str:
    """Why no ε at δ means anything for N private records: δ is not below 1/N; "" if it is, or N is unknown."""
    if num_records is None or check_count("num_records", num_records, minimum=1) * delta < 1:
        return ""
    return (
        f"delta must lie below 1/N = {1 / num_records:.3g} for the {num_records} records of {private_data}, got "
        f"{delta:g}: a mechanism that publishes one record outright would meet it"
    )


def saved_run(account: PrivacyAccount, *, replaced: bool) -> dict[str, Any]:
    """What a checkpoint keeps of a run's charges, as plain values; `replaced` as in `SharedLedger`."""
    ledger = account.ledger
    return {
        "run": ledger.run,
        "private_data": ledger.private_data,
        "training": account.training,
        "charges": [[charge.to_dict(), count] for charge, count in account.counts(scope="run").items()],
        "ledger_head": ledger.head and list(ledger.head),
        "ledger_was_replaced": replaced,
    }


def restore_run(state: Mapping[str, Any] | None, ledger: Ledger, *, training: str | None) -> bool:
    """Counts in a ledger the larger of what it and a checkpoint (`saved_run`) hold; returns whether it is another one.

    Raises:
        CheckpointError: The charges are of another run, of other private data, or of the teacher of another training.
        LedgerError: The ledger was cut, edited or replaced since.
    """
    if state is None:
        return False
    if state["run"] != ledger.run or state["private_data"] != ledger.private_data:
        raise CheckpointError(
            f"the checkpoint's privacy state is of run {state['run']} on {state['private_data']}, and this session is "
            f"open for run {ledger.run} on {ledger.private_data}: build another one to resume it"
        )
    before = state["training"]
    # With a ledger in memory, a script's network gets a new identity in every process: its charges compose.
    if before is not None and ledger.path is not None and before != training:
        raise CheckpointError(
            f"the checkpoint's run queried the teacher of training {before}, and model.teacher is of training "
            f"{training}: what bounds one says nothing of the other. Resume with the teacher that the run "
            "began with, or start a new run without --ckpt_path"
        )
    same = ledger.verify_head(state["ledger_head"], whose="the checkpoint")
    ledger.restore({Charge.from_dict(charge): int(count) for charge, count in state["charges"]})
    return not same or bool(state["ledger_was_replaced"])


def _reason(release: Release) -> str:
    return release.reason if isinstance(release, Unbounded | LabelOnly) else "no noise was added"
