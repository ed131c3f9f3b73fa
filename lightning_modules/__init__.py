"""Lightning modules that distil a model trained on sensitive data into one that can be published."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import logging
import re
import warnings
from pathlib import Path
from typing import Any

#: Messages of Lightning's about itself that are left out, so that a run's output is readable.
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
#: Warnings that are false here. What may lose a user's data is never among them: where it is false, it is left out for
#: that file alone. `warnings.simplefilter("default")` shows them again.
_WARNED = (
    "LightningCLI's args parameter is intended to run from within Python",
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",
    r"The '\w+_dataloader' does not have many workers which may be a bottleneck",  # of images in memory
    r"The number of training batches \(\d+\) is smaller than the logging interval",  # an epoch's last step is logged
    "You're resuming from a checkpoint that ended before the epoch ended and your dataloader is",  # draws follow steps
    "There is a performance drop because we have not yet implemented the batching rule for aten::addcmul_",  # of DP-SGD
    r"Found \d+ module\(s\) in eval mode at the start of training",  # of a frozen encoder, which stays in it
)
for _name in ("pytorch.utilities.rank_zero", "fabric.utilities.rank_zero", "fabric.utilities.seed"):
    logging.getLogger(f"lightning.{_name}").addFilter(lambda record: not _SAID.search(record.getMessage()))
for _message in _WARNED:
    warnings.filterwarnings("ignore", message=_message)

#: Modules of what the package exports, by the stub beside this file. They are imported on use: Lightning takes seconds,
#: and a command's help needs none of it.
_STUB = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
_MODULES = {name.name: str(one.module) for one in _STUB.body if isinstance(one, ast.ImportFrom) for name in one.names}
__all__ = [*_MODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    if not name.startswith("_") and importlib.util.find_spec(f"{__name__}.{name}"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
