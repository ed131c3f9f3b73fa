"""A class that a later argument replaces neither loses nor keeps a setting silently."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from support.runs import charged, configuration, fit

from lightning_modules.cli.fit import command_line

BUDGETED = configuration(annotator={"budget": {"target_epsilon": 50.0}}, model={"images": "prior"})
GRADIENTS = {"class_path": "GradientAnnotator", "init_args": {"norm_bound": 0.5}}


def test_no_budget_is_dropped_with_the_model_that_had_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LabelDP was trained with its default annotator, without a target, and the ledger was charged."""
    anew = {"class_path": "LabelDP", "init_args": {"annotator": {"class_path": "LabelAnnotator"}}}
    for given in ("--model=LabelDP", "--config=" + json.dumps({"model": anew})):
        with pytest.raises(ValueError, match=r"LabelDP instead of DPDFD, .*without its annotator.*: write a config"):
            fit(BUDGETED, given)
        with pytest.raises(ValueError, match=r"without its annotator"):  # which would write one without it
            fit(BUDGETED, given, "--print_config")
    assert not charged()
    monkeypatch.setattr("lightning_modules.cli.fit.checked_classes", contextlib.nullcontext)
    assert fit(BUDGETED, "--model=LabelDP").model.annotator.budget.target_epsilon is None
    assert charged()


def of_model(class_path: str = "DPDFD", **model: Any) -> dict[str, Any]:
    return {**BUDGETED, "model": {"class_path": class_path, "init_args": {"teacher": "teachers/digits.ckpt", **model}}}


def adam(**settings: Any) -> dict[str, Any]:
    return of_model(student={"optimizer": {"class_path": "torch.optim.Adam", "init_args": {"lr": 0.1, **settings}}})


MIXTURE = {"class_path": "MixturePrior", "init_args": {"priors": [{"class_path": "FractalPrior"}], "jitter": 0.5}}
MIXED = of_model(images={"source": "prior", "prior": MIXTURE})
MNIST: dict[str, Any] = {"class_path": "MNIST", "init_args": {"root": "elsewhere", "val_fraction": 0.3}}
OF_MNIST = {**BUDGETED, "data": {"class_path": "SyntheticSteps", "init_args": {"dataset": MNIST}}}
LABELS: dict[str, Any] = {"class_path": "LabelAnnotator", "init_args": {"epsilon": 2, "budget": {"target_epsilon": 3}}}
OF_LABELS = of_model("DPSD", annotator=LABELS)
WHOLE = '{"class_path": "%s", "init_args": {%s}}'


@pytest.mark.parametrize(
    ("config", "option", "said"),
    [
        (of_model(annotator=GRADIENTS), "model=DPSD", "DPSD instead of DPDFD, with its annotator, teacher."),
        (OF_LABELS, "model.annotator=GradientAnnotator", "with its budget.target_epsilon, without its epsilon: give"),
        (
            OF_LABELS,
            "model.annotator=" + WHOLE % ("GradientAnnotator", '"budget": {"delta": 1e-6}'),
            "GradientAnnotator instead of LabelAnnotator, with its budget.target_epsilon, without its epsilon.",
        ),
        (adam(), "model.student.optimizer=AdamW", "AdamW instead of Adam, with its lr."),
        (adam(amsgrad=True), "model.student.optimizer=torch.optim.SGD", "with its lr, without its amsgrad: give"),
        (
            adam(amsgrad=True),
            "model.student.optimizer=" + WHOLE % ("torch.optim.SGD", '"lr": 1'),
            "SGD instead of Adam, without its amsgrad.",
        ),
        (
            MIXED,
            "model.images.prior=GlyphPrior",
            "MixturePrior, without its jitter, priors: give",
        ),
        # It has no settings that could be given with it.
        (MIXED, "model.images.prior=StrokePrior", "StrokePrior instead of MixturePrior, without its jitter, priors."),
        (OF_MNIST, "data.dataset=FashionMNIST", "FashionMNIST instead of MNIST, with its root, val_fraction."),
        (OF_MNIST, "data=Digits", "Digits instead of SyntheticSteps, without its dataset: give"),
        (BUDGETED, "model.student.network=TanhCNN", "TanhCNN instead of SmallCNN, without its hidden, width."),
    ],
)
def test_what_becomes_of_settings_is_said_or_refused(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    config: dict[str, Any],
    option: str,
    said: str,
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr("lightning_modules.cli.fit.TranscriptionCLI.instantiate_classes", lambda _: None)
    line = [f"--config={json.dumps(config)}", f"--{option}"]
    if said.endswith(": give"):
        with pytest.raises(ValueError, match=said):
            command_line(line, run=False)
    else:
        model = command_line(line, run=False).config.model.init_args
        assert said in caplog.text
        if "target_epsilon" in said:
            budget = model.annotator.init_args.budget
            assert (budget.target_epsilon, budget.delta) == (3, 1e-6)
    caplog.clear()
    monkeypatch.setattr("lightning_modules.cli.fit.checked_classes", contextlib.nullcontext)
    command_line(line, run=False)
    assert "instead of" not in caplog.text
