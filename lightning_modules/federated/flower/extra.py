"""Flower, where it is installed."""

from __future__ import annotations

import importlib
import importlib.util
import os
import threading

from lightning_modules.federated.connection import FederationError

__all__ = ["require_flower"]

_importing = threading.Lock()


def require_flower(whose: str) -> None:
    """Imports it, refuses before any work where it is missing, switches off what it would report to its makers.

    Args:
        whose: What needs it.

    Raises:
        FederationError: With what to install.
    """
    if importlib.util.find_spec("flwr") is None:
        raise FederationError(
            f"{whose} needs the package flwr, which is not installed: pip install 'private-model-transcription[flower]'"
        )
    # Read when flwr is imported. Who takes part in a federation of private data is not shared with third parties.
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    # Its parts import each other in a circle, which two threads of one process cannot do at the same time.
    with _importing:
        importlib.import_module("flwr")
