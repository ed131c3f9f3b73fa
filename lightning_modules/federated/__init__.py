"""The clients of a federation: the questions to them, their answers, and how the server reaches them."""

from __future__ import annotations

from lightning_modules.federated.client import ClientRefusal, FederatedClient
from lightning_modules.federated.connection import ClientConnection, FederationError
from lightning_modules.federated.federation import Federation
from lightning_modules.federated.flower import FlowerClients
from lightning_modules.federated.local import LocalClients
from lightning_modules.federated.messages import Absence, Introduction, Question, Terms

__all__ = [
    "Absence",
    "ClientConnection",
    "ClientRefusal",
    "FederatedClient",
    "Federation",
    "FederationError",
    "FlowerClients",
    "Introduction",
    "LocalClients",
    "Question",
    "Terms",
]
