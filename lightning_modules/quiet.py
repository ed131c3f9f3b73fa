"""Suppresses Lightning's own messages, so that a run's output is readable."""

from __future__ import annotations

import logging
import re
import warnings

_SAID = re.compile(
    "|".join(
        (
            "An (KeyboardInterrupt|SIGTERMException) was raised with message",  # the command that resumes is printed
            "Tip: For seamless cloud",  # advertisements
            "(GPU|TPU|HPU) available:",
            "Loading `train_dataloader` to estimate",
            r"`Trainer\.fit` stopped: `max_(epochs|steps)=",
            "Restored all states from the checkpoint",
            "Restoring states from the checkpoint path",
            "Seed set to",
            "Trainer already configured with model summary",
        )
    )
)
# Messages for developers, or about deliberate choices of this project.
_WARNED = (
    "LightningCLI.s args",
    ".*LeafSpec",
    ".*does not have many workers",
    "The number of training",
    r"Be aware that when using `ckpt_path`, callbacks",  # of a fit, which test and predict have no use for
    "The dirpath has changed from",  # as it does for test and predict
    r"Checkpoint directory .* exists and is not empty",
    r"Experiment logs directory .* exists and is not empty",
    "There is a performance drop because we have not yet implemented the batching rule",  # of DP-SGD, for addcmul_
    r"Found \d+ module\(s\) in eval mode at the start of training",  # of a frozen encoder, which stays in it
)
_LOGGERS = (
    "lightning.pytorch.utilities.rank_zero",
    "lightning.fabric.utilities.rank_zero",
    "lightning.fabric.utilities.seed",
)


def _is_shown(record: logging.LogRecord) -> bool:
    return not _SAID.search(record.getMessage())


def quiet() -> None:
    """Filters messages on import of the package; `warnings.simplefilter("default")` shows warnings again."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_is_shown)
    for message in _WARNED:
        warnings.filterwarnings("ignore", message=message)
