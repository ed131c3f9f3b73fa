"""The unsupervised energy of DGD (Eq. 6): what a student does on a small triple of images around a code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from lightning_modules.functional.tangent_normal import entropy, feature_distance, find_directions
from lightning_modules.networks.batchnorm import evaluating, frozen_statistics
from lightning_modules.networks.features import logits_and_features

__all__ = ["TangentNormalTerms"]


@dataclass(frozen=True, kw_only=True)
class TangentNormalTerms:
    """Weights and directions of the tangent, normal and entropy terms; a weight of 0 switches a term off.

    Attributes:
        tangent_weight: Of the tangent term; 1 as printed, where it drowned the labels of the digits.
        normal_weight: Of the normal term; as above.
        entropy_weight: Of the entropy term; as above.
        entropy_term: `determinate` makes outputs determinate, as DGD's text says; `as_printed` makes them uniform, as
            its Eq. 6 does.
        tangent_length: Length of a tangent, in the latent space.
        normal_length: Length of a normal, in image space.
        directions: `adversarial`, those in which the student's prediction changes fastest (TNAR), or `random`, DGD's
            "random perturbation noise".
    """

    tangent_weight: float = 0.01
    normal_weight: float = 0.01
    entropy_weight: float = 0.01
    entropy_term: Literal["determinate", "as_printed"] = "determinate"
    tangent_length: float = 1.0
    normal_length: float = 1.0
    directions: Literal["adversarial", "random"] = "adversarial"

    def __post_init__(self) -> None:
        for name in ("tangent_weight", "normal_weight", "entropy_weight"):
            if getattr(self, name) < 0:
                raise ValueError(f"tangent_normal.{name} must be 0 or more, got {getattr(self, name)}")
        if self.entropy_term not in ("determinate", "as_printed"):
            raise ValueError(
                f"tangent_normal.entropy_term must be determinate or as_printed, got {self.entropy_term!r}"
            )
        if self.directions not in ("adversarial", "random"):
            raise ValueError(f"tangent_normal.directions must be adversarial or random, got {self.directions!r}")
        if not (self.tangent_length > 0 and self.normal_length > 0):
            raise ValueError(
                "tangent_normal.tangent_length and normal_length must be positive, got "
                f"{self.tangent_length} and {self.normal_length}"
            )

    @property
    def switched_on(self) -> bool:
        """Whether any term counts."""
        return bool(self.tangent_weight or self.normal_weight or self.entropy_weight)

    def __call__(
        self, student: nn.Module, decode: Callable[[Tensor], Tensor], codes: Tensor, *, draw: torch.Generator
    ) -> Tensor:
        """The weighted sum of the terms, with the student's graph.

        Args:
            student: A classifier; see `logits_and_features`.
            decode: Codes (N, latent_dim) to images (N, C, H, W).
            codes: Shape (N, latent_dim).
            draw: Of the directions.
        """
        with evaluating(student):
            found = find_directions(
                student,
                decode,
                codes,
                tangent_length=self.tangent_length,
                normal_length=self.normal_length,
                draw=draw,
                adversarial=self.directions == "adversarial",
            )
        with torch.no_grad():
            plain = decode(codes)
        with frozen_statistics(student):
            triples = torch.cat([plain, plain + found.displacement, plain + found.normal])
            logits, features = logits_and_features(student, triples)
        own, along, across = features.float().chunk(3)
        uncertainty = entropy(logits[: len(plain)].float())
        return (
            self.tangent_weight * feature_distance(own, along)
            + self.normal_weight * feature_distance(own, across)
            + self.entropy_weight * (uncertainty if self.entropy_term == "determinate" else -uncertainty)
        )
