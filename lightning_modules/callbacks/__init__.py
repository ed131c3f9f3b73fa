"""Budget, guarantee, curves and images: what is attached to the fit of a data-free method."""

from lightning_modules.callbacks.figures import Curves, SyntheticImages
from lightning_modules.callbacks.privacy import PrivacyCourse, default_callbacks
from lightning_modules.callbacks.record import ResultRecord
from lightning_modules.runtime.predictions import PredictionWriter

__all__ = [
    "Curves",
    "PredictionWriter",
    "PrivacyCourse",
    "ResultRecord",
    "SyntheticImages",
    "default_callbacks",
]
