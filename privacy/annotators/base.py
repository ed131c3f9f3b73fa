"""The base of all annotators, which are the only access to a private teacher.

An annotator ties a mechanism to its sensitivity, its cost and the neighbouring relation of that cost. It charges before
it draws noise and refuses what would overspend, so that no caller can forget to.
"""

from __future__ import annotations

import functools
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

import torch

from privacy.account import Budget, BudgetExceeded, PrivacyAccount, admitted
from privacy.checks import check_count
from privacy.events import Unbounded
from privacy.guarantee import Guarantee
from privacy.identity import CheckpointError, Training, UnnamedTraining
from privacy.ledger_place import LedgerPlace
from privacy.ledger_replica import LedgerReplica
from privacy.mechanisms.description import MechanismDescription
from privacy.mechanisms.noise import NoiseSource, SystemNoise
from privacy.neighbours import Relation, Unit
from privacy.plan import Charge, Plan, unmade
from privacy.processes import ALONE, Processes, on_rank_zero, require_same
from privacy.published.claims import Claim

_T = TypeVar("_T")
_F = TypeVar("_F", bound=Callable[..., Any])

# With the type annotation that torch leaves out.
uncompiled: Callable[[_F], _F] = torch.compiler.disable


def of_all_processes(*, samples: int) -> Callable[[_F], _F]:
    """Decorates a method `annotate` so that process 0 calls it once for all processes of a run.

    The method gets the rows of all processes in rank order, charges them as one call, and draws one noise for them:
    sensitivity, cost and distribution of the noise are those of a single process. Each process gets its own released
    rows; an error reaches all. The method is neither compiled nor recorded by autograd.

    Args:
        samples: Dimension of the tensors along which samples lie; negative from the end.
    """

    def decorate(annotate: _F) -> _F:
        @uncompiled
        @torch.no_grad()
        @functools.wraps(annotate)
        def joint(self: Annotator, *private: torch.Tensor, **settings: Any) -> torch.Tensor:
            if self.processes.size == 1:
                return cast(torch.Tensor, annotate(self, *private, **settings))
            device = private[0].device
            gathered = self.processes.gather(tuple(tensor.detach().cpu() for tensor in private))
            whole = [torch.cat(parts, dim=samples) for parts in zip(*gathered, strict=True)]
            released = self._on_rank_zero(lambda: annotate(self, *whole, **settings).cpu())
            shares = [tensors[0].shape[samples] for tensors in gathered]
            own: torch.Tensor = released.split(shares)[self.processes.rank].to(device)
            return own

        return cast(_F, joint)

    return decorate


class Annotator(ABC):
    """Base of all annotators: budget, ledger and noise. Call `bind` and `open` before the first release.

    Args:
        budget: What the run may spend; see `Budget`.
        noise: Source of noise; None is the operating system's cryptographic generator.
    """

    noise_setting: ClassVar[str] = "noise_multiplier"
    """Name of the setting that scales the noise, for calibration."""
    more_is_noisier: ClassVar[bool] = True
    """Whether a larger value of that setting means more noise."""
    ledger_block: ClassVar[int] = 100
    """Number of releases that one synced line of the ledger reserves unless the budget says otherwise."""
    asks_teacher: ClassVar[bool] = True
    """Whether responses come from a teacher; otherwise they depend on the private training records themselves."""

    def __init__(self, *, budget: Budget = Budget(), noise: NoiseSource | None = None) -> None:
        self.budget = budget
        self.noise = noise or SystemNoise()
        self._account: PrivacyAccount | None = None
        self._shape: tuple[int, int] | None = None
        self._paper: str | None = None
        self.num_records: int | None = None
        #: What one neighbouring change touches: a record, or all records of a client, see `protect_clients`.
        self.unit: Unit = Unit.RECORD
        #: The processes of the run, of which only the first charges and draws.
        self.processes: Processes = ALONE
        self._followed: tuple[str, int] | None = None

    @property
    def charge(self) -> Charge:
        """Cost of one call of the annotator; unbounded if the noise can be reproduced.

        Raises:
            RuntimeError: `bind` has not been called.
        """
        return self._honest(self._charge_for(*self.shape))

    def _honest(self, charge: Charge) -> Charge:
        """Returns the charge as the ledger records it: with its training, and unbounded if its noise is insecure."""
        training = charge.training or (None if self._account is None else self._account.training)
        release = charge.release
        if not self.noise.secure:  # in the ledger too: whoever reads it next must know
            release = Unbounded(reason="the noise can be reproduced by anyone who knows its seed")
        elif self.unit is Unit.CLIENT:
            release = release.about(Unit.CLIENT, Relation.REPLACE_ONE)
        return replace(charge, release=release, training=training)

    def protect_clients(self) -> None:
        """States every cost for a client whose data are replaced instead of a record; call it before `open`.

        The cost for a record assumes that one record may turn one teacher into any other. Replacing all data of a
        client does no more, if its teacher is trained on nothing else. No bound on a training by DP-SGD holds for a
        whole client, and none must be given to `open`.
        """
        if self._account is not None:
            raise RuntimeError("protect_clients must be called before the annotator is opened")
        self.unit = Unit.CLIENT

    @property
    def claim_of_nonprivate_access(self) -> Claim | None:
        """What the paper's theorem counts for using the teacher outside this mechanism; None if no theorem does."""
        return None

    def charge_nonprivate_access(self, reason: str, *, training: str | None = None) -> None:
        """Charges, once per run, a use of a teacher that no noise covers, before it is made.

        The bound of that teacher's own training covers such a use like any other.

        Args:
            reason: Why nothing else bounds it, printed wherever the infinite ε is shown.
            training: Identity of the teacher's training, if it is not the one that answers (see `admit`); `RECORDS` for
                private records themselves, whose use no teacher's guarantee covers.

        Raises:
            BudgetExceeded: The target does not allow it: nothing may be used.
        """
        # No queries: the teacher itself is used, not its responses.
        charge = Charge(
            release=Unbounded(reason=reason),
            claim=self.claim_of_nonprivate_access,
            queries=0,
            training=training or self.account.training,
        )
        if not self.account.counts(scope="run")[charge]:
            self._on_rank_zero(lambda: self.account.charge(charge))

    def _on_rank_zero(self, act: Callable[[], _T]) -> _T:
        """Runs what uses the ledger in process 0; its result or error, and the ledger's new state, reach all.

        Raises:
            Exception: What `act` raised.
        """
        return on_rank_zero(self.processes, act, tell=self._state_to_follow, follow=self._follow)

    def _state_to_follow(self) -> dict[str, Any] | None:
        account = self._account
        if account is None:
            return None
        ledger = account.ledger.state_to_follow(since=self._followed)
        self._followed = account.ledger.version
        return {
            "private_data": account.ledger.private_data,
            "path": account.ledger.path,
            "ledger": ledger,
            "training": account.training,
            "ledger_was_replaced": account.ledger_was_replaced,
            "num_records": self.num_records,
        }

    def _follow(self, state: Mapping[str, Any] | None) -> None:
        if state is None:
            return
        if self._account is None:
            ledger = LedgerReplica(private_data=state["private_data"], path=state["path"], state=state["ledger"])
            self._account = PrivacyAccount(ledger=ledger, budget=self.budget, training=state["training"])
        assert isinstance(self._account.ledger, LedgerReplica)
        self._account.ledger.follow(state["ledger"])
        self._account.training = state["training"]
        self._account.ledger_was_replaced = state["ledger_was_replaced"]
        self.num_records = state["num_records"]

    def calls_made(self) -> int:
        """Number of calls of this run so far, whatever each was charged."""
        return sum(count for charge, count in self.account.counts(scope="run").items() if charge.queries)

    @abstractmethod
    def _charge_for(self, batch_size: int, num_classes: int) -> Charge:
        """Cost of one call on a batch of this shape."""

    @abstractmethod
    def describe(self) -> MechanismDescription:
        """Description of the mechanism and its figures, for the guarantee."""

    def description(self) -> MechanismDescription:
        """Description of the mechanism as this run was charged for it, since resuming may have changed its noise.

        As currently set if nothing was charged.
        """
        calls: Counter[str] = Counter()
        for charge, count in self.account.counts(scope="run").items():
            if _noised(charge):
                calls[self._words_of(charge)] += count if charge.queries else 0
        descriptions = [f"{n:,} call{'' if n == 1 else 's'}: {words}" if n else words for words, n in calls.items()]
        if len(calls) < 2:
            descriptions = list(calls) or [self.describe().mechanism]
        return replace(self.describe(), mechanism="; ".join(descriptions))

    def _words_of(self, charge: Charge) -> str:
        descriptions = self.account.mechanisms
        alike = [words for other, words in descriptions.items() if charge.covers(other) or other.covers(charge)]
        return descriptions.get(charge) or (alike or [f"{charge.release!r}, which no checkpoint describes"])[0]

    def _noted(self, charges: Counter[Charge]) -> Counter[Charge]:
        """Returns charges at the current settings, after noting for `description` what they are for."""
        for charge in charges:
            if charge not in self.account.mechanisms:
                self.account.mechanisms[charge] = self.describe().mechanism
        return charges

    def _spend(self, charge: Charge, *, at_once: int | None = None) -> None:
        """Charges one release at the current settings, before its noise is drawn; see `PrivacyAccount.charge`.

        Raises:
            BudgetExceeded: The target does not allow it: nothing may be released.
        """
        self.account.charge(charge, at_once=at_once)
        self._noted(Counter({charge: 1}))

    def price(self, calls: int) -> Counter[Charge]:
        """Most that `calls` further calls may be charged, at the current settings."""
        return +Counter({self.charge: calls})

    def fix_plan(self, before: Plan, wanted: Callable[[], int | None]) -> Plan:
        """Fixes this run's plan and writes it into the ledger, before the first release of a fit.

        Args:
            before: The plan so far, from a checkpoint.
            wanted: Returns the total number of calls after this fit, including those before it; None for no limit.

        Raises:
            LedgerError: It could not be written: nothing may be released.
        """

        def make(written: Plan | None) -> Plan:
            return before.joined(written).fixed(
                wanted(),
                made=self.calls_made(),
                charged=self.account.counts(scope="run"),
                price=lambda calls: self._noted(self.price(calls)),
            )

        return self._on_rank_zero(lambda: self.account.ledger.write_plan(make))

    def noise_changed(self, planned: Plan | None) -> bool:
        """Whether this run's releases were made, or planned, with several noises."""
        charges = {*self.account.counts(scope="run"), *(() if planned is None else planned.charges)}
        return len({self._words_of(charge) for charge in charges if _noised(charge)}) > 1

    def covering(self, planned: Plan | None) -> Counter[Charge]:
        """What a guarantee has to cover: all charges, and the rest of this run's plan."""
        planned_charges = {} if planned is None else planned.charges
        return self.account.spent() + unmade(planned_charges, self.account.counts(scope="run"))

    def covered_epsilon(self, planned: Plan | None) -> float:
        """Record-level ε of `covering(planned)`."""
        return self.account.epsilon(counts=self.covering(planned))

    def guarantee(
        self,
        *,
        artefacts: Sequence[str],
        planned: Plan | None,
        uncharged_queries: Sequence[str] = (),
        assumptions: Sequence[str] = (),
        not_covered: Sequence[str] = (),
    ) -> Guarantee:
        """Guarantee of what was computed only from this annotator's responses and public information.

        ε covers `planned`, the plan of this run before its first call, None if there was none. The other arguments are
        those of `Guarantee.of`.

        Raises:
            LedgerError: The ledger cannot be read: nothing can be said.
        """
        self.account.ledger.refresh()
        own, planned_charges = self.account.counts(scope="run"), {} if planned is None else planned.charges
        most = None if planned is None else planned.calls
        return Guarantee.of(
            self.account,
            self.description(),
            artefacts=artefacts,
            covered=self.covering(planned),
            of_run=own + unmade(planned_charges, own),
            planned=planned is not None and not planned.changed and (most is None or self.calls_made() <= most),
            noise_changed=self.noise_changed(planned),
            secure=self.noise.secure,
            num_records=self.num_records,
            uncharged_queries=uncharged_queries,
            assumptions=assumptions,
            not_covered=not_covered,
            of_teacher=self.asks_teacher,
        )

    def bind(self, *, batch_size: int, num_classes: int, paper: str | None = None) -> None:
        """Fixes the shape (B, c) of every call, which the cost depends on; needs neither teacher nor data.

        Args:
            batch_size: B.
            num_classes: c.
            paper: Name of the calling method, whose paper's theorem gives the published figure.
        """
        if batch_size < 1 or num_classes < 2:
            raise ValueError(
                f"batch_size must be 1 or more and num_classes 2 or more, got {batch_size} and {num_classes}"
            )
        self._shape = (batch_size, num_classes)
        self._paper = paper

    @property
    def shape(self) -> tuple[int, int]:
        """(B, c) as given to `bind`."""
        if self._shape is None:
            raise RuntimeError("call bind(batch_size=..., num_classes=...) before the annotator is used")
        return self._shape

    def _require_shape(self, name: str, given: torch.Tensor, *, teachers: bool = False) -> None:
        """Refuses any shape but the one that is charged for: (B, c), or (n, B, c) for several `teachers`."""
        shape = tuple(given.shape)
        if shape[-2:] != self.shape or len(shape) != 2 + teachers or 0 in shape:
            raise ValueError(
                f"{name} must have the shape {'(n, B, c) with ' if teachers else ''}(B, c) = {self.shape} that is "
                f"charged for, got {shape}"
            )

    def open(
        self,
        *,
        private_data: str,
        ledger: LedgerPlace | str | Path | None = None,
        num_records: int | None = None,
        state: Mapping[str, Any] | None = None,
        training: Training | UnnamedTraining | None = None,
        processes: Processes = ALONE,
    ) -> None:
        """Opens the ledger of the private data and restores this run's state from a checkpoint.

        Args:
            private_data: Public name of the data that the teacher was trained on.
            ledger: The ledger unless the setting `ledger` names another file; None keeps it in memory.
            num_records: Number of private records N, public by assumption.
            state: `PrivacyAccount.state` of a checkpoint.
            training: The teacher's training; None if unknown, so that only their own noise bounds the responses.
            processes: Processes of the run. Each must make every call that charges or releases; process 0 acts for all.

        Raises:
            ValueError: δ is not below 1/N, or another setting is invalid.
            CheckpointError: The state is of a run that queried another teacher.
            LedgerError: The ledger cannot be read or written, or is not the one that the checkpoint saw.
            RuntimeError: It is already open: the charges of two runs could not be told apart.
        """
        if self._account is not None:
            raise RuntimeError("this annotator is open already; build another one for another run")
        self.processes = processes
        # Charges name the teacher of process 0, whose bound must not cover the answers of another one.
        require_same(processes, repr(training), "teachers")

        def act() -> None:
            budget = self.budget
            if num_records is not None and check_count("num_records", num_records, minimum=1) * budget.delta >= 1:
                raise ValueError(
                    f"delta must lie below 1/N = {1 / num_records:.3g} for the {num_records} records of "
                    f"{private_data}, got {budget.delta:g}: a mechanism that publishes one record "
                    "outright would meet it"
                )
            run = state["run"] if state else uuid.uuid4().hex
            place = ledger if isinstance(ledger, LedgerPlace) else LedgerPlace(None if ledger is None else Path(ledger))
            block = self.ledger_block if budget.ledger_block is None else budget.ledger_block
            opened = place.open(private_data=private_data, run=run, block=block, chosen=budget.ledger)
            head = training.head if isinstance(training, Training) else None
            same = opened.verify_head(head, whose="the teacher's training")
            if budget.filters is not None:
                opened.go_by_filters(budget.filters)
            account = PrivacyAccount(ledger=opened, budget=budget, training=admitted(training, opened))
            account.ledger_was_replaced = not same or (isinstance(training, Training) and training.ledger_was_replaced)
            if state:
                account.require_training(state.get("training"))
                account.restore(state)
            self._account, self.num_records = account, num_records

        self._on_rank_zero(act)

    def admit(self, training: Training | UnnamedTraining | None) -> str | None:
        """Records a second teacher in the ledger, before its non-private use is charged; returns its identity.

        Raises:
            LedgerError: It could not be recorded: nothing may be used.
        """
        require_same(self.processes, repr(training), "teachers")
        return self._on_rank_zero(lambda: admitted(training, self.account.ledger))

    def require_open_for(
        self, training: Training | UnnamedTraining | None, *, state: Mapping[str, Any] | None = None
    ) -> None:
        """Refuses an annotator that is open for another teacher, or for another run than a checkpoint's.

        Args:
            training: The teacher's training.
            state: `PrivacyAccount.state` of the checkpoint that is resumed, if one is.

        Raises:
            CheckpointError: It is open for another run than the checkpoint's.
            ValueError: It is open for another teacher, whose bound does not hold for this one.
        """
        if state is not None:
            if state["run"] != self.account.ledger.run:
                raise CheckpointError(
                    f"this annotator is open for run {self.account.ledger.run}, and the checkpoint is of run "
                    f"{state['run']}: build another annotator to resume it"
                )
            self._on_rank_zero(lambda: self.account.restore(state))
        identity = self.admit(training)
        if identity != self.account.training:
            raise ValueError(
                f"this annotator is open for the teacher of training {self.account.training}, and was given to a run "
                f"of training {identity}: build another annotator for another teacher"
            )

    @property
    def account(self) -> PrivacyAccount:
        """What has been spent.

        Raises:
            RuntimeError: `open` has not been called.
        """
        if self._account is None:
            raise RuntimeError("call open(private_data=...) before anything is released")
        return self._account

    @property
    def is_open(self) -> bool:
        """Whether `open` has been called."""
        return self._account is not None

    def require_affordable(self, calls: int = 1) -> None:
        """Refuses a run whose first step exceeds the target.

        Raises:
            BudgetExceeded: It does; the message says what could be changed.
        """
        self.account.require_one_unit(self.charge)
        if self.affordable(limit=calls) < calls:
            raise BudgetExceeded(self.account.refusal(self.charge, calls=calls))

    def affordable(self, *, limit: int) -> int:
        """Number of further calls, up to `limit`, that stay within the target."""
        return self.account.affordable(self.charge, limit=limit)

    def close(self) -> None:
        """Settles the ledger at a proper end. Process 0 does so without the others."""
        if self._account is not None:
            self._account.ledger.settle()


def _noised(charge: Charge) -> bool:
    """Whether a charge is for a noisy response, and not for a non-private use of a teacher."""
    return bool(charge.queries) or charge.release.bounded
