"""Caches of features and filters shared by the networks of a process, and digests that compare modules."""

from __future__ import annotations

import hashlib
import pickle
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from uuid import uuid4

import torch
from torch import Tensor, nn
from torch.func import debug_unwrap

from datamodules.records import bytes_of
from lightning_modules.priors import ImagePrior

_OF_EVERY_MODULE = vars(nn.Module()).keys()


def digest_of(module: nn.Module, *, trained: bool = True) -> str:
    """SHA-256 of a module's class, parts, settings, weights (those to be trained if `trained`) and all its buffers.

    Settings are the `extra_repr` and the attributes of the module and each submodule. Attributes other than numbers,
    text and tensors count by a hash of their pickled bytes; one that cannot be pickled never equals another.
    """
    state = hashlib.sha256()
    for name, part in module.named_modules():
        state.update(f"{name}: {type(part).__module__}.{type(part).__qualname__} {part.extra_repr()}".encode())
        for key, value in sorted(vars(part).items()):
            if key not in _OF_EVERY_MODULE:
                state.update(f"\n{key} = {_said(value)}\n".encode())
    for name, value in chain(module.named_parameters(), module.named_buffers()):
        if trained or not value.requires_grad:
            state.update(f"\n{name} {value.dtype} {tuple(value.shape)} ".encode())
            state.update(bytes_of(value))
    return state.hexdigest()


def _said(value: object) -> str:
    if _is_plain(value):
        return repr(value)
    # The repr of a tensor, an array or a fitted model leaves most of it out.
    if isinstance(value, Tensor):
        return f"{value.dtype} {value.tolist()}"
    try:
        return hashlib.sha256(pickle.dumps(value)).hexdigest()
    except Exception:  # an object may raise anything
        return str(uuid4())


class FeatureMemory:
    """Cache of image features, keyed by the contents of feature extractor and image.

    The key is a SHA-256 of the extractor's settings, weights and buffers and of the image. Features of private images
    are private: they stay in this process's memory. The cache is only used for float32 images on the CPU, where
    features are slow to compute. It stores and returns them rounded to float16, from the first call on, which changes
    each by at most one part in two thousand.

    Args:
        most_bytes: Size beyond which everything is dropped.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.held_bytes = 0
        self._entries: dict[bytes, Tensor] = {}
        self._digests: weakref.WeakKeyDictionary[nn.Module, tuple[object, str]] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()  # features are computed by several threads

    def of(self, extractor: nn.Module, images: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
        """Returns cached features of images (N, C, H, W); `compute`, which maps each by itself, gives missing ones."""
        plain = images.device.type == "cpu" and images.dtype == torch.float32 and not images.requires_grad
        if not plain or not len(images) or torch.is_autocast_enabled("cpu"):
            return compute(images)
        keys = self._keys(extractor, images)
        with self._lock:
            rows = [self._entries.get(key) for key in keys]
        missing = [number for number, row in enumerate(rows) if row is None]
        if missing:
            computed = compute(images if len(missing) == len(images) else images[missing])
            with self._lock:
                for number, row in zip(missing, computed.half(), strict=True):
                    rows[number] = row
                    if keys[number] not in self._entries:
                        self._entries[keys[number]] = row
                        self.held_bytes += row.nbytes
                if self.held_bytes > self.most_bytes:
                    self._entries.clear()
                    self.held_bytes = 0
        return torch.stack([row for row in rows if row is not None]).float()

    def _keys(self, extractor: nn.Module, images: Tensor) -> list[bytes]:
        values = [*extractor.parameters(), *extractor.buffers()]
        # Loading a checkpoint writes into them, which increases their version.
        now = [(value.data_ptr(), value._version) for value in values]
        with self._lock:
            known = self._digests.get(extractor)
            if known is None or known[0] != now:
                known = self._digests[extractor] = (now, digest_of(extractor))
        common = hashlib.sha256(f"{known[1]} {tuple(images.shape[1:])} ".encode())
        keys = []
        content, size = bytes_of(images), images[0].nbytes
        for start in range(0, len(images) * size, size):
            key = common.copy()
            key.update(content[start : start + size])
            keys.append(key.digest())
        return keys


_memory: list[FeatureMemory] = []


@contextmanager
def feature_memory(most_bytes: int = 4 * 2**30) -> Iterator[FeatureMemory]:
    """Caches outputs of this process's feature extractors within the block; nested blocks share the outer cache."""
    memory = _memory[-1] if _memory else FeatureMemory(most_bytes)
    _memory.append(memory)
    try:
        yield memory
    finally:
        _memory.pop()


def remembered_features(extractor: nn.Module, images: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
    """Returns `FeatureMemory.of`, or `compute(images)` outside a `feature_memory` block or within `torch.func.vmap`."""
    if not _memory or debug_unwrap(images) is not images:  # within vmap, no image has bytes of its own
        return compute(images)
    return _memory[-1].of(extractor, images, compute)


_cache: dict[tuple[object, ...], tuple[Tensor, ...]] = {}
_KEPT = 6


def compute_once(prior: ImagePrior, *settings: object, compute: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """Returns the tensors that `compute` derives from a prior's images, cached for the process.

    They take seconds to compute, and a teacher and its student need the same ones. Callers get copies, since the
    tensors become buffers, into which loading a checkpoint writes. Nothing is cached for a prior with settings that are
    mutable or compare by identity.

    Args:
        prior: Draws the images, always with the same seed.
        settings: Everything else that the result depends on, hashable, starting with a name for the result.
        compute: Called if the result is not cached.
    """
    own = sorted(vars(prior).items())
    if not all(_is_plain(value) for _, value in own):
        return compute()
    key = (type(prior), *own, *settings)
    if key not in _cache:
        _cache[key] = compute()
        while len(_cache) > _KEPT:
            _cache.pop(next(iter(_cache)))
    return tuple(value.clone() for value in _cache[key])


def _is_plain(value: object) -> bool:
    """Whether a value is immutable and compares by value."""
    if isinstance(value, tuple):
        return all(_is_plain(part) for part in value)
    return value is None or isinstance(value, int | float | str)
