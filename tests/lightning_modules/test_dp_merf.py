"""DP-MERF: one step releases the mean embeddings, and a student of images that match them has their ε."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.dp_teachers import PLAIN_SGD, private_teacher, teacher_by_dp_sgd
from support.runs import configuration, fit, result
from torch.nn import functional as F

from datamodules import Digits
from lightning_modules.networks import MeanEmbedding
from lightning_modules.teachers.record_clipping import ClippedNetwork, Clipping
from lightning_modules.teachers.teacher import InnerProduct, PriorCrossEntropy

NETWORK = {"class_path": "MeanEmbedding", "init_args": {"features": 200, "length": 8.0}}


def merf(teacher: str, *, steps: int = 400, **model: Any) -> dict[str, Any]:
    made = configuration("student", steps=steps)
    made["data"]["init_args"]["batch_size"] = 64
    made["model"] = {
        "class_path": "DPMERF",
        "init_args": {
            "teacher": {"path": teacher},
            "images": {"generator": {"class_path": "DAFLGenerator", "init_args": {"width": 8}}},
            **model,
        },
    }
    return made


def test_a_step_releases_sums_of_the_features_of_each_class() -> None:
    network = MeanEmbedding(image_shape=(1, 8, 8), features=200, length=8.0)
    data = Digits()
    data.setup("fit")
    images, labels = data.train_records.__getitems__(list(range(500)))
    features = network.forward_features(images)
    assert torch.allclose(features.norm(dim=1), torch.ones(()))  # one record moves a sum by 1
    sums = -F.one_hot(labels, 10).T.double() @ features.double()

    def error(criterion: PriorCrossEntropy) -> float:
        clipped = ClippedNetwork(network, Clipping(max_grad_norm=1.0), criterion, image_shape=(1, 8, 8))
        (total,) = clipped.sums(images if clipped.head is None else features.detach(), labels)
        return float((total - sums).norm() / sums.norm())

    assert error(InnerProduct()) < 2e-3
    assert error(PriorCrossEntropy()) > 0.2  # whose gradients are clipped by another formula


def test_a_student_of_matching_images_learns_at_the_epsilon_of_the_embeddings(folder: Path) -> None:
    optimizer = {**PLAIN_SGD, "init_args": {"lr": 1 / 3}}  # three steps
    teacher_by_dp_sgd(
        "teacher", network=NETWORK, loss="inner_product", clipping={"max_grad_norm": 1.0}, optimizer=optimizer,
        target_epsilon=10.0, batch=1000, epochs=1,
    )  # fmt: skip
    module = fit(merf("teacher/checkpoints/last.ckpt", generator_steps=200)).model
    assert result("student")["accuracy"] > 0.5
    assert module.logged_names() == {name for name in module.trainer.callback_metrics if "privacy/" not in name}
    assert [module.schedule_steps(name, 300) for name in ("generator", "student")] == [200, 100]
    assert module.guarantee().epsilon == result("teacher")["epsilon_record"] <= 10
    assert module.guarantee().mechanism.startswith("the teacher's weights")
    grid = module.synthetic_grid()  # of inputs as in training
    latents = torch.randn(64, module.generator.latent_dim)
    assert grid.shape == (64, 1, 8, 8) and torch.equal(
        module.generator.eval()(latents), module.generator(module._with_classes(module.generator, (latents,)))
    )


def test_other_teachers_are_refused_before_they_cost_anything(folder: Path) -> None:
    private_teacher("teacher")
    with pytest.raises(ValueError, match="must be a MeanEmbedding, got SmallCNN"):
        fit(merf("teacher/checkpoints/last.ckpt"))
    assert not any("mean embeddings" in file.read_text() for file in Path().rglob("*.jsonl"))
