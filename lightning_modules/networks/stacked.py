"""Queries many networks of one architecture together, in threads on a CPU."""

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
    """Apply a function to each item, in the pool's threads if there is one, and return the results in order.

    If one fails or the wait is interrupted, the others still finish: a step that only some completed could not be
    resumed.
    """
    if pool is None:
        return [function(item) for item in items]
    futures = [pool.submit(function, item) for item in items]
    try:
        return [future.result() for future in futures]
    finally:
        wait(futures)


def stack_states(networks: Sequence[nn.Module]) -> dict[str, Tensor]:
    """Stack the state dicts of n networks: copies (n, ...) of each weight and buffer on the CPU."""
    states = [network.state_dict() for network in networks]
    return {name: torch.stack([state[name].detach().cpu() for state in states]) for name in states[0]} if states else {}


def fixed_extractor(network: Any) -> nn.Module | None:
    """Return the network's `feature_extractor` if no parameter of it is trained and there is a `forward_extracted`.

    Other networks may have a part of that name that is trained with the rest.
    """
    extractor = getattr(network, "feature_extractor", None)
    if not isinstance(extractor, nn.Module) or not hasattr(network, "forward_extracted"):
        return None
    return None if any(parameter.requires_grad for parameter in extractor.parameters()) else extractor


def without_feature_extractor(network: nn.Module) -> tuple[nn.Module, nn.Module | None]:
    """Remove a stateless feature extractor from a network, in place.

    A `network.feature_extractor` without state (scattering, for example) is the same in every network of an
    architecture, so it can be computed once for all. An extractor with a `state_dict` is left in place: it may differ
    between networks, and would be lost.

    Returns:
        The network, which now takes extracted features, and the feature extractor, or None if it was left in place.
    """
    extractor = getattr(network, "feature_extractor", None)
    if not isinstance(extractor, nn.Module) or isinstance(extractor, nn.Identity) or extractor.state_dict():
        return network, None
    network.feature_extractor = nn.Identity()
    return network, extractor.eval()


def with_feature_extractor(network: nn.Module, feature_extractor: nn.Module | None) -> nn.Module:
    """Undo `without_feature_extractor` in a shallow copy, which shares the network's weights."""
    if feature_extractor is None:
        return network
    whole = copy.copy(network)
    # A shallow copy shares the original's dict of modules.
    whole._modules = {**network._modules, "feature_extractor": feature_extractor}
    return whole


class NetworkStack:
    """n networks of one architecture, queried together.

    It is not an `nn.Module`, which keeps the networks out of the `state_dict` of a module that holds it.

    Args:
        networks: the n networks.
        feature_extractor: computed once for all networks (see `without_feature_extractor`).

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
        """Rebuild the networks from `stack_states`; they share a stateless feature extractor of the template.

        Raises:
            RuntimeError: from PyTorch, if the states do not fit the template.
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
        """Return one whole network in eval mode, whose layers can have hooks."""
        return with_feature_extractor(self._networks[index].eval(), self._feature_extractor)

    @torch.no_grad()
    def logits(self, images: Tensor) -> Tensor:
        """Return float32 logits (n, N, c) for images (N, C, H, W), on their device.

        On a CPU, each of as many threads as torch would use queries one network; the result is the same.
        """
        images = images.detach().float()
        pieces = list(images.split(_IMAGES_AT_ONCE))
        with torch.autocast(images.device.type, enabled=False):
            if self._feature_extractor is not None:
                extractor = self._feature_extractor
                if images.device.type != "cpu":
                    # A copy, since the feature extractor itself belongs to whole networks on the CPU.
                    if self._moved is None or self._moved[0] != images.device:
                        self._moved = (images.device, copy.deepcopy(extractor).to(images.device))
                    extractor = self._moved[1]
                pieces = [extractor(piece).float() for piece in pieces]

            def ask(index: int) -> Tensor:
                # Threads do not inherit no_grad.
                with torch.no_grad():
                    network = self._networks[index].eval().to(images.device)
                    return torch.cat([network(piece) for piece in pieces])

            with one_thread() as threads, ThreadPoolExecutor(min(threads, len(self))) as pool:
                taken = pool if images.device.type == "cpu" else None
                return torch.stack(in_threads(ask, range(len(self)), pool=taken)).float()
