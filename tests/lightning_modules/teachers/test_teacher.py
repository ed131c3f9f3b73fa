"""Public frequencies of classes: logits of a population in which all classes are as frequent."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from support.dp_teachers import teacher_by_dp_sgd
from support.runs import distil, guarantee
from torch import nn

from lightning_modules import DPSGDTeacher, Teacher

FREQUENCIES = (0.75, 0.2, 0.05)


@pytest.mark.parametrize("given", [[0.5, 0.5], [0.5, 0.5, 0.0], [0.5, 0.3, math.nan], [0.5, 0.5, 0.5], 0.5])
def test_what_is_no_frequency_is_refused_by_name(given: Any) -> None:
    with pytest.raises(ValueError, match="class_prior must be 3 numbers above 0"):
        Teacher(num_classes=3, image_shape=(1, 8, 8), class_prior=given)


def linear_classifier(num_classes: int, image_shape: tuple[int, int, int]) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(image_shape), num_classes))


def test_augmented_pictures_are_mirrored_and_shifted_each_by_itself() -> None:
    own = type("OwnSteps", (Teacher,), {"training_step": lambda *_: None})
    for kind, settings in ((DPSGDTeacher, {"noise_multiplier": 1.0}), (own, {})):
        with pytest.raises(ValueError, match=f"augment has no effect in {kind.__name__}"):
            kind(num_classes=3, image_shape=(1, 8, 8), augment=True, **settings)
    image = torch.arange(128.0).reshape(1, 2, 8, 8)
    bordered = torch.nn.functional.pad(image, (1, 1, 1, 1), mode="reflect")
    views = [bordered[0, :, y : y + 8, x : x + 8].flip(at) for y in range(3) for x in range(3) for at in ((), (2,))]
    torch.manual_seed(0)
    for augment, expected in ((False, [image[0]]), (True, views)):
        teacher = Teacher(num_classes=3, image_shape=(2, 8, 8), augment=augment)
        seen = list[torch.Tensor]()
        teacher.network.register_forward_pre_hook(lambda _network, inputs, seen=seen: seen.append(inputs[0]))
        teacher.training_step((image.expand(200, -1, -1, -1), torch.zeros(200, dtype=torch.long)), 0)
        counts = [sum(torch.equal(one, view) for one in seen[0]) for view in expected]
        assert sum(counts) == 200 and all(counts)


def fitted_bias(class_prior: tuple[float, ...] | None) -> torch.Tensor:
    """The bias of a head that sees nothing but how frequent its classes are."""
    teacher = Teacher(num_classes=3, image_shape=(1, 4, 4), network=linear_classifier, class_prior=class_prior)
    teacher.log = lambda *_args, **_settings: None  # type: ignore[method-assign,assignment]
    labels = torch.arange(3).repeat_interleave(torch.tensor([75, 20, 5]))
    images = torch.zeros(len(labels), 1, 4, 4)
    optimizer = torch.optim.SGD(teacher.parameters(), lr=2.0)
    for _ in range(400):
        optimizer.zero_grad()
        teacher.training_step((images, labels), 0).backward()
        optimizer.step()
    return teacher(images[:1])[0].detach()


def test_of_uninformative_images_no_class_is_likelier() -> None:
    adjusted = fitted_bias(FREQUENCIES)
    assert float(adjusted.max() - adjusted.min()) < 0.02
    # Negative control: without it the logits are the logarithms of the frequencies.
    plain = fitted_bias(None)
    expected = torch.tensor(FREQUENCIES).log()
    assert torch.allclose(plain - plain.mean(), expected - expected.mean(), atol=0.02)


def test_a_student_states_what_its_teachers_guarantee_rests_on() -> None:
    """A student's ε is the teacher's, and holds where the teacher's does."""
    prior = [0.19] + [0.09] * 9
    teacher_by_dp_sgd("dp", epochs=1, noise_multiplier=1.0, class_prior=prior)
    teacher_by_dp_sgd("plain", epochs=1, noise_multiplier=1.0)
    for name, stated in (("dp", True), ("plain", False)):
        distil(f"student of {name}", class_path="Distillation", model={"teacher": f"{name}/checkpoints/last.ckpt"})
        for folder in (name, f"student of {name}"):
            found = guarantee(folder)
            assert math.isfinite(float(found["epsilon"]))
            text = " ".join(found["assumptions"])
            assert ("frequencies of the classes, 0.19, 0.09" in text) is stated
