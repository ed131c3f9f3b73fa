from __future__ import annotations

from support.fixtures import folder, quick_figures, quick_whitening, trained_teacher

__all__ = ["folder", "quick_figures", "quick_whitening", "trained_teacher"]
