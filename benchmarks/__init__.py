"""Measurements of speed and leaks: ``python -m benchmarks.<name>``."""
