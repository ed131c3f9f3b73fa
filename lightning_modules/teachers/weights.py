"""Unwraps weights, under the names that a network has for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lightning_modules.teachers.errors import TeacherError

__all__ = ["fitted_weights", "weights_in"]

_WRAPPINGS = ("state_dict", "model_state_dict", "model")
#: What `DistributedDataParallel`, `DataParallel` and `torch.compile` put before a network's own names.
_WRAPPERS = ("module", "_orig_mod")

_Weights = Mapping[str, torch.Tensor]


def weights_in(content: Any, file: Path) -> dict[str, torch.Tensor]:
    """The weights in a file's content: itself, or what it has under `state_dict`, `model_state_dict` or `model`.

    Raises:
        TeacherError: It holds an ensemble, or no weights.
    """
    if isinstance(content, Mapping) and "ensemble" in content:
        raise TeacherError(
            f"{file} holds an ensemble, and one teacher was asked for: set model.annotator.release to ensemble for "
            "DPDFD, or take MeanResponseAnnotator for Distillation or VoteAnnotator for DGD. A federation's "
            "LocalClients take it by itself (teachers=FILE), or a file of one teacher for each client"
        )
    found = content
    while isinstance(found, Mapping) and not _is_weights(found):
        inside = next((found[name] for name in _WRAPPINGS if isinstance(found.get(name), Mapping)), None)
        if inside is None:
            break
        found = inside
    if not isinstance(found, Mapping) or not _is_weights(found):
        held = f": it has {', '.join(map(str, list(content)[:8]))}" if isinstance(content, Mapping) else ""
        raise TeacherError(
            f"{file} holds no weights: expected a state_dict, or one under {', '.join(_WRAPPINGS)}{held}"
        )
    return dict(found)


def fitted_weights(weights: _Weights, network: nn.Module, *, file: Path) -> dict[str, torch.Tensor]:
    """Weights under the names that a network has for them.

    Names are taken as they are, without what wrappers put before them, or without a prefix; a change counts only where
    the result has all that the network needs and nothing else. Where nothing fits, the names come back as they are
    but for the wrappers'.

    Args:
        weights: As they stand in the file.
        network: What they are for.
        file: For messages.

    Raises:
        TeacherError: Several networks in the file fit.
    """
    if _fits(weights, network):
        return dict(weights)
    plain = _without_wrappers(weights)
    if _fits(plain, network):
        return plain
    inside = {prefix: named for prefix, named in _by_prefix(plain) if _fits(named, network)}
    if len(inside) > 1 and "network" in inside:
        return inside["network"]  # as our own checkpoints have it
    if len(inside) > 1:
        raise TeacherError(
            f"teacher {file} holds {len(inside)} networks that fit, {' and '.join(sorted(inside))}: save the one that "
            f'is meant by itself, torch.save({{name.removeprefix("{min(inside)}."): value for name, value in '
            f'content["state_dict"].items() if name.startswith("{min(inside)}.")}}, "weights.pt")'
        )
    if inside:
        return next(iter(inside.values()))
    own = dict(_by_prefix(plain)).get("network")
    return plain if own is None else own


def _is_weights(content: Mapping[Any, Any]) -> bool:
    return bool(content) and all(
        isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in content.items()
    )


def _without_wrappers(weights: _Weights) -> dict[str, torch.Tensor]:
    """Without `_orig_mod` anywhere, and without `module` before all names, in any order and number."""
    found = {
        ".".join(part for part in name.split(".") if part != "_orig_mod"): value for name, value in weights.items()
    }
    while all(name.startswith("module.") for name in found):
        found = {name.removeprefix("module."): value for name, value in found.items()}
    return found


def _by_prefix(weights: _Weights) -> Iterator[tuple[str, dict[str, torch.Tensor]]]:
    """Weights under each prefix of whole words, without it: `model`, `model.net`, and so on."""
    found: dict[str, dict[str, torch.Tensor]] = {}
    for name, value in weights.items():
        parts = name.split(".")
        for end in range(1, len(parts)):
            found.setdefault(".".join(parts[:end]), {})[".".join(parts[end:])] = value
    for prefix, named in found.items():
        yield prefix, _without_wrappers(named)


def _fits(weights: _Weights, network: nn.Module) -> bool:
    wanted = network.state_dict()
    # Files from before PyTorch 0.4.1 have no counters; it fills them in.
    missing = {name for name in wanted.keys() - weights.keys() if not name.endswith("num_batches_tracked")}
    return (
        not missing
        and not weights.keys() - wanted.keys()
        and all(weights[name].shape == wanted[name].shape for name in weights)
    )
