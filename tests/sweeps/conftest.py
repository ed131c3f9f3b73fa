from __future__ import annotations

from support.fixtures import folder, here, quick_exports, quick_figures, quick_whitening, trained_teacher, with_onnx

__all__ = ["folder", "here", "quick_exports", "quick_figures", "quick_whitening", "trained_teacher", "with_onnx"]
