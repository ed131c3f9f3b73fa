"""Lightning modules that distil a model trained on sensitive data into one that can be published."""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from lightning_modules.quiet import quiet

if TYPE_CHECKING:
    from lightning_modules.base import DataFreeDistillation as DataFreeDistillation
    from lightning_modules.dgd import DGD as DGD
    from lightning_modules.direct_training import DirectTraining as DirectTraining
    from lightning_modules.distillation import Distillation as Distillation
    from lightning_modules.dp_merf import DPMERF as DPMERF
    from lightning_modules.dpdfd import DPDFD as DPDFD
    from lightning_modules.dpsd import DPSD as DPSD
    from lightning_modules.federated import FedAvg as FedAvg, FedDistillation as FedDistillation, FedDPSD as FedDPSD
    from lightning_modules.images import Images as Images
    from lightning_modules.labeldp import LabelDP as LabelDP
    from lightning_modules.publishing import load_student as load_student
    from lightning_modules.student import StudentConfig as StudentConfig
    from lightning_modules.teachers.config import TeacherConfig as TeacherConfig
    from lightning_modules.teachers.dp_sgd import DPSGDTeacher as DPSGDTeacher
    from lightning_modules.teachers.ensemble import TeacherEnsemble as TeacherEnsemble
    from lightning_modules.teachers.record_clipping import Clipping as Clipping
    from lightning_modules.teachers.teacher import Teacher as Teacher

quiet()

#: Modules of what the package exports, imported on use: Lightning takes seconds, and a command's help needs none of it.
_MODULES = {
    "DGD": "dgd",
    "DPDFD": "dpdfd",
    "DPMERF": "dp_merf",
    "DPSD": "dpsd",
    "Clipping": "teachers.record_clipping",
    "DPSGDTeacher": "teachers.dp_sgd",
    "DataFreeDistillation": "base",
    "DirectTraining": "direct_training",
    "Distillation": "distillation",
    "FedAvg": "federated",
    "FedDPSD": "federated",
    "FedDistillation": "federated",
    "Images": "images",
    "LabelDP": "labeldp",
    "StudentConfig": "student",
    "Teacher": "teachers.teacher",
    "TeacherConfig": "teachers.config",
    "TeacherEnsemble": "teachers.ensemble",
    "load_student": "publishing",
}
__all__ = [*_MODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    if not name.startswith("_") and importlib.util.find_spec(f"{__name__}.{name}"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
