"""Data modules: real images for teachers and for evaluation, and step indices for data-free training."""

from __future__ import annotations

from datamodules.base import ImageDataModule
from datamodules.celeba import CelebA
from datamodules.cifar import CIFAR10, CIFAR100
from datamodules.clients import ClientRecords, Clients, client_of
from datamodules.digits import Digits
from datamodules.errors import MissingDataError, MissingExtraError
from datamodules.image_folder import ImageFolder
from datamodules.imagenet import ImageNet
from datamodules.images import ImageDataset
from datamodules.latent import Latent
from datamodules.medmnist import MedMNIST
from datamodules.mnist import MNIST, FashionMNIST
from datamodules.planted import Planted
from datamodules.poisson import Poisson, PoissonBatches
from datamodules.radiography import COVIDx
from datamodules.shards import ShardedRecords, Shards, shard_of
from datamodules.svhn import SVHN

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
    "Latent",
    "MedMNIST",
    "MissingDataError",
    "MissingExtraError",
    "Planted",
    "Poisson",
    "PoissonBatches",
    "ShardedRecords",
    "Shards",
    "client_of",
    "shard_of",
]
