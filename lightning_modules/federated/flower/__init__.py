"""Flower as the transport of a federation whose clients are on other machines. Nothing here imports flwr by itself."""

from __future__ import annotations

from lightning_modules.federated.flower.client_process import serve
from lightning_modules.federated.flower.connection import FlowerClients
from lightning_modules.federated.flower.node import Node

__all__ = ["FlowerClients", "Node", "serve"]
