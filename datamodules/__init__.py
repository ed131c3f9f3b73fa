"""Data modules: real images for teachers and evaluation, and step indices for data-free training."""

from datamodules.base import ImageDataModule as ImageDataModule
from datamodules.cifar import CIFAR10 as CIFAR10, CIFAR100 as CIFAR100
from datamodules.clients import ClientRecords as ClientRecords, Clients as Clients
from datamodules.digits import MNIST as MNIST, SVHN as SVHN, Digits as Digits, FashionMNIST as FashionMNIST
from datamodules.files import MissingDataError as MissingDataError
from datamodules.image_folder import ImageFolder as ImageFolder
from datamodules.medmnist import MedMNIST as MedMNIST
from datamodules.picture_sets import CelebA as CelebA, COVIDx as COVIDx, ImageNet as ImageNet
from datamodules.poisson_sampled import PoissonBatches as PoissonBatches, PoissonSampled as PoissonSampled
from datamodules.records import ImageDataset as ImageDataset
from datamodules.shadowed import Shadowed as Shadowed
from datamodules.shards import ShardedRecords as ShardedRecords, Shards as Shards, shard_of as shard_of
from datamodules.wrapped import SyntheticSteps as SyntheticSteps
