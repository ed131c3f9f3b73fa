"""Federations of small clients in one process, as a script makes them."""

from __future__ import annotations

from typing import Any

import torch
from lightning import seed_everything
from support.runs import fit_script
from support.short_names import grouped
from torch import nn

from lightning_modules import FedDPSD
from lightning_modules.federated import FederatedClient, LocalClients, Question, Terms
from lightning_modules.networks import SmallCNN
from lightning_modules.teachers.private_teacher import PrivateTeacher
from privacy.mechanisms import NoisyGradients, NoisyLabels
from privacy.mechanisms.base import NoiseSource, ReproducibleNoise

SHAPE = (1, 8, 8)
BATCH_SIZE = 8


def small_network(seed: int) -> nn.Module:
    """A classifier of the digits that has learnt nothing."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return SmallCNN(num_classes=10, image_shape=SHAPE, width=4, hidden=16)


def small_networks(count: int) -> list[nn.Module]:
    """`count` different ones."""
    return [small_network(seed) for seed in range(count)]


def reproducible(number: int) -> NoiseSource:
    """Noise that each client draws by itself, the same in every run."""
    return ReproducibleNoise(seed=100 + number)


def _small_student(num_classes: int, image_shape: tuple[int, int, int]) -> SmallCNN:
    return SmallCNN(num_classes, image_shape, width=4, hidden=16)


def federated(clients: LocalClients | list[nn.Module], *, steps: int = 2, **model: Any) -> FedDPSD:
    """A fit of some rounds with a small student, nothing written."""
    seed_everything(3, verbose=False)
    reached = clients if isinstance(clients, LocalClients) else LocalClients(teachers=clients)
    module = FedDPSD(
        num_classes=10,
        image_shape=SHAPE,
        batch_size=BATCH_SIZE,
        clients=reached,
        **grouped(FedDPSD, **{"student": _small_student, "images": "prior", **model}),
    )
    fit_script(module, steps=steps, batch_size=BATCH_SIZE)
    return module


def terms(mechanism: NoisyGradients | NoisyLabels | None = None, **changed: Any) -> Terms:
    """What a run asks: gradients with each client's own noise, unless another mechanism is given."""
    asked = mechanism or NoisyGradients(release="per_sample_full", noise_multiplier=20.0)
    shape: Any = {"batch_size": BATCH_SIZE, "num_classes": 10, "image_shape": SHAPE}
    return Terms(**{"run": "aa" * 16, "mechanism": asked, "delta": 1e-5, "calls": 5, **shape, **changed})


def question(number: int = 0, **changed: Any) -> Question:
    """A round's question about images that are the same for one number."""
    draw = torch.Generator().manual_seed(number)
    images = torch.rand(BATCH_SIZE, *SHAPE, generator=draw) * 2 - 1
    outputs = torch.randn(BATCH_SIZE, 10, generator=draw)
    return Question(**{"images": images, "outputs": outputs, **changed})


def client(network: nn.Module | None = None, *, name: str = "one", **settings: Any) -> FederatedClient:
    """A client whose ledger is kept in memory unless `ledger` names a file."""
    teacher = PrivateTeacher(network or small_network(0), private_data=f"records of {name}")
    return FederatedClient(name=name, teacher=teacher, **settings)
