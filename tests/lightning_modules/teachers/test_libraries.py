"""Files of timm and folders of transformers in their true format: network, weights and input are what they say."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from lightning_modules.teachers.config import TeacherConfig
from lightning_modules.teachers.external import TeacherInput
from lightning_modules.teachers.files import TeacherError

IMAGES = torch.rand(2, 1, 40, 40) * 2 - 1
SHAPE: dict[str, Any] = {"num_classes": 10, "image_shape": (1, 40, 40)}


@pytest.fixture
def network() -> nn.Module:
    timm: Any = importlib.import_module("timm")
    torch.manual_seed(0)
    made: nn.Module = timm.create_model("test_resnet", num_classes=10, in_chans=1).eval()
    return made


def folder(network: nn.Module, **config: Any) -> Path:
    """As timm and the Hub have it."""
    place = Path("resnet")
    place.mkdir(exist_ok=True)
    pictures = {"input_size": [1, 32, 32], "mean": [0.2], "std": [0.3]}
    stated = {
        "architecture": "test_resnet",
        "num_classes": 10,
        "model_args": {"in_chans": 1},
        "pretrained_cfg": pictures,
    }
    (place / "config.json").write_text(json.dumps({**stated, **config}))
    save_file(network.state_dict(), place / "model.safetensors", metadata={"format": "pt"})
    return place


def checkpoint(network: nn.Module) -> str:
    """As timm's training script writes it."""
    args = argparse.Namespace(
        model="test_resnet", num_classes=10, in_chans=1, mean=[0.2], std=[0.3], img_size=32, lr=0.1
    )
    content = {"epoch": 3, "arch": "test_resnet", "state_dict": network.state_dict(), "args": args, "version": 2}
    torch.save({**content, "metric": np.float64(81.5), "best": np.int64(2)}, "model_best.pth.tar")
    return "model_best.pth.tar"


def expected(network: nn.Module) -> torch.Tensor:
    return network(TeacherInput(mean=[0.2], std=[0.3], size=32)(IMAGES)).detach()


@pytest.mark.parametrize("given", ["folder", "its file", "checkpoint"])
def test_a_file_of_timm_says_what_it_is_and_what_it_takes(network: nn.Module, given: str) -> None:
    path: Any = (checkpoint if given == "checkpoint" else folder)(network)
    teacher = TeacherConfig(path=str(Path(path, "model.safetensors") if given == "its file" else path)).load(**SHAPE)
    assert torch.allclose(teacher.logits(IMAGES), expected(network), atol=1e-5)
    # By the file's own name all folders would share a ledger.
    assert teacher.private_data == f"training data of {Path(path).name}"
    stated = TeacherConfig(path=str(path), input=TeacherInput(range=[0, 1])).load(**SHAPE)  # which replaces it
    assert torch.allclose(stated.logits(IMAGES), network((IMAGES + 1) / 2), atol=1e-5)
    assert stated.training == teacher.training
    coloured = TeacherConfig(path=str(path)).load(num_classes=10, image_shape=(3, 40, 40))
    assert torch.allclose(coloured.logits(IMAGES.expand(-1, 3, -1, -1)), expected(network), atol=1e-3)


def test_no_file_is_read_and_no_code_run_that_a_configuration_names(network: nn.Module) -> None:
    (Path("other.pt")).write_text("version https://git-lfs")
    place = folder(network, model_args={"in_chans": 1, "checkpoint_path": "other.pt", "pretrained": True})
    assert torch.allclose(TeacherConfig(path=str(place)).load(**SHAPE).logits(IMAGES), expected(network), atol=1e-5)
    for name in ("hf_hub:someone/net", "resnet_of_mine"):
        folder(network, architecture=name)
        with pytest.raises(TeacherError, match=rf"is of '{name}', which timm .* does not have"):
            TeacherConfig(path=str(place)).load(**SHAPE)


@pytest.mark.parametrize("name", ["timm", "transformers"])
def test_a_library_that_is_missing_is_named(network: nn.Module, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place = folder(network)
    if name == "transformers":
        (place / "config.json").write_text(json.dumps({"model_type": "vit"}))
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(TeacherError, match=rf"pip install 'private-model-transcription\[{name}\]'"):
        TeacherConfig(path=str(place)).load(**SHAPE)


def test_a_folder_of_transformers_is_its_classifier() -> None:
    transformers: Any = importlib.import_module("transformers")
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.ViTConfig(**size, image_size=16, patch_size=8, num_channels=3, num_labels=10)
    network = transformers.AutoModelForImageClassification.from_config(config).eval()
    network.save_pretrained("vit")
    transformers.ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained("vit")
    given = TeacherInput(mean=[0.5] * 3, std=[0.5] * 3, size=16, channels=3)(IMAGES)
    for path in ("vit", network):  # a script's gives logits as well
        stated = TeacherInput() if path == "vit" else TeacherInput(size=16, channels=3)
        teacher = TeacherConfig(path=path, input=stated).load(**SHAPE)
        assert torch.allclose(teacher.logits(IMAGES), network(given).logits, atol=1e-4)
    weights = {name: one.contiguous() for name, one in network.state_dict().items() if "classifier" not in name}
    save_file(weights, "vit/model.safetensors", metadata={"format": "pt"})
    with pytest.raises(TeacherError, match=r"are not those of ViTForImageClassification: classifier\.bias"):
        TeacherConfig(path="vit").load(**SHAPE)


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "timm_wrapper", "model_args": {"checkpoint_path": "extra.pth"}},
        {"model_type": "vit", "transformers_weights": "other.safetensors"},
        {"model_type": "vit", "_attn_implementation": "evil/kernels"},
    ],
)
def test_a_configuration_that_leads_elsewhere_is_refused(config: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({"weight": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(TeacherError, match="takes its network from elsewhere"):
        TeacherConfig(path=str(tmp_path), private_data="X").load(**SHAPE)
