"""What is done beside a fit: ε is logged, its state saved, a record, figures and predictions are written."""

from lightning_modules.callbacks.figures import SyntheticImages
from lightning_modules.callbacks.privacy import ForwardExceptions, PrivacyCallback
from lightning_modules.callbacks.results import PredictionWriter, ResultRecord

__all__ = ["ForwardExceptions", "PredictionWriter", "PrivacyCallback", "ResultRecord", "SyntheticImages"]
