"""A linear function fitted to responses that carry noise of known size: what averages the noise of many images away."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from privacy.deprecation import renamed_arguments, renamed_names

__all__ = ["LinearResponses", "fit_noisy_responses"]

#: Ratios of noise to signal variance that are tried, in units of the features' mean squared singular value.
_RATIOS = torch.logspace(-5, 4, 73, dtype=torch.float64)


@dataclass(frozen=True)
class LinearResponses:
    """An affine function of features.

    Attributes:
        weights: (F, c).
        offset: (c,).
        ratio: assumed noise variance over signal variance; large where little could be learnt, inf where the features
            have no direction.
        evidence: by how much these weights explain the responses better than noise alone, in nats.
    """

    weights: Tensor
    offset: Tensor
    ratio: float
    evidence: float

    @property
    def learnt(self) -> bool:
        """Whether the responses told of anything besides their mean."""
        return self.evidence > 2

    def __call__(self, features: Tensor) -> Tensor:
        """Maps features (N, F) to responses (N, c)."""
        return features @ self.weights.to(features) + self.offset.to(features)


@renamed_arguments(answers="responses", deviation="std")
def fit_noisy_responses(features: Tensor, responses: Tensor, *, std: float) -> LinearResponses:
    """Bayesian linear regression with known noise; the signal's size is the one of highest evidence.

    responses = offset + (features - mean) W + N(0, std²), W ~ N(0, a I): ridge regression with the penalty
    std²/a, where a maximises the marginal likelihood of the responses (MacKay 1992; Rasmussen and Williams 2006,
    Sec. 5.4). Everything is computed from released responses: of private teachers it is post-processing.

    Args:
        features: (N, F), of the images that were queried.
        responses: (N, c), what was released.
        std: standard deviation of the noise on each coordinate, above 0.

    Raises:
        ValueError: shapes that do not go together, fewer than two samples, or a std that is not positive.
    """
    if features.dim() != 2 or responses.dim() != 2 or len(features) != len(responses) or len(features) < 2:
        raise ValueError(
            f"features and responses must be (N, F) and (N, c) with N of at least 2, got {tuple(features.shape)} and "
            f"{tuple(responses.shape)}"
        )
    if not std > 0:
        raise ValueError(f"std must be above 0, got {std}")
    middle = features.double().mean(dim=0)
    rows = features.double() - middle
    offset = responses.double().mean(dim=0)
    targets = responses.double() - offset
    wide = rows.shape[0] <= rows.shape[1]
    squares, vectors = torch.linalg.eigh(rows @ rows.T if wide else rows.T @ rows)
    # Directions that the rows do not span say nothing.
    kept = squares > 1e-10 * squares.amax().clamp_min(torch.finfo(torch.float64).tiny)
    squares, vectors = squares[kept], vectors[:, kept]
    if not len(squares):
        return LinearResponses(
            weights=torch.zeros(rows.shape[1], responses.shape[1]), offset=offset.float(), ratio=math.inf, evidence=0.0
        )
    # Targets in the basis of left singular vectors; what is orthogonal to them has the same likelihood for every a.
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


__getattr__ = renamed_names(__name__, {"LinearAnswers": "LinearResponses", "fit_noisy_answers": "fit_noisy_responses"})
