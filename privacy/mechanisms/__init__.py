"""Mechanisms: how much a record can move, how noise is drawn, and what both are charged as."""

from privacy.deprecation import renamed_names
from privacy.mechanisms.bounding import clip_per_sample, keep_largest, normalize_per_sample, zero_non_finite_samples

__all__ = ["clip_per_sample", "keep_largest", "normalize_per_sample", "zero_non_finite_samples"]

__getattr__ = renamed_names(
    __name__,
    {
        "clip_rows": "clip_per_sample",
        "normalize_rows": "normalize_per_sample",
        "zero_non_finite_rows": "zero_non_finite_samples",
    },
)
