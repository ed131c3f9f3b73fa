"""Mechanisms of direct training, for a model that sees private images and learns their labels through noise.

The update multiplies what is released by a Jacobian of the private image, so nothing bounds a record. Its **label** is
bounded: neighbours differ in the label of one record, and images, as well as who took part in which step, count as
public. A record's label enters the row of its own gradient, or its own response, and nothing else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from privacy.checks import check_number
from privacy.events import LabelOnly, RandomizedResponse, RevealedGaussian, Unbounded
from privacy.events.base import Relation, Unit
from privacy.mechanisms.base import FLOATS, THRESHOLDS, Description, Mechanism, Shape
from privacy.mechanisms.noisy_gradients import THEOREMS, NoisyGradients, theorem
from privacy.mechanisms.noisy_labels import randomized_response
from privacy.plan import Charge
from privacy.published import WholeRun

_COINS = "the sampling can be reproduced by anyone who knows its seed, and a record may be in every step"


@dataclass(frozen=True, kw_only=True)
class DirectGradients(NoisyGradients):
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

    The figure of DPDFD's Theorem 3, here the index of Table 4, is that of `NoisyGradients`: a claim. The paper states
    the theorem for Algorithm 1, and does not say how Table 4 counts its ε.

    Settings are those of `NoisyGradients`. `release` must not be `ensemble`, which is for teachers, and `bounding` not
    `normalize_batch`, where a label changes every row through their common norm.
    """

    source_of_labels: ClassVar[str] = (
        "Gaussian mechanism, a label moves one row by up to 2C; sampling amplifies nothing, since images show who took "
        "part (DPDFD, Algorithm 3; Balle and Wang 2018; Dong et al. 2022)"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.way.of_ensemble:
            raise ValueError("release must not be ensemble for direct training, which has no teachers")
        if self.bounded_by.whole_batch:
            raise ValueError(
                "bounding must be normalize or clip for direct training, got normalize_batch: one label would change "
                "every row of its batch, by their common norm"
            )

    def require(self, shape: Shape) -> None:
        """See `Mechanism.require`: a record must be sampled with a probability above 0."""
        super().require(shape)
        if not 0 < shape.sample_rate <= 1:
            raise ValueError(f"sample_rate must lie above 0 and be at most 1, got {shape.sample_rate}")

    def label_mu(self, batch_size: int) -> float:
        """μ of one step in which a record takes part: 2C over the standard deviation of the noise on its row."""
        std = self.way.noise_std(batch_size, self.noise_multiplier)
        return 2.0 / std if std else math.inf

    def cost(self, shape: Shape) -> Charge:  # type: ignore[override]  # whose base is cached
        if not shape.secure_sampling:
            return Charge(release=Unbounded(reason=_COINS), queries=shape.batch_size)
        release = LabelOnly(RevealedGaussian(self.label_mu(shape.batch_size), shape.sample_rate))
        claim = self.claim(shape) if self.noise_multiplier else None
        return Charge(release=release, claim=claim, queries=shape.batch_size)

    def cost_of_call(self, shape: Shape, *tensors: torch.Tensor, **settings: Any) -> tuple[Charge, int]:
        """Takes gradients g, shape (n, c), of each record's own loss, and the numbers of the records, (n,) int64.

        n may be 0 and differ from B.
        """
        gradients, records = tensors
        if records.ndim != 1 or tuple(gradients.shape) != (len(records), shape.num_classes):
            raise ValueError(
                f"gradients must be (n, {shape.num_classes}), and come with the numbers of their records (n,), got "
                f"{tuple(gradients.shape)} and {tuple(records.shape)}"
            )
        if len(torch.unique(records)) != len(records):
            raise ValueError("records must be distinct within a batch: a label would move several rows")
        return self.cost(shape), 1

    def answer(self, shape: Shape, *tensors: torch.Tensor, **settings: Any) -> torch.Tensor:
        return super().answer(shape, tensors[0])

    def describe(self, shape: Shape) -> Description:
        return Description(
            mechanism=(
                "gradients of each private record's own cross-entropy with respect to the model's outputs, "
                f"{self.words(shape)}, on Poisson samples at rate {shape.sample_rate:.4g}; the private images "
                "themselves, in every update"
            ),
            unit="one training record",
            relation="any change of one record",
            source="nothing: the update multiplies what is released by a Jacobian of the private image",
            noise=FLOATS if self.noise_multiplier else "",
            published_source=THEOREMS[theorem(shape)],
        )


@dataclass(frozen=True, kw_only=True)
class DirectLabels(Mechanism):
    """Randomized response on the label of every record, all in one call (DPSD's label switch on private data).

    B of its shape is the number of records. Labels are released once, and kept, whatever the number of epochs: the
    whole run is ε-label-DP (Warner 1965; Ghazi et al. 2021), by parallel composition over records. Responses that no
    checkpoint kept, after a crash or an earlier fit, are drawn again and cost again.

    Attributes:
        epsilon: ε of one response, and of the run.
    """

    noise_setting: ClassVar[str] = "epsilon"
    more_is_noisier: ClassVar[bool] = False
    ledger_block: ClassVar[int] = 1
    source_of_labels: ClassVar[str] = (
        "randomized response, one for each record (Warner 1965): pure ε, which holds at every δ; draws that were lost "
        "with an interrupted fit compose on the loss lattice"
    )

    epsilon: float = 1.0

    def __post_init__(self) -> None:
        check_number("epsilon", self.epsilon, above=0)

    def cost(self, shape: Shape) -> Charge:
        of_label = RandomizedResponse(self.epsilon, shape.num_classes, unit=Unit.LABEL, relation=Relation.REPLACE_ONE)
        claim = WholeRun(source="DPSD Theorem 2", epsilon=self.epsilon)
        return Charge(release=LabelOnly(of_label), claim=claim, queries=shape.batch_size)

    def cost_of_call(self, shape: Shape, *tensors: torch.Tensor, **settings: Any) -> tuple[Charge, int]:
        if tuple(tensors[0].shape) != shape[:1]:
            raise ValueError(f"labels must be those of all {shape.batch_size} records, got {tuple(tensors[0].shape)}")
        return self.cost(shape), 1

    def answer(self, shape: Shape, *tensors: torch.Tensor, **settings: Any) -> torch.Tensor:
        """Maps the labels of all records, (B,) int64, to their responses, (B,) int64."""
        every_class = torch.ones(shape[:2], dtype=torch.bool)
        return randomized_response(tensors[0].cpu(), every_class, epsilon=self.epsilon, noise=self.source)

    def describe(self, shape: Shape) -> Description:
        return Description(
            mechanism=(
                f"the label of each of {shape.batch_size} private records, once, by randomized response over "
                f"{shape.num_classes} classes (epsilon={self.epsilon:g}); the private images themselves, in every "
                "update"
            ),
            unit="one training record",
            relation="any change of one record",
            source="nothing: the update is computed from the private image",
            noise=THRESHOLDS,
            published_source="DPSD (Liu et al., differentially private synthetic distillation), Theorem 2",
        )
