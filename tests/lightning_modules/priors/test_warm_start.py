"""A generator that starts from a prior's images: closer to them than without, once in a run, and asking nobody."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from support.runs import checkpoint, distil, equal, networks
from torch import Tensor

from lightning_modules import DPDFD
from lightning_modules.networks import DAFLGenerator
from lightning_modules.priors import ImagePrior, StrokePrior
from lightning_modules.priors.warm_start import fit_generator
from lightning_modules.teachers.private_teacher import PrivateTeacher

SHAPE = (1, 8, 8)
LAST = "--ckpt_path=run/checkpoints/last.ckpt"


def _generator() -> DAFLGenerator:
    torch.manual_seed(0)
    return DAFLGenerator(image_shape=SHAPE, latent_dim=8, width=8)


def _fit(generator: DAFLGenerator, *, steps: int, seed: int = 1, prior: ImagePrior | None = None) -> float:
    settings: dict[str, Any] = {"batch_size": 32, "image_shape": SHAPE, "latent_dim": 8}
    return fit_generator(generator, prior or StrokePrior(), steps=steps, seed=seed, **settings)


def _standardised(images: Tensor) -> Tensor:
    return ((images - images.mean()) / images.std()).flatten(1)


@torch.no_grad()
def _distance(generator: DAFLGenerator) -> float:
    """Mean squared distance from images of the prior, unseen before, to the nearest of images from random latents."""
    unseen = StrokePrior().sample(100, image_shape=SHAPE, generator=torch.Generator().manual_seed(77), device="cpu")
    drawn = generator(torch.randn(500, 8, generator=torch.Generator().manual_seed(78)))
    nearest = torch.cdist(_standardised(unseen), _standardised(drawn)).amin(1)
    return float(nearest.square().mean()) / unseen[0].numel()


def test_a_fitted_generator_draws_images_like_the_priors_and_one_of_no_steps_does_not() -> None:
    cold, warm = _generator(), _generator()
    assert math.isnan(_fit(cold, steps=0))
    error = _fit(warm, steps=150)
    assert all(torch.equal(value, cold.state_dict()[name]) for name, value in _generator().state_dict().items())
    assert _distance(warm) < 0.7 * _distance(cold)
    assert error < _fit(_generator(), steps=1)


def test_equal_seeds_fit_equal_generators_and_leave_the_global_one_alone() -> None:
    first, second, other = _generator(), _generator(), _generator()
    torch.manual_seed(5)
    state = torch.get_rng_state()
    _fit(first, steps=3)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(6)
    _fit(second, steps=3)
    _fit(other, steps=3, seed=2)
    assert equal(first.state_dict(), second.state_dict())
    assert not equal(first.state_dict(), other.state_dict())


class _Failing(StrokePrior):
    drawn = 0

    def sample(self, batch_size: int, **settings: Any) -> Tensor:
        self.drawn += 1
        if self.drawn == 3:
            raise RuntimeError("interrupted")
        return super().sample(batch_size, **settings)


def test_an_interruption_leaves_the_generator_as_it_was() -> None:
    generator = _generator()
    with pytest.raises(RuntimeError, match="interrupted"):
        _fit(generator, steps=5, prior=_Failing())
    assert equal(generator.state_dict(), _generator().state_dict())


def test_it_works_where_gradients_are_off_and_parameters_are_frozen() -> None:
    generator = _generator().requires_grad_(False)
    with torch.no_grad():
        _fit(generator, steps=1)
    assert not equal(generator.state_dict(), _generator().state_dict())
    assert not any(parameter.requires_grad for parameter in generator.parameters())


def test_batch_statistics_need_two_images() -> None:
    with pytest.raises(ValueError, match="batch_size"):
        fit_generator(_generator(), StrokePrior(), steps=1, batch_size=1, image_shape=SHAPE, latent_dim=8, seed=0)


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Steps that the module had done each time it fitted its generator to a prior."""
    found: list[int] = []

    def recording(*arguments: Any, **settings: Any) -> float:
        found.append(settings["steps"])
        return fit_generator(*arguments, **settings)

    monkeypatch.setattr("lightning_modules.images.source.fit_generator", recording)
    return found


@pytest.mark.parametrize(
    ("method", "model"),
    [
        ("DPDFD", {}),
        pytest.param("DPDFD", {"images": "both"}, marks=pytest.mark.slow),
        pytest.param("DPSD", {}, marks=pytest.mark.slow),
        ("LabelDP", {"annotator": {"class_path": "LabelAnnotator"}, "pretraining_steps": 1}),
    ],
)
def test_every_method_starts_from_the_prior_before_its_first_answer(
    folder: Path, monkeypatch: pytest.MonkeyPatch, fits: list[int], method: str, model: dict[str, Any]
) -> None:
    asked: list[int] = []
    answer = PrivateTeacher.logits

    def counting(self: PrivateTeacher, images: Tensor) -> Tensor:
        asked.append(len(fits))
        return answer(self, images)

    monkeypatch.setattr(PrivateTeacher, "logits", counting)
    warm = distil("warm", class_path=method, model={"generator_warm_start": 2, **model}, steps=2)
    assert fits == [2] and set(asked) == {1}
    cold = distil("cold", class_path=method, model=model, steps=2)
    assert fits == [2]
    assert not equal(networks(warm), networks(cold))
    # The fit is to public images: it costs nothing.
    first, second = cold.model.guarantee(), warm.model.guarantee()
    assert (first.epsilon, first.claimed_epsilon) == (second.epsilon, second.claimed_epsilon)


MODEL = {"generator_warm_start": 3, "student": "DataLensClassifier"}


def _quiet(folder: str, *arguments: str) -> Any:
    return distil(folder, *arguments, model=MODEL, annotator={"noise_multiplier": 0.0}, steps=2, epochs=2)


class Interrupted(RuntimeError):
    pass


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hook", "step"),
    [
        ("update_generator", 0),
        pytest.param("draw_images", 1, marks=pytest.mark.slow),
        pytest.param("draw_images", 2, marks=pytest.mark.slow),
    ],
)
def test_a_resumed_run_does_not_start_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, fits: list[int], hook: str, step: int
) -> None:
    whole = networks(_quiet("whole"))
    method = getattr(DPDFD, hook)

    def failing(self: DPDFD, *arguments: Any) -> Any:
        if self.steps_done == step:
            raise Interrupted
        return method(self, *arguments)

    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(DPDFD, hook, failing)
        _quiet("run")
    assert fits == [3, 3] and checkpoint()["distillation"]["steps_done"] == step
    resumed = _quiet("run", LAST)
    assert fits == [3, 3] and resumed.model.steps_done == 4
    if step:  # in step 0 the student was fitted already when it was cut short
        assert equal(whole, networks(resumed))


@pytest.mark.slow
def test_the_count_notices_a_run_that_forgets_its_warm_start(folder: Path, fits: list[int]) -> None:
    _quiet("run", "--trainer.max_epochs=1")
    content = checkpoint()
    content["distillation"] |= {"generator_is_warm": False, "steps_done": 0}
    torch.save(content, "run/checkpoints/last.ckpt")
    _quiet("run", LAST)
    assert fits == [3, 3]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"generator_warm_start": -1}, "images.warm_start_steps must be 0 or more and a whole number, got -1"),
        ({"generator_warm_start": 5, "images": "prior"}, "needs a generator to start.* got 'prior'"),
        ({"generator_warm_start": 5, "images": "refined", "generator": None}, "needs a generator to start"),
    ],
)
def test_settings_without_meaning_are_refused(folder: Path, model: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        distil(model=model)
