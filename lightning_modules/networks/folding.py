"""BatchNorm folded into the convolutions before it: what a network that is only asked computes, with one pass less."""

from __future__ import annotations

import copy

from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

__all__ = ["folded"]


def folded(network: nn.Module) -> nn.Module:
    """A network that gives what `network` gives in evaluation mode, but for rounding.

    Where a `Sequential` has a `BatchNorm2d` right behind a `Conv2d`, one convolution does the work of both. Later
    changes to `network` do not reach it.

    Returns:
        A copy in evaluation mode, or `network` itself where there is nothing to fold.
    """
    if not any(_foldable(module) for module in network.modules()):
        return network
    found = copy.deepcopy(network).eval()
    for module in found.modules():
        for first in _foldable(module):
            convolution, norm = module[first], module[first + 1]  # type: ignore[index]
            module[first] = fuse_conv_bn_eval(convolution, norm)  # type: ignore[operator]
            module[first + 1] = nn.Identity()  # type: ignore[operator]
    return found.requires_grad_(False)


def _foldable(module: nn.Module) -> list[int]:
    """Positions in a `Sequential` of the convolutions that a BatchNorm follows."""
    if not isinstance(module, nn.Sequential):
        return []
    return [
        position
        for position, (layer, following) in enumerate(zip(module, list(module)[1:], strict=False))
        # Subclasses may compute something else, and hooks would not be called.
        if type(layer) is nn.Conv2d
        and type(following) is nn.BatchNorm2d
        and following.track_running_stats
        and not layer._forward_hooks
        and not following._forward_hooks
    ]
