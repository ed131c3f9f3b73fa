"""What the package exports, for type checkers and for `lazy_loader`."""

from .base import DataFreeDistillation as DataFreeDistillation
from .dgd import DGD as DGD
from .direct_training import DirectTraining as DirectTraining
from .distillation import Distillation as Distillation
from .dp_merf import DPMERF as DPMERF
from .dpdfd import DPDFD as DPDFD
from .dpsd import DPSD as DPSD
from .federated import FedAvg as FedAvg, FedDistillation as FedDistillation, FedDPSD as FedDPSD
from .images import Images as Images
from .labeldp import LabelDP as LabelDP
from .publishing import load_student as load_student
from .student import StudentConfig as StudentConfig
from .teachers.config import TeacherConfig as TeacherConfig
from .teachers.dp_sgd import DPSGDTeacher as DPSGDTeacher
from .teachers.ensemble import TeacherEnsemble as TeacherEnsemble
from .teachers.record_clipping import Clipping as Clipping
from .teachers.teacher import Teacher as Teacher

__all__: list[str]
