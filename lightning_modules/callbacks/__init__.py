"""Callbacks of data-free methods: budget and guarantee, curves, images and records."""

from lightning_modules.callbacks.figures import Curves, SyntheticImages
from lightning_modules.callbacks.privacy import PrivacyCourse, default_callbacks
from lightning_modules.callbacks.record import ResultRecord
from lightning_modules.runtime.predictions import PredictionWriter

__all__ = ["Curves", "PredictionWriter", "PrivacyCourse", "ResultRecord", "SyntheticImages", "default_callbacks"]
