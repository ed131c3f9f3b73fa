"""Measurements of speed; each module runs on its own: ``python -m benchmarks.<name>``."""
