"""Architectures are written down so that they can be built again, and code is imported where it is trusted alone."""

from __future__ import annotations

import json
import runpy
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lightning_modules import load_student
from lightning_modules.networks import LinearOnFeatures, Network, build_network
from lightning_modules.networks.named_code import unknown_code
from lightning_modules.priors import SilhouettePrior
from lightning_modules.publishing import ExportError
from lightning_modules.publishing.folder import FORMAT, without_folders
from lightning_modules.publishing.loading import weights_of
from lightning_modules.publishing.run import with_all_arguments
from lightning_modules.publishing.snippet import snippet

NETWORK = """
from torch import nn

class Net(nn.Module):
    def __init__(self, num_classes, width=4):
        super().__init__()
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, num_classes))

    def forward(self, images):
        return self.head(images)
"""


def published(folder: Path, spec: Any, shape: tuple[int, int, int], classes: int) -> tuple[Path, nn.Module]:
    torch.manual_seed(0)
    whole = with_all_arguments(Network.of(spec), num_classes=classes, image_shape=shape)
    network = build_network(whole, num_classes=classes, image_shape=shape, name="network").eval()
    folder.mkdir()
    config = {"format": FORMAT, "format_version": 1, "architecture": asdict(whole), "num_classes": classes}
    (folder / "config.json").write_text(json.dumps({**config, "image_shape": list(shape)}))
    (folder / "student.safetensors").write_bytes(weights_of(network))
    return folder, network


def test_torchvisions_networks_need_no_package(tmp_path: Path) -> None:
    shape = (3, 32, 32)
    spec = {"name": "torchvision.models.mobilenet_v3_small", "arguments": {"weights": "DEFAULT"}}
    folder, network = published(tmp_path / "out", spec, shape, 7)
    config = json.loads((folder / "config.json").read_text())["architecture"]
    assert config["arguments"] == {"weights": None, "num_classes": 7}  # nothing is fetched to be overwritten
    images = torch.rand(2, *shape)
    assert torch.equal(load_student(folder)(images), network(images))
    text = snippet(Network(**config), program=False, onnx=False)
    assert text is not None and "lightning_modules" not in text
    (folder / "load_student.py").write_text(text)
    alone = runpy.run_path(str(folder / "load_student.py"))["load_student"]()
    assert torch.equal(alone(images), network(images))


def test_settings_of_other_classes_are_built(tmp_path: Path, quick_whitening: None) -> None:
    spec = {
        "name": "LinearOnFeatures",
        "arguments": {"prior": {"class_path": "lightning_modules.priors.SilhouettePrior"}, "whitening": {"power": 0.5}},
    }
    folder, network = published(tmp_path / "out", spec, (1, 8, 8), 3)
    loaded = load_student(folder)
    assert isinstance(loaded, LinearOnFeatures)
    images = torch.rand(2, 1, 8, 8)
    assert torch.equal(loaded(images), network(images))
    assert (
        snippet(Network(**json.loads((folder / "config.json").read_text())["architecture"]), program=False, onnx=False)
        is None
    )
    assert SilhouettePrior.__name__ in (folder / "config.json").read_text()


def test_code_of_somebody_else_runs_where_it_is_trusted_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "their_network.py").write_text(NETWORK)
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = {"name": "their_network.Net", "arguments": {"width": 5}}
    folder, network = published(tmp_path / "out", spec, (1, 8, 8), 3)
    monkeypatch.delitem(sys.modules, "their_network")
    with pytest.raises(ExportError, match=r"names 'their_network\.Net'.*trust_code=True"):
        load_student(folder)
    assert "their_network" not in sys.modules
    images = torch.rand(2, 1, 8, 8)
    assert torch.equal(load_student(folder, trust_code=True)(images), network(images))


def test_a_network_of_anyones_is_published_under_its_own_name(tmp_path: Path) -> None:
    shape = (3, 32, 32)
    settings = {"name": "torchvision.models.shufflenet_v2_x0_5", "arguments": {}}
    folder, network = published(tmp_path / "out", settings, shape, 7)
    config = json.loads((folder / "config.json").read_text())["architecture"]
    assert config == {"name": settings["name"], "arguments": {"num_classes": 7}}
    images = torch.rand(2, *shape)
    assert torch.equal(load_student(folder)(images), network(images))
    assert snippet(Network(**config), program=False, onnx=False) is not None


def test_what_builds_anything_is_not_trusted(tmp_path: Path) -> None:
    """It lies in this package, and runs what it is told to."""
    (tmp_path / "net.py").write_text(NETWORK.replace("nn.ReLU()", "act()").replace("width=4", "width=4, act=nn.ReLU"))
    name = f"{tmp_path / 'net.py'}:Net"
    spec = {"name": name, "arguments": {"act": "torch.nn.Tanh"}}
    folder, network = published(tmp_path / "out", spec, (1, 8, 8), 3)
    with pytest.raises(ExportError, match=r"net\.py:Net.*trust_code=True"):
        load_student(folder)
    images = torch.rand(2, 1, 8, 8)
    assert torch.equal(load_student(folder, trust_code=True)(images), network(images))
    assert unknown_code({"name": "os.system", "arguments": {"command": "true"}}) == "os.system"


def test_nested_classes_are_looked_at_too() -> None:
    inner = {"class_path": "subprocess.Popen"}
    assert unknown_code("SmallCNN") is None
    assert (
        unknown_code({"class_path": "torchvision.models.ResNet", "init_args": {"a": [{"b": inner}]}})
        == "subprocess.Popen"
    )
    for path in (
        "torchvision.models_of_mine.Net",
        "torchvision.datasets.utils.download_url",
        "torchvision.models._api.inspect",  # what a module of theirs has imported
        "lightning_modules.cli.main",
    ):
        assert unknown_code({"class_path": path}) == path


@pytest.mark.parametrize(
    "told",
    [
        # What this package imports and calls by name, without the class that is known to.
        "theirs.touch",
        {"name": "lightning_modules.networks.network.Network", "arguments": {"name": "theirs.touch"}},
        {"name": "lightning_modules.runtime.names.named_object", "arguments": {"name": "theirs.py:touch"}},
        # Texts that the parser takes for a function, for a class, and for settings, escaped or not.
        {"name": "torchvision.models.resnet.ResNet", "arguments": {"norm_layer": "theirs.touch"}},
        {"name": "SmallCNN", "arguments": {"prior": '{"class_path": "theirs.touch"}'}},
        {
            "name": "SmallCNN",
            "arguments": {"a": ['{"class_path": "theirs\\u002etouch"}']},
        },
        {"name": "torchvision.models.get_model", "arguments": {"name": "resnet18"}},
    ],
)
def test_a_folder_runs_no_code_by_other_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: Any) -> None:
    (tmp_path / "theirs.py").write_text("def touch(*_, **__): pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    folder, _ = published(tmp_path / "out", "TwoConvNet", (1, 8, 8), 3)
    assert load_student(folder) is not None  # the control
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architecture": told}))
    with pytest.raises(ExportError, match="trust_code=True"):
        load_student(folder)
    assert "theirs" not in sys.modules


def test_plain_settings_and_known_classes_by_name_are_no_code() -> None:
    block = "torchvision.models.resnet.BasicBlock"
    spec = {"name": "torchvision.models.resnet.ResNet", "arguments": {"block": block, "padding_mode": "zeros"}}
    assert unknown_code(spec) is None


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), "is no folder that"),
        (lambda folder: (folder / "config.json").write_text('{"format": "another"}'), "is no folder that"),
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


def test_folders_of_this_machine_are_not_told() -> None:
    given = {"assumptions": ["not counted: /home/me/a/b.jsonl, /srv/c.jsonl", "kept in private/uncharged_queries.json"]}
    assert without_folders(given) == {
        "assumptions": ["not counted: b.jsonl, c.jsonl", "kept in private/uncharged_queries.json"]
    }
    assert without_folders("arXiv <https://arxiv.org/abs/2304.12528>, 1/2 of it") == (
        "arXiv <https://arxiv.org/abs/2304.12528>, 1/2 of it"
    )
