"""Type checks for data-free methods, for callbacks, which must not import the base class."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeGuard

from lightning import LightningModule

from privacy.annotators import Annotator

if TYPE_CHECKING:  # it attaches the callbacks
    from lightning_modules.base import DataFreeDistillation


def data_free(module: LightningModule) -> DataFreeDistillation:
    """Return the module of a callback as a data-free method.

    Raises:
        TypeError: It is another kind of module.
    """
    if not is_data_free(module):
        raise TypeError(f"this callback is for data-free methods, not for {type(module).__name__}")
    return module


def is_data_free(module: object) -> TypeGuard[DataFreeDistillation]:
    """Whether a module is a data-free method."""
    return hasattr(module, "published_networks") and isinstance(getattr(module, "annotator", None), Annotator)
