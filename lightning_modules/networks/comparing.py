"""Whether two modules compute the same."""

from __future__ import annotations

from itertools import chain

import torch
from torch import Tensor, nn

__all__ = ["same_module"]


def same_module(one: nn.Module, other: nn.Module) -> bool:
    """Whether two modules are of one class, of the same parts and settings, with equal weights and buffers.

    Buffers count whether or not a `state_dict` holds them. Settings are those that torch's layers print.
    """
    if type(one) is not type(other) or repr(one) != repr(other):
        return False
    first, second = _values(one), _values(other)
    return first.keys() == second.keys() and all(
        value.shape == second[name].shape and torch.equal(value.to(second[name].device), second[name])
        for name, value in first.items()
    )


def _values(module: nn.Module) -> dict[str, Tensor]:
    return dict(chain(module.named_parameters(), module.named_buffers()))
