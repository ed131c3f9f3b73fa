"""The one object through which private data are asked: budget, ledger, plan, identity and guarantee of a run."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch

from privacy.account import Budget, BudgetExceeded, PrivacyAccount, admitted, restore_run, saved_run, void_delta
from privacy.events import Unbounded
from privacy.events.base import Relation, Unit
from privacy.identity import Training, UnnamedTraining
from privacy.ledger_place import LedgerPlace
from privacy.mechanisms.base import Mechanism, Shape
from privacy.plan import Charge, Plan, unmade
from privacy.processes import ALONE, Processes, SharedLedger, require_same

OWN = "own"
"""Stands for the training of the teacher that answers."""

_F = TypeVar("_F", bound=Callable[..., Any])
# With the type annotation that torch leaves out.
_uncompiled: Callable[[_F], _F] = torch.compiler.disable


class PrivacySession(SharedLedger):
    """A run's use of private data. After `open`, `release` is the only way to a private row.

    Releases are charged before noise is drawn, and refused where they would overspend. The guarantee covers the plan,
    which is fixed before the first release and never shrinks: resuming with fewer calls, other noise or another target
    may depend on what the first releases showed.

    Each of several processes must make every call that charges or releases: process 0 acts, and all get its result.

    Args:
        mechanism: The mechanism of the run's calls, for its plan and its guarantee.
        shape: What the cost of a call depends on besides; it may change until `open`.
        budget: What the run may spend.
        unit: What one neighbouring change touches. For `CLIENT` every cost is stated for a client whose data are
            replaced: no more than one record does that may turn one teacher into any other, if that teacher is trained
            on nothing else. No bound on a training by DP-SGD holds for a whole client: give none to `open`.

    Attributes:
        plan: All calls that the run plans to make.
        training: Identity of the training of the teacher that answers; None until `open`, or if unknown.
        uncharged_queries: Descriptions of unaccounted accesses to private data, for the guarantee.
        partitions: Which records of the teachers' data are private; a student's test data are checked against them.
        assumptions: Assumptions of the data module, for the guarantee.
        loaded: Whether a checkpoint's state was loaded.

    Raises:
        ValueError: Mechanism, shape and budget do not fit each other.
    """

    _followed: ClassVar[tuple[str, ...]] = ("training", "ledger_was_replaced")

    def __init__(
        self, mechanism: Mechanism, shape: Shape, *, budget: Budget = Budget(), unit: Unit = Unit.RECORD
    ) -> None:
        super().__init__()
        mechanism.require(shape)
        if mechanism.source_of_labels and budget.target_epsilon is not None and budget.accounting != "published":
            raise ValueError(
                f"target_epsilon={budget.target_epsilon:g} needs accounting='published' in direct training, got "
                f"{budget.accounting!r}: nothing bounds a record there. For labels choose the noise"
            )
        self.mechanism = mechanism
        self.shape = shape
        self.budget = budget
        self.unit = unit
        self.plan = Plan()
        self.training: str | None = None
        self.uncharged_queries: list[str] = []
        self.partitions: list[Mapping[str, Any] | None] = []
        self.assumptions: Sequence[str] = ()
        self.loaded = False
        self._account: PrivacyAccount | None = None
        self._before: Mapping[str, Any] | None = None  # charges of a checkpoint
        self._left: tuple[Any, int] = (None, 0)  # affordable calls, for a version of the ledger
        self._last: tuple[Mechanism, Charge, Charge] | None = None  # a mechanism, its cost, and what is charged for it

    # --- release ---

    @_uncompiled
    @torch.no_grad()
    def release(self, mechanism: Mechanism, *tensors: torch.Tensor, **settings: Any) -> torch.Tensor:
        """Charges a call, syncs the charge, bounds and noises; the only way to a private row.

        The rows of all processes are charged as one call and get one noise: sensitivity, cost and distribution of the
        noise are those of a single process. Each process gets its own released rows.

        Args:
            mechanism: What is released, and at which cost.
            tensors: See `cost_of_call` and `answer` of the mechanism. **Private.**
            settings: See the same.

        Returns:
            What is released, detached.

        Raises:
            ValueError: There are no tensors, or they are not what is charged for: nothing is charged.
            BudgetExceeded: The target does not allow it: nothing is charged or released.
            LedgerError: The charge could not be synced: nothing is released.
        """
        if not tensors:
            raise ValueError("release needs the private tensors that are to be released, got none")
        if self.processes.size == 1:
            self.account.ledger.charge(*self._priced(mechanism, tensors, settings), afford=self.account.grant)
            return mechanism.answer(self.shape, *tensors, **settings)
        gathered = self.processes.gather(tuple(tensor.detach().cpu() for tensor in tensors))
        released: torch.Tensor | None = None
        with self.on_rank_zero() as first:
            if first:
                whole = [torch.cat(parts, dim=mechanism.samples) for parts in zip(*gathered, strict=True)]
                self.charge(mechanism, *whole, **settings)
                released = mechanism.answer(self.shape, *whole, **settings).cpu()
        shares = [parts[0].shape[mechanism.samples] for parts in gathered]
        own: torch.Tensor = self.processes.broadcast(released).split(shares)[self.processes.rank]
        return own.to(tensors[0].device)

    def charge(self, mechanism: Mechanism, *tensors: torch.Tensor, **settings: Any) -> None:
        """Charges a call before it is answered, here or (without tensors) by clients of a federation.

        Raises:
            ValueError: The tensors are not what is charged for: nothing is charged.
            BudgetExceeded: The target does not allow all of it: nothing is charged.
        """
        self.ledger.charge(*self._priced(mechanism, tensors, settings), afford=self.account.grant)

    def _priced(
        self, mechanism: Mechanism, tensors: Sequence[torch.Tensor], settings: Mapping[str, Any]
    ) -> tuple[Charge, int]:
        """What a call is charged, and how many times; all of it fits the target."""
        if tensors:
            cost, calls = mechanism.cost_of_call(self.shape, *tensors, **settings)
        else:
            mechanism.require(self.shape)
            cost, calls = mechanism.cost(self.shape, **settings), 1
        charge = self._charged(mechanism, cost)
        if calls > 1 and self.account.affordable(charge, limit=calls) < calls:
            raise BudgetExceeded(self.account.refusal(charge))
        self._left = (self._left[0], self._left[1] - calls)
        return charge, calls

    def charge_nonprivate_access(self, reason: str, *, training: str | None = OWN) -> None:
        """Charges, once per run, a use of a teacher that only the bound of its own training covers, before it is made.

        Args:
            reason: Why nothing else bounds it, printed wherever the infinite ε is shown.
            training: Identity of the teacher's training, `OWN` for the one that answers; see `admit` for another. None
                if unknown, `RECORDS` for private records themselves: nothing bounds either.

        Raises:
            BudgetExceeded: The target does not allow it: nothing may be used.
        """
        # No queries: the teacher itself is used, not its responses.
        charge = Charge(
            release=Unbounded(reason=reason),
            claim=self.mechanism.claim_of_nonprivate_access(self.shape),
            queries=0,
            training=self.training if training == OWN else training,
        )
        if not self.account.counts(scope="run")[charge]:
            with self.on_rank_zero() as first:
                if first:
                    self.ledger.charge(charge, afford=self.account.grant)

    def note(self, query: str) -> None:
        """Notes an unaccounted query, before it is made."""
        if query not in self.uncharged_queries:
            self.uncharged_queries.append(query)

    def keep_partitions(self, partitions: Sequence[Mapping[str, Any] | None]) -> None:
        """Remembers which records are private, in checkpoints as well."""
        self.partitions += [one for one in partitions if one not in self.partitions]

    # --- costs ---

    @property
    def cost(self) -> Charge:
        """Cost of one call of the run's mechanism."""
        return self._charged(self.mechanism, self.mechanism.cost(self.shape))

    def _charged(self, mechanism: Mechanism, cost: Charge) -> Charge:
        """A cost as the ledger records it: with words and training, and unbounded if its noise is insecure."""
        if self._last is None or self._last[0] is not mechanism or self._last[1] is not cost:
            release = cost.release
            if not mechanism.source.secure:  # in the ledger too: whoever reads it next must know
                release = Unbounded(reason="the noise can be reproduced by anyone who knows its seed")
            elif self.unit is Unit.CLIENT:
                release = release.about(Unit.CLIENT, Relation.REPLACE_ONE)
            words = mechanism.describe(self.shape).mechanism
            self._last = mechanism, cost, replace(cost, release=release, training=self.training, words=words)
        return self._last[2]

    def calls_made(self) -> int:
        """Number of calls of this run so far, whatever each was charged."""
        return sum(count for charge, count in self.account.counts(scope="run").items() if charge.queries)

    def affordable(self, *, limit: int) -> int:
        """Number of further calls, up to `limit`, that stay within the target."""
        return self.account.affordable(self.cost, limit=limit)

    def is_used_up(self, calls: int) -> bool:
        """Whether the target does not allow this many further calls, as far as this process has read the ledger."""
        if self.budget.target_epsilon is None:
            return False
        known = (self.account.ledger.version, self.mechanism)
        # Other processes do not see each charge, and all must come to the same answer.
        if self.processes.size > 1 or self._left[0] != known or self._left[1] < calls:
            self._left = (known, self.affordable(limit=max(calls, self.ledger.block)))
        return self._left[1] < calls

    # --- ledger ---

    def open(
        self,
        *,
        private_data: str,
        ledger: LedgerPlace | Path | None = None,
        num_records: int | None = None,
        training: Training | UnnamedTraining | None = None,
        run: str | None = None,
        processes: Processes = ALONE,
    ) -> None:
        """Opens the ledger of the private data, and restores the charges that `load` has read.

        Args:
            private_data: Public name of the data that the teacher was trained on.
            ledger: The ledger unless the setting `ledger` names another file; None keeps it in memory.
            num_records: Number of private records N, public by assumption.
            training: The teacher's training; None if unknown, so that only their own noise bounds the responses.
            run: Identity of the run; None is a new one, or the checkpoint's.
            processes: Processes of the run.

        Raises:
            ValueError: δ is not below 1/N where another ε than the papers' is to hold, or another setting is invalid.
            CheckpointError: The state is of a run that queried another teacher.
            LedgerError: The ledger cannot be read or written, or is not the one that the checkpoint saw.
            RuntimeError: It is already open: the charges of two runs could not be told apart.
        """
        if self.is_open:
            raise RuntimeError("this session is open already; build another one for another run")
        self.mechanism.require(self.shape)
        self.processes = processes
        # Charges name the teacher of process 0, whose bound must not cover the answers of another one.
        require_same(processes, repr(training), "teachers")
        with self.on_rank_zero() as first:
            if first:
                void = void_delta(self.budget.delta, num_records, private_data)
                if void and (self.budget.accounting == "record" or getattr(training, "releases", None)):
                    raise ValueError(void)
                opened = (ledger if isinstance(ledger, LedgerPlace) else LedgerPlace(ledger)).open(
                    private_data=private_data,
                    run=run or self.resumed or uuid.uuid4().hex,
                    block=self.mechanism.ledger_block if self.budget.ledger_block is None else self.budget.ledger_block,
                    chosen=self.budget.ledger,
                    training=training,
                )
                same = opened.verify_head(getattr(training, "head", None), whose="the teacher's training")
                if self.budget.filters is not None:
                    opened.go_by_filters(self.budget.filters)
                identity = admitted(training, opened)
                self.ledger_was_replaced |= not same or getattr(training, "ledger_was_replaced", False)
                self.ledger_was_replaced |= restore_run(self._before, opened, training=identity)
                self._ledger, self.training, self._last = opened, identity, None
        self._account = PrivacyAccount(
            ledger=self.ledger, budget=self.budget, training=self.training, num_records=num_records
        )

    def require_open_for(self, training: Training | UnnamedTraining | None) -> None:
        """Refuses a session that is open for another teacher, or for another run than the checkpoint's.

        Raises:
            CheckpointError: It is open for another run.
            ValueError: It is open for another teacher, whose bound does not hold for this one.
        """
        if self._before is not None:
            with self.on_rank_zero() as first:
                if first:
                    self.ledger_was_replaced |= restore_run(self._before, self.ledger, training=self.training)
        if (identity := self.admit(training)) != self.training:
            raise ValueError(
                f"this session is open for the teacher of training {self.training}, and was given to a run "
                f"of training {identity}: build another one for another teacher"
            )

    def admit(self, training: Training | UnnamedTraining | None) -> str | None:
        """Records a second teacher in the ledger, before its non-private use is charged; returns its identity.

        Raises:
            LedgerError: Another ledger knows it, or it could not be recorded: nothing may be used.
        """
        require_same(self.processes, repr(training), "teachers")
        identity = None
        with self.on_rank_zero() as first:
            if first:
                LedgerPlace(self.ledger.path).file(chosen=self.ledger.path, training=training)
                head = getattr(training, "head", None)
                self.ledger_was_replaced |= not self.ledger.verify_head(head, whose="the teacher's training")
                identity = admitted(training, self.ledger)
        found: str | None = self.processes.broadcast(identity)
        return found

    @property
    def account(self) -> PrivacyAccount:
        """What has been spent; a RuntimeError before `open`."""
        if self._account is None:
            raise RuntimeError("the session must be opened before anything is released")
        return self._account

    def close(self) -> None:
        """Settles the ledger at a proper end. Process 0 does so without the others."""
        if self._ledger is not None:
            self._ledger.sync()

    # --- plan ---

    def fix_plan(self, ahead: Callable[[], int | None]) -> None:
        """Fixes the plan and writes it into the ledger, before the first release of a fit.

        Args:
            ahead: Returns the number of calls yet to make; None for no limit.

        Raises:
            LedgerError: It could not be written: nothing may be released.
        """

        def make(written: Plan | None) -> Plan:
            calls, made = ahead(), self.calls_made()
            return self.plan.joined(written).fixed(
                None if calls is None else made + calls,
                made=made,
                charged=self.account.counts(scope="run"),
                cost=self.cost,
            )

        with self.on_rank_zero() as first:
            if first:
                self.plan = self.ledger.write_plan(make)
        self.plan = self.processes.broadcast(self.plan)

    def covering(self) -> Counter[Charge]:
        """What a guarantee has to cover: all charges, and the rest of this run's plan."""
        return self.account.spent() + unmade(self.plan.charges, self.account.counts(scope="run"))

    # --- checkpoints ---

    @property
    def resumed(self) -> str | None:
        """Identity of the resumed checkpoint's run, if any."""
        return None if self._before is None else self._before["run"]

    def state(self) -> dict[str, Any]:
        """Plan, accesses and charges of this run, as plain values for a checkpoint."""
        return {
            "plan": self.plan.to_dict(),
            "uncharged_queries": list(self.uncharged_queries),
            "partitions": list(self.partitions),
            "charged": saved_run(self.account, replaced=self.ledger_was_replaced) if self.is_open else self._before,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state`; the charges are merged with the ledger's by `open`."""
        self.loaded, self._before = True, state["charged"]
        self.plan = Plan.from_dict(state["plan"])
        # What was accessed once cannot be taken back by resuming without it.
        for query in state["uncharged_queries"]:
            self.note(query)
        self.keep_partitions(state["partitions"])
