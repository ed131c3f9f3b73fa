"""DP-SGD's optimizer: Opacus's, with sum and noise in float64 and noise from the operating system.

If noise is rounded to float32 before it is added, the low bits of the sum tell whether a record took part (an event of
probability 3.3 % without it, 0 with it). So the result is rounded only once, after adding noise and dividing by the
batch size.
"""

from __future__ import annotations

from typing import Any

import torch
from opacus.optimizers import DPOptimizerFastGradientClipping

from privacy.mechanisms.discrete_gaussian import discrete_gaussian
from privacy.mechanisms.noise import NoiseSource
from privacy.processes import ALONE, Processes, on_rank_zero


class ExactNoise(DPOptimizerFastGradientClipping):  # type: ignore[misc] # Opacus ships no types
    """Adds this project's noise to sums of clipped gradients.

    Attributes:
        source: Source of the noise.
        lattice: Spacing of the lattice on which sums and noise lie, a power of two; None adds floating-point noise.
        processes: Processes of the run, each with its own records.
        sums: One sum per parameter, over a whole batch; see `RecordClipping.sums`.
    """

    source: NoiseSource
    lattice: float | None = None
    processes: Processes = ALONE
    sums: list[torch.Tensor]

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._charged = (self.noise_multiplier, self.max_grad_norm)

    def accumulate(self) -> None:
        """Takes the sums over unchanged.

        Raises:
            ValueError: The sums are of other parameters, or noise or norm are not what each step is charged for.
        """
        if (now := (self.noise_multiplier, self.max_grad_norm)) != self._charged:
            raise ValueError(
                "noise_multiplier and max_grad_norm of the optimizer must stay what they are charged as, "
                f"{self._charged}, got {now}: without Opacus's schedulers of either"
            )
        for parameter, total in zip(self.params, self.sums, strict=True):
            kind = torch.float64 if self.lattice is None else torch.int64
            if total.dtype != kind or total.shape != parameter.shape:
                raise ValueError(f"sums must be {kind} and {tuple(parameter.shape)}, got {total.dtype} {total.shape}")
            parameter.summed_grad = total
        self.sums = []

    def add_noise(self) -> None:
        """Adds noise of standard deviation σC to the sum of clipped gradients, divides by the batch size, rounds once.

        Process 0 adds up the sums of all processes and draws the noise once, since the sum is one release of one batch:
        shares drawn by each process would have to be assumed independent.
        """
        sums = [parameter.summed_grad.cpu() for parameter in self.params]
        if self.processes.size > 1:
            gathered = self.processes.gather(sums)
            sums = [torch.stack(parts).sum(dim=0) for parts in zip(*gathered, strict=True)]
        gradients: list[torch.Tensor] = []
        with on_rank_zero(self.processes) as first:
            if first:
                gradients = [self._released(*pair) for pair in zip(self.params, sums, strict=True)]
        for parameter, gradient in zip(self.params, self.processes.broadcast(gradients), strict=True):
            parameter.grad = gradient.to(parameter.device).view_as(parameter)
            # The sum has no noise, and a parameter's attributes are pickled with it.
            parameter.summed_grad = None

    def _released(self, parameter: torch.nn.Parameter, total: torch.Tensor) -> torch.Tensor:
        std = self.noise_multiplier * self.max_grad_norm
        if self.lattice is None:
            noisy = total + self.source.gaussian(tuple(total.shape)) * std
        else:
            integers = discrete_gaussian(self.source, tuple(total.shape), sigma=std / self.lattice)
            noisy = (total + integers).double() * self.lattice
        rounded: torch.Tensor = (noisy / self.expected_batch_size).to(parameter.dtype)
        return rounded

    def scale_grad(self) -> None:
        """Does nothing: `add_noise` scales before it rounds."""
