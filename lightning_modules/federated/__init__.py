"""FedDPSD, its clients with a guarantee of each, and what it is compared with."""

from lightning_modules.federated.client import (
    Absence as Absence,
    ClientRefusal as ClientRefusal,
    FederatedClient as FederatedClient,
    Introduction as Introduction,
    Question as Question,
    Terms as Terms,
)
from lightning_modules.federated.connection import (
    ClientConnection as ClientConnection,
    FederationError as FederationError,
    LocalClients as LocalClients,
)
from lightning_modules.federated.fed_avg import FedAvg as FedAvg
from lightning_modules.federated.fed_distillation import FedDistillation as FedDistillation, ImageTerms as ImageTerms
from lightning_modules.federated.feddpsd import FedDPSD as FedDPSD, Federation as Federation
