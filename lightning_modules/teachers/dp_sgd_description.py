"""What a guarantee says of DP-SGD."""

from __future__ import annotations

from privacy.mechanisms.description import FLOATS, LATTICE, MechanismDescription

__all__ = ["describe_dp_sgd"]


def describe_dp_sgd(
    *, noise_multiplier: float, max_grad_norm: float, sample_rate: float, on_lattice: bool, bounded: str = "clipped"
) -> MechanismDescription:
    """Mechanism, unit, relation, source and assumption.

    Args:
        noise_multiplier: σ.
        max_grad_norm: C.
        sample_rate: q.
        on_lattice: Whether sums and noise lie on a lattice.
        bounded: How each gradient was brought to C: `clipped` or `normalised`.
    """
    kind = "discrete Gaussian" if on_lattice else "Gaussian"
    return MechanismDescription(
        mechanism=(
            f"sums of record gradients {bounded} to {max_grad_norm:g}, with {kind} noise of standard deviation "
            f"{noise_multiplier:.4g} x {max_grad_norm:g}, on Poisson samples at rate {sample_rate:.4g}"
        ),
        unit="one training record",
        relation="add-or-remove of one training record",
        source=(
            "RDP of the Poisson-sampled discrete Gaussian (Canonne, Kamath and Steinke 2020; Mironov, Talwar "
            "and Zhang 2019)"
            if on_lattice
            else "privacy-loss distribution of the Poisson-sampled Gaussian (Abadi et al. 2016; Koskela et al. 2020), "
            "rounded pessimistically"
        ),
        noise=LATTICE if on_lattice else FLOATS,
        assumption="the settings and the initial weights were chosen without the private data; each record was "
        "sampled by a coin of its own; gradients of other records do not depend on who else is in a batch, up to "
        "the rounding of float32",
    )
