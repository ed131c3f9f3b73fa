"""Procedural priors: images drawn from a random generator alone, which cost no privacy."""

from lightning_modules.priors.base import ImagePrior, NoisePrior
from lightning_modules.priors.mixture import PRIORS, BroadPrior, GeneralPrior, MixturePrior
from lightning_modules.priors.photographs import DeadLeavesPrior, FractalPrior
from lightning_modules.priors.silhouettes import SilhouettePrior
from lightning_modules.priors.strokes import GlyphPrior, StrokePrior

__all__ = [
    "PRIORS",
    "BroadPrior",
    "DeadLeavesPrior",
    "FractalPrior",
    "GeneralPrior",
    "GlyphPrior",
    "ImagePrior",
    "MixturePrior",
    "NoisePrior",
    "SilhouettePrior",
    "StrokePrior",
]
