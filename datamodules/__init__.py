"""Data modules: real images for teachers and evaluation, and step indices for data-free training."""

from __future__ import annotations

from datamodules.base import ImageDataModule
from datamodules.cifar import CIFAR10, CIFAR100
from datamodules.clients import ClientRecords, Clients
from datamodules.digits import MNIST, SVHN, Digits, FashionMNIST
from datamodules.files import MissingDataError, MissingExtraError
from datamodules.image_folder import ImageFolder
from datamodules.medmnist import MedMNIST
from datamodules.picture_sets import CelebA, COVIDx, ImageNet
from datamodules.poisson_sampled import PoissonBatches, PoissonSampled
from datamodules.records import ImageDataset
from datamodules.shadowed import Shadowed
from datamodules.shards import ShardedRecords, Shards, shard_of
from datamodules.wrapped import SyntheticSteps

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "MNIST",
    "SVHN",
    "COVIDx",
    "CelebA",
    "ClientRecords",
    "Clients",
    "Digits",
    "FashionMNIST",
    "ImageDataModule",
    "ImageDataset",
    "ImageFolder",
    "ImageNet",
    "MedMNIST",
    "MissingDataError",
    "MissingExtraError",
    "PoissonBatches",
    "PoissonSampled",
    "Shadowed",
    "ShardedRecords",
    "Shards",
    "SyntheticSteps",
    "shard_of",
]
