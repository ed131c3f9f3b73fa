"""The networks of an ensemble: how each is built, and the fixed features that all of them share."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lightning_modules.networks import NetworkCallable, build_network
from lightning_modules.networks.stacked import fixed_extractor, without_feature_extractor
from lightning_modules.training.randomness import key


class EnsembleNetworks:
    """Builds teachers that differ only in their initial weights, without the fixed feature extractor they share.

    Raises:
        ValueError: A network that does not give c logits for such an image, or whose feature extractor has weights.

    Attributes:
        feature_extractor: Shared by all teachers, so that features are computed once; None if they take images.
        random: Whether a teacher draws random numbers while it is trained (dropout).
    """

    def __init__(self, spec: NetworkCallable, *, num_classes: int, image_shape: tuple[int, int, int]) -> None:
        self._spec = spec
        self._num_classes = num_classes
        self._image_shape = image_shape
        whole = self._built(seed=0, teacher=0)
        self.random = _draws_at_random(whole, image_shape=image_shape)
        network, self.feature_extractor = without_feature_extractor(whole)
        extractor = fixed_extractor(network)
        if extractor is not None and extractor.state_dict():
            raise ValueError(f"model.network: {type(extractor).__name__} has weights or buffers: leave out whitening")

    def fresh(self, *, seed: int, teacher: int) -> nn.Module:
        """The teacher of this number with its initial weights of this seed."""
        return without_feature_extractor(self._built(seed=seed, teacher=teacher))[0]

    def _built(self, *, seed: int, teacher: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(key(seed, 0, teacher, "teacher"))
            return build_network(
                self._spec, num_classes=self._num_classes, image_shape=self._image_shape, name="model.network"
            )

    def restored(self, states: Iterable[Mapping[str, Any]]) -> list[nn.Module]:
        """Teachers with these states, in evaluation mode."""
        networks = []
        for state in states:
            network = self.fresh(seed=0, teacher=0)
            network.load_state_dict(state)
            networks.append(network.eval().requires_grad_(False))
        return networks


def unstacked(states: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    """Inverse of `stack_states`: a state for each network."""
    count = len(next(iter(states.values()))) if states else 0
    return [{name: values[index] for name, values in states.items()} for index in range(count)]


def _draws_at_random(network: nn.Module, *, image_shape: tuple[int, int, int]) -> bool:
    copied = copy.deepcopy(network).train()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        images = torch.randn(2, *image_shape)  # of blank ones it might mask nothing
        before = torch.get_rng_state()
        copied(images)
        return not torch.equal(before, torch.get_rng_state())
