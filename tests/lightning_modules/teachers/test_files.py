"""Files of teachers: read in every usual wrapping, or refused with a way out before anything is charged.

Nothing in these tests may unpickle: a class that says when it is stands in the pickled files.
"""

from __future__ import annotations

import argparse
import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from sklearn.linear_model import Ridge
from support.runs import distil
from torch import nn

from lightning_modules.networks import SmallCNN, TwoConvNet
from lightning_modules.teachers.config import TeacherConfig
from lightning_modules.teachers.files import TeacherError
from lightning_modules.teachers.private_teacher import PrivateTeacher

SHAPE: dict[str, Any] = {"num_classes": 10, "image_shape": (1, 8, 8)}


class Loud(nn.Linear):
    """Says when it is unpickled."""

    unpickled = 0

    def __setstate__(self, state: dict[str, Any]) -> None:
        Loud.unpickled += 1
        super().__setstate__(state)  # type: ignore[no-untyped-call]


@pytest.fixture
def network() -> nn.Module:
    torch.manual_seed(0)
    network = SmallCNN(**SHAPE)
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean += torch.rand_like(layer.running_mean)  # type: ignore[operator, arg-type]
    return network.eval()


def load(path: str = "weights.pt", *, shape: dict[str, Any] = SHAPE, **given: Any) -> PrivateTeacher:
    return TeacherConfig(path=path, **{"network": SmallCNN, **given}).load(**shape)


def prefixed(weights: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {f"{prefix}{name}": value for name, value in weights.items()}


def test_a_network_named_again_keeps_the_arguments_that_the_file_has(network: nn.Module) -> None:
    """An activation changes no shape: the weights would fit another network, and say nonsense."""

    def external(**arguments: Any) -> dict[str, Any]:
        name = "lightning_modules.networks.SmallCNN"
        return {"class_path": "External", "init_args": {"name": name, "arguments": arguments or None}}

    stated = external(activation="tanh")
    torch.save({"state_dict": network.state_dict(), "hyper_parameters": {"network": stated}}, "weights.pt")
    named = load(network=external())._network_of(0)
    assert nn.Tanh in {type(part) for part in named.modules()}
    explicit = load(network=external(activation="relu"))._network_of(0)
    assert nn.ReLU in {type(part) for part in explicit.modules()}
    code = external(activation={"class_path": "os.system"})
    torch.save({"state_dict": network.state_dict(), "hyper_parameters": {"network": code}}, "weights.pt")
    with pytest.raises(TeacherError, match=r"os\.system"):
        load(network=external())
    ours = {"class_path": "SmallCNN", "init_args": {"activation": "tanh"}}
    torch.save({"state_dict": network.state_dict(), "hyper_parameters": {"network": ours}}, "weights.pt")
    with pytest.raises(TeacherError, match=r"the file is of activation='tanh'"):
        load(network=SmallCNN)


WRAPPINGS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "plain": lambda weights: weights,
    "state_dict": lambda weights: {"state_dict": weights, "epoch": 3},
    "model_state_dict": lambda weights: {"model_state_dict": weights, "optimizer_state_dict": {"state": {}}},
    "compiled in DDP": lambda weights: prefixed(weights, "module._orig_mod."),
    "DDP in compiled": lambda weights: {"model": prefixed(weights, "_orig_mod.module.")},
    "Lightning, ours": lambda weights: {"state_dict": prefixed(weights, "network.")},
    "a part compiled": lambda weights: {name.replace("head.", "head._orig_mod."): weights[name] for name in weights},
    "beside a loss": lambda weights: {
        "state_dict": {**prefixed(weights, "model."), "criterion.weight": torch.ones(10)}
    },
    "beside settings": lambda weights: {
        "state_dict": weights,
        "args": argparse.Namespace(lr=0.1, best=np.float64(0.9)),
        "step": np.int64(3),
        "hyper_parameters": argparse.Namespace(lr=0.1),
    },
}


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_every_wrapping_gives_the_same_network_and_identity(network: nn.Module, wrapping: str) -> None:
    torch.save(WRAPPINGS[wrapping](network.state_dict()), "weights.pt")
    images, teacher = torch.randn(3, 1, 8, 8), load()
    assert torch.allclose(teacher.logits(images), network(images), atol=1e-5)
    same = TeacherConfig(path=network).load(**SHAPE).training
    assert teacher.training.digest == same.digest  # type: ignore[union-attr]


def test_weights_that_do_not_fit_are_named(network: nn.Module) -> None:
    torch.save(SmallCNN(**{**SHAPE, "num_classes": 4}).state_dict(), "weights.pt")
    with pytest.raises(TeacherError, match=r"has 4 classes and the data 10: "):
        load()
    torch.save(nn.Sequential(*(nn.Linear(1, 1) for _ in range(99))).state_dict(), "weights.pt")
    with pytest.raises(TeacherError, match=r"\(`distill`: --network\)") as refused:
        load()
    assert "Missing key(s)" in str(refused.value) and len(str(refused.value)) < 800
    weights = prefixed(network.state_dict(), "model.")
    torch.save({"state_dict": {name: value for name, value in weights.items() if "head" not in name}}, "weights.pt")
    with pytest.raises(TeacherError, match=r"(?s)do not fit the architecture SmallCNN.*model\."):
        load()
    both = {**prefixed(network.state_dict(), "student."), **prefixed(SmallCNN(**SHAPE).state_dict(), "ema.")}
    torch.save({"state_dict": both}, "weights.pt")
    with pytest.raises(TeacherError, match=r"holds ema and student, which all fit: save the one"):
        load()
    # Of ours, `network` is the one.
    torch.save({"state_dict": {**both, **prefixed(network.state_dict(), "network.")}}, "weights.pt")
    images = torch.randn(3, 1, 8, 8)
    assert torch.allclose(load().logits(images), network(images), atol=1e-5)
    with pytest.raises(TeacherError, match=r"does not say its architecture.*model\.teacher\.network"):
        load(network=None)


def test_what_is_no_file_of_weights(network: nn.Module) -> None:
    weights = network.state_dict()
    Path("text.ckpt").write_text("hello")
    Path("empty.pt").touch()
    Path("pointer.pt").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 12\n")
    Path("page.safetensors").write_text("\n<!DOCTYPE html><html>")
    Path("sklearn.pkl").write_bytes(pickle.dumps(Ridge()))
    torch.save(weights, "cut.pt")
    save_file(weights, "cut.safetensors")
    for file in Path().glob("cut*"):
        file.write_bytes(file.read_bytes()[:-600])
    torch.save({"ensemble": {}}, "many.ckpt")
    Path("folder").mkdir()
    for name, message in (
        ("text.ckpt", "cannot be read as plain weights: it is nothing that torch has saved"),
        ("empty.pt", "is empty"),
        ("pointer.pt", "is a pointer of git-LFS.*git lfs pull"),
        ("page.safetensors", "is a web page.*/resolve/"),
        ("sklearn.pkl", r"it is a pickle that names sklearn\.linear_model\._ridge\.Ridge"),
        ("cut.pt", "it is cut short after .* bytes: copy or download it again"),
        ("cut.safetensors", r"cut\.safetensors cannot be read as safetensors: cut short"),
        ("many.ckpt", "holds an ensemble, and this method takes one teacher"),
        ("folder", r"is a folder: give the file.*or a folder with config\.json"),
        ("of_my_own.ckpt", r"does not exist: check its path, or make it by its recipe"),
    ):
        with pytest.raises(TeacherError, match=message):
            load(name)


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
def test_what_could_run_code_is_refused(network: nn.Module, kind: str) -> None:
    PICKLED[kind](nn.Sequential(nn.Flatten(), Loud(64, 10)))
    Loud.unpickled = 0
    with pytest.raises(TeacherError, match=r"teacher\.pt cannot be read as plain weights"):
        load("teacher.pt")
    assert Loud.unpickled == 0


def test_a_checkpoint_knows_its_architecture_and_its_data(folder: Path) -> None:
    path = "teachers/digits.ckpt"
    teacher = load(path, network=None)
    assert teacher.private_data == "Digits/train" and teacher.num_records == 1435
    for given, shape, message in (
        (TwoConvNet, {}, r"(?s)do not fit the architecture TwoConvNet.*model\.teacher\.network"),
        (None, {"num_classes": 2}, r"has 10 classes and the data 2"),
        (None, {"image_shape": (1, 2, 2)}, "cannot be built"),
    ):
        with pytest.raises(TeacherError, match=message):
            load(path, network=given, shape={**SHAPE, **shape})
    with pytest.raises(TeacherError, match=r"of no use here.*model\.teacher"):
        TeacherConfig(path=nn.Linear(3, 3)).load(**SHAPE)


def test_weights_that_are_not_finite_are_refused_before_any_charge(folder: Path) -> None:
    content = torch.load("teachers/digits.ckpt", weights_only=True)
    content["state_dict"]["network.head.bias"][0] = torch.nan
    torch.save(content, "teachers/digits.ckpt")
    with pytest.raises(TeacherError, match="not finite"):
        distil()
    assert "reserve" not in Path("ledgers/Digits-train.jsonl").read_text()


class Holds(nn.Module):
    """Another network, and nothing else."""

    def __init__(self, num_classes: int, image_shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.inner = SmallCNN(num_classes, image_shape)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.inner(images)  # type: ignore[no-any-return]


def test_a_network_that_holds_the_files_is_the_same_teacher(network: nn.Module) -> None:
    images, found = torch.randn(3, 1, 8, 8), set()
    for weights in (network.state_dict(), prefixed(network.state_dict(), "model.inner.")):
        torch.save(weights, "weights.pt")
        teacher = load(network=Holds)
        assert torch.allclose(teacher.logits(images), network(images), atol=1e-5)
        found.add(teacher.training.digest)  # type: ignore[union-attr]
    assert found == {TeacherConfig(path=network).load(**SHAPE).training.digest}  # type: ignore[union-attr]
    torch.save({name: value + 1 for name, value in network.state_dict().items()}, "weights.pt")
    assert load().training.digest not in found  # type: ignore[union-attr]


def test_weights_in_another_form_are_refused_by_what_they_are() -> None:
    def layers() -> nn.Sequential:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    pruned, normalised = layers(), layers()
    nn.utils.prune.l1_unstructured(pruned[1], "weight", 0.5)
    nn.utils.parametrizations.weight_norm(normalised[1])
    adapted = {"base.lora_A.weight": torch.zeros(2, 64), "base.lora_B.weight": torch.zeros(10, 2)}
    quantized = {"1.scale": torch.ones(()), "1.zero_point": torch.zeros(()), "1._packed_params._packed_params": ()}
    for weights, message in (
        (pruned.state_dict(), r"are pruned: .*prune\.remove"),
        (normalised.state_dict(), "are weight-normalised or otherwise parametrised: .*remove_parametrizations"),
        (quantized, "are quantized: give those from before"),
        (adapted, "are of an adapter"),
    ):
        torch.save(weights, "weights.pt")
        with pytest.raises(TeacherError, match=message):
            load(network=lambda *_: layers())
    # Which a network that has the same form takes.
    torch.save(normalised.state_dict(), "weights.pt")
    load(network=lambda *_: copy.deepcopy(normalised))
