"""Tangent and normal directions of the synthetic images' manifold (DGD Eq. 4 and 6; TNAR, Yu et al. 2019)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from privacy.deprecation import renamed_names

Map = Callable[[Tensor], Tensor]


class Directions(NamedTuple):
    """What is added to codes and to images.

    Attributes:
        tangent: in the latent space, (N, latent_dim), rows of the tangent length.
        displacement: the same as seen in the image, dec(z + tangent) - dec(z), (N, C, H, W).
        normal: in the image, (N, C, H, W), rows of the normal length and orthogonal to `displacement`.
    """

    tangent: Tensor
    displacement: Tensor
    normal: Tensor


def kl_per_sample(logits: Tensor, others: Tensor) -> Tensor:
    """KL(softmax(logits) || softmax(others)) of each sample, (N, c) and (N, c) to (N,)."""
    log_p, log_q = functional.log_softmax(logits, 1), functional.log_softmax(others, 1)
    return (log_p.exp() * (log_p - log_q)).sum(1)


def with_length(vectors: Tensor, length: float, *, instead: Tensor | None = None) -> Tensor:
    """Each sample (N, ...) scaled to a Euclidean norm of `length`; a sample of zeros takes that of `instead`."""
    norms = _norms(vectors)
    if instead is not None:
        vectors = torch.where(_column(norms, vectors) > 0, vectors, instead)
    # Divided by the largest entry first: the squares of tiny gradients would vanish.
    vectors = vectors / _column(vectors.flatten(1).abs().amax(1), vectors).clamp_min(torch.finfo(vectors.dtype).tiny)
    return length * vectors / _column(_norms(vectors), vectors).clamp_min(torch.finfo(vectors.dtype).tiny)


def project_out(vectors: Tensor, directions: Tensor) -> Tensor:
    """Each sample of `vectors` (N, ...) less its component along the same sample of `directions`."""
    unit = with_length(directions, 1.0)
    for _ in range(2):  # once leaves a remainder of the size of rounding, which matters where little is left
        along = (vectors * unit).flatten(1).sum(1)
        vectors = vectors - _column(along, vectors) * unit
    return vectors


def power_step(divergence: Map, start: Tensor, *, probe: float) -> Tensor:
    """One step of power iteration for the direction in which `divergence` grows fastest.

    A divergence that is 0 with slope 0 at the origin is r·H·r/2 nearby, so its gradient at a small `probe` along a
    random direction is a multiple of H times it (Miyato et al. 2018).

    Args:
        divergence: from offsets (N, ...) to values (N,), each of its own sample alone.
        start: random directions (N, ...), rows of length 1.
        probe: length at which the gradient is taken.

    Returns:
        Gradients (N, ...), detached, of no particular length.
    """
    with torch.enable_grad():
        offset = (probe * start.detach()).requires_grad_()
        (gradient,) = torch.autograd.grad(divergence(offset).sum(), offset)
    return gradient.detach()


def find_directions(
    classify: Map,
    decode: Map,
    codes: Tensor,
    *,
    tangent_length: float,
    normal_length: float,
    draw: torch.Generator,
    probe: float = 0.1,
    adversarial: bool = True,
) -> Directions:
    """The directions in which a classifier's predictions change fastest, along the manifold and across it.

    Tangent: one power step in the latent space on KL(f(x) || f(x + dec(z + r) - dec(z))), with x = dec(z). Normal: one
    power step in image space on KL(f(x) || f(x + n)), with the tangent's displacement projected out before and after.

    DGD's text calls both "random perturbation noise" along these directions: `adversarial=False` takes the random start
    of each power step as it is.

    Args:
        classify: f, images (N, C, H, W) to logits (N, c); deterministic, each sample on its own (eval mode).
        decode: dec, codes (N, latent_dim) to images (N, C, H, W), likewise.
        codes: z, (N, latent_dim).
        tangent_length: norm of each tangent, in the latent space.
        normal_length: norm of each normal, in image space.
        draw: source of the random starts.
        probe: length at which gradients are taken.
        adversarial: take the power step.

    Returns:
        See `Directions`; all detached.

    Raises:
        ValueError: A length or the probe is not positive.
    """
    for name, value in (("tangent_length", tangent_length), ("normal_length", normal_length), ("probe", probe)):
        if not value > 0:
            raise ValueError(f"{name} must be positive, got {value}")
    codes = codes.detach()
    with torch.no_grad():
        images = decode(codes)
        logits = classify(images)
    start = with_length(_randn(codes, draw), 1.0)
    tangent = start
    if adversarial:
        tangent = power_step(lambda r: kl_per_sample(logits, classify(decode(codes + r))), start, probe=probe)
    tangent = with_length(tangent, tangent_length, instead=start)
    with torch.no_grad():
        displacement = decode(codes + tangent) - images
    start = with_length(project_out(_randn(images, draw), displacement), 1.0)
    normal = start
    if adversarial:
        normal = power_step(lambda n: kl_per_sample(logits, classify(images + n)), start, probe=probe)
        normal = project_out(normal, displacement)
    return Directions(tangent, displacement, with_length(normal, normal_length, instead=start))


def feature_distance(features: Tensor, perturbed: Tensor) -> Tensor:
    """Squared distance of features, the first two terms of DGD Eq. 6; (N, F) and (N, F) to a mean over N."""
    return (features - perturbed).square().sum(1).mean()


def entropy(logits: Tensor) -> Tensor:
    """Mean entropy of each sample's own prediction, small where outputs are determinate; (N, c) to a scalar.

    The third term of DGD Eq. 6 is printed as sum p log p, **minus** this: making it small would make predictions
    uniform, contrary to the text ("ensures the student output more determinate predictions").
    """
    log_p = functional.log_softmax(logits, 1)
    return -(log_p.exp() * log_p).sum(1).mean()


def _randn(like: Tensor, draw: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=draw, device=draw.device, dtype=like.dtype).to(like.device)


def _norms(vectors: Tensor) -> Tensor:
    norms: Tensor = vectors.flatten(1).norm(dim=1)
    return norms


def _column(values: Tensor, like: Tensor) -> Tensor:
    return values.view(-1, *[1] * (like.dim() - 1))


__getattr__ = renamed_names(__name__, {"kl_rows": "kl_per_sample"})
