"""Filters Lightning's messages about itself, so that a run's output is readable."""

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
# False here. What may lose a user's data is never among them: where it is false, it is left out for that file alone.
_WARNED = (
    "LightningCLI's args parameter is intended to run from within Python",
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",
    r"The '\w+_dataloader' does not have many workers which may be a bottleneck",  # of images in memory
    r"The number of training batches \(\d+\) is smaller than the logging interval",  # an epoch's last step is logged
    "You're resuming from a checkpoint that ended before the epoch ended and your dataloader is",  # draws follow steps
    "There is a performance drop because we have not yet implemented the batching rule for aten::addcmul_",  # of DP-SGD
    r"Found \d+ module\(s\) in eval mode at the start of training",  # of a frozen encoder, which stays in it
)
#: Of test and predict, which have no use for a fit's callbacks.
_OF_A_FIT = ("Be aware that when using `ckpt_path`, callbacks used to create", "The dirpath has changed from")


def quiet() -> None:
    """Filters messages on import of the package; `warnings.simplefilter("default")` shows warnings again."""
    for name in ("pytorch.utilities.rank_zero", "fabric.utilities.rank_zero", "fabric.utilities.seed"):
        logging.getLogger(f"lightning.{name}").addFilter(lambda record: not _SAID.search(record.getMessage()))
    for message in _WARNED:
        warnings.filterwarnings("ignore", message=message)


def quiet_evaluation() -> None:
    """Filters what Lightning says of a fit's callbacks, which `test` and `predict` are not given."""
    for message in _OF_A_FIT:
        warnings.filterwarnings("ignore", message=message)
