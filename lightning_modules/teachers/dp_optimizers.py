"""DP-SGD's optimizers: Opacus's, with clipping, sum and noise in float64 and noise from the operating system.

In float32 a clipped gradient was measured at up to 1 + 4e-7 clipping norms, and noise that is rounded to float32 before
it is added leaves low bits that tell whether a record took part (an event of probability 3.3 % without it, 0 with it).
So nothing is rounded here until noise has been added and the whole divided by the batch: once, at the end.
"""

from __future__ import annotations

from typing import Any

import torch
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from opacus.optimizers.optimizer import _check_processed_flag, _mark_as_processed

from privacy.mechanisms.discrete_gaussian import discrete_gaussian, round_to_lattice
from privacy.mechanisms.noise import NoiseSource
from privacy.processes import ALONE, Processes, on_rank_zero

__all__ = ["GHOST_MARGIN", "MARGIN", "ExactNoise", "FlatOptimizer", "GhostOptimizer", "SumOptimizer"]

MARGIN = 1e-9
"""Share of the clipping norm that a record's gradient stays below it, for the rounding of float64."""
GHOST_MARGIN = 1e-4
"""The same where norms come from ghost clipping, which computes them in float32."""

_ROWS = 64
_PIECE = 2**21


def _norms(rows: torch.Tensor) -> torch.Tensor:
    """Norms of rows (N, P) in float64: in pieces, since torch takes six times as long to convert while it sums."""
    pieces = rows.split(max(1, _PIECE // rows.shape[1]))
    return torch.cat([torch.linalg.vector_norm(piece.double(), dim=1) for piece in pieces])


class ExactNoise(DPOptimizer):  # type: ignore[misc] # Opacus ships no types
    """Opacus's optimizer with the project's noise.

    Attributes:
        source: Where the noise comes from.
        granularity: Distance of the lattice on which sums and noise lie, a power of two; None takes floating-point
            noise.
        processes: Those of the run, of which each holds records of its own.
    """

    source: NoiseSource
    granularity: float | None = None
    processes: Processes = ALONE

    def add_noise(self) -> None:
        """Adds noise of standard deviation σC to the sum of clipped gradients, divides by the batch, rounds once.

        Of several processes the first adds up the sums of all and draws the noise, once, for the sum is one release of
        one batch: shares drawn by each process would have to be assumed independent.
        """
        for parameter in self.params:
            _check_processed_flag(parameter.summed_grad)
        sums = [parameter.summed_grad.cpu() for parameter in self.params]
        if self.processes.size > 1:
            given = self.processes.gather(sums)
            sums = [torch.stack(parts).sum(dim=0) for parts in zip(*given, strict=True)]
        drawn = on_rank_zero(
            self.processes, lambda: [self._released(*pair) for pair in zip(self.params, sums, strict=True)]
        )
        for parameter, gradient in zip(self.params, drawn, strict=True):
            parameter.grad = gradient.to(parameter.device).view_as(parameter)
            _mark_as_processed(parameter.summed_grad)

    def _released(self, parameter: torch.nn.Parameter, total: torch.Tensor) -> torch.Tensor:
        std = self.noise_multiplier * self.max_grad_norm
        if self.granularity is None:
            noisy = total + self.source.gaussian(tuple(total.shape)) * std
        else:
            lattice = discrete_gaussian(self.source, tuple(total.shape), sigma=std / self.granularity)
            noisy = (total + lattice).double() * self.granularity
        scaled = noisy / (self.expected_batch_size * self.accumulated_iterations)
        rounded: torch.Tensor = scaled.to(parameter.dtype)
        return rounded

    @staticmethod
    def _accumulate(parameter: Any, part: torch.Tensor) -> None:
        """Adds the clipped sum of one more physical batch."""
        parameter.summed_grad = part if parameter.summed_grad is None else parameter.summed_grad + part

    def scale_grad(self) -> None:
        """Done by `add_noise`, before the one rounding."""


class FlatOptimizer(ExactNoise):
    """Clips stored per-sample gradients, or normalises them.

    Attributes:
        stability: γ of C·g/(‖g‖ + γ), the automatic clipping of Bu et al. 2022; None clips at C.
    """

    stability: float | None = None

    def clip_and_accumulate(self) -> None:
        """Sums gradients clipped or normalised to C, each in float64 and below C by `MARGIN`.

        A gradient that is not finite counts as zeros: whether a record breaks the network is private.
        """
        squares = [
            _norms(rows.reshape(len(rows), weight.numel())).square()
            for weight, rows in zip(self.params, self.grad_samples, strict=True)
        ]
        norms = torch.stack(squares).sum(dim=0).sqrt()
        finite = torch.isfinite(norms)
        limit = self.max_grad_norm * (1 - MARGIN)
        if self.stability is None:
            factors = (limit / norms.clamp_min(1e-300)).clamp(max=1.0)
        else:
            factors = limit / (norms + self.stability)
        factors = torch.where(finite, factors, 0.0)
        for parameter in self.params:
            _check_processed_flag(parameter.grad_sample)
            each = self._get_flat_grad_sample(parameter)
            kind = torch.float64 if self.granularity is None else torch.int64
            total = torch.zeros(parameter.shape, dtype=kind).flatten()
            for rows, factor, usable in zip(
                each.reshape(len(each), parameter.numel()).split(_ROWS),
                factors.split(_ROWS),
                finite.split(_ROWS),
                strict=True,
            ):
                exact = rows.double()
                if not usable.all():
                    exact = torch.where(usable.unsqueeze(1), exact, 0.0)  # 0 times what is not finite is not 0
                exact = exact.cpu()
                total += self._summed(exact, factor.cpu())
            self._accumulate(parameter, total.view(parameter.shape))
            _mark_as_processed(parameter.grad_sample)

    def _summed(self, rows: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
        if self.granularity is None:
            return factors @ rows
        # Towards zero, so that no norm grows; whole numbers, whose sum does not depend on their order.
        clipped = factors.unsqueeze(1) * rows
        return round_to_lattice(clipped, norm_bound=self.max_grad_norm, granularity=self.granularity).sum(dim=0)


class GhostOptimizer(ExactNoise, DPOptimizerFastGradientClipping):  # type: ignore[misc] # Opacus ships no types
    """Takes gradients that ghost clipping has clipped, to `GHOST_MARGIN` below C."""

    def accumulate(self) -> None:
        """Sums the physical batches in float64."""
        for parameter in self.params:
            self._accumulate(parameter, parameter.grad.detach().double().cpu())


class SumOptimizer(ExactNoise, DPOptimizerFastGradientClipping):  # type: ignore[misc] # Opacus ships no types
    """Takes sums of already clipped gradients, in float64.

    Attributes:
        sums: One of each parameter, of a physical batch.
    """

    sums: list[torch.Tensor]

    def accumulate(self) -> None:
        """Sums the physical batches."""
        for parameter, part in zip(self.params, self.sums, strict=True):
            if part.dtype != torch.float64 or part.shape != parameter.shape:
                raise ValueError(f"sums must be float64 and {tuple(parameter.shape)}, got {part.dtype} {part.shape}")
            self._accumulate(parameter, part.cpu())
