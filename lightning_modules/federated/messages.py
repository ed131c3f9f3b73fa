"""Messages between server and clients (DPSD Algorithm 2), as plain values and tensors that any transport can carry.

Everything that the server sends is public or was released before. What a client sends back is the only thing that
leaves it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from datamodules.partition import Partition
from privacy.events import Release, release_from_dict

__all__ = ["Absence", "Introduction", "Question", "Switch", "Terms"]

Switch = Literal["data", "label"]


@dataclass(frozen=True, kw_only=True)
class Introduction:
    """How a client describes itself before the first query. All of it is public by its own decision.

    Attributes:
        name: By which it is known: in messages, logs and guarantees.
        num_records: Number of its records, where it states one.
        training: Identity of its teacher's training; empty where its file names none.
        releases: What that training released of its records, where it was by DP-SGD; None where nothing bounds it.
        secure: Whether its noise comes from the operating system's generator.
        assumptions: What any guarantee of something that is computed with its teacher rests on, a sentence each.
        partition: Identifies its records and their data set, where its teacher's file does.
    """

    name: str
    num_records: int | None = None
    training: str = ""
    releases: Mapping[Release, int] | None = None
    secure: bool = True
    assumptions: tuple[str, ...] = ()
    partition: Partition | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values; `from_dict` is the inverse."""
        releases = None if self.releases is None else [[r.to_dict(), n] for r, n in self.releases.items()]
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**fields, "releases": releases, "assumptions": list(self.assumptions)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Introduction:
        """Inverse of `to_dict`."""
        releases = values["releases"]
        taken = None if releases is None else {release_from_dict(r): int(n) for r, n in releases}
        return cls(**{**values, "releases": taken, "assumptions": tuple(values["assumptions"])})


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The queries of a run to every client: fixed before the first one, and the same for all.

    Attributes:
        run: Identity of the server's run. A client's ledger counts by it.
        switch: What is answered: gradients (`data`) or classes (`label`).
        noise_by: Who adds the noise: each client to what it sends, or the server to the sum, which it then has to be
            trusted with. Of labels it is always the clients.
        calls: Questions that the run plans in all; None where no end is known.
        batch_size: B, images of one question.
        num_classes: c.
        image_shape: (C, H, W).
        mechanism: Settings of the client's annotator, see `FederatedClient`.
        loss: Settings of `GradientTargets` whose gradient is requested; empty for labels.
        server_mu: Of noise that the server adds: μ of one of its `calls` releases, for what a client's guarantee says
            of everyone but the server; their root mean square where the noise was changed. None where clients add
            their own.
    """

    run: str
    switch: Switch
    noise_by: Literal["client", "server"]
    calls: int | None
    batch_size: int
    num_classes: int
    image_shape: tuple[int, int, int]
    mechanism: Mapping[str, Any] = field(default_factory=dict)
    loss: Mapping[str, Any] = field(default_factory=dict)
    server_mu: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values; `from_dict` is the inverse."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Terms:
        """Inverse of `to_dict`."""
        return cls(**{**values, "image_shape": tuple(values["image_shape"])})


@dataclass(frozen=True, kw_only=True)
class Question:
    """One round's question (Algorithm 2, line 6): synthetic images, and what the student makes of them.

    Attributes:
        number: Of the round, from 0.
        images: Shape (B, C, H, W), float32.
        outputs: The student's logits, shape (B, c), float32.
        candidates: Of labels: which classes an answer is chosen from, shape (B, c), bool, only by the
            student's outputs; None for gradients.
    """

    number: int
    images: torch.Tensor
    outputs: torch.Tensor
    candidates: torch.Tensor | None = None


@dataclass(frozen=True)
class Absence:
    """Why a client's answer is left out of a round.

    Attributes:
        reason: In words that say nothing about its records.
    """

    reason: str
