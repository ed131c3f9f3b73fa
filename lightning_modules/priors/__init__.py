"""Procedural priors: images drawn from a random generator alone, which cost no privacy."""

from lightning_modules.priors.base import ImagePrior as ImagePrior, NoisePrior as NoisePrior
from lightning_modules.priors.mixture import (
    PRIORS as PRIORS,
    BroadPrior as BroadPrior,
    GeneralPrior as GeneralPrior,
    MixturePrior as MixturePrior,
)
from lightning_modules.priors.photographs import DeadLeavesPrior as DeadLeavesPrior, FractalPrior as FractalPrior
from lightning_modules.priors.silhouettes import SilhouettePrior as SilhouettePrior
from lightning_modules.priors.strokes import GlyphPrior as GlyphPrior, StrokePrior as StrokePrior
