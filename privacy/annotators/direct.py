"""Annotators of direct training, for a model that sees private images and learns their labels through noise.

The update multiplies what is released by a Jacobian of the private image, so nothing bounds a record. Its **label** is
bounded: neighbours differ in the label of one record, and images, as well as who took part in which step, count as
public. A record's label enters the row of its own gradient, or its own response, and nothing else.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar

import torch

from privacy.account import Budget
from privacy.annotators.base import Annotator, uncompiled
from privacy.annotators.gradient import THEOREMS, GradientAnnotator
from privacy.checks import check_positive, check_probability
from privacy.events import LabelOnly, RandomizedResponse, RevealedGaussian, Unbounded
from privacy.guarantee import Guarantee, LabelStatement
from privacy.mechanisms.description import FLOATS, THRESHOLDS, MechanismDescription
from privacy.mechanisms.noise import NoiseSource
from privacy.mechanisms.randomized_response import randomized_response
from privacy.neighbours import Relation, Unit
from privacy.plan import Charge, Plan
from privacy.published import dpdfd_rdp_slope
from privacy.published.claims import RdpSlope, WholeRun

_COINS = "the sampling can be reproduced by anyone who knows its seed, and a record may be in every step"

_KNOWN = (
    "the labels of different records are independent of each other, or only the change of one label is of interest; "
    "labels were used only through the annotator, and not for initial weights, settings or features"
)

_MEMORY = "a record's label is queried only by this annotator, and its number always refers to the same record"


class _OfLabels(Annotator):
    """Base of both annotators: a guarantee with two statements, for records and for labels."""

    asks_teacher = False
    _source_of_labels: ClassVar[str]

    def epsilon_label(self, planned: Plan | None) -> float:
        """ε at δ for the label of one record, over everything that a guarantee has to cover; see `covering`."""
        return self.account.epsilon_label(counts=self.covering(planned))

    def guarantee(self, *, planned: Plan | None, **given: Any) -> Guarantee:
        """See `Annotator.guarantee`; adds a separate statement for labels."""
        whole = super().guarantee(planned=planned, **given)
        # What voids the bound for a record need not void that for its label.
        holds = [text for text in whole.assumptions if not text.startswith("VOID")]
        labels = LabelStatement(
            epsilon=self.epsilon_label(planned),
            delta=whole.delta,
            source=self._source_of_labels,
            assumptions=(*holds, _KNOWN, _MEMORY),
            epsilon_spent=self.account.epsilon_label(),
        )
        return replace(whole, labels=labels)


class DirectGradientAnnotator(_OfLabels, GradientAnnotator):
    """DPDFD Algorithm 3: bounded, noised gradients of each private record's own loss w.r.t. the model's outputs.

    A label moves one row by at most 2C (C·g/‖g‖ may be reversed, as at p = (1/2, 1/2)), in every step in which its
    record takes part. So μ of one such step is 2C over the standard deviation of the noise on that row:

    | `release` | noise | μ of one step |
    |---|---|---|
    | `per_sample` | σC/B on each row | 2B/σ |
    | `per_sample_full` | σC on each row | 2/σ |
    | `batch_mean` (as printed) | σC on the sum | 2/σ |
    | `batch_mean_rows` | σC on each row, of which the mean is released | at most 2/σ |

    Poisson sampling amplifies nothing, since images show who took part: a record takes part in a step with probability
    q, and δ = Σ_K Bin(K; T, q)·δ_GDP(√K μ) for T steps. B is the nominal batch size: noise scaled to the drawn size
    would need its own proof.

    The figure of DPDFD's Theorem 3, which indexes Table 4, is that of `GradientAnnotator`: a claim.

    Arguments are those of `GradientAnnotator`. `release` must not be `ensemble`, which is for teachers; `bounding` not
    `normalize_batch`, where a label changes every row through their common norm; and `granularity` must be null, since
    the cost on a lattice is not known here.
    """

    _source_of_labels = (
        "Gaussian mechanism, a label moves one row by up to 2C; sampling amplifies nothing, since images show who took "
        "part (DPDFD, Algorithm 3; Balle and Wang 2018; Dong et al. 2022)"
    )

    sample_rate: float | None = None
    secure_coins: bool = True

    def bind(self, *, batch_size: int, num_classes: int, paper: str | None = None) -> None:
        """See `Annotator.bind`.

        Raises:
            ValueError: A setting whose cost is not proved.
        """
        super().bind(batch_size=batch_size, num_classes=num_classes, paper=paper)
        if self.mechanism.of_ensemble:
            raise ValueError("release must not be ensemble for direct training, which has no teachers")
        if self.bounded_by.whole_batch:
            raise ValueError(
                "bounding must be normalize or clip for direct training, got normalize_batch: one label would change "
                "every row of its batch, by their common norm"
            )
        if self.granularity is not None:
            raise ValueError(f"granularity must be null for direct training, got {self.granularity}")
        _require_keepable(self.budget)

    def bind_sampling(self, *, sample_rate: float, secure: bool = True) -> None:
        """Fixes the rate q of Poisson sampling, on which the cost depends, and whether its coins are secure."""
        self.sample_rate = check_probability("sample_rate", sample_rate)
        self.secure_coins = secure

    @property
    def label_mu(self) -> float:
        """μ of one step in which a record takes part: 2C over the standard deviation of the noise on its row."""
        std = self.mechanism.noise_std(self.shape[0], self.noise_multiplier)
        return 2.0 / std if std else math.inf

    def _charge_for(self, batch_size: int, num_classes: int) -> Charge:
        if not self.secure_coins:
            return Charge(release=Unbounded(reason=_COINS), queries=batch_size)
        # Until the data are known, as if every record took part in every step.
        rate = 1.0 if self.sample_rate is None else self.sample_rate
        claim = None
        if self.noise_multiplier:
            slope = dpdfd_rdp_slope(self.norm_bound, num_classes, batch_size, self.noise_multiplier)
            claim = RdpSlope(source=self.theorem, slope=slope)
        return Charge(release=LabelOnly(RevealedGaussian(self.label_mu, rate)), claim=claim, queries=batch_size)

    @uncompiled
    @torch.no_grad()
    def annotate(self, gradients: torch.Tensor, records: torch.Tensor | None = None) -> torch.Tensor:
        """Charges one step, then releases the batch; see `GradientAnnotator.annotate`.

        Args:
            gradients: g, shape (n, c), of each record's own loss. n may be 0 and differ from B.
            records: Numbers of the records, shape (n,), int64.

        Returns:
            Shape (n, c), detached, with the dtype and device of `gradients`.

        Raises:
            ValueError: Shapes, or a record twice: nothing is charged.
            BudgetExceeded: The target does not allow one more step: nothing is charged or released.
        """
        num_classes = self.shape[1]
        if records is None or records.ndim != 1 or tuple(gradients.shape) != (len(records), num_classes):
            raise ValueError(
                f"gradients must be (n, {num_classes}), and come with the numbers of their records (n,), got "
                f"{tuple(gradients.shape)} and {None if records is None else tuple(records.shape)}"
            )
        if self.sample_rate is None:
            raise RuntimeError("call bind_sampling(...) before anything is released")
        if len(torch.unique(records)) != len(records):
            raise ValueError("records must be distinct within a batch: a label would move several rows")
        return self._charged_release(gradients, self._bounded)

    def describe(self) -> MechanismDescription:
        return MechanismDescription(
            mechanism=(
                "gradients of each private record's own cross-entropy with respect to the model's outputs, "
                f"{self._released()}, on Poisson samples at rate {self.sample_rate or 1:.4g}; the private images "
                "themselves, in every update"
            ),
            unit="one training record",
            relation="any change of one record",
            source="nothing: the update multiplies what is released by a Jacobian of the private image",
            noise=FLOATS if self.noise_multiplier else "",
            published_source=THEOREMS[self.theorem],
        )


class DirectLabelAnnotator(_OfLabels):
    """Randomized response on each record's own label, drawn once and kept (DPSD's label switch on private data).

    A label is released once, whatever the number of epochs: the whole run is ε-label-DP (Warner 1965; Ghazi et
    al. 2021), by parallel composition over records. Responses that no checkpoint kept, after a crash or an earlier fit,
    are drawn again and cost again: each fit that draws is charged once, before its first draw.

    Args:
        epsilon: ε of one response, and of the run.
        budget: What the run may spend; see `Budget`.
        noise: Source of noise; null is the operating system's.
    """

    noise_setting: ClassVar[str] = "epsilon"
    more_is_noisier: ClassVar[bool] = False
    _source_of_labels = (
        "randomized response, one for each record (Warner 1965): pure ε, which holds at every δ; draws that were lost "
        "with an interrupted fit compose on the loss lattice"
    )

    def __init__(self, *, epsilon: float = 1.0, budget: Budget = Budget(), noise: NoiseSource | None = None) -> None:
        super().__init__(budget=budget, noise=noise)
        _require_keepable(budget)
        self.epsilon = check_positive("epsilon", epsilon)
        #: Kept responses, (N,), -1 for records without one.
        self.responses: torch.Tensor | None = None
        #: The charge for this object's draws; None before the first.
        self._charged: Charge | None = None

    def __getstate__(self) -> dict[str, Any]:
        """A copy draws its own responses, which cost again."""
        return {**self.__dict__, "_charged": None}

    @property
    def complete(self) -> bool:
        """Whether every record has its response: nothing more will be drawn."""
        return self.responses is not None and bool((self.responses >= 0).all())

    def _charge_for(self, batch_size: int, num_classes: int) -> Charge:
        of_label = RandomizedResponse(self.epsilon, num_classes, unit=Unit.LABEL, relation=Relation.REPLACE_ONE)
        claim = WholeRun(source="DPSD Theorem 2", epsilon=self.epsilon)
        return Charge(release=LabelOnly(of_label), claim=claim, queries=batch_size)

    def _charge_once(self) -> None:
        """Charges all labels at once, without a block of the ledger, which would count releases never made.

        Raises:
            BudgetExceeded: The target does not allow it: nothing is charged.
        """
        self._spend(self.charge, at_once=1)

    @uncompiled
    @torch.no_grad()
    def annotate(self, labels: torch.Tensor, records: torch.Tensor) -> torch.Tensor:
        """Returns each record's response; a record queried before gets the same one.

        Args:
            labels: Of these records, shape (n,), int64. **Private.**
            records: Their numbers, shape (n,), int64.

        Returns:
            Responses (n,), int64, on the device of `labels`.

        Raises:
            ValueError: Shapes, or a record twice: nothing is charged.
            BudgetExceeded: The target does not allow it: nothing is charged or released.
        """
        count, num_classes = self.shape
        if records.ndim != 1 or records.shape != labels.shape:
            raise ValueError(f"labels and records must be (n,), got {tuple(labels.shape)} and {tuple(records.shape)}")
        own = records.cpu()
        if len(torch.unique(own)) != len(own):
            raise ValueError("records must be distinct within a batch: each is answered for once")
        if self.responses is None:
            self.responses = torch.full((count,), -1, dtype=torch.int16)
        new = self.responses[own] < 0
        if bool(new.any()):
            if self._charged != self.charge:  # `epsilon` may have changed
                self._charge_once()
                self._charged = self.charge
            candidates = torch.ones(int(new.sum()), num_classes, dtype=torch.bool)
            responses = randomized_response(labels.cpu()[new], candidates, epsilon=self.epsilon, noise=self.noise)
            self.responses[own[new]] = responses.to(self.responses.dtype)
        return self.responses[own].long().to(labels.device)

    def kept(self) -> torch.Tensor | None:
        """Returns the responses for a checkpoint: released values."""
        return None if self.responses is None else self.responses.clone()

    def keep(self, responses: torch.Tensor) -> None:
        """Inverse of `kept`.

        Raises:
            ValueError: They are of another number of records.
        """
        if len(responses) != self.shape[0]:
            raise ValueError(
                f"{len(responses)} kept responses for {self.shape[0]}: resume with the same private records"
            )
        self.responses = responses.clone()
        # What this object has drawn since is lost, drawn again, and costs again.
        self._charged = None

    def describe(self) -> MechanismDescription:
        count, classes = self.shape
        return MechanismDescription(
            mechanism=(
                f"the label of each of {count} private records, once, by randomized response over {classes} classes "
                f"(epsilon={self.epsilon:g}); the private images themselves, in every update"
            ),
            unit="one training record",
            relation="any change of one record",
            source="nothing: the update is computed from the private image",
            noise=THRESHOLDS,
            published_source="DPSD (Liu et al., differentially private synthetic distillation), Theorem 2",
        )


def _require_keepable(budget: Budget) -> None:
    if budget.target_epsilon is not None and budget.accounting != "published":
        raise ValueError(
            f"target_epsilon={budget.target_epsilon:g} needs accounting='published' in direct training, got "
            f"{budget.accounting!r}: nothing bounds a record there. For labels choose the noise"
        )
