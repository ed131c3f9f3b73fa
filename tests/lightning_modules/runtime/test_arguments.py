"""What is changed of the command line before it is parsed."""

from __future__ import annotations

import json

import pytest

from lightning_modules.cli import main
from lightning_modules.runtime.arguments import prepare_arguments


@pytest.mark.parametrize("flag", [["--model.images.prior=null"], ["--model.init_args.images.prior", "null"]])
def test_a_null_of_a_group_is_given_by_a_configuration(flag: list[str]) -> None:
    before, after = ["fit", "--model=DPDFD"], ["--trainer.max_epochs=1"]
    *first, given, last = prepare_arguments([*before, *flag, *after])
    assert first == before and [last] == after
    assert json.loads(given.removeprefix("--config=")) == {"model": {"init_args": {"images": {"prior": None}}}}


@pytest.mark.parametrize(
    "arguments",
    [
        ["--model.images.source=prior"],
        ["--model.annotator.budget.target_epsilon=null"],
        ["--model.batch_size", "null"],
        ["--trainer.images.prior=null"],
        ["--model.images.prior"],
    ],
)
def test_everything_else_stays(arguments: list[str]) -> None:
    assert prepare_arguments(["fit", *arguments]) == ["fit", *arguments]


def test_the_parser_takes_it(capsys: pytest.CaptureFixture[str]) -> None:
    """And an earlier value is overridden, a later one overrides."""
    flags = ["--model.images.prior=null", "--model.gradient_targets.gamma=2.0", "--model.gradient_targets.gamma=null"]
    with pytest.raises(SystemExit):
        main(["fit", "--config", "sweeps/dpdfd_digits.yaml", *flags, "--print_config"])
    printed = capsys.readouterr().out
    assert "prior: null" in printed and "gamma: null" in printed and "source: prior" in printed
