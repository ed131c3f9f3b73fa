"""Budget, guarantee, curves and images: what is attached to the fit of a data-free method."""

from lightning_modules.callbacks.budget import BudgetStop
from lightning_modules.callbacks.curves import Curves
from lightning_modules.callbacks.defaults import default_callbacks
from lightning_modules.callbacks.guarantee import GuaranteeWriter
from lightning_modules.callbacks.record import ResultRecord
from lightning_modules.callbacks.synthetic_images import SyntheticImages
from lightning_modules.runtime.predictions import PredictionWriter

__all__ = [
    "BudgetStop",
    "Curves",
    "GuaranteeWriter",
    "PredictionWriter",
    "ResultRecord",
    "SyntheticImages",
    "default_callbacks",
]
