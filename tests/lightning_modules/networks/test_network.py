"""Networks of plain values, of other packages and of a user's factory, with all arguments; foreign ones' features."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from torch import Tensor, nn

from lightning_modules.networks import (
    External,
    ImageClassifier,
    SmallCNN,
    build_network,
    logits_and_features,
)
from lightning_modules.networks.network import built, network_of

NET = """
import torch
from torch import nn
from beside import DEPTH

class Net(nn.Module):
    def __init__(self, n_out, width=4, *, image_shape, act=nn.ReLU):
        super().__init__()
        pixels = image_shape[0] * image_shape[1] * image_shape[2]
        self.depth = DEPTH
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(pixels, width), act(), nn.Linear(width, n_out))

    def forward(self, images):
        return self.layers(images)

def make(num_classes, scale=1.0):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(num_classes))
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "beside.py").write_text("DEPTH = 7\n")
    (tmp_path / "my.py").write_text(NET)
    return tmp_path / "my.py"


def build(name: str, shape: tuple[int, int, int] = (1, 8, 8), classes: int = 5, **arguments: Any) -> nn.Module:
    """One of ours by its class; anybody else's as `External`."""
    ours = name.isidentifier()
    given = arguments if ours else {"name": name, "arguments": arguments}
    spec = {"class_path": name if ours else "External", "init_args": given}
    return build_network(spec, num_classes=classes, image_shape=shape, name="model.teacher.network")


def test_a_class_of_a_file_gets_all_its_arguments(file: Path) -> None:
    network: Any = build(f"{file}:Net", n_out=5, width=9, act="torch.nn.Tanh")
    assert network.depth == 7 and network.layers[1].out_features == 9 and isinstance(network.layers[2], nn.Tanh)
    assert network(torch.zeros(2, 1, 8, 8)).shape == (2, 5)
    assert build(f"{file}:make")(torch.zeros(3, 1, 8, 8)).shape == (3, 5)


def test_the_working_folder_does_not_join_the_import_path(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stray file of the user's was run by another package's optional import."""
    for name in ("my", "beside"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (file.parent / "z3.py").write_text("raise RuntimeError('a stray file')\n")
    network: Any = build("my.Net", n_out=5)  # in the working folder, and what it imports
    assert network.depth == 7 and find_spec("beside") is not None
    build(f"{file}:Net", n_out=5)
    assert find_spec("z3") is None and str(file.parent) not in sys.path
    monkeypatch.syspath_prepend(str(file.parent))  # the control
    assert find_spec("z3") is not None


def test_torchvision_and_timm_by_name() -> None:
    whole: Any = build(
        "torchvision.models.ResNet",
        (3, 32, 32),
        block="torchvision.models.resnet.BasicBlock",
        layers=[1, 1, 1, 1],
        norm_layer="torch.nn.Identity",
    )
    assert len(whole.layer1) == 1 and isinstance(whole.bn1, nn.Identity)
    assert build("torchvision.models.resnet18", (3, 32, 32))(torch.zeros(2, 3, 32, 32)).shape == (2, 5)
    by_timm = build("timm.create_model", model_name="test_resnet.r160_in1k")
    assert by_timm.eval()(torch.zeros(2, 1, 8, 8)).shape == (2, 5)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("{file}:Ned", {}, r"my\.py:Ned cannot be imported: there is no Ned: did you mean Net\?"),
        (
            "{file}:Net",
            {},
            r"model\.teacher\.network: .*missing .* 'n_out': set model\.teacher\.network\.arguments\.NAME",
        ),
        ("nowhere.at.all.Net", {}, "No module named 'nowhere'"),
        ("SmalCNN", {}, "no network is described by .*'SmalCNN'"),
        ("SmallCNN", {"widht": 3}, "no network is described by .*SmallCNN.*'widht' is not accepted"),
    ],
)
def test_what_is_not_there_is_named(file: Path, name: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(name.format(file=file), **arguments)


def test_a_function_that_hands_out_what_it_keeps_is_refused_the_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the two may be the private teacher: loading it would write into the student."""
    kept = nn.Linear(64, 5)

    def twice(make: Callable[[], nn.Module]) -> list[nn.Module]:
        return [built(lambda *_: make(), 5, (1, 8, 8), name=f"model.{part}.network") for part in ("teacher", "student")]

    twice(lambda: nn.Linear(64, 5))
    with pytest.raises(ValueError, match="must build a new network, and 'weight' belongs to another"):
        twice(lambda: kept)
    monkeypatch.setattr("lightning_modules.networks.network._address", lambda _: 0)
    assert twice(lambda: kept) == [kept, kept]


MNIST = (1, 28, 28)


def hooks_of(model: nn.Module) -> int:
    return sum(len(module._forward_pre_hooks) for module in model.modules())


def test_features_of_own_and_foreign_networks() -> None:
    images = torch.randn(2, 3, 32, 32)
    for model in (SmallCNN(image_shape=(3, 32, 32)), torchvision.models.resnet18(num_classes=10)):
        model.eval()
        logits, features = logits_and_features(model, images)
        last = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
        assert torch.equal(logits, last(features))
        assert torch.equal(logits, model(images))
        assert hooks_of(model) == 0


def test_a_network_without_features_is_refused_and_left_without_hooks() -> None:
    with pytest.raises(ValueError, match=r"Sequential has no nn\.Linear"):
        logits_and_features(nn.Sequential(nn.Conv2d(1, 10, 28), nn.Flatten()), torch.zeros(2, *MNIST))
    per_pixel = nn.Sequential(nn.Linear(28, 10))
    with pytest.raises(ValueError, match=r"was given \[\(2, 1, 28, 28\)\]"):
        logits_and_features(per_pixel, torch.zeros(2, *MNIST))
    assert hooks_of(per_pixel) == 0
    failing = nn.Sequential(nn.Flatten(), nn.Linear(3, 10))
    with pytest.raises(RuntimeError):
        logits_and_features(failing, torch.zeros(2, *MNIST))
    assert hooks_of(failing) == 0


RESNET = "torchvision.models.resnet18"


class Other(ImageClassifier):
    """A user's own, known by its class path."""

    def __init__(self, num_classes: int, image_shape: tuple[int, int, int], *, width: int = 3) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Flatten(), nn.LazyLinear(width))
        self.head = nn.Linear(width, num_classes)


def test_a_network_is_a_factory_or_plain_values() -> None:
    shape: Any = {"num_classes": 3, "image_shape": (1, 8, 8), "name": "network"}
    spec = {"class_path": "SmallCNN", "init_args": {"width": 4}}
    for given in ("SmallCNN", SmallCNN, partial(SmallCNN, width=4), spec, network_of(spec)):
        made = build_network(given, **shape)
        assert isinstance(made, SmallCNN) and made.training and made(torch.zeros(2, 1, 8, 8)).shape == (2, 3)
        assert made.features[0].out_channels == (16 if given in ("SmallCNN", SmallCNN) else 4)
    other = build_network({"class_path": f"{__name__}.Other", "init_args": {"width": 7}}, **shape)
    assert isinstance(other, Other) and other.head.in_features == 7
    build_network(partial(External, name=RESNET), **{**shape, "image_shape": (3, 32, 32)})
    build_network(lambda c, size: nn.Sequential(nn.Flatten(), nn.Linear(size[1] * size[2], c)), **shape)
    with pytest.raises(ValueError, match="network: Sequential must give logits, got probabilities"):
        build_network(lambda *_: nn.Sequential(nn.Flatten(), nn.Linear(64, 3), nn.Softmax(dim=1)), **shape)
    with pytest.raises(ValueError, match=r"network: .* takes 0 positional arguments but 2 were given"):
        build_network(lambda: SmallCNN(), **shape)


class NotFinite(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return torch.full((len(images), 10), float("nan"))


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (partial(External, name=RESNET), r"teacher: ResNet cannot take images of shape \(1, 28, 28\)"),
        (lambda *_: nn.Sequential(nn.Flatten(), nn.Linear(784, 9)), r"teacher: Sequential must give .* got \(2, 9\)"),
        (lambda *_: NotFinite(), "teacher: NotFinite gives logits that are not finite"),
    ],
)
def test_networks_that_do_not_fit_are_named(factory: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_network(factory, num_classes=10, image_shape=MNIST, name="teacher")
