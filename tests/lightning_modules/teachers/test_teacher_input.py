"""What a teacher is given of this project's images, wherever its images pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torchvision.transforms import v2

from lightning_modules.networks import SmallCNN
from lightning_modules.teachers import external as trial
from lightning_modules.teachers.config import TeacherConfig
from lightning_modules.teachers.external import AdaptedTeacher, TeacherInput
from lightning_modules.teachers.files import TeacherError
from privacy.mechanisms import NoisyGradients, Shape
from privacy.session import PrivacySession

IMAGENET = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}


def ours(pixels: torch.Tensor) -> torch.Tensor:
    """Images in [-1, 1] of pixels in [0, 1]."""
    return 2 * pixels - 1


def test_ranges_and_normalisation_are_torchvisions() -> None:
    pixels = torch.rand(4, 3, 8, 8)
    assert torch.equal(TeacherInput()(ours(pixels)), ours(pixels))
    assert torch.allclose(TeacherInput(range=[0, 1])(ours(pixels)), pixels, atol=1e-6)
    assert torch.allclose(TeacherInput(range=[0, 255])(ours(pixels)), 255 * pixels, atol=1e-4)
    expected = v2.Normalize(**IMAGENET)(pixels)
    assert torch.allclose(TeacherInput(**IMAGENET)(ours(pixels)), expected, atol=1e-5)
    assert torch.allclose(
        TeacherInput(mean=0.5, std=0.25)(ours(pixels)), v2.Normalize([0.5] * 3, [0.25] * 3)(pixels), atol=1e-5
    )


def test_sizes_and_channels_are_torchvisions() -> None:
    grey, colours = torch.rand(2, 1, 12, 12), torch.rand(2, 3, 12, 12)
    assert torch.equal(TeacherInput(channels=3)(grey), grey.repeat(1, 3, 1, 1))
    as_grey = TeacherInput(channels=1, range=[0, 1])(ours(colours))
    assert torch.allclose(as_grey, v2.Grayscale()(colours), atol=1e-3)
    for size in (7, [20, 16]):
        expected = v2.Resize([7, 7] if size == 7 else size, antialias=True)(colours)
        found = TeacherInput(size=size)(colours)  # type: ignore[arg-type]
        assert torch.allclose(found, expected, atol=1e-6)
    assert TeacherInput(size=[20, 16], channels=3).shape((1, 8, 8)) == (3, 20, 16)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"range": [0, 1], **IMAGENET}, "either range, or mean and std"),
        ({"range": [1, 0]}, r"range must be a lowest and a highest value.*got \[1, 0\]"),
        ({"mean": [0.5], "std": [0.0]}, "std above 0"),
        ({"mean": [float("nan")], "std": [1.0]}, "must be finite and equally many"),
        ({"size": 0}, "size must be a side of 1 or more"),
        ({"channels": 4}, "channels must be 1 or 3, got 4"),
    ],
)
def test_what_has_no_meaning_is_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=rf"teacher.input.*{message}|{message}"):
        TeacherInput(**given)


def test_outputs_become_logits_of_the_same_probabilities() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(16, 5))
    images = torch.randn(6, 1, 4, 4)
    expected = network(images).softmax(dim=1)
    for layer, outputs in ((nn.Softmax(1), "probabilities"), (nn.LogSoftmax(1), "logits")):
        whole = TeacherConfig(path="x", outputs=outputs).adapted(nn.Sequential(network, layer))  # type: ignore[arg-type]
        assert torch.allclose(whole(images).softmax(dim=1), expected, atol=1e-6)
    sure = AdaptedTeacher(nn.Softmax(1), takes=TeacherInput(range=[0, 500]), outputs="probabilities")
    assert torch.isfinite(sure(torch.tensor([[[[-1.0]], [[1.0]]]]))).all()
    assert not isinstance(TeacherConfig(path="x").adapted(network), AdaptedTeacher)


class Answer(NamedTuple):
    logits: torch.Tensor
    auxiliary: torch.Tensor


class Gives(nn.Module):
    """Logits in another form."""

    def __init__(self, form: Callable[[torch.Tensor], Any], classes: int = 3) -> None:
        super().__init__()
        self.body, self.form = nn.Sequential(nn.Flatten(), nn.Linear(16, classes)), form

    def forward(self, images: torch.Tensor) -> Any:
        return self.form(self.body(images))


@pytest.mark.parametrize(
    "form",
    [
        lambda logits: {"logits": logits, "loss": None},
        lambda logits: {"out": logits},
        lambda logits: (logits, logits.sum()),
        lambda logits: Answer(logits, logits),
    ],
)
def test_logits_are_found_in_what_a_network_gives(form: Callable[[torch.Tensor], Any]) -> None:
    network, images = Gives(form), torch.randn(4, 1, 4, 4)
    teacher = TeacherConfig(path=network).load(num_classes=3, image_shape=(1, 4, 4))
    assert torch.allclose(teacher.logits(images), network.body(images))
    assert type(network(images)) is type(form(images[:, 0, 0]))  # the script's own is left as it was
    torch.save(network.state_dict(), "weights.pt")
    read = TeacherConfig(path="weights.pt", network=lambda *_: Gives(form)).load(num_classes=3, image_shape=(1, 4, 4))
    assert torch.allclose(read.logits(images), network.body(images), atol=1e-6)


@pytest.mark.parametrize("flat", [False, True])
def test_one_output_is_of_the_second_of_two_classes(flat: bool) -> None:
    images, shape = torch.randn(4, 1, 4, 4), {"num_classes": 2, "image_shape": (1, 4, 4)}
    for outputs, end in (("logits", nn.Identity()), ("probabilities", nn.Sigmoid())):
        network = Gives(lambda one, end=end: end(one)[:, 0] if flat else end(one), classes=1)
        teacher = TeacherConfig(path=network, outputs=outputs).load(**shape)  # type: ignore[arg-type]
        expected = network.body(images).sigmoid()[:, 0]
        assert torch.allclose(teacher.logits(images).softmax(dim=1)[:, 1], expected, atol=1e-6)
        # A sigmoid's outputs are told from logits.
        stated, other = (outputs, "logits") if outputs == "probabilities" else (outputs, "probabilities")
        wrong = TeacherConfig(path=network, outputs=other).load(**shape)  # type: ignore[arg-type]
        session = PrivacySession(NoisyGradients(), Shape(8, 2))
        with pytest.raises(ValueError, match=f"gives {stated} for"):
            wrong.try_external(session, image_shape=(1, 4, 4), named="model.teacher")
    with pytest.raises(TeacherError, match=r"must give 10 logits an image, got \(4?2?"):
        TeacherConfig(path=Gives(nn.Identity(), classes=1)).load(num_classes=10, image_shape=(1, 4, 4))


def test_private_teachers_and_ensembles_apply_it() -> None:
    networks = [SmallCNN(num_classes=4, image_shape=(1, 8, 8)).eval() for _ in range(3)]
    stated, images = TeacherInput(range=[0, 1]), torch.rand(5, 1, 8, 8) * 2 - 1
    expected = torch.stack([network((images + 1) / 2) for network in networks]).detach()
    torch.save(networks[0].state_dict(), "weights.pt")
    shape: dict[str, Any] = {"num_classes": 4, "image_shape": (1, 8, 8)}
    for path in (networks[0], "weights.pt"):
        teacher = TeacherConfig(path=path, network=SmallCNN, input=stated).load(**shape)  # type: ignore[arg-type]
        assert torch.allclose(teacher.logits(images), expected[0], atol=1e-5)
        assert torch.allclose(teacher._network_of(0)(images), expected[0], atol=1e-5)
        # It is the same teacher, whatever it is given.
        same = TeacherConfig(path=path, network=SmallCNN).load(**shape)  # type: ignore[arg-type]
        assert teacher.training == same.training
    ensemble = TeacherConfig(path=nn.ModuleList(networks), input=stated).load_ensemble(**shape)
    assert torch.allclose(ensemble.each(images), expected, atol=1e-5)
    assert torch.allclose(ensemble._network_of(1)(images), expected[1], atol=1e-5)


SHAPE = (1, 8, 8)


def tried(network: nn.Module, outputs: Any = "logits", named: str = "model.teacher") -> None:
    teacher = TeacherConfig(path=network, outputs=outputs).load(num_classes=10, image_shape=SHAPE)
    session = PrivacySession(NoisyGradients(), Shape(8, 10))
    teacher.try_external(session, image_shape=SHAPE, named=named)
    assert session.uncharged_queries == [trial.TRIAL_ACCESS]


class Rounded(nn.Module):
    def forward(self, outputs: Tensor) -> Tensor:
        return outputs.half().float()


def test_outputs_that_are_not_as_stated_are_refused(said: list[str]) -> None:
    torch.manual_seed(0)
    logits = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    probabilities, logarithms = nn.Sequential(logits, nn.Softmax(1)), nn.Sequential(logits, nn.LogSoftmax(1))
    for network, found, stated in (
        (probabilities, "probabilities", "logits"),
        (nn.Sequential(probabilities, Rounded()), "probabilities", "logits"),
        (logits, "logits", "probabilities"),
        (logarithms, "logits", "probabilities"),
    ):
        message = rf"gives {found} for 64 .*\.baseline\.outputs states {stated}.*baseline\.outputs: {found}"
        with pytest.raises(ValueError, match=message):
            tried(network, stated, named="model.generator_phase.baseline")
        tried(network, found)
    assert said == []
