"""Networks: classifiers of teachers and students, feature extractors, generators, the VAE."""

from lightning_modules.networks.bn_statistics import logits_and_statistics
from lightning_modules.networks.building import build_network, check_network
from lightning_modules.networks.classifiers import ImageClassifier
from lightning_modules.networks.features import logits_and_features
from lightning_modules.networks.fixed_features import LinearOnFeatures, Whitening
from lightning_modules.networks.foreign import ForeignNetwork
from lightning_modules.networks.generators import DAFLGenerator
from lightning_modules.networks.kernels import Kernels
from lightning_modules.networks.patches import Patches
from lightning_modules.networks.pixel_statistics import ScaledOutput
from lightning_modules.networks.refiner import Refiner
from lightning_modules.networks.resnet import ResNet18, ResNet34
from lightning_modules.networks.scattering import Scattering
from lightning_modules.networks.small_nets import DataLensClassifier, SmallCNN, TwoConvNet
from lightning_modules.networks.vae import ConvVAE

__all__ = [
    "ConvVAE",
    "DAFLGenerator",
    "DataLensClassifier",
    "ForeignNetwork",
    "ImageClassifier",
    "Kernels",
    "LinearOnFeatures",
    "Patches",
    "Refiner",
    "ResNet18",
    "ResNet34",
    "ScaledOutput",
    "Scattering",
    "SmallCNN",
    "TwoConvNet",
    "Whitening",
    "build_network",
    "check_network",
    "logits_and_features",
    "logits_and_statistics",
]
