"""Callbacks: logging of ε, checkpoints, result records, figures, predictions."""

from lightning_modules.callbacks.figures import SyntheticImages as SyntheticImages
from lightning_modules.callbacks.results import PredictionWriter as PredictionWriter, ResultRecord as ResultRecord
from lightning_modules.private_fit import (
    ForwardExceptions as ForwardExceptions,
    PrivacyCallback as PrivacyCallback,
)
