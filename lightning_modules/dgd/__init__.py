"""DGD: its four phases, the queries and their choice, and the unsupervised terms."""

from lightning_modules.dgd.dgd import DGD as DGD
