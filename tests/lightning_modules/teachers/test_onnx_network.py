"""Teachers in ONNX: outputs as torch's, one identity per graph, refused where gradients are needed."""

from __future__ import annotations

import copy
import shutil
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import nn

from lightning_modules import DPDFD, DPSD, LabelDP
from lightning_modules.images import Images
from lightning_modules.networks import SmallCNN
from lightning_modules.teachers.config import TeacherConfig
from lightning_modules.teachers.external import TeacherInput
from lightning_modules.teachers.files import TeacherError

SHAPE: dict[str, Any] = {"num_classes": 10, "image_shape": (1, 8, 8)}


def export(network: nn.Module, file: str, *, images: torch.Tensor, any_batch: bool = True) -> None:
    dynamic: Any = ({0: torch.export.Dim("n")},) if any_batch else None
    torch.onnx.export(network.eval(), (images,), file, dynamo=True, dynamic_shapes=dynamic, verbose=False)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, Path]:
    torch.manual_seed(0)
    network, file = SmallCNN(**SHAPE, width=4, hidden=8), tmp_path_factory.mktemp("onnx") / "teacher.onnx"
    export(network, str(file), images=torch.zeros(2, 1, 8, 8))
    return network, file


@pytest.fixture
def network(exported: tuple[nn.Module, Path], tmp_path: Path) -> nn.Module:
    for file in exported[1].parent.iterdir():
        shutil.copy(file, tmp_path)
    return copy.deepcopy(exported[0])


def test_it_gives_what_torch_gives(network: nn.Module) -> None:
    teacher = TeacherConfig(path="teacher.onnx").load(**SHAPE)
    images = torch.randn(5, 1, 8, 8)
    assert torch.allclose(teacher.logits(images), network(images), atol=1e-5)
    export(network, "fixed.onnx", images=torch.zeros(2, 1, 8, 8), any_batch=False)
    assert torch.allclose(TeacherConfig(path="fixed.onnx").load(**SHAPE).logits(images), network(images), atol=1e-5)
    stated = TeacherConfig(path="teacher.onnx", input=TeacherInput(range=[0, 1])).load(**SHAPE)
    assert torch.allclose(stated.logits(images), network((images + 1) / 2), atol=1e-5)


def test_each_graph_is_a_teacher_of_its_own(network: nn.Module) -> None:
    graph = onnx.load("teacher.onnx")
    (bias,) = (one for one in graph.graph.initializer if one.name == "head.bias")
    bias.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(bias) + 1, bias.name))
    onnx.save(graph, "other.onnx")
    files = ("teacher.onnx", "other.onnx", "teacher.onnx")
    first, other, again = (TeacherConfig(path=file).load(**SHAPE).training.digest for file in files)  # type: ignore[union-attr]
    assert first == again != other


def test_graphs_that_are_of_no_use(network: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TeacherError, match=r"(?s)of no use here: .*\(3, 8, 8\)"):
        TeacherConfig(path="teacher.onnx").load(num_classes=10, image_shape=(3, 8, 8))
    with pytest.raises(TeacherError, match=r"must give 3 logits an image"):
        TeacherConfig(path="teacher.onnx").load(num_classes=3, image_shape=(1, 8, 8))
    Path("text.onnx").write_text("hello")
    with pytest.raises(TeacherError, match=r"text\.onnx cannot be read as ONNX"):
        TeacherConfig(path="text.onnx").load(**SHAPE)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(TeacherError, match=r"pip install 'private-model-transcription\[onnx\]'"):
        TeacherConfig(path="teacher.onnx").load(**SHAPE)


def test_gradients_are_refused_when_it_is_loaded(network: nn.Module) -> None:
    given: dict[str, Any] = {**SHAPE, "batch_size": 4, "teacher": TeacherConfig(path="teacher.onnx")}
    for needs in (LabelDP(**given), DPSD(**given, discriminator="teacher")):
        with pytest.raises(
            TeacherError, match=r"ONNX, which gives outputs and no gradients.*discriminator.* is teacher"
        ):
            needs.setup("fit")
    # Where outputs are enough it serves.
    prior = Images(source="prior")
    for outputs in (DPDFD(**given), DPSD(**given), DPSD(**given, discriminator="teacher", images=prior)):
        outputs.setup("fit")
        assert outputs.teacher.logits(torch.zeros(1, 1, 8, 8)).shape == (1, 10)
