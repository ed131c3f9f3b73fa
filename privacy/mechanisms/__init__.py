"""Mechanisms: how much a record can move, how noise is drawn, and what both are charged as."""

from privacy.mechanisms.bounding import clip_rows, keep_largest, normalize_rows, zero_non_finite_rows

__all__ = ["clip_rows", "keep_largest", "normalize_rows", "zero_non_finite_rows"]
