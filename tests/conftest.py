"""What every test needs, set before torch is imported: one thread, no display, no network."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("WANDB_SILENT", "true")

import hypothesis
import torch

torch.set_num_threads(1)

# The same examples each time, and no deadline: a contended machine is slow, not wrong.
hypothesis.settings.register_profile("project", deadline=None, derandomize=True)
hypothesis.settings.load_profile("project")
