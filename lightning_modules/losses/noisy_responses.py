"""A linear function fitted to responses with known noise: an ensemble's released answers, for `Distillation`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

#: Ratios of noise to signal variance to try, in units of the features' mean squared singular value.
_RATIOS = torch.logspace(-5, 4, 73, dtype=torch.float64)


@dataclass(frozen=True)
class LinearResponses:
    """An affine function of features.

    Attributes:
        weights: (F, c).
        offset: (c,).
        ratio: estimated noise variance over signal variance; large if little could be learnt, inf if the features do
            not vary.
        evidence: log evidence of these weights over pure noise, in nats.
    """

    weights: Tensor
    offset: Tensor
    ratio: float
    evidence: float

    @property
    def learnt(self) -> bool:
        """Whether the responses carry information besides their mean."""
        return self.evidence > 2

    def __call__(self, features: Tensor) -> Tensor:
        """Maps features (N, F) to responses (N, c)."""
        return features @ self.weights.to(features) + self.offset.to(features)


def fit_noisy_responses(features: Tensor, responses: Tensor, *, std: float) -> LinearResponses:
    """Bayesian linear regression with known noise; the signal's variance maximises the evidence.

    responses = offset + (features - mean) W + N(0, std²), W ~ N(0, a I): ridge regression with the penalty
    std²/a, where a maximises the marginal likelihood of the responses (MacKay 1992; Rasmussen and Williams 2006,
    Sec. 5.4). Everything is computed from released responses, so it is post-processing.

    Args:
        features: (N, F), of the queried images.
        responses: (N, c), the released responses.
        std: standard deviation of the noise on each coordinate, above 0.
    """
    middle = features.double().mean(dim=0)
    rows = features.double() - middle
    offset = responses.double().mean(dim=0)
    targets = responses.double() - offset
    wide = rows.shape[0] <= rows.shape[1]
    squares, vectors = torch.linalg.eigh(rows @ rows.T if wide else rows.T @ rows)
    # Directions outside the span of the rows carry no information.
    kept = squares > 1e-10 * squares.amax().clamp_min(torch.finfo(torch.float64).tiny)
    squares, vectors = squares[kept], vectors[:, kept]
    if not len(squares):
        return LinearResponses(
            weights=torch.zeros(rows.shape[1], responses.shape[1]), offset=offset.float(), ratio=math.inf, evidence=0.0
        )
    # Targets in the basis of left singular vectors; the orthogonal part has the same likelihood for every a.
    moved = vectors.T @ targets if wide else (vectors.T @ (rows.T @ targets)) / squares.sqrt()[:, None]
    penalties = _RATIOS * squares.mean()
    variances = std**2 * (squares[:, None] / penalties + 1)
    energy = moved.square().sum(dim=1)
    evidence = -0.5 * ((energy[:, None] / variances).sum(dim=0) + responses.shape[1] * variances.log().sum(dim=0))
    best = int(evidence.argmax())
    shrunk = moved / (squares + penalties[best])[:, None]
    weights = rows.T @ (vectors @ shrunk) if wide else vectors @ (shrunk * squares.sqrt()[:, None])
    alone = -0.5 * (energy.sum() / std**2 + responses.shape[1] * len(energy) * math.log(std**2))
    return LinearResponses(
        weights=weights.float(),
        offset=(offset - middle @ weights).float(),
        ratio=float(_RATIOS[best]),
        evidence=float(evidence[best] - alone),
    )
