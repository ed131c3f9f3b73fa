"""Sources of a run's images: a generator, a procedural prior, a public pool, or what was released before."""

from lightning_modules.images.source import Images

__all__ = ["Images"]
