"""DP-MERF; and baselines of DPSD's federated form (DPSD Table V): federated averaging, and distillation at the server.

The federated baselines have no privacy guarantee: the clients' models leave the clients unchanged, and record-level ε
is infinite.
"""

from lightning_modules.baselines.dp_merf import DPMERF
from lightning_modules.baselines.fed_avg import FedAvg
from lightning_modules.baselines.fed_distillation import FedDistillation
from lightning_modules.baselines.image_terms import ImageTerms, NoisePrior

__all__ = ["DPMERF", "FedAvg", "FedDistillation", "ImageTerms", "NoisePrior"]
