"""A teacher's raw responses: useful where the teacher's own training bounds what they reveal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from privacy.description import Description
from privacy.events import Unbounded
from privacy.mechanisms.base import Mechanism, Shape
from privacy.plan import Charge


@dataclass(frozen=True, kw_only=True)
class RawResponses(Mechanism):
    """Releases logits (B, c) without noise.

    Nothing bounds such responses by themselves. For a teacher trained by DP-SGD they are post-processing, and its own
    (ε, δ) is the record-level figure; for any other teacher ε is infinite.
    """

    def cost(self, shape: Shape) -> Charge:
        release = Unbounded(reason="the teacher's answers were released without noise")
        return Charge(release=release, queries=shape.batch_size)

    def answer(self, shape: Shape, *tensors: torch.Tensor, **settings: Any) -> torch.Tensor:
        """The logits themselves.

        Raises:
            ValueError: They are not finite; they are charged all the same, since failing is a response as well.
        """
        (logits,) = tensors
        if not bool(torch.isfinite(logits).all()):
            raise ValueError(
                "the teacher's responses must be finite, got nan or inf: its weights or its inputs overflow"
            )
        return logits.detach().clone()

    def describe(self, shape: Shape) -> Description:
        return Description(
            mechanism=f"the teacher's logits on synthetic images, without noise (B={shape.batch_size} in a call)",
            relation="that of the teacher's own guarantee, where it has one",
            source="post-processing of the teacher",
            noise="",
        )
