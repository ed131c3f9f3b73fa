"""Lightning modules that distil a model trained on sensitive data into one that can be published."""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from lightning_modules.quiet import quiet

if TYPE_CHECKING:
    from lightning_modules.base import DataFreeDistillation
    from lightning_modules.dgd import DGD
    from lightning_modules.direct_training import DirectTraining
    from lightning_modules.distillation import Distillation
    from lightning_modules.dp_merf import DPMERF
    from lightning_modules.dpdfd import DPDFD
    from lightning_modules.dpsd import DPSD
    from lightning_modules.federated import FedAvg, FedDistillation, FedDPSD
    from lightning_modules.images import Images
    from lightning_modules.labeldp import LabelDP
    from lightning_modules.publishing import load_student
    from lightning_modules.student import StudentConfig
    from lightning_modules.teachers.config import TeacherConfig
    from lightning_modules.teachers.dp_sgd import DPSGDTeacher
    from lightning_modules.teachers.ensemble import TeacherEnsemble
    from lightning_modules.teachers.record_clipping import Clipping
    from lightning_modules.teachers.teacher import Teacher

__all__ = [
    "DGD",
    "DPDFD",
    "DPMERF",
    "DPSD",
    "Clipping",
    "DPSGDTeacher",
    "DataFreeDistillation",
    "DirectTraining",
    "Distillation",
    "FedAvg",
    "FedDPSD",
    "FedDistillation",
    "Images",
    "LabelDP",
    "StudentConfig",
    "Teacher",
    "TeacherConfig",
    "TeacherEnsemble",
    "load_student",
]

quiet()

# Lightning takes seconds to import, and the command line's help and its answer to a mistyped command do not need it.
_MODULES = {
    "DataFreeDistillation": "base",
    "DPMERF": "dp_merf",
    **dict.fromkeys(("FedAvg", "FedDPSD", "FedDistillation"), "federated"),
    **{name: name.lower() for name in ("DGD", "DPDFD", "DPSD", "Distillation", "LabelDP")},
    "DirectTraining": "direct_training",
    "load_student": "publishing",
    "Images": "images",
    "StudentConfig": "student",
    "DPSGDTeacher": "teachers.dp_sgd",
    "Teacher": "teachers.teacher",
    "TeacherEnsemble": "teachers.ensemble",
    "TeacherConfig": "teachers.config",
    "Clipping": "teachers.record_clipping",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    if not name.startswith("_") and importlib.util.find_spec(f"{__name__}.{name}"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
