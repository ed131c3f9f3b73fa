"""Distillation of many private teachers: queried once through the session, paid once, and public from there on."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from support.ensembles import ensemble_weights
from support.federations import small_networks
from support.runs import (
    BATCH_SIZE,
    RESUME,
    checkpoint,
    distil,
    equal,
    interrupted,
    leaks,
    networks,
    of_digits,
)
from support.seeded import Seeded
from torch import Tensor, nn

from lightning_modules import Distillation
from lightning_modules.cli.fit import TranscriptionCLI
from lightning_modules.teachers.private_teacher import PrivateEnsemble
from privacy import BudgetExceeded, Gaussian, compose
from privacy.accounting.calibration import calibrate_noise
from privacy.identity import CheckpointError
from privacy.mechanisms import NoisyMeanResponse, Shape

#: 20 images are three batches of 8.
QUERIES, CALLS, STEPS = 20, 3, 4


def bound(calls: int, *, sigma: float) -> float:
    return compose({Gaussian(mu=2 * math.sqrt(BATCH_SIZE) / sigma): calls}, 1e-5).epsilon


SIGMA = calibrate_noise(lambda sigma: bound(CALLS, sigma=sigma), 10.0).value


def run(
    folder: str = "run", *arguments: str, epochs: int = 1, mechanism: dict[str, Any] | None = None, **model: Any
) -> TranscriptionCLI:
    settings = {"noise_multiplier": SIGMA, **(mechanism or {})}
    given = {
        "teacher": "teachers/ensemble.ckpt",
        "queries": QUERIES,
        "mechanism": {"class_path": "NoisyMeanResponse", "init_args": settings},
    }
    return distil(folder, *arguments, class_path="Distillation", steps=STEPS, epochs=epochs, model={**given, **model})


@pytest.mark.parametrize("forgetful", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_resumed_run_does_not_pay_again(place: Path, monkeypatch: pytest.MonkeyPatch, forgetful: bool) -> None:
    interrupted(Distillation, 2, lambda: run(epochs=2))
    released = checkpoint()["noisy_answers"]["answers"]
    assert released.shape == (CALLS * BATCH_SIZE, 10)
    if forgetful:  # the mutant asks again when it is resumed
        load = Distillation.on_load_checkpoint
        lost = ("noisy_answers", None)
        monkeypatch.setattr(
            Distillation, "on_load_checkpoint", lambda own, file: (load(own, file), setattr(own, *lost))
        )
    model = run("run", RESUME, epochs=2).model
    times = 2 if forgetful else 1
    assert model.session.account.counts() == {model.session.cost: times * CALLS}
    assert model.session.account.epsilon() == pytest.approx(bound(times * CALLS, sigma=SIGMA))
    assert model.guarantee().epsilon == pytest.approx(bound(times * CALLS, sigma=SIGMA))
    assert torch.equal(model.noisy_answers, released) is not forgetful
    assert model.session.plan.changed is forgetful


@pytest.mark.parametrize(
    ("change", "name"),
    [({"queries": QUERIES + BATCH_SIZE}, "queries"), ({"batch_size": BATCH_SIZE // 2}, "batch_size")],
)
def test_answers_to_other_images_are_refused_on_resuming(place: Path, change: dict[str, Any], name: str) -> None:
    interrupted(Distillation, 2, lambda: run(epochs=2))
    settings: dict[str, Any] = {"queries": QUERIES, "batch_size": BATCH_SIZE}

    def resumed(**settings: Any) -> Distillation:
        mechanism = NoisyMeanResponse(noise_multiplier=SIGMA)
        module: Distillation = of_digits(
            Distillation, teacher="teachers/ensemble.ckpt", mechanism=mechanism, **settings
        )
        module.on_load_checkpoint(checkpoint())
        return module

    assert resumed(**settings).noisy_answers is not None
    with pytest.raises(CheckpointError, match=f"{name} was"):
        resumed(**{**settings, **change})


@pytest.mark.parametrize("peeking", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_other_teachers_change_nothing_once_the_answers_are_out(
    place: Path, monkeypatch: pytest.MonkeyPatch, peeking: bool
) -> None:
    """What makes all that follows post-processing."""
    if peeking:  # the teachers themselves answer the pool
        fit = Distillation.fit_answers
        monkeypatch.setattr(
            Distillation, "fit_answers", lambda own: fit(own) and (lambda images: own.teacher.each(images).mean(dim=0))
        )
    interrupted(Distillation, 2, lambda: run(epochs=2))
    before = Path("run/checkpoints/last.ckpt").read_bytes()
    ends = []
    for factor in (1.0, -3.0):
        content = torch.load("teachers/ensemble.ckpt", weights_only=True)
        content["ensemble"]["weights"]["head.weight"] *= factor
        torch.save(content, "teachers/ensemble.ckpt")
        Path("run/checkpoints/last.ckpt").write_bytes(before)
        ends.append(networks(run("run", RESUME, epochs=2)))
    assert equal(*ends) is not peeking


def test_the_ensemble_is_asked_about_the_queries_alone(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Tensor] = []
    drawn: list[int] = []
    look, draw = PrivateEnsemble.each, Distillation.draw_images

    def watched(self: PrivateEnsemble, images: Tensor) -> Tensor:
        asked.append(images)
        return look(self, images)

    def drawing(self: Distillation, step: int, latents: Tensor | None) -> Tensor:
        drawn.append(step)
        return draw(self, step, latents)

    monkeypatch.setattr(PrivateEnsemble, "each", watched)
    monkeypatch.setattr(Distillation, "draw_images", drawing)
    model = run().model
    assert [len(images) for images in asked] == [BATCH_SIZE] * CALLS
    assert model.session.account.queries() == CALLS * BATCH_SIZE
    # Other images than the pool's, and no image twice.
    assert sorted(drawn[:7]) == [-3, -2, -1, 0, 1, 2, 3]
    rows = torch.cat([*asked, model._pool[0].float()]).flatten(1)
    assert len(torch.unique(rows, dim=0)) == len(rows)
    private = ensemble_weights()
    assert leaks("run", private) == [] and leaks("teachers", private) == ["teachers/ensemble.ckpt"]


class OneForAll(PrivateEnsemble):
    """The mutant that gives the teachers' mean in the place of each: a row that every record moves."""

    def each(self, images: Tensor) -> Tensor:
        rows = super().each(images)
        return rows.mean(dim=0).expand_as(rows)


@pytest.mark.parametrize("kind", [PrivateEnsemble, OneForAll])
def test_the_mechanism_is_given_each_teachers_own_answers(
    monkeypatch: pytest.MonkeyPatch, kind: type[PrivateEnsemble]
) -> None:
    monkeypatch.setattr("lightning_modules.teachers.config.PrivateEnsemble", kind)
    seen: list[tuple[Tensor, Tensor]] = []
    answer = NoisyMeanResponse.answer

    def watched(self: NoisyMeanResponse, shape: Shape, rows: Tensor) -> Tensor:
        seen.append((rows.clone(), answer(self, shape, rows)))
        return seen[-1][1]

    monkeypatch.setattr(NoisyMeanResponse, "answer", watched)
    teachers = small_networks(4)
    module = of_digits(
        Distillation, batch_size=50, pool_size=200, queries=150, teacher=nn.ModuleList(teachers),
        mechanism=NoisyMeanResponse(noise_multiplier=1.0, noise=Seeded(factor=0.0)),
    )  # fmt: skip
    module.draw_seed = 0
    module.session.open(private_data="none")
    module._trainer = type("Trainer", (), {"is_global_zero": False, "global_rank": 0})()  # type: ignore[assignment]
    module.setup("fit")
    module._pool = module.answer_pool()
    assert len(seen) == 3 and module.next_calls == 0
    for call, (given, released) in enumerate(seen):
        images = module.draw_images(-1 - call, None).half().float()
        with torch.no_grad():
            own = torch.stack([network.eval()(images) for network in teachers])
        assert given.shape == (4, 50, 10) and torch.allclose(given, own, atol=1e-5) is (kind is PrivateEnsemble)
        centred = own - own.mean(dim=2, keepdim=True)
        mean = (centred / centred.norm(dim=2, keepdim=True)).mean(dim=0)
        assert torch.allclose(released, mean, atol=1e-5) is (kind is PrivateEnsemble)
    assert torch.equal(module.noisy_answers, torch.cat([released for _, released in seen]))


def test_a_budget_in_which_the_queries_do_not_fit_is_refused_before_any_charge(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(PrivateEnsemble, "logits", lambda self, images: asked.append(len(images)))
    with pytest.raises(
        BudgetExceeded, match=rf"the {CALLS} calls that it begins with: {bound(CALLS, sigma=SIGMA):.6g}"
    ):
        run(mechanism={"target_epsilon": 0.999 * bound(CALLS, sigma=SIGMA)})
    assert not asked
    assert not any("reserve" in file.read_text() for file in Path("ledgers").glob("*.jsonl"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mechanism": NoisyMeanResponse(noise_multiplier=1.0)}, "queries must be given for a NoisyMeanResponse"),
        ({"queries": 8}, "and for no other, got 8 with RawResponses"),
    ],
)
def test_queries_go_with_mean_answers(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        of_digits(Distillation, teacher="none.ckpt", **settings)
