"""Procedural priors: images drawn from a random generator alone, which cost no privacy."""

from lightning_modules.priors.base import ImagePrior, NoisePrior, check_sample
from lightning_modules.priors.dead_leaves import DeadLeavesPrior
from lightning_modules.priors.fractals import FractalPrior
from lightning_modules.priors.glyphs import GlyphPrior
from lightning_modules.priors.mixture import MixturePrior
from lightning_modules.priors.silhouettes import SilhouettePrior
from lightning_modules.priors.strokes import StrokePrior

__all__ = [
    "DeadLeavesPrior",
    "FractalPrior",
    "GlyphPrior",
    "ImagePrior",
    "MixturePrior",
    "NoisePrior",
    "SilhouettePrior",
    "StrokePrior",
    "check_sample",
]
