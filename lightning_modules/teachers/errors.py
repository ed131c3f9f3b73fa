"""The error for an unusable private teacher."""

from __future__ import annotations

__all__ = ["TeacherError"]


class TeacherError(ValueError):
    """A teacher that is missing, of another architecture, or unusable."""
