"""Annotator for votes: noisy labels by an ensemble of teachers on disjoint shards (DGD; Papernot et al. 2017, 2018)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal

import torch

from privacy.account import Budget, BudgetExceeded
from privacy.accounting.calibration import max_count
from privacy.annotators.base import Annotator, of_all_processes
from privacy.checks import check_count, check_positive, named
from privacy.events import Gaussian, GaussianVotes, ThresholdCheck
from privacy.ledger import Charge
from privacy.mechanisms.description import MechanismDescription, of_shards
from privacy.mechanisms.draws import laplace_latents
from privacy.mechanisms.noise import NoiseSource
from privacy.mechanisms.votes import REJECTED, VOTE_MECHANISMS, NoisyVote, check_claim
from privacy.plan import Plan
from privacy.published.claims import Claim, RdpSlope

__all__ = ["VoteAnnotator", "VoteMechanism"]

VoteMechanism = Literal["laplace", "discrete_laplace", "gaussian", "confident"]


class VoteAnnotator(Annotator):
    """Labels by noisy votes (DGD Eq. 3). A *call* of this annotator is one query.

    Teachers are trained on disjoint shards, so one record changes one teacher: two counts of each query move by 1.

    | `mechanism` | response | record-level, each query |
    |---|---|---|
    | `laplace` | argmax(counts + Lap(b)), b = 2/ε₀ = 40: DGD Eq. 3 | two unit shifts of Laplace noise |
    | `discrete_laplace` | the same on the integers: no floating-point low bits | slightly more |
    | `gaussian` | argmax(counts + N(0, σ²)): GNMax, DGD+ | μ² = 2/σ² |
    | `confident` | as `gaussian` where max(counts) + N(0, σ₁²) ≥ threshold, else -1 | μ² = 1/σ₁² + 2/σ² (answered) |

    A query that `confident` leaves unanswered costs only its check. How many will be answered depends on the private
    data, so what is stated covers the most responses that were allowed beforehand (`max_responses`, or the target), not
    the number that came out: `covering`.

    Args:
        mechanism: See the table.
        scale: b of the Laplace kinds, σ of the Gaussian ones, in votes.
        threshold: Bar of `confident`, in votes.
        threshold_scale: σ₁ of `confident`, in votes.
        max_responses: Most queries that `confident` may answer in this run; None allows every query to be.
        latent_epsilon: ε₁ of the Laplace noise on the VAE's latent codes (`perturb_latents`), or None for no such
            noise. It enters only the published figure, since no record-level bound rests on it.
        budget: What the run may spend; see `Budget`.
        noise: Source of noise; null is the operating system's.

    Raises:
        ValueError: An invalid setting.
    """

    noise_setting: ClassVar[str] = "scale"

    def __init__(
        self,
        *,
        mechanism: VoteMechanism = "laplace",
        scale: float = 40.0,
        threshold: float | None = None,
        threshold_scale: float | None = None,
        max_responses: int | None = None,
        latent_epsilon: float | None = None,
        budget: Budget = Budget(),
        noise: NoiseSource | None = None,
    ) -> None:
        super().__init__(budget=budget, noise=noise)
        named("mechanism", mechanism, VOTE_MECHANISMS)  # refuses one whose cost is unknown
        check_positive("scale", scale)
        confident = {"threshold": threshold, "threshold_scale": threshold_scale, "max_responses": max_responses}
        if mechanism != "confident":
            if given := [name for name, value in confident.items() if value is not None]:
                raise ValueError(f"{', '.join(given)}: only mechanism='confident' has these, got {mechanism!r}")
        else:
            if threshold is None or not math.isfinite(threshold):
                raise ValueError(f"threshold must be a finite number of votes for 'confident', got {threshold}")
            check_positive("threshold_scale", threshold_scale or 0.0)
            if max_responses is not None:
                check_count("max_responses", max_responses, minimum=1)
        if latent_epsilon is not None:
            check_positive("latent_epsilon", latent_epsilon)
        self.mechanism: VoteMechanism = mechanism
        self.scale = float(scale)
        self.threshold = threshold
        self.threshold_scale = threshold_scale
        self.max_responses = max_responses
        self.latent_epsilon = latent_epsilon

    @property
    def votes(self) -> NoisyVote:
        """The noise on the counts, with its cost."""
        return VOTE_MECHANISMS[self.mechanism]

    @property
    def claim_of_nonprivate_access(self) -> Claim | None:
        """DGD does not count its baseline classifier; see `Annotator.claim_of_nonprivate_access`."""
        return self.votes.claim(math.inf, 0.0)

    @property
    def _check(self) -> Charge:
        assert self.threshold_scale is not None
        return Charge(release=ThresholdCheck(self.threshold_scale), claim=check_claim(self.threshold_scale))

    @property
    def _response(self) -> Charge:
        """One response; of `confident` it comes on top of the check, which has counted the query."""
        return Charge(
            release=self.votes.event(self.scale),
            claim=self.votes.claim(self.scale, self.latent_epsilon or 0.0),
            queries=0 if self.mechanism == "confident" else 1,
        )

    def _charge_for(self, batch_size: int, num_classes: int) -> Charge:
        if self.mechanism != "confident":
            return self._response
        check, vote = self._check, self._response
        assert isinstance(check.release, ThresholdCheck) and isinstance(vote.release, GaussianVotes)
        mu = math.hypot(check.release.gaussian_mu, vote.release.gaussian_mu)
        assert isinstance(check.claim, RdpSlope) and isinstance(vote.claim, RdpSlope)
        return Charge(release=Gaussian(mu=mu), claim=replace(check.claim, slope=check.claim.slope + vote.claim.slope))

    @property
    def responses_made(self) -> int:
        """Queries of this run that were answered, as far as `confident` may leave some out; private-data dependent."""
        return self.account.counts(scope="run")[self._honest(self._response)]

    def affordable(self, *, limit: int) -> int:
        """How many more queries, up to `limit`, are allowed even if every one is answered."""
        if self.mechanism == "confident" and self.max_responses is not None:
            limit = min(limit, max(0, self.max_responses - self.responses_made))
        return super().affordable(limit=limit)

    @of_all_processes(samples=0)
    def annotate(self, counts: torch.Tensor) -> torch.Tensor:
        """Charges every query, then answers it.

        Args:
            counts: Votes per class of each query, shape (N, c), int64; each sample sums to the number of teachers.
                **Private.**

        Returns:
            Labels, shape (N,), int64, on the device of `counts`; `REJECTED` (-1) where `confident` leaves one out.

        Raises:
            ValueError: No such counts: nothing is charged.
            BudgetExceeded: The target does not allow all of them: nothing is charged or released.
        """
        self._require_votes(counts)
        if self.affordable(limit=len(counts)) < len(counts):
            if self.max_responses is not None and self.max_responses - self.responses_made < len(counts):
                raise BudgetExceeded(
                    f"max_responses={self.max_responses} allows fewer than {len(counts)} more responses"
                )
            raise BudgetExceeded(self.account.refusal(self.charge))
        if self.mechanism == "confident":
            return self._confident(counts)
        for _ in range(len(counts)):
            self._spend(self._honest(self._response))
        return self.votes.labels(counts, scale=self.scale, noise=self.noise)

    def _confident(self, counts: torch.Tensor) -> torch.Tensor:
        assert self.threshold is not None and self.threshold_scale is not None
        for _ in range(len(counts)):
            self._spend(self._honest(self._check))
        noise = self.threshold_scale * self.noise.gaussian((len(counts),))
        passed = (counts.cpu().amax(dim=1).double() + noise >= self.threshold).to(counts.device)
        labels = torch.full((len(counts),), REJECTED, dtype=torch.int64, device=counts.device)
        for _ in range(int(passed.sum())):
            self._spend(self._honest(self._response))
        if bool(passed.any()):
            labels[passed] = self.votes.labels(counts[passed], scale=self.scale, noise=self.noise)
        return labels

    def _require_votes(self, counts: torch.Tensor) -> None:
        _, classes = self.shape
        if counts.ndim != 2 or len(counts) < 1 or counts.shape[1] != classes or counts.dtype != torch.int64:
            raise ValueError(
                f"counts must be int64 of shape (N, {classes}), got {counts.dtype} of shape {tuple(counts.shape)}"
            )
        # One vote for each teacher is what makes two counts move by 1; how many teachers there are is public.
        if bool((counts < 0).any()) or bool((counts.sum(dim=1) != counts[0].sum()).any()):
            raise ValueError("counts must hold one vote of each teacher: each query of one sum, none below 0")

    def perturb_latents(self, codes: torch.Tensor) -> torch.Tensor:
        """Laplace noise of scale 2c/ε₁ on normalised latent codes (DGD Sec. III-E), scaled back to the decoder's range.

        What it bounds: nothing about a private record. DGD counts ε₁ once, as if a private record were one sample; its
        samples are synthetic, and where they depend on private data (through a generator trained against the baseline)
        they do so all together, and reach the student as query images and also through the decoder. So nothing is
        charged. Where the images come only from public information, these codes are public already.

        Args:
            codes: Shape (N, c), c the width of the code.

        Returns:
            Shape (N, c), detached, the largest entry of each sample at most 1 in magnitude; `codes` themselves,
            detached, where `latent_epsilon` is None.
        """
        if self.latent_epsilon is None:
            return codes.detach()
        noisy = laplace_latents(codes, epsilon=self.latent_epsilon, noise=self.noise)
        return noisy / noisy.abs().amax(dim=1, keepdim=True).clamp_min(1.0)

    def price(self, calls: int) -> Counter[Charge]:
        """See `Annotator.price`; of `confident` every response that is allowed is counted, made or not."""
        if self.mechanism != "confident":
            return super().price(calls)
        allowed = calls if self.max_responses is None else self.max_responses - self.responses_made
        responses = max(0, min(allowed, calls))
        return +Counter({self._honest(self._check): calls, self._honest(self._response): responses})

    def _planned_charges(self, planned: Plan | None) -> Mapping[Charge, int]:
        """Of `confident` with every response that was allowed: that some were left out is private."""
        charges = Counter(super()._planned_charges(planned))
        if self.mechanism != "confident":
            return charges
        check, vote = self._honest(self._check), self._honest(self._response)
        checks = self.account.counts(scope="run")[check]
        allowed = checks if self.max_responses is None else min(self.max_responses, checks)
        return charges | Counter({check: checks, vote: allowed})

    def _written(self, plan: Plan) -> Plan:
        """For `confident`, at most one call past its target, since the run then states only the target."""
        if self.mechanism != "confident" or plan.limit is None or len(self.account.ledger.runs()) > 1:
            return plan
        most = 1 + max_count(self._charge_for(*self.shape).release, *plan.limit)
        return replace(plan, charges={charge: min(n, most) for charge, n in plan.charges.items()})

    def covered_epsilon(self, planned: Plan | None) -> float:
        """Record-level ε of `covering(planned)`; under a target that all releases were held to, at most the target.

        A target stops a sequence whose length depends on the responses. That it bounds such a sequence is proved where
        every release is Gaussian and the target was fixed before the first (Smith and Thakurta 2022; Koskela et al.
        2023); elsewhere the whole plan counts.
        """
        covered = self.covering(planned)
        epsilon = self.account.epsilon(counts=covered)
        # Under which target an earlier run stopped is unknown here.
        alone = self.budget.scope == "private_data" and len(self.account.ledger.runs()) <= 1
        target = self.budget.target_epsilon
        if planned is not None:
            target = planned.limit[0] if planned.limit is not None and planned.limit[1] == self.budget.delta else None
        if target is None or self.budget.accounting != "record" or not alone:
            return epsilon
        gaussian = all(charge.release.gaussian_mu is not None for charge in covered)
        return min(epsilon, max(target, self.account.epsilon())) if gaussian else epsilon

    def describe(self) -> MechanismDescription:
        """See `Annotator.describe`."""
        answered = ""
        if self.mechanism == "confident":
            most = "every query" if self.max_responses is None else f"at most {self.max_responses} queries"
            answered = (
                f", for queries whose largest count plus N(0, {self.threshold_scale:g}^2) reaches {self.threshold:g} "
                f"votes ({most} may be answered)"
            )
        return of_shards(
            noise=self.votes.drawn,
            mechanism=(
                f"one label for each queried image, the class of most votes among teachers on disjoint shards after "
                f"{self.votes.words.format(self.scale)} was added to every count{answered} (mechanism={self.mechanism})"
            ),
            source=self.votes.source,
            published_source=self.votes.published_source,
        )
