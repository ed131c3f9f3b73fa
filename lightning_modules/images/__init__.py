"""Sources of a run's images: a generator, procedural images, a public pool, or replay of earlier images."""

from lightning_modules.images.source import Images

__all__ = ["Images"]
