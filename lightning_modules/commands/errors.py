"""Where errors end: one line for what the user can change, a traceback for a defect, or for whoever asks for it."""

from __future__ import annotations

import re
import traceback

from lightning.fabric.utilities.exceptions import MisconfigurationException

from datamodules import MissingDataError, MissingExtraError
from datamodules.partition import PartitionError
from lightning_modules.callbacks.compiled import CompileError
from lightning_modules.commands.audit import AuditError
from lightning_modules.federated.connection import FederationError
from lightning_modules.publishing.errors import ExportError
from lightning_modules.runtime.run_folder import RunFolderError
from lightning_modules.runtime.usage import explain
from lightning_modules.teachers.private_teacher import TeacherError
from privacy.account import BudgetExceeded
from privacy.identity import CheckpointError
from privacy.ledger import LedgerError
from privacy.neighbours import IncompatibleNeighbours
from privacy.processes import ProcessesError
from sweeps.runner.documents import DocumentError
from sweeps.runner.engines import EngineError
from sweeps.runner.pipeline import PipelineError
from sweeps.runner.sweep import SweepError
from sweeps.runner.tables.spec import SpecError

__all__ = ["COMPLETE", "EXPECTED", "message_of"]

COMPLETE: tuple[type[Exception], ...] = (
    AuditError,
    BudgetExceeded,
    CheckpointError,
    CompileError,
    DocumentError,
    EngineError,
    ExportError,
    FederationError,
    IncompatibleNeighbours,
    LedgerError,
    MissingDataError,
    MissingExtraError,
    PartitionError,
    PipelineError,
    ProcessesError,
    RunFolderError,
    SpecError,
    SweepError,
    TeacherError,
)
"""Errors that say all there is to say."""

EXPECTED: tuple[type[Exception], ...] = (*COMPLETE, MisconfigurationException, OSError, ValueError)
"""Errors that end the command line with one line: a value, a setting, a file, a machine that lacks something."""

_PACKAGES = ("lightning_modules", "datamodules", "privacy", "sweeps")

# What Lightning says of itself, in the words of its settings.
_LIGHTNING = (
    (r"No supported gpu backend found", "trainer.accelerator is gpu, and this machine offers none: choose auto or cpu"),
    (
        r"CUDAAccelerator.*can not run on your system|No CUDA GPUs are available",
        "trainer.accelerator is cuda, and this machine offers no GPU: choose auto or cpu",
    ),
)


def message_of(error: Exception) -> str:
    """What is wrong in one line, without the workings of libraries; where there may be more to see, how to see it.

    Args:
        error: One of `EXPECTED`, or any other.

    >>> message_of(ValueError("bad value"))
    'bad value (--debug shows where)'
    """
    text = str(error).strip() or type(error).__name__
    for pattern, said in _LIGHTNING:
        if re.search(pattern, text):
            return said
    if isinstance(error, COMPLETE):
        return text
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror[0].lower()}{error.strerror[1:]}"
    if "Union subtypes" in text or "Parser key" in text:
        return explain(text)
    if isinstance(error, ValueError) and _raised_here(error):
        return text
    return f"{' '.join(text.split())} (--debug shows where)"


def _raised_here(error: Exception) -> bool:
    """Whether this project refused a value: its messages name the argument, and no traceback says it better."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and any(f"/{package}/" in frames[-1].filename for package in _PACKAGES)
