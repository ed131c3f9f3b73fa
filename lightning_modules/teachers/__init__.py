"""Private teachers: their training, and what separates them from everything that is published."""

from lightning_modules.teachers.dp_sgd import DPSGDTeacher
from lightning_modules.teachers.ensemble import TeacherEnsemble
from lightning_modules.teachers.teacher import Teacher

__all__ = ["DPSGDTeacher", "Teacher", "TeacherEnsemble"]
