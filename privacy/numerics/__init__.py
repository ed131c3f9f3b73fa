"""Numerics of privacy accounting: loss distributions, Renyi divergences, the Gaussian mechanism. No project types."""
