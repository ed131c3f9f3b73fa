"""What is done beside a fit: ε is logged, its state saved, a record, figures and predictions are written."""

from lightning_modules.callbacks.figures import SyntheticImages as SyntheticImages
from lightning_modules.callbacks.results import PredictionWriter as PredictionWriter, ResultRecord as ResultRecord
from lightning_modules.private_fit import (
    ForwardExceptions as ForwardExceptions,
    PrivacyCallback as PrivacyCallback,
)
