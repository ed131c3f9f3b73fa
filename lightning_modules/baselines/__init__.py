"""What DPSD's federated form is compared with (DPSD Table V): federated averaging, and distillation at the server.

None of them has a privacy guarantee: the clients' models leave them as they are, and record-level ε is infinite.
"""

from lightning_modules.baselines.dense import DENSE
from lightning_modules.baselines.fed_adi import FedADI
from lightning_modules.baselines.fed_avg import FedAvg
from lightning_modules.baselines.fed_dafl import FedDAFL
from lightning_modules.baselines.fed_df import FedDF

__all__ = ["DENSE", "FedADI", "FedAvg", "FedDAFL", "FedDF"]
