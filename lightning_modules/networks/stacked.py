"""Many networks of one architecture, queried together: one at a time in threads on a CPU, by `vmap` on an accelerator.

Measured with one CPU core and networks on 28x28 images, `vmap` over 16 of them takes 1.2 to 2.3 times as long as one
after the other: a CPU is busy with one already. There the gain is in the cores. On an accelerator a loop of small
networks waits for launches, which `vmap` makes once for all.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor, wait
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state

from datamodules.mapped import one_thread

Item = TypeVar("Item")
Result = TypeVar("Result")


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
        at_once: how many are queried in one call where it is vectorised: bounds the memory.
        images_at_once: images in one call.
        vectorised: by `vmap`; None decides by the device of the images.
        workers: threads that ask one network each, where it is not vectorised; None as many as torch would use. Does
            not change the result.
        feature_extractor: what all of them share (see `without_feature_extractor`): computed once for all networks.

    Raises:
        ValueError: if there are no networks.
    """

    def __init__(
        self,
        networks: Sequence[nn.Module],
        *,
        at_once: int = 25,
        images_at_once: int = 1024,
        vectorised: bool | None = None,
        workers: int | None = None,
        feature_extractor: nn.Module | None = None,
    ) -> None:
        if not networks:
            raise ValueError("networks must hold at least one network, got none")
        self._networks = [network.eval().requires_grad_(False) for network in networks]
        self.at_once = at_once
        self.images_at_once = images_at_once
        self.vectorised = vectorised
        self.workers = workers
        self._feature_extractor = feature_extractor
        self._moved: tuple[torch.device, nn.Module] | None = None
        self._stacked: tuple[torch.device, list[tuple[dict[str, Tensor], dict[str, Tensor]]]] | None = None
        # Its weights take no memory and are never used.
        self._template = copy.deepcopy(self._networks[0]).to("meta")

    @classmethod
    def from_states(cls, template: nn.Module, states: Mapping[str, Tensor], **settings: Any) -> NetworkStack:
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
        return cls(networks, feature_extractor=feature_extractor, **settings)

    def __len__(self) -> int:
        """Return n."""
        return len(self._networks)

    def network(self, index: int) -> nn.Module:
        """Return one network by itself, in eval mode: its layers are called, and hooks on them fire."""
        return with_feature_extractor(self._networks[index].eval(), self._feature_extractor)

    @torch.no_grad()
    def logits(self, images: Tensor) -> Tensor:
        """Return logits (n, N, c) of images (N, C, H, W) in float32, on their device."""
        images = images.detach().float()
        by_vmap = images.device.type != "cpu" if self.vectorised is None else self.vectorised
        pieces = list(images.split(self.images_at_once))
        with torch.autocast(images.device.type, enabled=False):
            if self._feature_extractor is not None:
                extractor = self._feature_extractor
                if images.device.type != "cpu":
                    # A copy elsewhere: the feature extractor itself belongs to whole networks on the CPU.
                    if self._moved is None or self._moved[0] != images.device:
                        self._moved = (images.device, copy.deepcopy(extractor).to(images.device))
                    extractor = self._moved[1]
                pieces = [extractor(piece).float() for piece in pieces]
            found = self._by_vmap(pieces) if by_vmap else self._one_by_one(pieces)
        return found.float()

    def _one_by_one(self, pieces: list[Tensor]) -> Tensor:
        def ask(index: int) -> Tensor:
            # Neither is inherited by a thread.
            with torch.no_grad():
                network = self._networks[index].eval().to(pieces[0].device)
                return torch.cat([network(piece) for piece in pieces])

        with one_thread() as threads:
            workers = min(self.workers or threads, len(self))
            if workers == 1 or pieces[0].device.type != "cpu":
                return torch.stack(in_threads(ask, range(len(self)), pool=None))
            with ThreadPoolExecutor(workers) as pool:
                return torch.stack(in_threads(ask, range(len(self)), pool=pool))

    def _by_vmap(self, pieces: list[Tensor]) -> Tensor:
        def one(parameters: dict[str, Tensor], buffers: dict[str, Tensor], images: Tensor) -> Tensor:
            logits: Tensor = functional_call(self._template, (parameters, buffers), (images,))
            return logits

        call = torch.vmap(one, in_dims=(0, 0, None))
        chunks = self._on(pieces[0].device)
        return torch.cat([torch.cat([call(*chunk, piece) for piece in pieces], dim=1) for chunk in chunks])

    def _on(self, device: torch.device) -> list[tuple[dict[str, Tensor], dict[str, Tensor]]]:
        if self._stacked is None or self._stacked[0] != device:
            chunks = []
            for first in range(0, len(self), self.at_once):
                stacked = stack_module_state(self._networks[first : first + self.at_once])
                parameters, buffers = ({name: v.detach().to(device) for name, v in kind.items()} for kind in stacked)
                chunks.append((parameters, buffers))
            self._stacked = (device, chunks)
        return self._stacked[1]
