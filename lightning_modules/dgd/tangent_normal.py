"""Unsupervised losses of DGD: tangent and normal directions (Eqs. 4 and 6; TNAR, Yu et al. 2019), and distortions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from lightning_modules.losses.functional import class_balance, kd
from lightning_modules.networks.classifiers import logits_and_features
from lightning_modules.networks.network import evaluating, frozen_statistics
from privacy.checks import check_choice, check_number

Map = Callable[[Tensor], Tensor]

#: Norm of the perturbation at which gradients are taken.
_PROBE = 0.1


class Directions(NamedTuple):
    """Perturbations of codes and of images.

    Attributes:
        tangent: in the latent space, (N, latent_dim), rows of length 1.
        displacement: the same as seen in the image, dec(z + tangent) - dec(z), (N, C, H, W).
        normal: in the image, (N, C, H, W), rows of length 1 and orthogonal to `displacement`; or, of the code, as seen
            in the image.
    """

    tangent: Tensor
    displacement: Tensor
    normal: Tensor


def with_length(vectors: Tensor, length: float, *, instead: Tensor | None = None) -> Tensor:
    """Each sample (N, ...) scaled to a Euclidean norm of `length`; a sample of zeros takes that of `instead`."""
    norms = _norms(vectors)
    if instead is not None:
        vectors = torch.where(_column(norms, vectors) > 0, vectors, instead)
    # Divided by the largest entry first, since squares of tiny gradients underflow.
    vectors = vectors / _column(vectors.flatten(1).abs().amax(1), vectors).clamp_min(torch.finfo(vectors.dtype).tiny)
    return length * vectors / _column(_norms(vectors), vectors).clamp_min(torch.finfo(vectors.dtype).tiny)


def project_out(vectors: Tensor, directions: Tensor) -> Tensor:
    """Samples of `vectors` (N, ...) minus their components along the same samples of `directions`."""
    unit = with_length(directions, 1.0)
    for _ in range(2):  # once leaves a rounding error, which matters if little is left
        along = (vectors * unit).flatten(1).sum(1)
        vectors = vectors - _column(along, vectors) * unit
    return vectors


def power_step(divergence: Map, start: Tensor, *, probe: float) -> Tensor:
    """One step of power iteration for the direction in which `divergence` grows fastest: gradients (N, ...), detached.

    A divergence that is 0 with slope 0 at the origin is r·H·r/2 nearby, so its gradient at a small `probe` along a
    random direction is a multiple of H times it (Miyato et al. 2018), of no particular length.

    Args:
        divergence: from offsets (N, ...) to values (N,), each depending only on its own sample.
        start: random directions (N, ...), rows of length 1.
        probe: length at which the gradient is taken.
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
    draw: torch.Generator,
    normals: Literal["image", "code"] = "image",
) -> Directions:
    """The directions, detached, in which a classifier's predictions change fastest, along the manifold and across it.

    Tangent: one power step in the latent space on KL(f(x) || f(x + dec(z + r) - dec(z))), with x = dec(z). Normal: one
    power step in image space on KL(f(x) || f(x + n)), with the tangent's displacement projected out before and after.

    Args:
        classify: f, images (N, C, H, W) to logits (N, c); deterministic, each sample on its own (eval mode).
        decode: dec, codes (N, latent_dim) to images (N, C, H, W), likewise.
        codes: z, (N, latent_dim).
        draw: source of the random starts.
        normals: `code`, as DGD's Eq. 4 has it: found like the tangent, orthogonal to it.
    """
    codes = codes.detach()
    with torch.no_grad():
        images = decode(codes)
        logits = classify(images)

    def along(offset: Tensor) -> Tensor:
        return kd(classify(decode(codes + offset)), logits)

    start = with_length(_randn(codes, draw), 1.0)
    tangent = power_step(along, start, probe=_PROBE)
    tangent = with_length(tangent, 1.0, instead=start)
    with torch.no_grad():
        displacement = decode(codes + tangent) - images
    if normals == "code":
        start = with_length(project_out(_randn(codes, draw), tangent), 1.0)
        normal = with_length(project_out(power_step(along, start, probe=_PROBE), tangent), 1.0, instead=start)
        with torch.no_grad():
            return Directions(tangent, displacement, decode(codes + normal) - images)
    start = with_length(project_out(_randn(images, draw), displacement), 1.0)
    normal = power_step(lambda n: kd(classify(images + n), logits), start, probe=_PROBE)
    normal = project_out(normal, displacement)
    return Directions(tangent, displacement, with_length(normal, 1.0, instead=start))


def _randn(like: Tensor, draw: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=draw, device=draw.device, dtype=like.dtype).to(like.device)


def _norms(vectors: Tensor) -> Tensor:
    norms: Tensor = vectors.flatten(1).norm(dim=1)
    return norms


def _column(values: Tensor, like: Tensor) -> Tensor:
    return values.view(-1, *[1] * (like.dim() - 1))


@dataclass(frozen=True, kw_only=True)
class TangentNormalLoss:
    """Weights of the tangent, normal and entropy terms; a weight of 0 switches a term off.

    Attributes:
        tangent_weight: Weight of the tangent term; 1 as printed, which drowned the labels of the digits.
        normal_weight: Weight of the normal term; likewise.
        entropy_weight: Weight of the entropy term; likewise.
        normals: Normals in the `image`, or of the `code` as printed; see `find_directions`.
        entropy_term: `determinate` makes outputs determinate, as DGD's text says; `as_printed` makes them uniform, as
            its Eq. 6 does: printed is Σ p log p, small where predictions are uniform.
    """

    tangent_weight: float = 0.01
    normal_weight: float = 0.01
    entropy_weight: float = 0.01
    normals: Literal["image", "code"] = "image"
    entropy_term: Literal["determinate", "as_printed"] = "determinate"

    def __post_init__(self) -> None:
        for name in ("tangent_weight", "normal_weight", "entropy_weight"):
            check_number(f"tangent_normal.{name}", getattr(self, name), least=0)
        check_choice("tangent_normal.normals", self.normals, ("image", "code"))
        check_choice("tangent_normal.entropy_term", self.entropy_term, ("determinate", "as_printed"))

    @property
    def switched_on(self) -> bool:
        """Whether any weight is above 0."""
        return bool(self.tangent_weight or self.normal_weight or self.entropy_weight)

    def __call__(
        self, student: nn.Module, decode: Callable[[Tensor], Tensor], codes: Tensor, *, draw: torch.Generator
    ) -> Tensor:
        """The weighted sum of the terms, with the student's graph, at codes (N, latent_dim) of decoded images."""
        with evaluating(student):
            found = find_directions(student, decode, codes, draw=draw, normals=self.normals)
        with torch.no_grad():
            plain = decode(codes)
        with frozen_statistics(student):
            triples = torch.cat([plain, plain + found.displacement, plain + found.normal])
            logits, features = logits_and_features(student, triples)
        own, along, across = features.float().chunk(3)
        certainty = class_balance(logits[: len(plain)].float(), of="image")
        return (
            self.tangent_weight * (own - along).square().sum(1).mean()
            + self.normal_weight * (own - across).square().sum(1).mean()
            + self.entropy_weight * (certainty if self.entropy_term == "as_printed" else -certainty)
        )


def distort(images: Tensor, *, strength: float, draw: torch.Generator) -> Tensor:
    """Images (N, C, H, W) under random rotation, shear, scale, shift, noise and an erased square, each image its own.

    At strength 1, a factor on all of it: rotation up to 20 degrees, shear and scale up to 20 %, shifts up to 12 % of a
    side, noise of deviation 0.2, and a square of a quarter of the side set to the image's own smallest value. At 0 the
    images are returned. `draw` is the only source of randomness.
    """
    if strength == 0:
        return images
    rows, _, height, width = images.shape
    numbers = (2 * torch.rand(rows, 9, generator=draw, device=draw.device) - 1).to(images)
    angle, shear, wide, high, right, down = (numbers * strength)[:, :6].unbind(1)
    angle = angle * (20 * math.pi / 180)
    cos, sin = angle.cos(), angle.sin()
    wide, high = 1 + 0.2 * wide, 1 + 0.2 * high
    top = torch.stack([wide * cos, high * (0.2 * shear - sin), 0.24 * right], 1)
    bottom = torch.stack([wide * sin, high * cos, 0.24 * down], 1)
    grid = functional.affine_grid(torch.stack([top, bottom], 1), list(images.shape), align_corners=False)
    moved = functional.grid_sample(images, grid, padding_mode="border", align_corners=False)
    noise = torch.randn(images.shape, generator=draw, device=draw.device).to(images)
    moved = moved + 0.2 * strength * noise
    side = min(0.5, 0.25 * strength)
    column = torch.linspace(-1, 1, width, device=images.device)[None, None, :] - numbers[:, 6, None, None]
    row = torch.linspace(-1, 1, height, device=images.device)[None, :, None] - numbers[:, 7, None, None]
    erased = ((column.abs() < side) & (row.abs() < side))[:, None]
    return torch.where(erased, images.amin(dim=(1, 2, 3), keepdim=True), moved)
