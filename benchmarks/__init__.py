"""Measurements of speed: ``python -m benchmarks.<name>``."""
