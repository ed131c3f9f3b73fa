"""Trial of a DP-SGD network on public images before the first step: are gradients clipped per record?

Per-sample gradients come from hooks that assume that rows are records and that layers compute what their class says.
Whether that holds for a network only a comparison shows: what clipping contributes for each record within a batch,
against the clipped gradient of that record in a batch of one by `torch.autograd`, on a copy with random weights in
train mode.
"""

from __future__ import annotations

import copy
import hashlib
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from datamodules.mapped import PIECE
from lightning_modules.networks.memory import bytes_of, without_memory
from lightning_modules.priors import DeadLeavesPrior, StrokePrior
from lightning_modules.teachers.losses import PriorCrossEntropy
from lightning_modules.teachers.record_clipping import GHOST_MARGIN, MODES, Clipping, Mode, RecordClipping
from lightning_modules.training.randomness import random_states

Extracts: TypeAlias = Literal["forward_features", "feature_extractor"]
"""Part of a network whose outputs are computed once, in eval mode."""

Hooks: TypeAlias = dict[tuple[str, str], dict[int, Any]]
"""Hooks of each kind on each part."""

_ON_OUTPUTS = ("_forward_hooks", "_forward_pre_hooks")
_ON_GRADIENTS = ("_backward_hooks", "_backward_pre_hooks", "_post_accumulate_grad_hooks")
#: Largest error of a sum, in clipping norms per record: the margin of each mode, and rounding in float32.
_TOLERANCE: dict[Mode, float] = {"flat": 1e-5, "linear": 1e-5, "ghost": 2 * GHOST_MARGIN}
_SINGLE_PRECISION: dict[Mode, float] = {"flat": 1e-3, "linear": 1e-3, "ghost": 3 * GHOST_MARGIN}
#: Largest relative difference of features between batches of two sizes: in float64, and in float32.
_SAME_FEATURES = (1e-5, 3e-3)
#: Number of records, the last ones, that have almost no contrast.
_FAINT = 3
#: Length of the sketch of a parameter's gradient: whole gradients of large networks would fill the memory.
_BUCKETS = 2**14
DRAWS = (
    "draws at random in train mode, which depends on who else is in the batch: set its probability (dropout, "
    "drop_path) to 0, or leave it out"
)
_WHAT_TO_DO = (
    "DP-SGD bounds a record only where the network treats each image by itself: without statistics over a batch "
    "(GroupNorm in place of BatchNorm), without views or patches in the batch axis, with layers that Opacus has "
    "per-sample gradients for (padding_mode zeros, no weights shared with F.linear). See docs/your_teacher.md"
)


def digests(network: nn.Module, *, trained: bool) -> dict[str, str]:
    """SHA-256 of each buffer, parameter and extra state; trainable parameters only if `trained`."""
    parameters = dict(network.named_parameters(remove_duplicate=False))
    values: dict[str, Any] = {**network.state_dict(), **dict(network.named_buffers()), **parameters}
    return {
        name: hashlib.sha256(bytes_of(value) if isinstance(value, Tensor) else pickle.dumps(value)).hexdigest()
        for name, value in values.items()
        if trained or name not in parameters or not parameters[name].requires_grad
    }


def changed(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Names of the entries that have changed."""
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))


def logits_after(network: Any, extracts: Extracts | None, inputs: Tensor) -> Tensor:
    """Logits of images, or of the outputs of `extracts` for them."""
    if extracts is not None:
        network = network.head if extracts == "forward_features" else network.forward_extracted
    logits: Tensor = network(inputs)
    return logits


def keeps_nothing(network: nn.Module) -> bool:
    """Whether its parts are known to keep no state of a call, which a concurrent call would pick up."""
    return not hooks_of(network) and all(
        type(part).__module__.startswith(("lightning_modules.networks.", "torch.nn.modules."))
        # Also an overridden `forward`.
        and not any(callable(value) and not isinstance(value, type) for value in vars(part).values())
        for part in network.modules()
    )


def hooks_of(network: nn.Module, kinds: Sequence[str] = (*_ON_OUTPUTS, *_ON_GRADIENTS)) -> Hooks:
    """All hooks on a network, its parts and parameters, and on any module, by their kind and the name of the part."""
    places = [(name or "it", one) for name, one in (*network.named_modules(), *network.named_parameters())]
    found = {(kind, name): getattr(one, kind, None) for kind in kinds for name, one in places}
    found |= {(kind, "each module"): getattr(nn.modules.module, f"_global{kind}", None) for kind in kinds}
    return {place: dict(hooks) for place, hooks in found.items() if hooks}


def refuse_hooks(network: nn.Module, *, tried: Hooks) -> None:
    """Refuses hooks other than those that a network was tried with: they see gradients of records, or couple records.

    Raises:
        ValueError: One was added, changed or removed; the message names its module or parameter.
    """
    now = hooks_of(network)
    for kind, name in sorted(now.keys() | tried.keys()):
        if now.get((kind, name)) != tried.get((kind, name)):
            of = "gradient, which is not clipped" if kind in _ON_GRADIENTS else "outputs, unlike when it was tried"
            raise ValueError(f"model.network: {name!r} has a hook on its {of}: remove it")


@dataclass(frozen=True)
class ClippingTrial:
    """A trial of clipping for records of a given form.

    Attributes:
        image_shape: (C, H, W).
        num_classes: c.
        physical: Number of records in a physical batch.
        criterion: The loss.
        extracts: See `Extracts`; None if the network is trained on images.
    """

    image_shape: tuple[int, int, int]
    num_classes: int
    physical: int
    criterion: PriorCrossEntropy
    extracts: Extracts | None = None

    def __call__(self, network: nn.Module, mode: Mode) -> tuple[Mode, str | None]:
        """Returns the clipping mode that is right for a network: the given one, or `flat` if `ghost` is not.

        The network and the state of torch's generators do not change.

        Returns:
            The mode, and why it differs from the given one.

        Raises:
            ValueError: No mode is right, or the network draws at random in train mode or writes into its own state.
        """
        device = next(parameter.device for parameter in network.parameters() if parameter.requires_grad)
        # A copy has no parameter's hooks; those of modules may couple the records of some batches only.
        refuse_hooks(network, tried=hooks_of(network, _ON_OUTPUTS))
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), without_memory():
            double = True
            try:
                tried = _Copy(network, self, double=True)
                tried.logits(tried.batch([0])[0])
            except (RuntimeError, TypeError):  # a network or device that only supports float32
                double = False
                tried = _Copy(network, self, double=False)
            _require_steady(tried)
            _require_forgetful(network, self, double=double)
            reference = _Reference(tried)
            why = None
            modes: tuple[Mode, ...] = ("ghost", "flat") if mode == "ghost" else (mode,)
            for candidate in modes:
                problem = _problem(network, candidate, self, reference, double=double)
                if problem is None:
                    if self.extracts is not None:
                        _require_features_apart(tried, double=double)
                    _require_apart(tried, list(range(len(tried.images))))
                    picks = [row % len(tried.images) for row in range(self.physical)]
                    _require_apart(_Copy(network, self, double=False), picks)
                    return candidate, why
                why = problem
        raise ValueError(f"model.network: {why}. {_WHAT_TO_DO}")

    def records(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Public records, including extreme ones: images (R, C, H, W) and labels (R,)."""
        draw = torch.Generator().manual_seed(0)
        priors = [
            prior.sample(2, image_shape=self.image_shape, generator=draw, device="cpu")
            for prior in (StrokePrior(), DeadLeavesPrior())
        ]
        noise = 2 * torch.rand(_FAINT, *self.image_shape, generator=draw) - 1
        one_pixel = priors[1][:1].clone()
        one_pixel[..., self.image_shape[1] // 2, self.image_shape[2] // 2] *= -1
        flat = torch.tensor([-1.0, 0.0, 1.0]).view(-1, 1, 1, 1).expand(-1, *self.image_shape)
        # Contrasts of one 8-bit level and less around a constant.
        faint = 0.9 + noise * torch.tensor([1 / 127, 1e-3, 1e-4]).view(_FAINT, 1, 1, 1)
        images = torch.cat([*priors, one_pixel, noise[:1], flat, faint])
        labels = torch.randint(self.num_classes, (len(images),), generator=draw)
        return images.to(device), labels.to(device)


class _Copy:
    """A copy of the network with random weights in train mode, and the records in its precision."""

    def __init__(self, network: nn.Module, trial: ClippingTrial, *, double: bool) -> None:
        self.trial = trial
        self.network: Any = copy.deepcopy(network).train()
        if double:
            self.network.double()
        self.parameters = {name: one for name, one in self.network.named_parameters() if one.requires_grad}
        draw = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in self.parameters.values():
                fan_in = parameter[0].numel() if parameter.dim() > 1 else 1
                scale = max(float(parameter.square().mean().sqrt()), fan_in**-0.5)
                parameter.add_(0.3 * scale * torch.randn(parameter.shape, generator=draw).to(parameter))
        weight = next(iter(self.parameters.values()))
        images, self.labels = trial.records(weight.device)
        self.images = images.to(weight.dtype)
        self._clipped: RecordClipping | None = None

    def batch(self, rows: list[int]) -> tuple[Tensor, Tensor]:
        """Inputs (N, ...) and labels (N,) of some records, in the form used in training."""
        inputs, labels = self.images[rows], self.labels[rows]
        if self.trial.extracts is not None:
            self.network.eval()
            with torch.no_grad():
                inputs = getattr(self.network, self.trial.extracts)(inputs)
            self.network.train()
        return inputs, labels

    def logits(self, inputs: Tensor) -> Tensor:
        return logits_after(self.network, self.trial.extracts, inputs)

    def gradient(self, record: int) -> list[Tensor]:
        """Gradient of one record in a batch of one, by autograd."""
        inputs, labels = self.batch([record])
        loss = self.trial.criterion(self.logits(inputs), labels)
        gradients = torch.autograd.grad(loss, list(self.parameters.values()), allow_unused=True, materialize_grads=True)
        return [gradient.double() for gradient in gradients]

    def clipped(self, rows: list[int], mode: Mode, limit: float) -> list[Tensor]:
        """Sum of some records' clipped gradients as in training; use a copy for one mode and limit only."""
        if self._clipped is None:
            settings = Clipping(max_grad_norm=limit)
            self._clipped = MODES[mode](self.network, settings, self.trial.criterion)
        return self._clipped.sums(*self.batch(rows), self.logits)


class _Reference:
    """Sketched gradient of each record, and the norm of its whole gradient, from batches of one.

    Raises:
        ValueError: Some weight has no gradient for any record.
    """

    def __init__(self, tried: _Copy) -> None:
        self.gradients: list[list[Tensor]] = []
        norms, used = [], dict.fromkeys(tried.parameters, False)
        for record in range(len(tried.images)):
            whole = tried.gradient(record)
            if not all(bool(torch.isfinite(gradient).all()) for gradient in whole):
                whole = [torch.zeros_like(gradient) for gradient in whole]  # as flat and linear clipping take it
            used = {name: used[name] or bool(part.any()) for name, part in zip(used, whole, strict=True)}
            norms.append(_norm(whole))
            self.gradients.append([_sketch(gradient) for gradient in whole])
        if unused := [name for name, was in used.items() if not was]:
            raise ValueError(
                f"model.network: the gradient of {unused[0]!r} is zero for each of {len(norms)} public images in a "
                "batch of one: leave it out or freeze it, unless the network computes something over the batch"
            )
        self.norms = torch.tensor(norms, dtype=torch.float64)
        #: A clipping norm that clips all records except those with almost no gradient.
        self.limit = 0.5 * float(self.norms[self.norms >= 1e-3 * self.norms.max()].min())

    def clipped(self, rows: list[int]) -> list[Tensor]:
        """Sum of some records' clipped gradients."""
        factors = (self.limit / self.norms.clamp_min(1e-300)).clamp(max=1.0)
        parts = zip(*(self.gradients[row] for row in rows), strict=True)
        return [torch.stack([factors[row] * one for row, one in zip(rows, part, strict=True)]).sum(0) for part in parts]


def _sketch(gradient: Tensor) -> Tensor:
    """Sketches a gradient by a linear map that preserves norms on average."""
    flat = gradient.detach().double().flatten()
    if len(flat) <= _BUCKETS:
        return flat
    draw = torch.Generator().manual_seed(2)
    signs = (2 * torch.randint(2, flat.shape, generator=draw, dtype=torch.int8) - 1).to(flat.device)
    return F.pad(flat * signs, (0, -len(flat) % _BUCKETS)).view(-1, _BUCKETS).sum(dim=0)


def _norm(gradients: list[Tensor]) -> float:
    return float(torch.stack([gradient.norm() for gradient in gradients]).norm())


def _require_steady(tried: _Copy) -> None:
    """Refuses a network that draws at random, or writes state that is saved or read by the next batch."""
    before = digests(tried.network, trained=True)
    rows = list(range(len(tried.images)))
    drawing, handles = _watched_draws(tried)
    with torch.no_grad():
        first, again = (tried.logits(tried.batch(rows)[0]) for _ in range(2))
    for handle in handles:
        handle.remove()
    if written := changed(before, digests(tried.network, trained=True)):
        raise ValueError(
            f"model.network: {written[0]!r} changes when images are passed through the network in train mode: it would "
            "keep, and publish without noise, something of private records. Take it out (of BatchNorm: take GroupNorm)"
        )
    if drawing or not torch.allclose(first, again, rtol=1e-3, atol=1e-6, equal_nan=True):
        raise ValueError(f"model.network: {(drawing or ['it'])[0]} {DRAWS}")


def _require_forgetful(network: nn.Module, trial: ClippingTrial, *, double: bool) -> None:
    """Refuses a network that remembers earlier batches outside its state, where `digests` would not show it."""
    for first, then in ((1.0, 0.05), (0.05, 1.0)):
        outcomes = []
        for scales in ((then,), (first, then)):
            tried = _Copy(network, trial, double=double)
            images, rows = tried.images, list(range(len(tried.images)))
            for scale in scales:
                tried.images = scale * images
                with torch.no_grad():
                    logits = tried.logits(tried.batch(rows)[0])
            outcomes.append(logits)
        if not torch.allclose(outcomes[0], outcomes[1], rtol=1e-5, atol=1e-7, equal_nan=True):
            raise ValueError(
                "model.network: the logits of a batch depend on the batch before it, so that a record would act on "
                "later steps as well. Take out what remembers it"
            )


def _require_apart(tried: _Copy, rows: list[int]) -> None:
    """Refuses networks where one record's logits depend, however little, on another's image: training may amplify it.

    Raises:
        ValueError: The logits of every second record have a derivative with respect to the records in between.
    """
    inputs = tried.batch(rows)[0].detach().requires_grad_()
    logits = tried.logits(inputs.clone())
    record = torch.arange(len(inputs), device=inputs.device)
    if not logits.requires_grad or len(logits) != len(inputs):
        return  # the comparison of gradients names the layer
    weights = torch.linspace(1, 2, logits[0].numel(), dtype=logits.dtype, device=logits.device).view_as(logits[0])
    (moved,) = torch.autograd.grad((logits * weights)[record % 2 == 0].sum(), inputs, allow_unused=True)
    # Non-finite values in a record's own gradient enter another's as 0 * inf.
    if moved is not None and bool(moved[record % 2 == 1].nan_to_num(nan=0.0).any()):
        raise ValueError(
            f"model.network: within a batch of {len(rows)} public images the logits of one depend on another image. "
            f"{_WHAT_TO_DO}"
        )


def _require_features_apart(tried: _Copy, *, double: bool) -> None:
    """Refuses features that depend on another record's image, in batches of the size in which they are computed.

    Raises:
        ValueError: They differ in a batch of one.
    """
    count = len(tried.images) - (0 if double else _FAINT)  # float32 magnifies their differences
    rows = [row % count for row in range(PIECE)]
    alone = torch.cat([tried.batch([row])[0].flatten(1) for row in range(count)])[rows]
    off = (tried.batch(rows)[0].flatten(1) - alone).norm(dim=1)
    if bool((off > _SAME_FEATURES[0 if double else 1] * alone.norm(dim=1).clamp_min(1e-3)).any()):
        raise ValueError(
            f"model.network: within a batch of {PIECE} public images the features of one depend on another image. "
            f"{_WHAT_TO_DO}"
        )


def _watched_draws(tried: _Copy) -> tuple[list[str], list[Any]]:
    """Hooks that find the first layer to draw at random, and the list to which they add its name."""
    found: list[str] = []
    start = random_states(tried.images.device)

    def look(name: str, *_: Any) -> None:
        if not found and random_states(tried.images.device) != start:
            found.append(name)

    handles: list[Any] = []
    for name, module in tried.network.named_modules():
        # A generator that advances before a layer begins belongs to no layer.
        handles.append(module.register_forward_pre_hook(partial(look, "it")))
        text = f"{type(module).__name__} {name!r}" if name else "it"
        handles.append(module.register_forward_hook(partial(look, text)))
    return found, handles


def _problem(
    network: nn.Module, mode: Mode, trial: ClippingTrial, reference: _Reference, *, double: bool
) -> str | None:
    """Describe what is wrong with a clipping mode for a network; None if it is correct."""
    records = len(reference.norms)
    order = torch.randperm(records, generator=torch.Generator().manual_seed(3)).tolist()
    tried = _Copy(network, trial, double=double)
    # All records, all but one, and few: the difference of two sums is one record's contribution.
    for rows in (order, *([one for one in order if one != left] for left in order[:4]), order[:2]):
        problem = _compared(tried, rows, mode, reference, (_TOLERANCE if double else _SINGLE_PRECISION)[mode])
        if problem is not None:
            return problem
    tried = _Copy(network, trial, double=False)
    # Without faint images, whose gradients differ between float32 and float64.
    picks = torch.randint(records - _FAINT, (trial.physical,), generator=torch.Generator().manual_seed(4)).tolist()
    if (problem := _compared(tried, picks, mode, reference, _SINGLE_PRECISION[mode])) is not None:
        return problem
    if mode == "ghost":
        for row, norm in enumerate(reference.norms.tolist()):
            if norm > reference.limit:
                scale = _norm(tried.clipped([row], mode, reference.limit)) / reference.limit
                # Opacus divides by the norm and 1e-6.
                if abs(scale - (1 - GHOST_MARGIN) * norm / (norm + 1e-6)) > 1e-5:
                    return f"ghost clipping makes {scale:.6f} C of a record's gradient, not {1 - GHOST_MARGIN:.4f} C"
    return None


def _compared(tried: _Copy, rows: list[int], mode: Mode, reference: _Reference, tolerance: float) -> str | None:
    """Describe what is wrong with the sum over some records; None if it is correct."""
    try:
        sums = [_sketch(part).cpu() for part in tried.clipped(rows, mode, reference.limit)]
    except Exception as error:  # any user's network, under hooks
        return f"{mode} clipping fails within a batch of {len(rows)}{_layer(tried, rows, reference)}: {error}"
    off = _norm([one - other.cpu() for one, other in zip(sums, reference.clipped(rows), strict=True)])
    off /= len(rows) * reference.limit
    if off <= tolerance:
        return None
    return (
        f"what {mode} clipping makes of a batch of {len(rows)} public images is off by {off:.2g} C for each from their "
        f"clipped gradients, each in a batch of one{_layer(tried, rows, reference)}"
    )


def _layer(tried: _Copy, rows: list[int], reference: _Reference) -> str:
    """Names the parameter whose per-sample gradients, if kept, differ most from those in a batch of one."""
    apart: dict[str, float] = {}
    for number, (name, parameter) in enumerate(tried.parameters.items()):
        each = getattr(parameter, "grad_sample", None)
        if isinstance(each, Tensor):
            if len(each) != len(rows):
                return f" (the layer of {name!r} has {len(each)} rows for {len(rows)} records)"
            expected = torch.stack([reference.gradients[row][number].cpu() for row in rows])
            off = torch.stack([_sketch(one).cpu() for one in each]) - expected
            apart[name] = float(off.norm(dim=1).max()) / (float(expected.norm(dim=1).max()) or 1.0)
    return f" (first of all the layer of {max(apart, key=lambda name: apart[name])!r})" if any(apart.values()) else ""
