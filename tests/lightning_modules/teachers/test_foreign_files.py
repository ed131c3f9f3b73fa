"""Weights of anyone's, in every wrapping that is read; whatever could run code is refused with the lines that convert.

Nothing in these tests may unpickle: a class that says when it is stands in the pickled files.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from lightning_modules.networks import SmallCNN
from lightning_modules.teachers.exported import exported_weights
from lightning_modules.teachers.files import read_file
from lightning_modules.teachers.private_teacher import PrivateTeacher, TeacherError

SHAPE: dict[str, Any] = {"num_classes": 10, "image_shape": (1, 8, 8)}
NETWORK = SmallCNN


class Loud(nn.Linear):
    """Says when it is unpickled."""

    unpickled = 0

    def __setstate__(self, state: dict[str, Any]) -> None:
        Loud.unpickled += 1
        super().__setstate__(state)  # type: ignore[no-untyped-call]


@pytest.fixture
def network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    network = SmallCNN(**SHAPE)
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean += torch.rand_like(layer.running_mean)  # type: ignore[operator, arg-type]
    return network.eval()


def load(file: str = "weights.pt", **given: Any) -> PrivateTeacher:
    return PrivateTeacher.load(file, **{**SHAPE, "network": NETWORK, **given})


def prefixed(weights: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {f"{prefix}{name}": value for name, value in weights.items()}


WRAPPINGS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "plain": lambda weights: weights,
    "state_dict": lambda weights: {"state_dict": weights, "epoch": 3},
    "model_state_dict": lambda weights: {"model_state_dict": weights, "optimizer_state_dict": {"state": {}}},
    "model": lambda weights: {"model": weights, "args": {"lr": 0.1}},
    "nested": lambda weights: {"model": {"state_dict": weights}},
    "DataParallel": lambda weights: prefixed(weights, "module."),
    "compiled": lambda weights: prefixed(weights, "_orig_mod."),
    "compiled in DDP": lambda weights: prefixed(weights, "module._orig_mod."),
    "DDP in compiled": lambda weights: {"model": prefixed(weights, "_orig_mod.module.")},
    "Lightning, ours": lambda weights: {"state_dict": prefixed(weights, "network.")},
    "Lightning, model": lambda weights: {"state_dict": prefixed(weights, "model."), "epoch": 1},
    "Lightning, net, compiled": lambda weights: {"state_dict": prefixed(weights, "net._orig_mod.")},
    "two words": lambda weights: {"state_dict": prefixed(weights, "classifier.backbone.")},
    "beside a loss": lambda weights: {
        "state_dict": {**prefixed(weights, "model."), "criterion.weight": torch.ones(10)},
    },
    "half precision": lambda weights: {name: value.half() for name, value in weights.items()},
    "before counters": lambda weights: {
        name: value for name, value in weights.items() if not name.endswith("num_batches_tracked")
    },
}


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_every_wrapping_gives_the_same_network(network: nn.Module, wrapping: str) -> None:
    torch.save(WRAPPINGS[wrapping](network.state_dict()), "weights.pt")
    images = torch.randn(3, 1, 8, 8)
    tolerance = 2e-2 if wrapping == "half precision" else 1e-5
    assert torch.allclose(load().logits(images), network(images), atol=tolerance)


def test_a_prefix_is_stripped_only_where_the_result_fits(network: nn.Module) -> None:
    weights = prefixed(network.state_dict(), "model.")
    torch.save({"state_dict": {name: value for name, value in weights.items() if "head" not in name}}, "weights.pt")
    with pytest.raises(TeacherError, match=r"(?s)do not fit the architecture SmallCNN.*model\."):
        load()
    # A network of that very name keeps it.
    torch.save(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).state_dict(), "weights.pt")
    with pytest.raises(TeacherError, match="do not fit"):
        load()


def test_two_networks_that_fit_are_named(network: nn.Module) -> None:
    both = {**prefixed(network.state_dict(), "student."), **prefixed(SmallCNN(**SHAPE).state_dict(), "ema.")}
    torch.save({"state_dict": both}, "weights.pt")
    with pytest.raises(TeacherError, match=r"holds 2 networks that fit, ema and student: save the one"):
        load()
    # Of ours, `network` is the one.
    torch.save({"state_dict": {**prefixed(both, ""), **prefixed(network.state_dict(), "network.")}}, "weights.pt")
    images = torch.randn(3, 1, 8, 8)
    assert torch.allclose(load().logits(images), network(images), atol=1e-5)


def test_one_identity_whatever_the_wrapping(network: nn.Module) -> None:
    found = set()
    for wrapping in ("plain", "compiled in DDP", "Lightning, model", "nested"):
        torch.save(WRAPPINGS[wrapping](network.state_dict()), "weights.pt")
        found.add(load().training.digest)  # type: ignore[union-attr]
    torch.save({name: value + 1 for name, value in network.state_dict().items()}, "weights.pt")
    assert len(found) == 1 and load().training.digest not in found  # type: ignore[union-attr]


def test_safetensors(network: nn.Module) -> None:
    images = torch.randn(3, 1, 8, 8)
    for file in ("weights.safetensors", "by_content.bin"):
        save_file(prefixed(network.state_dict(), "module."), file, metadata={"format": "pt"})
        assert torch.allclose(load(file).logits(images), network(images), atol=1e-5)
    Path("cut.safetensors").write_bytes(Path("weights.safetensors").read_bytes()[:500])
    with pytest.raises(TeacherError, match=r"cut\.safetensors cannot be read as safetensors"):
        load("cut.safetensors")


def test_weights_of_torch_export_are_read_without_its_loader(
    network: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = torch.randn(3, 1, 8, 8)
    torch.export.save(torch.export.export(network, (images,)), "program.pt2")
    monkeypatch.setattr(torch.export, "load", lambda *_: pytest.fail("it was loaded"))
    assert torch.allclose(load("program.pt2").logits(images), network(images), atol=1e-5)
    monkeypatch.setattr("lightning_modules.teachers.exported._TYPES", {})
    with pytest.raises(ValueError, match="KeyError"):
        exported_weights(Path("program.pt2"))
    with pytest.raises(TeacherError) as refused:
        load("program.pt2")
    assert 'program = torch.export.load("program.pt2")\n    torch.save(program.state_dict, "weights.pt")' in str(
        refused.value
    )


PICKLED: dict[str, Callable[[nn.Module], None]] = {
    "module": lambda network: torch.save(network, "teacher.pt"),
    "module, old format": lambda network: torch.save(network, "teacher.pt", _use_new_zipfile_serialization=False),
    "objects beside": lambda network: torch.save(
        {"state_dict": network.state_dict(), "args": argparse.Namespace(lr=1), "head": Loud(1, 1)}, "teacher.pt"
    ),
    "TorchScript": lambda network: torch.jit.trace(network, torch.zeros(1, 1, 8, 8)).save("teacher.pt"),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.parametrize("kind", PICKLED)
def test_what_could_run_code_is_refused_with_lines_that_convert_it(network: nn.Module, kind: str) -> None:
    whole = nn.Sequential(nn.Flatten(), Loud(64, 10))
    PICKLED[kind](whole)
    Loud.unpickled = 0
    with pytest.raises(TeacherError, match=r"teacher teacher\.pt .*Convert it") as refused:
        load("teacher.pt")
    assert Loud.unpickled == 0
    # The two lines do what they say.
    lines = re.findall(r"^    (.+)$", str(refused.value), re.MULTILINE)
    assert len(lines) == 2
    exec("\n".join(lines), {"torch": torch})
    assert load("weights.pt", network=lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10))).logits(
        torch.zeros(1, 1, 8, 8)
    ).shape == (1, 10)  # fmt: skip


def test_a_pickled_class_is_named(network: nn.Module) -> None:
    torch.save(network, "teacher.pt")
    with pytest.raises(
        TeacherError, match=r"is a pickled lightning_modules\.networks\.classifiers\.SmallCNN, and nothing"
    ):
        read_file(Path("teacher.pt"))


def test_a_file_does_not_name_code_that_is_run(network: nn.Module) -> None:
    spec = {"class_path": "lightning_modules.networks.ForeignNetwork", "init_args": {"name": "os.system"}}
    content = {"state_dict": prefixed(network.state_dict(), "network."), "hyper_parameters": {"network": spec}}
    torch.save(content, "weights.pt")
    with pytest.raises(TeacherError, match=r"names 'os\.system', and code that a file names is not run"):
        load(network=None)
    spec["class_path"] = "os.system"
    torch.save(content, "weights.pt")
    with pytest.raises(TeacherError, match=r"names 'os\.system', and code that a file names is not run"):
        load(network=None)
    assert load().logits(torch.zeros(1, 1, 8, 8)).shape == (1, 10)


@pytest.mark.parametrize("written", ["nested", "text", "escaped"])
def test_nor_where_it_stands_deeper(network: nn.Module, monkeypatch: pytest.MonkeyPatch, written: str) -> None:
    Path("theirs.py").write_text("called = []\ndef touch(**_): called.append(1)\n")
    monkeypatch.syspath_prepend(str(Path.cwd()))
    inner: Any = {"class_path": "lightning_modules.networks.ForeignNetwork", "init_args": {"name": "theirs.touch"}}
    if written != "nested":
        inner = json.dumps(inner)
    if written == "escaped":
        inner = inner.replace("ForeignNetwork", "Foreign\\u004eetwork")
    # A network with a part that is not the first of its parameters: that one the parser builds.
    spec = {
        "class_path": "torch.nn.modules.transformer.TransformerEncoder",
        "init_args": {"num_layers": 1, "norm": inner},
    }
    torch.save({"state_dict": dict(network.state_dict()), "hyper_parameters": {"network": spec}}, "weights.pt")
    with pytest.raises(TeacherError, match="code that a file names is not run"):
        load(network=None)
    assert "theirs" not in sys.modules
    # The control: what the parser would have done.
    monkeypatch.setattr("lightning_modules.teachers.private_teacher.require_known_code", lambda *_, **__: None)
    with pytest.raises(TeacherError, match="cannot be built"):
        load(network=None)
    assert "theirs" in sys.modules
    del sys.modules["theirs"]
