"""One digest of parsed values: what changes an outcome changes it, and what does not leaves it alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from sweeps.runner.fit import Fit

BASE = """
model:
  class_path: DPDFD
  init_args: {gamma: 1.0, mechanism: {class_path: NoisyGradients, init_args: {norm_bound: 1.0e-3}}}
trainer: {max_epochs: 3, callbacks: [a]}
"""


@pytest.fixture(autouse=True)
def files() -> None:
    Path("base.yaml").write_text(BASE)


def of(*config: str, parents: dict[str, str] | None = None, **given: Any) -> str:
    settings = {name.replace("__", "."): value for name, value in given.items()}
    return Fit(name="fit", config=config or ("base.yaml",), set=settings).digest(parents or {})


@pytest.mark.parametrize(
    "text",
    [
        "# said more clearly\n" + BASE,
        BASE.replace("{max_epochs: 3, callbacks: [a]}", "\n    callbacks:\n    - a\n    max_epochs:    3 # few\n"),
        yaml.safe_dump(yaml.safe_load(BASE), sort_keys=True),
    ],
    ids=["comment", "white space", "order of keys"],
)
def test_how_it_is_written_does_not_count(text: str) -> None:
    before = of()
    Path("base.yaml").write_text(text)
    assert of() == before
    for other in (text.replace("1.0", "2.0"), text + "seed_everything: 1\n"):
        Path("base.yaml").write_text(other)
        assert of() != before


def test_whatever_may_change_the_outcome_counts() -> None:
    Path("more.yaml").write_text("trainer: {max_epochs: 5}")
    found = [
        of(),
        of("base.yaml", "more.yaml"),
        of("more.yaml", "base.yaml"),
        of(seed_everything=1),
        of(seed_everything="1"),
        of(parents={"teacher": "a"}),
        of(parents={"teacher": "b"}),
        of(trainer__callbacks="a"),
        Fit(name="fit", config=("base.yaml",), set={"trainer.callbacks+": "a"}).digest({}),
        of(model__network="my.py:Net"),
    ]
    for width in (1, 2):  # a network of the user's own
        Path("my.py").write_text(f"WIDTH = {width}")
        found.append(of(model__network="my.py:Net"))
    assert len(set(found)) == len(found)


def test_a_value_in_a_file_that_a_file_names_counts_and_a_comment_there_does_not() -> None:
    Path("part").mkdir()
    Path("part/outer.yaml").write_text("model: {mechanism: inner.yaml, teacher: t.ckpt}")

    def made(text: str) -> list[str]:
        Path("part/inner.yaml").write_text(text)
        return [of("part/outer.yaml"), of(model__mechanism="part/inner.yaml")]

    narrow = made("{class_path: A, init_args: {width: 4}}")
    assert made("{class_path: A, init_args: {width:    4}} # narrow") == narrow
    assert not set(narrow) & set(made("{class_path: A, init_args: {width: 8}}"))
