"""Networks by name, and of a user's factory, with all their arguments; features of foreign ones."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from torch import Tensor, nn

from lightning_modules.networks import Network, SmallCNN, build_network, logits_and_features

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

def make(num_classes, /, scale=1.0):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(num_classes))

def number():
    return 3

THREE = 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "beside.py").write_text("DEPTH = 7\n")
    (tmp_path / "my.py").write_text(NET)
    return tmp_path / "my.py"


def build(name: str, shape: tuple[int, int, int] = (1, 8, 8), classes: int = 5, **arguments: Any) -> nn.Module:
    given = Network(name=name, arguments=arguments)
    return build_network(given, num_classes=classes, image_shape=shape, name="model.teacher.network")


def test_a_class_of_a_file_gets_all_its_arguments(file: Path) -> None:
    network: Any = build(f"{file}:Net", n_out=5, width=9, act="torch.nn.Tanh")
    assert network.depth == 7 and network.layers[1].out_features == 9 and isinstance(network.layers[2], nn.Tanh)
    assert network(torch.zeros(2, 1, 8, 8)).shape == (2, 5)
    assert build(f"{file}:make")(torch.zeros(3, 1, 8, 8)).shape == (3, 5)


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
    by_timm = build("timm.create_model", model_name="test_resnet.r160_in1k", in_chans=1)
    assert by_timm.eval()(torch.zeros(2, 1, 8, 8)).shape == (2, 5)


def test_a_file_that_was_changed_is_read_again(file: Path) -> None:
    build(f"{file}:Net", n_out=5)
    file.write_text(NET.replace("width=4", "width=6"))
    network: Any = build(f"{file}:Net", n_out=5)
    assert network.layers[1].out_features == 6


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("{file}:Ned", {}, r"my\.py:Ned: there is no Ned in it"),
        (
            "{file}:Net",
            {},
            r"needs n_out: add to model\.teacher\.network\.arguments, .*--model.teacher.network.arguments.n_out",
        ),
        ("{file}:Net", {"n_out": 5, "widht": 3}, r"takes no argument 'widht', but n_out"),
        ("{file}:number", {}, r"must build a torch\.nn\.Module, got int"),
        ("{file}:THREE", {}, "must be a class or a function, got int"),
        ("{file}.py:Net", {}, r"there is no file .*my\.py\.py"),
        ("nowhere.at.all.Net", {}, "there is no module nowhere"),
        ("torchvision.models.resnet81", {}, r"there is no resnet81 in it"),
        ("SmalCNN", {}, r"there is no network SmalCNN in .*"),
        ("SmallCNN", {"widht": 3}, r"network.arguments: SmallCNN takes no argument 'widht'"),
        ("SmallCNN", {"width": "three"}, r"network\.arguments\.width.*\s+Expected a <class 'int'>"),
        ("Net", {}, "give package.Name, or path/to/file.py:Name"),
    ],
)
def test_what_is_not_there_is_named(file: Path, name: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(name.format(file=file), **arguments)


def test_a_file_that_fails_says_why(file: Path) -> None:
    file.write_text("import not_installed_anywhere\n")
    with pytest.raises(ValueError, match=r"my\.py:Net cannot be imported: .*not_installed_anywhere"):
        build(f"{file}:Net")


def test_a_function_that_hands_out_what_it_keeps_is_refused_the_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the two may be the private teacher: loading it would write into the student."""
    kept = nn.Linear(64, 5)
    anew, whole, part = (Network(name=made) for made in (lambda: nn.Linear(64, 5), lambda: kept, lambda: Reusing(kept)))
    first = [network.build(setting="model.teacher.network") for network in (anew, whole)]
    anew.build(setting="model.student.network")
    for network in (whole, part):
        with pytest.raises(ValueError, match="must build a new network, and 'weight' belongs to another"):
            network.build(setting="model.student.network")
    monkeypatch.setattr("lightning_modules.networks.network._refuse_shared", lambda *_: None)
    assert whole.build(setting="model.student.network") is first[1] is kept


class Reusing(nn.Module):
    """A parameter of its own, of another's numbers."""

    def __init__(self, other: nn.Linear) -> None:
        super().__init__()
        self.weight = nn.Parameter(other.weight)


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


def test_features_carry_gradients_to_the_images() -> None:
    images = torch.randn(2, 3, 32, 32, requires_grad=True)
    _, features = logits_and_features(torchvision.models.resnet18(num_classes=10), images)
    features.sum().backward()
    assert images.grad is not None and images.grad.abs().sum() > 0


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


def test_a_network_gets_what_it_accepts() -> None:
    shape: Any = {"num_classes": 3, "image_shape": (1, 8, 8), "name": "network"}
    for given in ("SmallCNN", SmallCNN, partial(SmallCNN, width=4), {"name": "SmallCNN", "arguments": {"width": 4}}):
        built = build_network(given, **shape)
        assert built.training and built(torch.zeros(2, 1, 8, 8)).shape == (2, 3)
    build_network(torchvision.models.resnet18, **{**shape, "image_shape": (3, 32, 32)})
    build_network(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), **shape)
    with pytest.raises(ValueError, match="network: Sequential must give logits, got probabilities"):
        build_network(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 3), nn.Softmax(dim=1)), **shape)


def test_the_check_leaves_no_trace() -> None:
    torch.manual_seed(0)
    expected = SmallCNN()
    state = torch.get_rng_state()
    torch.manual_seed(0)
    built = build_network(SmallCNN, num_classes=10, image_shape=MNIST, name="network")
    assert torch.equal(torch.get_rng_state(), state)
    assert all(
        torch.equal(a, b) for a, b in zip(built.state_dict().values(), expected.state_dict().values(), strict=True)
    )
    assert all(module.training for module in built.modules())


class NotFinite(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return torch.full((len(images), 10), float("nan"))


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (partial(torchvision.models.resnet18), r"teacher: ResNet cannot take images of shape \(1, 28, 28\)"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 9)), r"teacher: Sequential must give .* got \(2, 9\)"),
        (NotFinite, "teacher: NotFinite gives logits that are not finite"),
        (lambda: 3, r"teacher must build a torch\.nn\.Module, got int"),
    ],
)
def test_networks_that_do_not_fit_are_named(factory: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_network(factory, num_classes=10, image_shape=MNIST, name="teacher")  # type: ignore[arg-type]
