"""Top-level error handling: one line for what the user can change, a traceback for a defect."""

from __future__ import annotations

import traceback

from lightning_modules.cli.parsers import explain

_PACKAGES = ("lightning_modules", "datamodules", "privacy", "sweeps")


def expected(error: Exception) -> bool:
    """Whether the user can change its cause: a value, a setting, a file, a machine that lacks something."""
    return (
        _ours(error) or isinstance(error, (OSError, ValueError)) or type(error).__name__ == "MisconfigurationException"
    )


def _ours(error: Exception) -> bool:
    return type(error).__module__.partition(".")[0] in _PACKAGES


def message_of(error: Exception) -> str:
    """What is wrong in one line, without the workings of libraries; where there may be more to see, how to see it.

    >>> message_of(ValueError("bad value"))
    'bad value (--debug shows where)'
    """
    text = str(error).strip() or type(error).__name__
    if _ours(error):
        return text
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror[0].lower()}{error.strerror[1:]}"
    if "Union subtypes" in text or "Parser key" in text:
        return explain(text)
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, ValueError) and frames and any(f"/{one}/" in frames[-1].filename for one in _PACKAGES):
        return text  # it names the argument already
    return f"{' '.join(text.split())} (--debug shows where)"
