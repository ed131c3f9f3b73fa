"""Features that fits of one process have in common, computed once: teachers at several ε, and their students."""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from lightning_modules.networks.comparing import bytes_of, digest_of

__all__ = ["FeatureMemory", "feature_memory", "remembered_features"]


class FeatureMemory:
    """What extractors made of batches of images, found again by what both hold.

    An entry is known by the SHA-256 of the extractor's settings, weights and buffers and by that of the images, so that
    it is never of another extractor or of other images. Features of private images are private: they stay in this
    process's memory. On the CPU alone, where computing them is what takes long.

    Args:
        most_bytes: What all entries may take; those that were asked for longest ago are let go of first.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.held_bytes = 0
        self._entries: OrderedDict[bytes, Tensor] = OrderedDict()
        self._digests: weakref.WeakKeyDictionary[nn.Module, tuple[object, str]] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()  # features are computed by several threads

    def of(self, extractor: nn.Module, images: Tensor, compute: Callable[[], Tensor]) -> Tensor:
        """Features of `images`: what `compute` gives, or a copy of what it gave before.

        Args:
            extractor: Maps each image by itself, without gradients.
            images: (N, C, H, W).
            compute: Called where nothing is remembered.
        """
        if images.device.type != "cpu" or images.requires_grad:
            return compute()
        key = self._key(extractor, images)
        with self._lock:
            found = self._entries.get(key)
            if found is not None:
                self._entries.move_to_end(key)
        if found is not None:
            return found.clone()  # whoever writes into it changes no other fit
        features = compute()
        with self._lock:
            if key not in self._entries:
                self._entries[key] = features.clone()
                self.held_bytes += features.nbytes
            while self.held_bytes > self.most_bytes:
                self.held_bytes -= self._entries.popitem(last=False)[1].nbytes
        return features

    def _key(self, extractor: nn.Module, images: Tensor) -> bytes:
        values = [*extractor.parameters(), *extractor.buffers()]
        # A checkpoint that is loaded writes into them, which counts up their version.
        now = [(value.data_ptr(), value._version) for value in values]
        with self._lock:
            known = self._digests.get(extractor)
            if known is None or known[0] != now:
                known = self._digests[extractor] = (now, digest_of(extractor))
        precision = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
        key = hashlib.sha256(f"{known[1]} {precision} {images.dtype} {tuple(images.shape)} ".encode())
        key.update(bytes_of(images))
        return key.digest()


_memory: list[FeatureMemory] = []


@contextmanager
def feature_memory(most_bytes: int = 4 * 2**30) -> Iterator[FeatureMemory]:
    """Lets the extractors of this process remember, until it ends; nothing is remembered without."""
    memory = FeatureMemory(most_bytes)
    _memory.append(memory)
    try:
        yield memory
    finally:
        _memory.remove(memory)


def remembered_features(extractor: nn.Module, images: Tensor, compute: Callable[[], Tensor]) -> Tensor:
    """See `FeatureMemory.of`; outside of `feature_memory` what `compute` gives."""
    return _memory[-1].of(extractor, images, compute) if _memory else compute()
