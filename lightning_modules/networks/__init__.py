"""Networks: classifiers for teachers and students, feature extractors, generators and the VAE."""

from lightning_modules.networks.batchnorm import logits_and_statistics
from lightning_modules.networks.classifiers import (
    DataLensClassifier,
    ImageClassifier,
    MeanEmbedding,
    ResNet18,
    ResNet34,
    SmallCNN,
    TanhCNN,
    TwoConvNet,
    logits_and_features,
)
from lightning_modules.networks.fixed_features import LinearOnFeatures, Whitening
from lightning_modules.networks.generators import ConvVAE, DAFLGenerator, ImageGenerator, ScaledOutput
from lightning_modules.networks.kernels import Kernels
from lightning_modules.networks.network import (
    External,
    NetworkCallable,
    build_network,
    check_network,
    described,
    network_of,
)
from lightning_modules.networks.patches import Patches
from lightning_modules.networks.scattering import Scattering

__all__ = [
    "ConvVAE",
    "DAFLGenerator",
    "DataLensClassifier",
    "External",
    "ImageClassifier",
    "ImageGenerator",
    "Kernels",
    "LinearOnFeatures",
    "MeanEmbedding",
    "NetworkCallable",
    "Patches",
    "ResNet18",
    "ResNet34",
    "ScaledOutput",
    "Scattering",
    "SmallCNN",
    "TanhCNN",
    "TwoConvNet",
    "Whitening",
    "build_network",
    "check_network",
    "described",
    "logits_and_features",
    "logits_and_statistics",
    "network_of",
]
