"""Many networks of one architecture, queried together: one at a time, in threads on a CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor, wait
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from datamodules.mapped import one_thread

Item = TypeVar("Item")
Result = TypeVar("Result")

_IMAGES_AT_ONCE = 1024


def in_threads(function: Callable[[Item], Result], items: Sequence[Item], *, pool: Executor | None) -> list[Result]:
    """Return `function` of each item, in order; without a pool, one after the other.

    Where one fails or the wait is interrupted, the others are brought to their end all the same: a step that some took
    and others did not could not be resumed.
    """
    if pool is None:
        return [function(item) for item in items]
    futures = [pool.submit(function, item) for item in items]
    try:
        return [future.result() for future in futures]
    finally:
        wait(futures)


def stack_states(networks: Sequence[nn.Module]) -> dict[str, Tensor]:
    """Return weights and buffers of all networks, each (n, ...), as copies on the CPU; names as in a `state_dict`."""
    states = [network.state_dict() for network in networks]
    return {name: torch.stack([state[name].detach().cpu() for state in states]) for name in states[0]} if states else {}


def fixed_extractor(network: Any) -> nn.Module | None:
    """The network's `feature_extractor`, where nothing of it is trained and `forward_extracted` takes its outputs.

    Many other networks have a part of that name, which is trained with the rest.
    """
    extractor = getattr(network, "feature_extractor", None)
    if not isinstance(extractor, nn.Module) or not hasattr(network, "forward_extracted"):
        return None
    return None if any(parameter.requires_grad for parameter in extractor.parameters()) else extractor


def without_feature_extractor(network: nn.Module) -> tuple[nn.Module, nn.Module | None]:
    """Take a fixed feature extractor out of a network that was built for it, in place.

    Without any state `network.feature_extractor` (scattering, for example) is the same in every network of an
    architecture: computed once for all of them, it no longer dominates the work. One with weights or buffers that a
    `state_dict` holds stays where it is: it may differ, and would be lost.

    Returns:
        The network, which now takes extracted features, and the feature extractor, or None without one.
    """
    extractor = getattr(network, "feature_extractor", None)
    if not isinstance(extractor, nn.Module) or isinstance(extractor, nn.Identity) or extractor.state_dict():
        return network, None
    network.feature_extractor = nn.Identity()
    return network, extractor.eval()


def with_feature_extractor(network: nn.Module, feature_extractor: nn.Module | None) -> nn.Module:
    """Return the network as it was before `without_feature_extractor`: a copy, its weights shared."""
    if feature_extractor is None:
        return network
    whole = copy.copy(network)
    # A shallow copy has the original's own table of modules.
    whole._modules = {**network._modules, "feature_extractor": feature_extractor}
    return whole


class NetworkStack:
    """n networks of one architecture, and their logits.

    It is not an `nn.Module`, so that a module that holds one does not have the networks in its `state_dict`.

    Args:
        networks: the networks, n of them.
        feature_extractor: what all of them share (see `without_feature_extractor`): computed once for all networks.

    Raises:
        ValueError: if there are no networks.
    """

    def __init__(self, networks: Sequence[nn.Module], *, feature_extractor: nn.Module | None = None) -> None:
        if not networks:
            raise ValueError("networks must hold at least one network, got none")
        self._networks = [network.eval().requires_grad_(False) for network in networks]
        self._feature_extractor = feature_extractor
        self._moved: tuple[torch.device, nn.Module] | None = None

    @classmethod
    def from_states(cls, template: nn.Module, states: Mapping[str, Tensor]) -> NetworkStack:
        """Rebuild from what `stack_states` gives; a fixed feature extractor of the template is kept once for all.

        Raises:
            RuntimeError: if the states are of another architecture than `template`, in PyTorch's own words.
            ValueError: if their first axes differ.
        """
        counts = {len(values) for values in states.values()}
        if len(counts) != 1:
            raise ValueError(f"states must all be of the same number of networks, got {sorted(counts)}")
        template, feature_extractor = without_feature_extractor(copy.deepcopy(template))
        networks = []
        for index in range(counts.pop()):
            network = copy.deepcopy(template)
            network.load_state_dict({name: values[index] for name, values in states.items()})
            networks.append(network)
        return cls(networks, feature_extractor=feature_extractor)

    def __len__(self) -> int:
        return len(self._networks)

    def network(self, index: int) -> nn.Module:
        """Returns one network in eval mode, whose layers are called, so that hooks on them fire."""
        return with_feature_extractor(self._networks[index].eval(), self._feature_extractor)

    @torch.no_grad()
    def logits(self, images: Tensor) -> Tensor:
        """Return logits (n, N, c) of images (N, C, H, W) in float32, on their device.

        On a CPU as many threads as torch would use ask one network each, which does not change the result.
        """
        images = images.detach().float()
        pieces = list(images.split(_IMAGES_AT_ONCE))
        with torch.autocast(images.device.type, enabled=False):
            if self._feature_extractor is not None:
                extractor = self._feature_extractor
                if images.device.type != "cpu":
                    # A copy elsewhere: the feature extractor itself belongs to whole networks on the CPU.
                    if self._moved is None or self._moved[0] != images.device:
                        self._moved = (images.device, copy.deepcopy(extractor).to(images.device))
                    extractor = self._moved[1]
                pieces = [extractor(piece).float() for piece in pieces]

            def ask(index: int) -> Tensor:
                # Neither is inherited by a thread.
                with torch.no_grad():
                    network = self._networks[index].eval().to(images.device)
                    return torch.cat([network(piece) for piece in pieces])

            with one_thread() as threads, ThreadPoolExecutor(min(threads, len(self))) as pool:
                taken = pool if images.device.type == "cpu" else None
                return torch.stack(in_threads(ask, range(len(self)), pool=taken)).float()
