"""Errors of runs that cannot be exported."""

from __future__ import annotations

__all__ = ["ExportError"]


class ExportError(ValueError):
    """A run that must not, or cannot, be exported as requested; nothing was written."""
