"""Leaves out what Lightning says of itself, so that a run's output is readable."""

from __future__ import annotations

import logging
import re
import warnings

_SAID = re.compile(
    "|".join(
        (
            "An (KeyboardInterrupt|SIGTERMException) was raised with message",  # the command that resumes is printed
            "Tip: For seamless cloud",  # an advertisement
            "(GPU|TPU|HPU) available:",
            "Loading `train_dataloader` to estimate",
            r"`Trainer\.fit` stopped: `max_(epochs|steps)=",
            "Restored all states from the checkpoint|Restoring states from the checkpoint path",
            "Seed set to",
            "Trainer already configured with model summary",
        )
    )
)
# False here, or about deliberate choices of this project.
_WARNED = (
    "LightningCLI.s args",
    ".*LeafSpec",
    ".*does not have many workers",
    "The number of training",
    r"Be aware that when using `ckpt_path`, callbacks",  # of a fit, which test and predict have no use for
    "The dirpath has changed from",  # as it does for test and predict
    r"(Checkpoint directory|Experiment logs directory) .* exists and is not empty",
    "There is a performance drop because we have not yet implemented the batching rule",  # of DP-SGD, for addcmul_
    r"Found \d+ module\(s\) in eval mode at the start of training",  # of a frozen encoder, which stays in it
)


def quiet() -> None:
    """Filters messages on import of the package; `warnings.simplefilter("default")` shows warnings again."""
    for name in ("pytorch.utilities.rank_zero", "fabric.utilities.rank_zero", "fabric.utilities.seed"):
        logging.getLogger(f"lightning.{name}").addFilter(lambda record: not _SAID.search(record.getMessage()))
    for message in _WARNED:
        warnings.filterwarnings("ignore", message=message)
