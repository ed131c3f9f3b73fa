"""Type of the data-free methods, for callbacks: they must not import the base class."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeGuard

from lightning import LightningModule

from privacy.annotators import Annotator

if TYPE_CHECKING:  # it attaches the callbacks
    from lightning_modules.base import DataFreeDistillation


def data_free(module: LightningModule) -> DataFreeDistillation:
    """The module that a callback was attached to, if it is one that it is for.

    Raises:
        TypeError: It is another kind of module.
    """
    if not is_data_free(module):
        raise TypeError(f"this callback is for data-free methods, not for {type(module).__name__}")
    return module


def is_data_free(module: object) -> TypeGuard[DataFreeDistillation]:
    """Whether a module is a data-free method."""
    return hasattr(module, "published_networks") and isinstance(getattr(module, "annotator", None), Annotator)
