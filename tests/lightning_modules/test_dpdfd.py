"""The algorithm's own parts: what each optimizer touches, each term of the generator's loss, where images come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.runs import distil, of_digits
from support.variants import MoodyTeacher

from lightning_modules import DPDFD
from lightning_modules.losses.functional import activation, class_balance, one_hot_loss
from lightning_modules.networks import logits_and_features


def test_each_optimizer_steps_its_own_network_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed: list[tuple[str, set[str]]] = []

    def watch(part: str) -> None:
        method = getattr(DPDFD, f"update_{part}")

        def watched(self: DPDFD, *arguments: Any) -> Any:
            before = {name: value.clone() for name, value in self.state_dict().items()}
            result = method(self, *arguments)
            after = self.state_dict().items()
            changed.append((part, {name.split(".")[0] for name, now in after if not torch.equal(before[name], now)}))
            return result

        monkeypatch.setattr(DPDFD, f"update_{part}", watched)

    watch("student")
    watch("generator")
    distil(model={"student_loss_weight": 1.0})
    assert changed == [("student", {"student"}), ("generator", {"generator"})] * 3


OFF = {"one_hot_weight": 0.0, "balance_weight": 0.0, "activation_weight": 0.0, "student_loss_weight": 0.0}


def _module(**settings: Any) -> DPDFD:
    torch.manual_seed(1)
    module: DPDFD = of_digits(DPDFD, teacher=MoodyTeacher(), **settings)
    return module.eval()


@pytest.mark.parametrize(
    ("switch", "weight"),
    [("one_hot_weight", 2.0), ("balance_weight", 5.0), ("activation_weight", 0.3), ("student_loss_weight", 1.5)],
)
def test_each_term_of_the_generators_loss_has_its_switch(switch: str, weight: float) -> None:
    images, targets = torch.randn(6, 1, 8, 8), torch.rand(6, 10).softmax(dim=1)
    module = _module(**{**OFF, switch: weight}, activation_norm="l2")
    logits, features = logits_and_features(module.student, images)
    term = {
        "one_hot_weight": one_hot_loss(logits),
        "balance_weight": class_balance(logits),
        "activation_weight": -activation(features, norm="l2"),
        "student_loss_weight": torch.nn.functional.cross_entropy(logits, targets),
    }[switch]
    assert float(module.generator_loss(images, targets).detach()) == pytest.approx(
        weight * float(term.detach()), rel=1e-6
    )
    assert float(term.detach()) != 0
    assert float(_module(**OFF).generator_loss(images, targets)) == 0


def test_gamma_undoes_the_norm_bound_unless_it_is_given() -> None:
    outputs, released = torch.zeros(6, 10), torch.randn(6, 10)
    for module, gamma in ((_module(), 1000.0), (_module(gamma=3.0), 3.0)):
        made = module.gradient_targets.annotation(outputs, released, module.mechanism)
        assert torch.allclose(made.targets, (-gamma * released).softmax(dim=1))
