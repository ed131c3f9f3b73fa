"""Clients in one process: what they share, and what they do not."""

from __future__ import annotations

import torch
from support.features import linear
from support.federations import SHAPE, question, terms

from lightning_modules.federated import LocalClients


def heads(count: int, **settings: int) -> list[torch.nn.Module]:
    made = []
    for seed in range(count):
        torch.manual_seed(seed)
        made.append(linear(image_shape=SHAPE, scales=1, groups=1, **settings))
    return made


def reached(networks: list[torch.nn.Module]) -> LocalClients:
    clients = LocalClients(teachers=networks)
    clients.introductions(num_classes=10, image_shape=SHAPE)
    mechanism = {"release": "per_sample_full", "noise_multiplier": 0.0, "norm_bound": 1e-3, "delta": 1e-5}
    clients.begin(terms(noise_by="server", mechanism=mechanism), folder=None)
    return clients


def test_heads_on_one_extractor_answer_as_each_would_alone() -> None:
    networks = heads(3)
    together = reached(networks)
    assert together._share_features
    answers = together.ask(question())
    for index, network in enumerate(networks):
        alone = reached([network]).ask(question())["client-0"]
        shared = answers[f"client-{index}"]
        assert isinstance(alone, torch.Tensor) and isinstance(shared, torch.Tensor)
        assert torch.allclose(alone, shared, atol=1e-9)


def test_heads_on_different_extractors_share_nothing() -> None:
    assert not reached([*heads(1), *heads(1, angles=4)])._share_features
