"""The algorithm's own parts: what each optimizer touches, each term of the generator's loss, where images come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.runs import distil, grouped
from support.variants import MoodyTeacher

from lightning_modules import DPDFD
from lightning_modules.losses.functional import activation, class_balance, one_hot_loss
from lightning_modules.networks import logits_and_features


def _snapshot(module: torch.nn.Module) -> list[torch.Tensor]:
    return [value.clone() for value in module.state_dict().values()]


def _changed(before: list[torch.Tensor], module: torch.nn.Module) -> bool:
    return any(not torch.equal(old, new) for old, new in zip(before, module.state_dict().values(), strict=True))


def _crossings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Steps in which an optimizer changed the other network, or left its own alone, over a run."""
    found: list[str] = []

    def watch(name: str, own: str, other: str) -> None:
        method = getattr(DPDFD, name)

        def watched(self: DPDFD, *arguments: Any) -> Any:
            networks = {part: getattr(self, part) for part in (own, other)}
            for network in networks.values():
                network.zero_grad(set_to_none=True)
            before = {part: _snapshot(network) for part, network in networks.items()}
            result = method(self, *arguments)
            if _changed(before[other], networks[other]):
                found.append(f"{name} changed the {other}")
            if any(parameter.grad is not None for parameter in networks[other].parameters()):
                found.append(f"{name} left gradients in the {other}")
            if not _changed(before[own], networks[own]):
                found.append(f"{name} did nothing to the {own}")
            return result

        monkeypatch.setattr(DPDFD, name, watched)

    watch("update_student", "student", "generator")
    watch("update_generator", "generator", "student")
    distil(model={"student_loss_weight": 1.0})
    return sorted(set(found))


def test_each_optimizer_steps_its_own_network_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _crossings(monkeypatch) == []


OFF = {"one_hot_weight": 0.0, "balance_weight": 0.0, "activation_weight": 0.0, "student_loss_weight": 0.0}


def _module(**settings: Any) -> DPDFD:
    torch.manual_seed(1)
    given = grouped(DPDFD, teacher=MoodyTeacher(), **settings)
    return DPDFD(num_classes=10, image_shape=(1, 8, 8), batch_size=6, **given).eval()


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
