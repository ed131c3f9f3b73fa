"""What networks compute of a prior's images, kept in the process for the next network that wants the same."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from lightning_modules.priors import ImagePrior

__all__ = ["Remembered"]


class Remembered:
    """The last few results of one computation, by all that decides them.

    Seconds to find, and a teacher and its student want the same. Only for what the prior's settings and the caller's
    decide, such as the prior's images by a generator of one seed.

    Args:
        kept: How many results. They stay in memory as long as the process does.
    """

    def __init__(self, kept: int = 2) -> None:
        self.kept = kept
        self._found: dict[tuple[object, ...], tuple[Tensor, ...]] = {}

    def of(self, prior: ImagePrior, *settings: object, compute: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Results of `compute`, or copies of those that it gave before.

        Copies: they become buffers, and a checkpoint that is loaded writes into those. Of a prior with settings that
        may change in place, or that compare by identity, nothing is kept.

        Args:
            prior: What the images are of.
            settings: All else that decides the result, hashable.
            compute: Called where nothing is kept.
        """
        own = sorted(vars(prior).items())
        if not all(_is_plain(value) for _, value in own):
            return compute()
        key = (type(prior), *own, *settings)
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = compute()
            while len(self._found) > self.kept:
                self._found.pop(next(iter(self._found)))
        return tuple(value.clone() for value in found)


def _is_plain(value: object) -> bool:
    """Of other settings, equality might say too little."""
    if isinstance(value, tuple):
        return all(_is_plain(part) for part in value)
    return value is None or isinstance(value, int | float | str)
