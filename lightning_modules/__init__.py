"""Lightning modules that turn a model trained on sensitive data into one that can be published."""

from __future__ import annotations

from lightning_modules.dgd import DGD
from lightning_modules.distillation import DataFreeDistillation
from lightning_modules.dp_teacher import DPSGDTeacher
from lightning_modules.dpdfd import DPDFD
from lightning_modules.dpsd import DPSD
from lightning_modules.ensemble import TeacherEnsemble
from lightning_modules.labeldp import LabelDP
from lightning_modules.plain import Distillation
from lightning_modules.teacher import Teacher

__all__ = [
    "DGD",
    "DPDFD",
    "DPSD",
    "DPSGDTeacher",
    "DataFreeDistillation",
    "Distillation",
    "LabelDP",
    "Teacher",
    "TeacherEnsemble",
]
