"""What the papers' own theorems give, as printed.

The papers' tables are indexed by these figures. They are claims of the papers, **not** guarantees of this
project: each docstring says what the claim leaves out. The figure that holds for the data a teacher was trained on is
the record-level one of `privacy.accounting.composition`.
"""

from __future__ import annotations

import math

from privacy.checks import check_count, check_delta, check_nonnegative, check_positive
from privacy.numerics.rdp import rdp_slope_epsilon


def dpdfd_rdp_slope(norm_bound: float, num_classes: int, batch_size: int, noise_scale: float) -> float:
    """Slope in the order of the RDP that DPDFD Theorem 3 counts for one step: 2 C^2 c B / σ^2.

    Raises:
        ValueError: `norm_bound` or `noise_scale` is not positive, or a count is below 1.
    """
    bound = check_positive("norm_bound", norm_bound)
    sigma = check_positive("noise_scale", noise_scale, infinite=True)
    classes = check_count("num_classes", num_classes, minimum=1)
    batch = check_count("batch_size", batch_size, minimum=1)
    return 2.0 * (bound / sigma) ** 2 * classes * batch


def published_dpdfd_epsilon(
    norm_bound: float, num_classes: int, batch_size: int, steps: int, noise_scale: float, delta: float
) -> float:
    """DPDFD Theorem 3: ε after `steps` steps, at the best real order. DPSD's Theorem 1 is the same, with β for C.

    Source: [arXiv:2304.12528](https://arxiv.org/abs/2304.12528). With a = 2 C^2 c B T / σ^2 the claim is
    min over l > 1 of a l + log((l-1)/l) - (log δ + log l)/(l-1).

    **What it does not bound.** It composes all B T samples, each moved by 2 C sqrt(c) with its own noise of standard
    deviation σ. The noise added is σ C: where this function gives 0.0456, the record-level figure is 28.8 (noise σ C on
    every sample), 2 930 (σ C on their sum, as printed) or 676 029 (σ C / B on every sample). Nor does it account
    for DPSD's top-k mask computed from the teacher's gradient, or for a discriminator that is the teacher itself
    (DPSD-T).

    Args:
        norm_bound: C, the norm to which output gradients are normalised.
        num_classes: c.
        batch_size: B, samples in a batch.
        steps: T, steps of the whole procedure.
        noise_scale: σ.
        delta: failure probability in (0, 1).

    Raises:
        ValueError: Non-positive parameters or `delta` outside (0, 1).

    >>> round(published_dpdfd_epsilon(1e-3, 10, 256, 200, 100.0, 1e-5), 4)
    0.0456
    """
    slope = dpdfd_rdp_slope(norm_bound, num_classes, batch_size, noise_scale)
    return rdp_slope_epsilon(slope * check_count("steps", steps), delta)


def published_dgd_epsilon(num_queries: int, epsilon0: float, delta: float, epsilon1: float = 0.0) -> float:
    """DGD Sec. III-E (Ge et al., IEEE TIP 32, 2023), noisy votes: N e0^2 + e0 sqrt(-2 N log δ) + e1.

    **What it does not bound.** The baseline classifier that guides DGD's generator is fitted to all private records
    without noise. Also, the paper states 1.00 for 27 and 10.0 for 1300 queries at e0 = 1/20, where its formula gives
    1.3142 and 11.9007: this function returns the formula's values.

    Args:
        num_queries: N, queries answered by the vote.
        epsilon0: privacy parameter of one vote; its Laplace scale is 2/epsilon0.
        delta: failure probability in (0, 1).
        epsilon1: privacy parameter of the noise on the latent codes; 0 if there is none.

    Raises:
        ValueError: Negative parameters or `delta` outside (0, 1).

    >>> round(published_dgd_epsilon(400, 1 / 20, 1e-5), 4)
    5.7985
    """
    queries = check_count("num_queries", num_queries)
    eps0 = check_nonnegative("epsilon0", epsilon0)
    eps1 = check_nonnegative("epsilon1", epsilon1)
    log_delta = math.log(check_delta(delta))
    return queries * eps0 * eps0 + eps0 * math.sqrt(-2.0 * queries * log_delta) + eps1
