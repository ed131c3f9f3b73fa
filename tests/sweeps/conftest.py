from __future__ import annotations

from support.fixtures import folder, quick_figures, trained_teacher

__all__ = ["folder", "quick_figures", "trained_teacher"]
