"""Old names: each still works, says what it is called now, and does what the new one does."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from jsonargparse import ArgumentParser

import lightning_modules
import privacy
from lightning_modules.runtime.resuming import refuse_differences
from lightning_modules.teachers.own_training import CheckpointError
from privacy import (
    Gaussian,
    GradientAnnotator,
    Ledger,
    MeanResponseAnnotator,
    ResponseAnnotator,
    VoteAnnotator,
    confident_votes_epsilon,
    output_gradient_mu,
)
from privacy.deprecation import renamed_arguments, renamed_attribute, renamed_class, renamed_names

CONFIDENT: dict[str, Any] = {
    "mechanism": "confident",
    "scale": 1.0,
    "threshold": 1.0,
    "threshold_scale": 1.0,
}


def opened(**settings: Any) -> GradientAnnotator:
    made = GradientAnnotator(noise_multiplier=1.0, norm_bound=1.0, **settings)
    made.bind(batch_size=2, num_classes=3)
    made.open(private_data="data")
    return made


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("privacy", "calibrate_answers", "calibrate_responses"),
        ("privacy", "clip_rows", "clip_per_sample"),
        ("privacy", "NoisyVotes", "NoisyVotesClaim"),
        ("privacy", "Reading", "EpsilonBound"),
        ("privacy", "Words", "MechanismDescription"),
        ("privacy.accounting.composition", "Reading", "EpsilonBound"),
        ("privacy.mechanisms.description", "Words", "MechanismDescription"),
        ("privacy.mechanisms.draws", "below", "uniform_integers"),
        ("privacy.mechanisms.draws", "less_likely_than", "bernoulli"),
        ("privacy.published.claims", "NoisyVotes", "NoisyVotesClaim"),
        ("lightning_modules.teachers.joint_training", "Training", "JointTraining"),
        ("privacy.accounting.calibration", "calibrate_answers", "calibrate_responses"),
        ("privacy.mechanisms", "normalize_rows", "normalize_per_sample"),
        ("privacy.mechanisms.bounding", "zero_non_finite_rows", "zero_non_finite_samples"),
    ],
)
def test_a_function_is_found_under_its_old_name(module: str, old: str, new: str) -> None:
    home = importlib.import_module(module)
    with pytest.warns(FutureWarning, match=f"{old} is called {new} now"):
        found = getattr(home, old)
    assert found is getattr(home, new)
    with pytest.raises(AttributeError, match="no_such_name"):
        home.no_such_name  # noqa: B018


@pytest.mark.parametrize(("old", "new"), [("answer", "ResponseAnnotator"), ("mean_answer", "MeanResponseAnnotator")])
def test_a_module_is_found_under_its_old_name(old: str, new: str) -> None:
    sys.modules.pop(f"privacy.annotators.{old}", None)
    with pytest.warns(FutureWarning, match=rf"privacy\.annotators\.{old} has moved to"):
        module = importlib.import_module(f"privacy.annotators.{old}")
    assert getattr(module, new) is getattr(privacy, new)


@pytest.mark.parametrize("prefix", ["", "privacy.", "privacy.annotators.response.", "privacy.annotators.answer."])
@pytest.mark.filterwarnings("ignore:.*has moved to:FutureWarning")
def test_a_configuration_may_give_the_old_class_path(prefix: str) -> None:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--annotator", type=ResponseAnnotator | MeanResponseAnnotator)

    def read(name: str) -> Any:
        settings = {"class_path": f"{prefix}{name}", "init_args": {"delta": 1e-6}}
        # `instantiate` since jsonargparse 4.49.
        instantiate = getattr(parser, "instantiate", None) or parser.instantiate_classes
        return instantiate(parser.parse_object({"annotator": settings})).annotator

    with pytest.warns(FutureWarning, match="AnswerAnnotator is called ResponseAnnotator now") as caught:
        made = read("AnswerAnnotator")
    assert len([warning for warning in caught if "is called" in str(warning.message)]) == 1
    assert type(made) is ResponseAnnotator and made.delta == 1e-6
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        assert type(read("ResponseAnnotator")) is ResponseAnnotator
    # Negative control: what was never a name is refused.
    with pytest.raises(Exception, match="RejoinderAnnotator"):
        read("RejoinderAnnotator")


def test_the_new_names_warn_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = opened()
        made.charge_nonprivate_access("it was shown")
        made.guarantee(artefacts=["student"], planned=None, data_accesses=["x"])
        assert VoteAnnotator(**CONFIDENT, max_responses=3).max_responses == 3
        assert ResponseAnnotator().delta == 1e-5
        assert MeanResponseAnnotator(noise_multiplier=2.0).std(4) == 0.5
        confident_votes_epsilon(1.0, 1.0, num_checks=2, num_responses=1, delta=1e-5)


def test_an_old_method_and_an_old_argument_are_the_new_ones() -> None:
    ledger = Ledger(path=None, private_data="data", run="one")
    with pytest.warns(FutureWarning, match=r"Ledger\.goes_on_from is called verify_head now"):
        assert ledger.goes_on_from(None, whose="nobody")
    with pytest.warns(FutureWarning, match="noise_multiplier=... now"):
        old = output_gradient_mu("ensemble", 256, noise_scale=100.0)  # type: ignore[call-arg]
    assert old == output_gradient_mu("ensemble", 256, noise_multiplier=100.0)


def test_an_old_class_takes_objects_of_the_new_one_and_can_still_be_subclassed() -> None:
    class New:
        pass

    class Other:
        pass

    old = renamed_class("Old", New)
    mine = type("Mine", (old,), {})
    assert isinstance(New(), old) and not isinstance(Other(), old)
    assert type(mine()) is mine and isinstance(mine(), New) and not isinstance(New(), mine)
    with pytest.warns(FutureWarning, match="Old is called New"):
        assert type(old()) is New


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (lambda made: made.reveal("shown"), lambda made: made.charge_nonprivate_access("shown")),
        (lambda made: made.reveal_records("shown"), lambda made: made.charge_nonprivate_records("shown")),
    ],
    ids=["teacher", "records"],
)
def test_old_methods_charge_as_the_new_ones(old: Callable[..., None], new: Callable[..., None]) -> None:
    first, second = opened(), opened()
    with pytest.warns(FutureWarning, match="is called charge_nonprivate_"):
        old(first)
    new(second)
    assert first.account.counts() == second.account.counts() != opened().account.counts()


def test_old_attributes_and_arguments() -> None:
    with pytest.warns(FutureWarning, match=r"loss_deviation is called loss_std"):
        assert Gaussian(2.0).loss_deviation == 2.0
    with pytest.warns(FutureWarning, match=r"deviation is called std"):
        assert MeanResponseAnnotator(noise_multiplier=2.0).deviation(4) == 0.5
    with pytest.warns(FutureWarning, match=r"num_answers=\.\.\.\) is called num_responses"):
        found = confident_votes_epsilon(1.0, 1.0, num_checks=2, num_answers=1, delta=1e-5)  # type: ignore[call-arg]
    assert found == confident_votes_epsilon(1.0, 1.0, 2, 1, 1e-5) != confident_votes_epsilon(1.0, 1.0, 2, 2, 1e-5)
    made = opened()
    with pytest.warns(FutureWarning, match="is called data_accesses"):
        page = made.guarantee(artefacts=["x"], planned=None, looks=["at the pool"])  # type: ignore[call-arg]
    assert page == made.guarantee(artefacts=["x"], planned=None, data_accesses=["at the pool"])
    assert page != made.guarantee(artefacts=["x"], planned=None)
    module = lightning_modules.Distillation.__new__(lightning_modules.Distillation)
    torch.nn.Module.__init__(module)
    with pytest.warns(FutureWarning, match=r"looks is called data_accesses"):
        module.looks = ["at the pool"]
    assert module.data_accesses == ["at the pool"]


def test_an_old_setting_is_the_new_one() -> None:
    with pytest.warns(FutureWarning, match="max_answers is called max_responses"):
        made = VoteAnnotator(**CONFIDENT, max_answers=3)
    assert made.max_responses == 3
    with pytest.raises(ValueError, match=r"max_answers is the old name of max_responses: .* got 3 and 4"):
        VoteAnnotator(**CONFIDENT, max_answers=3, max_responses=4)
    with pytest.raises(ValueError, match="max_responses: only mechanism='confident'"), pytest.warns(FutureWarning):
        VoteAnnotator(max_answers=3)


def _differences(old: Any, new: Any) -> list[str]:
    return refuse_differences(
        {"annotator": old}, {"annotator": new}, class_before="a.DGD", class_now="DGD", checkpoint="last.ckpt"
    )


def test_a_checkpoint_with_old_names_is_resumed() -> None:
    def given(name: str, **settings: Any) -> Any:
        return {"class_path": name, "init_args": settings}

    old = given("privacy.annotators.answer.AnswerAnnotator", ledger_block=100)
    assert _differences(old, given("ResponseAnnotator", ledger_block=100)) == []
    with pytest.raises(CheckpointError, match="was 'ResponseAnnotator' and is 'MeanResponseAnnotator'"):
        _differences(old, given("MeanResponseAnnotator", ledger_block=100))
    votes = given("VoteAnnotator", max_answers=3)
    assert _differences(votes, given("VoteAnnotator", max_responses=3, max_answers=None)) == []
    assert _differences(votes, given("VoteAnnotator", max_responses=4, max_answers=None)) == ["annotator.max_responses"]


def test_both_names_of_an_argument_are_refused() -> None:
    @renamed_arguments(old="new")
    def function(*, new: int) -> int:
        return new

    assert function(new=1) == 1
    with pytest.raises(TypeError, match="new or its old name old, got both"):
        function(new=1, old=2)  # type: ignore[call-arg]


def test_a_warning_points_to_who_uses_the_old_name() -> None:
    class Thing:
        new = 1
        old = renamed_attribute("new")

    with pytest.warns(FutureWarning) as caught:
        assert Thing().old == Thing.old == 1
        renamed_names("privacy", {"old": "Gaussian"})("old")
        opened().reveal("x")
    assert caught[0].filename == caught[1].filename == caught[3].filename == __file__
