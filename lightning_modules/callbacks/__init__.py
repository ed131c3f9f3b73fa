"""Callbacks of data-free methods: privacy, curves, images and records."""

from lightning import Callback, Trainer

from lightning_modules.callbacks.figures import Curves, SyntheticImages
from lightning_modules.callbacks.privacy import PrivacyCourse
from lightning_modules.callbacks.record import ResultRecord
from lightning_modules.runtime.predictions import PredictionWriter, prediction_callbacks
from lightning_modules.runtime.publication import ForwardExceptions
from lightning_modules.runtime.runs import callbacks_of

__all__ = ["Curves", "PredictionWriter", "PrivacyCourse", "ResultRecord", "SyntheticImages", "default_callbacks"]


def default_callbacks(trainer: Trainer) -> list[Callback]:
    """Return the default callbacks of data-free methods that `trainer` lacks."""
    present = {type(callback) for callback in callbacks_of(trainer)}
    kinds: list[type[Callback]] = [Curves, SyntheticImages, PrivacyCourse, ForwardExceptions]
    return [*(kind() for kind in kinds if kind not in present), *prediction_callbacks(trainer)]
