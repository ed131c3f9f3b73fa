"""Publishes a finished run as a folder (weights, model card, guarantee, ONNX) and loads such folders."""

from lightning_modules.publishing.export import Exported, export_run
from lightning_modules.publishing.folder import ExportError, check_target, load_student
from lightning_modules.publishing.predicting import predict_pictures

__all__ = ["ExportError", "Exported", "check_target", "export_run", "load_student", "predict_pictures"]
