"""Data modules: real images for teachers and for evaluation, and step indices for data-free training."""

from __future__ import annotations

from datamodules.base import ImageDataModule
from datamodules.digits import Digits
from datamodules.errors import MissingDataError
from datamodules.images import ImageDataset
from datamodules.latent import Latent
from datamodules.mnist import MNIST, FashionMNIST
from datamodules.planted import Planted
from datamodules.poisson import Poisson, PoissonBatches
from datamodules.shards import ShardedRecords, Shards, shard_of

__all__ = [
    "MNIST",
    "Digits",
    "FashionMNIST",
    "ImageDataModule",
    "ImageDataset",
    "Latent",
    "MissingDataError",
    "Planted",
    "Poisson",
    "PoissonBatches",
    "ShardedRecords",
    "Shards",
    "shard_of",
]
