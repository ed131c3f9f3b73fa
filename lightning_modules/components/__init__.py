"""Networks, image priors and losses that the methods are built of."""

from lightning_modules.components.bn_statistics import logits_and_statistics
from lightning_modules.components.candidates import (
    CandidateSchedule,
    ConfidentCandidates,
    FixedCandidates,
    LinearCandidates,
)
from lightning_modules.components.classifiers import ImageClassifier
from lightning_modules.components.dead_leaves import DeadLeavesPrior
from lightning_modules.components.features import logits_and_features
from lightning_modules.components.fractals import FractalPrior
from lightning_modules.components.generators import DAFLGenerator
from lightning_modules.components.gradients import GradientPrior
from lightning_modules.components.mixture import MixturePrior
from lightning_modules.components.networks import build_network, check_network
from lightning_modules.components.priors import ImagePrior, StrokePrior
from lightning_modules.components.refiner import Refiner
from lightning_modules.components.resnet import ResNet18, ResNet34
from lightning_modules.components.scattering import Scattering2d, ScatteringClassifier
from lightning_modules.components.silhouettes import SilhouettePrior
from lightning_modules.components.small_nets import DataLensClassifier, SmallCNN, TwoConvNet
from lightning_modules.components.vae import ConvVAE
from lightning_modules.components.whitening import WhitenedScatteringClassifier

__all__ = [
    "CandidateSchedule",
    "ConfidentCandidates",
    "ConvVAE",
    "DAFLGenerator",
    "DataLensClassifier",
    "DeadLeavesPrior",
    "FixedCandidates",
    "FractalPrior",
    "GradientPrior",
    "ImageClassifier",
    "ImagePrior",
    "LinearCandidates",
    "MixturePrior",
    "Refiner",
    "ResNet18",
    "ResNet34",
    "Scattering2d",
    "ScatteringClassifier",
    "SilhouettePrior",
    "SmallCNN",
    "StrokePrior",
    "TwoConvNet",
    "WhitenedScatteringClassifier",
    "build_network",
    "check_network",
    "logits_and_features",
    "logits_and_statistics",
]
