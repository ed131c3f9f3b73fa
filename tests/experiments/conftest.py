from __future__ import annotations

from support.fixtures import here

__all__ = ["here"]
