"""Whether two modules compute the same."""

from __future__ import annotations

import hashlib
from itertools import chain

import torch
from torch import Tensor, nn

__all__ = ["bytes_of", "digest_of", "same_module", "settings_of_parts"]

_OF_EVERY_MODULE = vars(nn.Module()).keys()


def same_module(one: nn.Module, other: nn.Module) -> bool:
    """Whether two modules are of one class, of the same parts and settings, with equal weights and buffers.

    Buffers count whether or not a `state_dict` holds them. For settings see `settings_of_parts`.
    """
    if settings_of_parts(one) != settings_of_parts(other):
        return False
    first, second = _values(one), _values(other)
    return first.keys() == second.keys() and all(
        value.shape == second[name].shape and torch.equal(value.to(second[name].device), second[name])
        for name, value in first.items()
    )


def bytes_of(values: Tensor) -> memoryview:
    """What a tensor holds, of any type: NumPy has none for bfloat16."""
    return values.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def digest_of(module: nn.Module) -> str:
    """Of a module's settings, and of what its weights and buffers hold: 64 hexadecimal digits."""
    state = hashlib.sha256("\n".join(settings_of_parts(module)).encode())
    for name, value in _values(module).items():
        state.update(name.encode())
        state.update(bytes_of(value))
    return state.hexdigest()


def settings_of_parts(module: nn.Module) -> list[str]:
    """Class and attributes of a module and of each part, in words: a module of anyone's need not print what it is.

    Objects that say nothing of themselves are told apart by where they are.
    """
    return [
        f"{name}: {type(part).__module__}.{type(part).__qualname__} {part.extra_repr()} {key} = {_said(value)}"
        for name, part in module.named_modules()
        for key, value in [("", None), *sorted(vars(part).items())]
        if key not in _OF_EVERY_MODULE
    ]


def _said(value: object) -> str:
    # What a tensor prints leaves most of it out.
    return f"{value.dtype} {value.tolist()}" if isinstance(value, Tensor) else repr(value)


def _values(module: nn.Module) -> dict[str, Tensor]:
    return dict(chain(module.named_parameters(), module.named_buffers()))
