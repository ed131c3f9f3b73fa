"""Architectures are written down so that they can be built again, and code is imported where it is trusted alone."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import nn

from lightning_modules import load_student
from lightning_modules.networks import LinearOnFeatures, TwoConvNet, build_network
from lightning_modules.priors import SilhouettePrior
from lightning_modules.publishing import ExportError
from lightning_modules.publishing.folder import FORMAT, left_out, weights_of
from lightning_modules.publishing.run import _without_downloads

NETWORK = """
from safetensors import safe_open
from torch import nn

class Net(nn.Module):
    def __init__(self, num_classes, width=4, act=nn.ReLU):
        super().__init__()
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(64, width), act(), nn.Linear(width, num_classes))

    def forward(self, images):
        return self.head(images)
"""


def external(name: str, **arguments: Any) -> dict[str, Any]:
    return {"class_path": "External", "init_args": {"name": name, "arguments": arguments}}


def published(folder: Path, spec: Any, shape: tuple[int, int, int], classes: int) -> tuple[Path, nn.Module]:
    torch.manual_seed(0)
    whole = _without_downloads(spec)
    network = build_network(whole, num_classes=classes, image_shape=shape, name="network").eval()
    folder.mkdir()
    config = {"format": FORMAT, "format_version": 1, "architecture": whole, "num_classes": classes}
    (folder / "config.json").write_text(json.dumps({**config, "image_shape": list(shape)}))
    (folder / "student.safetensors").write_bytes(weights_of(network))
    return folder, network


def test_nothing_is_fetched_for_torchvisions_networks(tmp_path: Path) -> None:
    shape = (3, 32, 32)
    spec = external("torchvision.models.mobilenet_v3_small", weights="DEFAULT")
    folder, network = published(tmp_path / "out", spec, shape, 7)
    config = json.loads((folder / "config.json").read_text())["architecture"]["init_args"]
    assert config["arguments"] == {"weights": None}  # nothing is fetched to be overwritten
    images = torch.rand(2, *shape)
    assert torch.equal(load_student(folder)(images), network(images))


def test_settings_of_other_classes_are_built(tmp_path: Path, quick_whitening: None) -> None:
    spec = {
        "class_path": "LinearOnFeatures",
        "init_args": {"prior": {"class_path": "lightning_modules.priors.SilhouettePrior"}, "whitening": {"power": 0.5}},
    }
    folder, network = published(tmp_path / "out", spec, (1, 8, 8), 3)
    loaded = load_student(folder)
    assert isinstance(loaded, LinearOnFeatures)
    images = torch.rand(2, 1, 8, 8)
    assert torch.equal(loaded(images), network(images))
    assert SilhouettePrior.__name__ in (folder / "config.json").read_text()
    with safe_open(folder / "student.safetensors", "pt") as weights:
        assert "wavelets0" in weights.metadata()["left_out"]  # which the class computes
    assert left_out(TwoConvNet(image_shape=(1, 8, 8))) == []


@pytest.mark.parametrize("name", ["their_network.Net", "their_network.py:Net"])
def test_code_of_somebody_else_runs_where_it_is_trusted_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "their_network.py").write_text(NETWORK)
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = external(name, width=5, act="torch.nn.Tanh")
    folder, network = published(tmp_path / "out", spec, (1, 8, 8), 3)
    sys.modules.pop("their_network", None)
    with pytest.raises(ExportError, match=rf"names '[^']*{name}'.*trust_code=True"):
        load_student(folder)
    assert "their_network" not in sys.modules
    images = torch.rand(2, 1, 8, 8)
    assert torch.equal(load_student(folder, trust_code=True)(images), network(images))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), "is not a folder written by"),
        (lambda folder: (folder / "config.json").write_text('{"format": "another"}'), "is not a folder written by"),
        (lambda folder: (folder / "student.safetensors").unlink(), "cannot be read"),
        (
            lambda folder: (folder / "student.safetensors").write_bytes(
                weights_of(nn.Sequential(nn.Flatten(), nn.Linear(64, 3)))
            ),
            "does not fit",
        ),
    ],
)
def test_a_damaged_folder_is_named(tmp_path: Path, spoil: Any, message: str) -> None:
    spec = "TwoConvNet"
    folder, _ = published(tmp_path / "out", spec, (1, 8, 8), 3)
    load_student(folder)
    spoil(folder)
    with pytest.raises(ValueError, match=message):
        load_student(folder)
