"""Publishes a finished run as a folder (weights, model card, guarantee, ONNX) and loads such folders."""

from lightning_modules.publishing.export import Exported as Exported, export_run as export_run
from lightning_modules.publishing.folder import (
    ExportError as ExportError,
    check_target as check_target,
    load_student as load_student,
)
