"""FedDPSD, its clients with a guarantee of each, and what it is compared with."""

from __future__ import annotations

from lightning_modules.federated.client import Absence, ClientRefusal, FederatedClient, Introduction, Question, Terms
from lightning_modules.federated.connection import ClientConnection, FederationError, LocalClients
from lightning_modules.federated.fed_avg import FedAvg
from lightning_modules.federated.fed_distillation import FedDistillation, ImageTerms
from lightning_modules.federated.feddpsd import FedDPSD
from lightning_modules.federated.federation import Federation

__all__ = [
    "Absence",
    "ClientConnection",
    "ClientRefusal",
    "FedAvg",
    "FedDPSD",
    "FedDistillation",
    "FederatedClient",
    "Federation",
    "FederationError",
    "ImageTerms",
    "Introduction",
    "LocalClients",
    "Question",
    "Terms",
]
