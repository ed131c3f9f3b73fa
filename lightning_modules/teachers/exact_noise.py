"""DP-SGD's optimizer: Opacus's, with sum and noise in float64 and noise from the operating system.

Noise that is rounded to float32 before it is added leaves low bits that tell whether a record took part (an event of
probability 3.3 % without it, 0 with it). So nothing is rounded here until noise has been added and the whole divided by
the batch: once, at the end.
"""

from __future__ import annotations

import torch
from opacus.optimizers import DPOptimizerFastGradientClipping
from opacus.optimizers.optimizer import _check_processed_flag, _mark_as_processed

from privacy.mechanisms.discrete_gaussian import discrete_gaussian
from privacy.mechanisms.noise import NoiseSource
from privacy.processes import ALONE, Processes, on_rank_zero


class ExactNoise(DPOptimizerFastGradientClipping):  # type: ignore[misc] # Opacus ships no types
    """Takes sums of clipped gradients, and adds the project's noise.

    Attributes:
        source: Where the noise comes from.
        lattice: Distance of the lattice on which sums and noise lie, a power of two; None takes floating-point noise.
        processes: Those of the run, of which each holds records of its own.
        sums: One for each parameter, of a whole batch; see `RecordClipping.sums`.
    """

    source: NoiseSource
    lattice: float | None = None
    processes: Processes = ALONE
    sums: list[torch.Tensor]

    def accumulate(self) -> None:
        """Takes the sums over as they are."""
        for parameter, total in zip(self.params, self.sums, strict=True):
            kind = torch.float64 if self.lattice is None else torch.int64
            if total.dtype != kind or total.shape != parameter.shape:
                raise ValueError(f"sums must be {kind} and {tuple(parameter.shape)}, got {total.dtype} {total.shape}")
            parameter.summed_grad = total

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
        if self.lattice is None:
            noisy = total + self.source.gaussian(tuple(total.shape)) * std
        else:
            drawn = discrete_gaussian(self.source, tuple(total.shape), sigma=std / self.lattice)
            noisy = (total + drawn).double() * self.lattice
        rounded: torch.Tensor = (noisy / self.expected_batch_size).to(parameter.dtype)
        return rounded

    def scale_grad(self) -> None:
        """Done by `add_noise`, before the one rounding."""
