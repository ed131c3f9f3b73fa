"""Gradients of each record by itself, clipped and summed.

`torch.func.vmap` computes them, so that a record's gradient is a function of that record and the weights whatever the
network is: torch refuses what it cannot compute so, such as statistics over a batch that are kept, random draws, or
Python that depends on a value. Sums are in float64: in float32, clipped gradients had norms of up to (1 + 4e-7) C. A
record whose gradient is not finite counts as zeros: whether a record breaks the network is private.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.modules.module import register_module_forward_pre_hook

from lightning_modules.networks import ImageClassifier
from lightning_modules.networks.feature_cache import remembered_features
from lightning_modules.networks.fixed_features import LinearOnFeatures, WhitenedFeatures, fixed_extractor
from lightning_modules.teachers.teacher import InnerProduct, PriorCrossEntropy
from lightning_modules.training.randomness import full_float32, random_states
from privacy.checks import check_choice, check_count, check_number

Counts: TypeAlias = Sequence[int] | None
"""Numbers of records of each person, which are adjacent; None if each record counts by itself."""

GRADIENT_BYTES = 2**28
"""Memory limit of the gradients held at once."""
MARGIN = 1e-6
"""Relative margin below the clipping norm for rounding in float64, of sums of up to half a million records."""
LINEAR_MARGIN = 1e-6
"""Relative margin of `linear_sums`, whose sums a matrix product rounds.

In float64, u = 2^-53. The relative error of a norm over F features is at most F u. A sum of B products, first within
`_ROWS` and then over these pieces, is off by at most (`_ROWS` + B / `_ROWS`) u times the sum of their norms, B C: a
record therefore moves the rounded sum by at most C (1 - 1e-6) (1 + F u) + 2 (`_ROWS` + B / `_ROWS`) u B C
(Higham, *Accuracy and Stability of Numerical Algorithms*, Eq. 3.5), which is below C for batches of up to half a
million and features of up to a million, whatever the order in which a matrix product sums.
"""

#: Number of rows at a time: a piece with some thousand float64 features stays in the processor's cache.
_ROWS = 128
#: Amount of numbers converted at a time, which stays in the processor's cache.
_PIECE = 2**19
#: Number of images whose fixed features are computed at a time: more are slower on a CPU.
_IMAGES = 32


@dataclass(frozen=True, kw_only=True)
class Clipping:
    """Settings for bounding the gradient of each record.

    Attributes:
        max_grad_norm: C, the clipping norm of one record's gradient.
        physical_batch_size: Largest number of gradients held at once; fewer where they would take more than 256 MiB.
            Those of one person (`unit: person`) are always held together. Does not change the result.
        bounding: `clip` a record's gradient at C, or `normalize` it to C·g/(‖g‖ + γ) (automatic clipping, Bu et al.
            2022). Either way a record moves the sum by at most C.
        stability: γ of `bounding: normalize`, above 0, in the units of gradients and not of C.
    """

    max_grad_norm: float = 0.1
    physical_batch_size: int = 256
    bounding: Literal["clip", "normalize"] = "clip"
    stability: float = 0.01

    def __post_init__(self) -> None:
        check_choice("clipping.bounding", self.bounding, ("clip", "normalize"))
        check_number("clipping.max_grad_norm", self.max_grad_norm, above=0)
        check_number("clipping.stability", self.stability, above=0)
        check_count("clipping.physical_batch_size", self.physical_batch_size, minimum=1)


class ClippedNetwork:
    """A network whose gradients are computed and clipped for each record, or person, by itself.

    Every pass runs on a copy that shares the weights and nothing else: what a network writes into its buffers or
    attributes is dropped with the copy, so that no record acts on a later one or is published.

    Args:
        network: The network to train.
        clipping: See `DPSGDTeacher`.
        criterion: The loss.
        image_shape: (C, H, W) of the records.

    Attributes:
        parameters: The trained weights.
        head: A linear head on fixed features, whose clipped sums have a closed form; None for other networks.
        extracts: The method, or part, that gives fixed features, which are computed once; None without one.

    Raises:
        ValueError: The network does not treat each record by itself, or keeps something of it for the next.
    """

    def __init__(
        self, network: nn.Module, clipping: Clipping, criterion: PriorCrossEntropy, *, image_shape: tuple[int, int, int]
    ) -> None:
        self.network = network
        self.clipping = clipping
        self.criterion = criterion
        self.parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
        plain = clipping.bounding == "clip"
        # `linear_sums` are those of clipped gradients of the cross-entropy.
        self.head = linear_head(network) if plain and not isinstance(criterion, InnerProduct) else None
        fixed = None if fixed_extractor(network) is None else "feature_extractor"
        self.extracts = fixed if self.head is None else "forward_features"
        self._try_out(image_shape)
        #: Hooks that were tried; one of a later time may keep what it sees and couple records.
        self._hooks = _hooks_of(network)

    def _try_out(self, image_shape: tuple[int, int, int]) -> None:
        """Computes gradients of public noise, before there is any record: a network that torch refuses fails here."""
        draw = torch.Generator().manual_seed(0)
        images = (2 * torch.rand(2, 2, *image_shape, generator=draw, device="cpu") - 1).to(self.parameters[0].device)
        labels = torch.zeros(2, dtype=torch.int64, device=images.device)
        entered = [type(self.network).__name__]

        def outcome(rows: Tensor) -> list[Tensor]:
            rows = rows if self.extracts is None else self.features(rows)
            return [rows] if self.head is not None else self.gradients(rows, labels[: len(rows)])

        hook = register_module_forward_pre_hook(lambda module, _: entered.append(type(module).__name__))
        states = random_states(images.device)
        try:
            first, _, again, *alone = (outcome(rows) for rows in (images[0], images[1], images[0], *images[0].split(1)))
            flat_sums(first, norm=self.clipping.max_grad_norm)
        except Exception as error:  # any user's network
            raise ValueError(
                "model.network: DP-SGD computes the gradient of each record by itself, and torch cannot where "
                f"{entered[-1]} mixes records, keeps something of them, or draws at random. Take GroupNorm in place of "
                "BatchNorm (of SmallCNN: --model.network.norm group) or fixed features (LinearOnFeatures), and no "
                f"dropout. torch says: {' '.join(str(error).split()).partition('. ')[0]}"
            ) from error
        finally:
            hook.remove()
        same = all(torch.allclose(*pair, equal_nan=True) for pair in zip(first, again, strict=True))
        if not same or random_states(images.device) != states:
            raise ValueError(
                "model.network: it gives the same images other gradients the second time: it draws at random, or "
                "remembers the images before, so that a record would act on later steps. Take that out"
            )
        apart = [torch.cat(parts) for parts in zip(*alone, strict=True)]
        # By norms: rounding of what cancels is large beside single entries.
        if any(
            (one - other).nan_to_num().norm() > 1e-3 * one.nan_to_num().norm() + 1e-5
            for one, other in zip(first, apart, strict=True)
        ):
            raise ValueError(
                "model.network: an image has another gradient beside others than by itself, as by the `vmap` of a "
                "torch.autograd.Function that mixes records: take that out"
            )

    def _copy(self, *, extracted: bool = False) -> Any:
        """A copy that shares trained weights and fixed extractor alone; it takes features if they are `extracted`."""
        fixed = fixed_extractor(self.network)
        shared = chain(self.parameters, [] if fixed is None else chain(fixed.parameters(), fixed.buffers()))
        copied: Any = copy.deepcopy(self.network, {id(tensor): tensor for tensor in shared})
        if extracted:
            vars(copied)["forward"] = copied.forward_extracted if self.head is None else copied.head
        return copied

    def features(self, images: Tensor) -> Tensor:
        """Fixed features (N, ...) of images (N, C, H, W), those of each image by itself, in eval mode."""

        def computed(images: Tensor) -> Tensor:
            pieces = []
            for piece in images.split(_IMAGES):
                extract = getattr(self._copy().eval(), str(self.extracts))
                alone = vmap(lambda image, of=extract: of(image.unsqueeze(0)).squeeze(0), randomness="error")
                pieces.append(alone(piece))
            return torch.cat(pieces)

        extractor = getattr(self.network, "feature_extractor", None)
        with torch.no_grad(), full_float32():
            plain = getattr(type(self.network), "forward_features", None) is LinearOnFeatures.forward_features
            if isinstance(extractor, WhitenedFeatures) and (plain or self.extracts == "feature_extractor"):
                return remembered_features(extractor, images, computed)
            return computed(images)

    def gradients(self, inputs: Tensor, labels: Tensor) -> list[Tensor]:
        """Gradients (B, ...) of each trained weight for B records, images or their fixed features."""
        network = self._copy(extracted=self.extracts is not None)
        weights = {name: one.detach() for name, one in network.named_parameters() if one.requires_grad}

        def loss(weights: dict[str, Tensor], record: Tensor, label: Tensor) -> Tensor:
            logits = functional_call(network, weights, (record.unsqueeze(0),))
            found: Tensor = self.criterion(logits, label.unsqueeze(0))
            return found

        by_record = vmap(grad(loss), in_dims=(None, 0, 0), randomness="error")
        return list(by_record(weights, inputs, labels).values())

    def logits(self, inputs: Tensor, *, extracted: bool) -> Tensor:
        """Logits of images, or of their fixed features, in the network's mode."""
        logits: Tensor = self._copy(extracted=extracted)(inputs.float())
        return logits

    def sums(self, inputs: Tensor, labels: Tensor, counts: Tensor | None = None) -> list[Tensor]:
        """Sums of the clipped gradients of a batch, which may be empty, computed in pieces.

        Args:
            inputs: (B, ...), images or their fixed features.
            labels: (B,).
            counts: Numbers of records of each person, see `PoissonSampled.sample_persons`: the mean of a person's
                gradients is clipped. None clips each record by itself.

        Returns:
            One sum per trained weight, on the CPU: float64.
        """
        if _hooks_of(self.network) != self._hooks:
            raise ValueError("model.network: it has other hooks than when it was built, through which records may meet")
        settings, persons = self.clipping, None if counts is None else counts.tolist()
        norm = settings.max_grad_norm
        stability = None if settings.bounding == "clip" else settings.stability
        sums = [torch.zeros(parameter.shape, dtype=torch.float64) for parameter in self.parameters]
        with full_float32():  # in TF32 the rounding of a record may depend on the number of records
            if self.head is not None and persons is None:
                found = linear_sums(inputs, labels, self.head, norm=norm, log_prior=self.criterion.log_prior)
                return [total.cpu() for total in found]
            most = GRADIENT_BYTES // sum(one.numel() * one.element_size() for one in self.parameters)
            size = max(1, min(settings.physical_batch_size, most))
            inputs = inputs.float()  # features may be kept in half precision
            states = random_states(inputs.device)
            for rows, targets, within in pieces_of(inputs, labels, persons, size=size) if len(inputs) else ():
                each = self.gradients(rows, targets)
                if within is not None:
                    each = [torch.stack([own.mean(dim=0) for own in part.split(within)]) for part in each]
                parts = flat_sums(each, norm=norm, stability=stability)
                for total, part in zip(sums, parts, strict=True):
                    total += part
            # By NumPy or Python, which torch does not see: what a record gets would depend on how many there are.
            if random_states(inputs.device) != states:
                raise ValueError(
                    "model.network: it draws at random, which depends on who else is in the batch: take it out"
                )
        return sums


def pieces_of(inputs: Tensor, labels: Tensor, counts: Counts, *, size: int) -> Iterator[tuple[Tensor, Tensor, Counts]]:
    """Splits a batch into pieces of at most `size` records, with their `counts`; never divides a person."""
    if counts is None:
        yield from zip(inputs.split(size), labels.split(size), repeat(None), strict=False)
        return
    pieces: list[list[int]] = [[]]
    sizes = [0]
    for count in counts:
        if pieces[-1] and sizes[-1] + count > size:
            pieces.append([])
            sizes.append(0)
        pieces[-1].append(count)
        sizes[-1] += count
    yield from zip(inputs.split(sizes), labels.split(sizes), pieces, strict=True)


def flat_sums(gradients: Sequence[Tensor], *, norm: float, stability: float | None = None) -> list[Tensor]:
    """Sums of the records' gradients, each clipped or normalised to `norm` less `MARGIN`.

    Args:
        gradients: (B, ...) for each parameter.
        norm: C.
        stability: γ of C·g/(‖g‖ + γ), the automatic clipping of Bu et al. 2022; None clips at C.

    Returns:
        A sum for each parameter, on the CPU: float64.
    """
    norms = torch.stack([_norms(_flat(rows)).square() for rows in gradients]).sum(dim=0).sqrt()
    finite, limit = torch.isfinite(norms), norm * (1 - MARGIN)
    factors = (limit / norms.clamp_min(1e-300)).clamp(max=1.0) if stability is None else limit / (norms + stability)
    factors, broken = torch.where(finite, factors, 0.0), ~finite.unsqueeze(1)
    sums = []
    for rows in map(_flat, gradients):
        size = max(1, _PIECE // max(1, rows.shape[1]))
        # Reused: allocating memory for each piece costs more than computing it.
        held = torch.empty(min(size, len(rows)), rows.shape[1], dtype=torch.float64, device=rows.device)
        total = torch.zeros_like(held[0])
        for piece, factor, zeros in zip(rows.split(size), factors.split(size), broken.split(size), strict=True):
            exact = held[: len(piece)].copy_(piece).masked_fill_(zeros, 0.0)  # 0 times a non-finite value is not 0
            total.addmv_(exact.T, factor)
        sums.append(total)
    return [total.view(each.shape[1:]).cpu() for total, each in zip(sums, gradients, strict=True)]


def _flat(rows: Tensor) -> Tensor:
    return rows.reshape(len(rows), rows[0].numel())  # also numbers and empty tensors


def _norms(rows: Tensor) -> Tensor:
    pieces = rows.split(max(1, _PIECE // max(1, rows.shape[1])))
    return torch.cat([torch.linalg.vector_norm(piece.double(), dim=1) for piece in pieces])


def _hooks_of(network: nn.Module) -> dict[str, list[Any]]:
    """Hooks on the outputs of a network, its parts and any module."""
    found: dict[str, list[Any]] = {}
    for kind in ("_forward_hooks", "_forward_pre_hooks"):
        places = {name: vars(part)[kind] for name, part in network.named_modules()}
        places["of every module"] = vars(nn.modules.module)[f"_global{kind}"]
        found |= {f"{kind} {name}": list(hooks.values()) for name, hooks in places.items()}
    return found


def linear_head(network: nn.Module) -> nn.Linear | None:
    """Linear head, if nothing else of the network is trained and its input is a fixed function of each image."""
    if not isinstance(network, ImageClassifier) or type(network).forward is not ImageClassifier.forward:
        return None
    head = network.head
    # A subclass, or one with a parametrization, may compute something else.
    if type(head) is not nn.Linear or any(True for _ in head.children()):
        return None
    trained = {id(parameter) for parameter in network.parameters() if parameter.requires_grad}
    return head if trained == {id(parameter) for parameter in head.parameters()} else None


@torch.no_grad()
def linear_sums(
    features: Tensor,
    labels: Tensor,
    head: nn.Linear,
    *,
    norm: float,
    log_prior: Tensor | None = None,
) -> list[Tensor]:
    """Sums of the records' gradients of the cross-entropy, each clipped to `norm` less `LINEAR_MARGIN`.

    For the cross-entropy of softmax(W x + b), the gradient of record i is (p − y)ᵢ ⊗ xᵢ, and (p − y)ᵢ for the bias, so
    its norm is ‖p − y‖ √(‖x‖² + 1). Clipping is a weight on (p − y)ᵢ, and the clipped sum one matrix product.

    Args:
        features: (B, F), the head's inputs; B may be 0.
        labels: (B,) int64.
        head: The layer, F → c.
        norm: C.
        log_prior: (c,), added to the logits; see `class_prior` of `Teacher`.

    Returns:
        One sum for each parameter of `head`: (c, F), and (c,) where it has a bias; float64.
    """
    weight = head.weight.double()
    across = weight.T.contiguous()
    bias = weight.new_zeros(len(weight)) if head.bias is None else head.bias.double()
    moved = bias if log_prior is None else bias + log_prior.to(bias)
    limit = norm * (1 - LINEAR_MARGIN)
    total, total_bias = torch.zeros_like(weight), torch.zeros_like(bias)
    # Reused: allocating memory for each piece costs more than computing it.
    buffer = weight.new_empty(min(_ROWS, len(features)), weight.shape[1])
    for rows, targets in zip(features.split(_ROWS), labels.split(_ROWS), strict=True):
        inputs = buffer[: len(rows)].copy_(rows)
        errors = torch.softmax(torch.addmm(moved, inputs, across), dim=1)
        errors[torch.arange(len(targets), device=targets.device), targets] -= 1
        squares = torch.linalg.vector_norm(inputs, dim=1).square() + (head.bias is not None)
        # Scaled: squares of small errors underflow, and a long input may amplify them.
        scale = errors.abs().amax(dim=1).clamp_min(1e-300)
        norms = (errors / scale.unsqueeze(1)).norm(dim=1) * scale * squares.sqrt()
        usable = torch.isfinite(norms)
        factors = torch.where(usable, (limit / norms.clamp_min(1e-300)).clamp(max=1.0), 0.0)
        weighted = torch.where(usable.unsqueeze(1), errors * factors.unsqueeze(1), 0.0)
        if not usable.all():
            inputs = torch.where(usable.unsqueeze(1), inputs, 0.0)  # 0 times a non-finite value is not 0
        total.addmm_(weighted.T, inputs)
        total_bias += weighted.sum(dim=0)
    return [total] if head.bias is None else [total, total_bias]
