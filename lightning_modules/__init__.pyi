"""What the package exports, for type checkers and for `__getattr__`, which imports it on use."""

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

__all__: list[str]
