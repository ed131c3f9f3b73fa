"""Baselines of DPSD's federated form (DPSD Table V): federated averaging, and distillation at the server.

None of them has a privacy guarantee: the clients' models leave them as they are, and record-level ε is infinite.
"""

from lightning_modules.baselines.fed_avg import FedAvg
from lightning_modules.baselines.fed_distillation import FedDistillation
from lightning_modules.baselines.image_terms import ImageTerms, NoisePrior

__all__ = ["FedAvg", "FedDistillation", "ImageTerms", "NoisePrior"]
