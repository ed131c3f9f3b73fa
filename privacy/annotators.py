"""The only door through which anything about a private teacher leaves.

An annotator ties a mechanism to its sensitivity, its cost and the neighbouring relation that the cost is stated for. It
charges before it draws noise and refuses what would overspend, so that no caller can forget to.
"""

from __future__ import annotations

import math
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar, get_args

import torch

from privacy.account import Accounting, BudgetExceeded, PrivacyAccount, Scope
from privacy.calibration import output_gradient_mu
from privacy.checks import check_count, check_delta
from privacy.claims import Claim, RdpSlope
from privacy.ledger import Charge, Ledger
from privacy.mechanisms import clip_rows, keep_largest, normalize_rows, zero_non_finite_rows
from privacy.noise import NoiseSource, SystemNoise
from privacy.pipelines import Bound
from privacy.published import dpdfd_rdp_slope
from privacy.releases import Gaussian, Unbounded

__all__ = ["Annotator", "GradientAnnotator"]

_SMALLEST, _LARGEST = 1e-30, 1e30
GradientReleases = Literal["per_sample", "per_sample_full", "batch_mean", "batch_mean_rows", "ensemble"]
_F = TypeVar("_F", bound=Callable[..., Any])
# Named here with the type that torch leaves out.
uncompiled: Callable[[_F], _F] = torch.compiler.disable
DISJOINT_SHARDS = (
    "teachers of different shards share nothing: each record was seen by one of them alone, which its stable id "
    "decides, and where a record is added, removed or replaced the ids of all others stay as they are"
)
"""What every bound on answers of an ensemble rests on."""


class Annotator(ABC):
    """Base of all annotators: settings of the budget, the ledger, the noise; `open` before the first release.

    Args:
        delta: δ of every figure; must lie below one over the number of private records.
        target_epsilon: Most that may be spent, or None for no limit.
        accounting: Which figure the target is about: `record`, which bounds something, or `published`, a paper's claim.
        scope: `private_data` counts every run on the same private data, `run` this one alone. Students of several runs
            that are all published compose: `run` is for research tables, and the guarantee says what it leaves out.
        ledger: The ledger's file; None puts it beside the teacher.
        ledger_block: Releases that one synced line of the ledger reserves.
        noise: Source of noise; None is the operating system's cryptographic generator.

    Raises:
        ValueError: A setting that has no meaning.
    """

    noise_setting: ClassVar[str] = "noise_multiplier"
    """Name of the setting that scales the noise, for calibration."""
    more_is_noisier: ClassVar[bool] = True
    """Whether a larger value of that setting is more noise."""

    def __init__(
        self,
        *,
        delta: float = 1e-5,
        target_epsilon: float | None = None,
        accounting: Accounting = "record",
        scope: Scope = "private_data",
        ledger: str | None = None,
        ledger_block: int = 100,
        noise: NoiseSource | None = None,
    ) -> None:
        self.delta = check_delta(delta)
        self.target_epsilon = target_epsilon
        self.accounting: Accounting = accounting
        self.scope: Scope = scope
        self.ledger_path = ledger
        self.ledger_block = ledger_block
        self.noise = noise or SystemNoise()
        self._account: PrivacyAccount | None = None
        self._shape: tuple[int, int] | None = None
        self._paper: str | None = None
        self.num_records: int | None = None

    @property
    def charge(self) -> Charge:
        """Cost of one call of the annotator; nothing bounds it where the noise can be drawn again.

        Raises:
            RuntimeError: `bind` has not been called.
        """
        return self._honest(self._charge_for(*self.shape))

    def _honest(self, charge: Charge) -> Charge:
        if self.noise.secure:
            return charge
        # In the ledger, not in this run alone: whoever reads it next must know.
        return replace(charge, release=Unbounded(reason="the noise can be drawn again by whoever knows its seed"))

    @property
    def claim_of_reveal(self) -> Claim | None:
        """What the paper's theorem counts for a use of the teacher outside of this mechanism; None: no theorem does."""
        return None

    def reveal(self, reason: str) -> None:
        """Charges, once in a run, a use of the teacher that no noise covers, before it is made.

        Args:
            reason: Why nothing bounds it, printed wherever the infinite ε is shown.

        Raises:
            BudgetExceeded: The target allows no such thing: nothing may be used.
        """
        # No queries: not answers are taken, but the teacher as a whole.
        charge = Charge(release=Unbounded(reason=reason), claim=self.claim_of_reveal, queries=0)
        if not self.account.counts(scope="run")[charge]:
            self.account.charge(charge)

    def calls_made(self) -> int:
        """Calls of this run so far, whatever each was charged."""
        return sum(count for charge, count in self.account.counts(scope="run").items() if charge.queries)

    @abstractmethod
    def _charge_for(self, batch_size: int, num_classes: int) -> Charge:
        """Cost of one call on a batch of this shape."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Plain words and figures on the mechanism, for the guarantee: `mechanism`, `source`, `relation`, `unit`.

        And `noise`, how it was drawn, where that is not as floating-point numbers; empty where there is none. And
        `assumption`, where the bound rests on one of the mechanism's own.
        """

    def bind(self, *, batch_size: int, num_classes: int, paper: str | None = None) -> None:
        """Fixes the shape (B, c) of every call, which the cost depends on; needs neither teacher nor data.

        Args:
            batch_size: B.
            num_classes: c.
            paper: Letter of the paper whose method calls, and whose theorem the published figure is by.
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

    def open(
        self,
        *,
        private_data: str,
        ledger: str | Path | None = None,
        num_records: int | None = None,
        state: Mapping[str, Any] | None = None,
        teacher: Bound | None = None,
    ) -> None:
        """Opens the ledger of the private data and restores what a checkpoint remembers of this run.

        Args:
            private_data: Public name of the data that the teacher was trained on.
            ledger: Where the ledger lies unless the setting `ledger` says otherwise; None keeps it in memory.
            num_records: Number of private records N, public by assumption.
            state: What `state` gave when a checkpoint was saved.
            teacher: The teacher's own guarantee, where it was trained with differential privacy.

        Raises:
            ValueError: δ is not below 1/N, or another setting has no meaning.
            LedgerError: The ledger cannot be read or written.
            RuntimeError: It is open already: a second run's charges would not be told apart from the first's.
        """
        if self._account is not None:
            raise RuntimeError("this annotator is open already; build another one for another run")
        if num_records is not None and check_count("num_records", num_records, minimum=1) * self.delta >= 1:
            raise ValueError(
                f"delta must lie below 1/N = {1 / num_records:.3g} for the {num_records} records of {private_data}, "
                f"got {self.delta:g}: a mechanism that publishes one record outright would meet it"
            )
        run = state["run"] if state else uuid.uuid4().hex
        path = self.ledger_path or ledger
        account = PrivacyAccount(
            ledger=Ledger(path=path, private_data=private_data, run=run, block=self.ledger_block),
            delta=self.delta,
            target_epsilon=self.target_epsilon,
            accounting=self.accounting,
            scope=self.scope,
            teacher=teacher,
        )
        if state:
            account.restore(state)
        self._account = account
        self.num_records = num_records

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
        """Refuses a run in which not one step fits.

        Args:
            calls: Calls that its first step makes.

        Raises:
            BudgetExceeded: With the figures and what could be changed.
        """
        if self.affordable(limit=calls) < calls:
            raise BudgetExceeded(self.account.refusal(self.charge, calls=calls))

    def affordable(self, *, limit: int) -> int:
        """How many more calls, up to `limit`, stay within the target."""
        return self.account.affordable(self.charge, limit=limit)

    def close(self) -> None:
        """Settles the ledger at a proper end."""
        if self._account is not None:
            self._account.ledger.settle()


class GradientAnnotator(Annotator):
    """C Eq. 4, D Eq. 3: bounded gradients of the loss by the student's outputs, plus Gaussian noise.

    Per row ḡ_i = C·g_i/(‖g_i‖₂ + e) (or clipped to C). One private record may change the teacher, hence **every** row
    of every batch, each by up to 2C: neighbours differ in one record (zero-out; replace-one and add-or-remove follow).

    | `release` | released | μ² per step |
    |---|---|---|
    | `per_sample` | ḡ_i + N(0, (σC/B)² I), independent rows: what the papers' accuracies need | B·(2B/σ)² |
    | `per_sample_full` | ḡ_i + N(0, σ²C² I), independent rows | B·(2/σ)² |
    | `batch_mean` | (1/B)(Σ ḡ_i + N(0, σ²C² I)), one vector: C Algorithm 1 to the letter | (2B/σ)² |
    | `batch_mean_rows` | (1/B)Σ(ḡ_i + N(0, σ²C² I)), one vector: D Eq. 3 to the letter | B·(2/σ)² |
    | `ensemble` | (1/n)(Σ_j ḡ_ij + N(0, σ²C² I)) of n teachers on disjoint shards: C Algorithm 2 | B·(2/σ)² |

    `batch_mean` and `batch_mean_rows` carry no label of any image and distil nothing. For `ensemble` one record changes
    one teacher, whose row of each image moves by up to 2C; all others stay equal to the last bit.

    The theorem that gives the published figure (C's Theorem 3, D's Theorem 1) counts the same for all of them.

    Args:
        release: See the table.
        top_k: Of each gradient only its k entries of largest magnitude are kept, before it is bounded (D's M_k); None
            keeps all. Which they are depends on the teacher, so the noise goes on **all** coordinates all the same.
        bounding: `normalize` or `clip`.
        norm_bound: C.
        noise_multiplier: σ. Zero releases the rows themselves: both ε are infinite.
        stability: e.
        delta: See `Annotator`.
        target_epsilon: See `Annotator`.
        accounting: See `Annotator`.
        scope: See `Annotator`.
        ledger: See `Annotator`.
        ledger_block: See `Annotator`.
        noise: See `Annotator`.

    Raises:
        ValueError: A setting that has no meaning.
    """

    def __init__(
        self,
        *,
        release: GradientReleases = "per_sample",
        top_k: int | None = None,
        bounding: Literal["normalize", "clip"] = "normalize",
        norm_bound: float = 1e-3,
        noise_multiplier: float = 100.0,
        stability: float = 1e-4,
        delta: float = 1e-5,
        target_epsilon: float | None = None,
        accounting: Accounting = "record",
        scope: Scope = "private_data",
        ledger: str | None = None,
        ledger_block: int = 100,
        noise: NoiseSource | None = None,
    ) -> None:
        super().__init__(
            delta=delta,
            target_epsilon=target_epsilon,
            accounting=accounting,
            scope=scope,
            ledger=ledger,
            ledger_block=ledger_block,
            noise=noise,
        )
        if release not in get_args(GradientReleases):
            raise ValueError(f"release must be one of {', '.join(get_args(GradientReleases))}, got {release!r}")
        if top_k is not None:
            check_count("top_k", top_k, minimum=1)
        if bounding not in ("normalize", "clip"):
            raise ValueError(f"bounding must be normalize or clip, got {bounding!r}")
        # Wide enough for any use, and nothing that is computed from them can overflow or vanish.
        if not _SMALLEST <= norm_bound <= _LARGEST:
            raise ValueError(f"norm_bound must lie between {_SMALLEST:g} and {_LARGEST:g}, got {norm_bound}")
        if noise_multiplier != 0 and not _SMALLEST <= noise_multiplier <= _LARGEST:
            raise ValueError(
                f"noise_multiplier must be 0 or lie between {_SMALLEST:g} and {_LARGEST:g}, got {noise_multiplier}"
            )
        if not 0 <= stability <= _LARGEST:
            raise ValueError(f"stability must lie between 0 and {_LARGEST:g}, got {stability}")
        self.release: GradientReleases = release
        self.top_k = top_k
        self.bounding = bounding
        self.norm_bound = norm_bound
        self.noise_multiplier = noise_multiplier
        self.stability = stability

    def bind(self, *, batch_size: int, num_classes: int, paper: str | None = None) -> None:
        """See `Annotator.bind`.

        Raises:
            ValueError: `top_k` exceeds the number of classes.
        """
        super().bind(batch_size=batch_size, num_classes=num_classes, paper=paper)
        if self.top_k is not None and self.top_k > num_classes:
            raise ValueError(f"top_k must be at most the number of classes {num_classes}, got {self.top_k}")

    @property
    def theorem(self) -> str:
        """Paper and theorem of the published figure."""
        return "D Theorem 1" if self._paper == "D" else "C Theorem 3"

    @property
    def claim_of_reveal(self) -> Claim | None:
        """D counts its teacher as a discriminator (DPSD-T) for nothing; see `Annotator.claim_of_reveal`."""
        return RdpSlope(source=self.theorem, slope=0.0) if self._paper == "D" else None

    def _charge_for(self, batch_size: int, num_classes: int) -> Charge:
        if not self.noise_multiplier:
            return Charge(release=Gaussian(mu=math.inf), queries=batch_size)
        mu = output_gradient_mu(self.release, batch_size, self.noise_multiplier)
        slope = dpdfd_rdp_slope(self.norm_bound, num_classes, batch_size, self.noise_multiplier)
        return Charge(release=Gaussian(mu=mu), claim=RdpSlope(source=self.theorem, slope=slope), queries=batch_size)

    def _noise_per_row(self, batch_size: int) -> float:
        return self.noise_multiplier / batch_size if self.release == "per_sample" else self.noise_multiplier

    @uncompiled
    @torch.no_grad()
    def annotate(self, gradients: torch.Tensor) -> torch.Tensor:
        """Charges one step, then releases the batch.

        Computed in float64 on the CPU, whatever precision the run has: the batch is small, and sensitivity must not
        depend on rounding.

        Args:
            gradients: g, shape (B, c), gradients of each row's own loss (not of the batch mean: those would be so
                small that `stability` swamps them). For `ensemble` g_ij of every teacher j, shape (n, B, c).

        Returns:
            Shape (B, c), detached, with the dtype and device of `gradients`. For `batch_mean` and `batch_mean_rows` all
            rows are equal.

        Raises:
            ValueError: Not of the shape that was bound: nothing is charged.
            BudgetExceeded: The target does not allow one more step: nothing is charged or released.
        """
        self._require_shape(gradients)
        self.account.charge(self.charge)
        rows = self._bounded(gradients.cpu().flatten(0, -2))
        batch_size, num_classes = self.shape
        if self.release == "ensemble":
            noise = self.noise.gaussian((batch_size, num_classes)) * (self.noise_multiplier * self.norm_bound)
            rows = (rows.view(-1, batch_size, num_classes).sum(dim=0) + noise) / len(gradients)
        elif self.release == "batch_mean":
            noise = self.noise.gaussian((num_classes,)) * (self.noise_multiplier * self.norm_bound)
            rows = ((rows.sum(dim=0) + noise) / batch_size).repeat(batch_size, 1)
        else:
            noise = self.noise.gaussian((batch_size, num_classes))
            rows = rows + noise * (self._noise_per_row(batch_size) * self.norm_bound)
            if self.release == "batch_mean_rows":
                rows = rows.mean(dim=0, keepdim=True).repeat(batch_size, 1)
        # First the dtype: not every device has float64.
        return rows.to(gradients.dtype).to(gradients.device)

    def _require_shape(self, gradients: torch.Tensor) -> None:
        expected, shape = self.shape, tuple(gradients.shape)
        if self.release != "ensemble" and shape != expected:
            raise ValueError(f"gradients must have the shape (B, c) = {expected} that is charged for, got {shape}")
        if self.release == "ensemble" and (len(shape) != 3 or shape[1:] != expected or shape[0] < 1):
            raise ValueError(
                f"gradients of an ensemble must have the shape (n, B, c) with (B, c) = {expected} that is charged for, "
                f"got {shape}"
            )

    def _bounded(self, gradients: torch.Tensor) -> torch.Tensor:
        """Rows (N, c) in float64, of norm C at most."""
        rows = zero_non_finite_rows(gradients)
        if self.top_k is not None:
            rows = keep_largest(rows, k=self.top_k)
        if self.bounding == "normalize":
            return normalize_rows(rows, norm_bound=self.norm_bound, stability=self.stability)
        return clip_rows(rows, norm_bound=self.norm_bound)

    def describe(self) -> dict[str, Any]:
        """See `Annotator.describe`."""
        batch_size, _ = self.shape
        per_row = f"{self._noise_per_row(batch_size):.4g}*C per coordinate"
        released = {
            "per_sample": f"each row with Gaussian noise of deviation sigma*C/B = {per_row}",
            "per_sample_full": f"each row with Gaussian noise of deviation sigma*C = {per_row}",
            "batch_mean": "the batch mean with Gaussian noise of deviation sigma*C/B per coordinate",
            "batch_mean_rows": "the batch mean of rows, each with Gaussian noise of deviation sigma*C per coordinate",
            "ensemble": f"the sum over all teachers with Gaussian noise of deviation sigma*C = {per_row}, divided by n",
        }[self.release]
        masked = "" if self.top_k is None else f"their {self.top_k} largest entries kept, "
        many = self.release == "ensemble"
        verb = "normalised" if self.bounding == "normalize" else "clipped"
        return {
            **({"assumption": DISJOINT_SHARDS} if many else {}),
            "mechanism": (
                "gradients of the distillation loss with respect to the student's outputs, "
                f"{masked}{verb} to C={self.norm_bound:g} per row, released as {released} "
                f"(sigma={self.noise_multiplier:g}, B={batch_size}, release={self.release})"
            ),
            "unit": "one training record of one teacher" if many else "one training record of the teacher",
            "relation": (
                "zero-out of one record; the bound holds for replace-one and add-or-remove as well"
                + (", since a record's id alone decides its shard" if many else "")
            ),
            "source": (
                f"Gaussian mechanism, one record moves {'one row of each image' if many else 'every row'} by up to 2C; "
                "exact composition (Balle and Wang 2018; Dong et al. 2022)"
            ),
            "published_source": {
                "C Theorem 3": "C (model conversion via differentially private data-free distillation), Theorem 3",
                "D Theorem 1": "D (differentially private synthetic distillation), Theorem 1",
            }[self.theorem],
        }
