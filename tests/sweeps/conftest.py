from __future__ import annotations

from support.fixtures import folder, here, quick_figures, quick_whitening, trained_teacher

__all__ = ["folder", "here", "quick_figures", "quick_whitening", "trained_teacher"]
