"""What is done beside a fit: ε is logged, its state saved, a record, figures and predictions are written."""

from lightning_modules.callbacks.figures import SyntheticImages
from lightning_modules.callbacks.predictions import PredictionWriter
from lightning_modules.callbacks.privacy import ForwardExceptions, PrivacyCallback
from lightning_modules.callbacks.record import Curves, ResultRecord

__all__ = ["Curves", "ForwardExceptions", "PredictionWriter", "PrivacyCallback", "ResultRecord", "SyntheticImages"]
