"""Mechanisms: how much a record can move, how noise is drawn, and what both are charged as."""

from privacy.mechanisms.bounding import clip_per_sample, keep_largest, normalize_per_sample, zero_non_finite_samples

__all__ = ["clip_per_sample", "keep_largest", "normalize_per_sample", "zero_non_finite_samples"]
