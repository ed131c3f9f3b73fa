"""Networks: classifiers for teachers and students, feature extractors, generators and the VAE."""

from lightning_modules.networks.classifiers import (
    DataLensClassifier as DataLensClassifier,
    ImageClassifier as ImageClassifier,
    MeanEmbedding as MeanEmbedding,
    ResNet18 as ResNet18,
    ResNet34 as ResNet34,
    SmallCNN as SmallCNN,
    TanhCNN as TanhCNN,
    TwoConvNet as TwoConvNet,
    logits_and_features as logits_and_features,
)
from lightning_modules.networks.fixed_features import LinearOnFeatures as LinearOnFeatures, Whitening as Whitening
from lightning_modules.networks.generators import (
    ConvVAE as ConvVAE,
    DAFLGenerator as DAFLGenerator,
    ImageGenerator as ImageGenerator,
)
from lightning_modules.networks.kernels import Kernels as Kernels
from lightning_modules.networks.network import (
    External as External,
    NetworkCallable as NetworkCallable,
    build_network as build_network,
)
from lightning_modules.networks.patches import Patches as Patches
from lightning_modules.networks.scattering import Scattering as Scattering
