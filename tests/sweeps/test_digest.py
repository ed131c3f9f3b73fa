"""One digest of parsed values: what changes an outcome changes it, and what does not leaves it alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from sweeps.runner.digest import digest, effective

BASE = """
model:
  class_path: DPDFD
  init_args: {gamma: 1.0, annotator: {class_path: GradientAnnotator, init_args: {norm_bound: 1.0e-3}}}
trainer: {max_epochs: 3, callbacks: [a]}
"""


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("base.yaml").write_text(BASE)
    Path("more.yaml").write_text("trainer: {max_epochs: 5}")


def of(*config: str, settings: dict[str, Any] | None = None, **options: Any) -> str:
    return digest(arguments=("fit",), config=config or ("base.yaml",), settings=settings, **options)


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


@pytest.mark.parametrize(
    "text", [BASE.replace("gamma: 1.0", "gamma: 2.0"), BASE.replace("[a]", "[a, b]"), BASE + "seed_everything: 1\n"]
)
def test_a_changed_value_is_another_fit(text: str) -> None:
    before = of()
    Path("base.yaml").write_text(text)
    assert of() != before


def test_a_value_in_a_file_that_a_file_names_counts_and_a_comment_there_does_not() -> None:
    Path("part").mkdir()
    Path("part/networks.yaml").write_text("width: 4")
    Path("part/outer.yaml").write_text("model: networks.yaml")
    before = [of("part/outer.yaml"), of(settings={"model.student": "part/networks.yaml"})]
    Path("part/networks.yaml").write_text("width: 4 # narrow")
    assert [of("part/outer.yaml"), of(settings={"model.student": "part/networks.yaml"})] == before
    Path("part/networks.yaml").write_text("width: 8")
    assert not {of("part/outer.yaml"), of(settings={"model.student": "part/networks.yaml"})} & set(before)


def test_a_record_that_a_fit_writes_does_not_change_its_digest() -> None:
    settings = {"trainer.callbacks.path": "results/run.json"}
    before = of(settings=settings)
    Path("results").mkdir()
    Path("results/run.json").write_text("{}")
    assert of(settings=settings) == before


@pytest.mark.parametrize("name", ["annotator.json", "annotator.conf", "annotator"])
def test_a_nested_file_counts_whatever_its_name_ends_with(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("outer.yaml").write_text(f"model: {{class_path: DPDFD, init_args: {{annotator: {name}, teacher: t.ckpt}}}}")
    Path("t.ckpt").write_bytes(b"\x80\x00 no settings")

    def changes() -> bool:
        made = []
        for noise in (100, 10):
            Path(name).write_text(
                f'{{"class_path": "GradientAnnotator", "init_args": {{"noise_multiplier": {noise}}}}}'
            )
            made.append(of("outer.yaml"))
            # By the command line as well.
            made.append(of(settings={"model.annotator": name}))
        return made[0] != made[2] and made[1] != made[3]

    assert changes()
    # Negative control: YAML alone.
    monkeypatch.setattr("sweeps.runner.digest._holds_settings", lambda file, *, name: file.suffix == ".yaml")
    assert not changes()


FLAG = "--model.annotator.noise_multiplier"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([FLAG, "5", "--config", "base.yaml"], ["--config", "base.yaml", FLAG, "5"]),
        ([FLAG, "5", f"{FLAG}=6"], [f"{FLAG}=6", FLAG, "5"]),
        ([FLAG, "-5", f"{FLAG}=6"], [f"{FLAG}=6", FLAG, "-5"]),
        ([f"{FLAG}=5", "--config", "base.yaml"], ["--config", "base.yaml", f"{FLAG}=5"]),
    ],
)
def test_the_order_of_overrides_and_files_counts(first: list[str], second: list[str]) -> None:
    assert digest(arguments=["fit", *first]) != digest(arguments=["fit", *second])
    # Negative control: as words beside what is ordered.
    assert sorted(first) == sorted(second)


def test_a_value_of_its_own_is_that_behind_an_equals_sign() -> None:
    arguments = ["fit", "--config", "base.yaml"]
    assert digest(arguments=[*arguments, FLAG, "5"]) == digest(arguments=[*arguments, f"{FLAG}=5"])
    assert digest(arguments=[*arguments, "--print_config"]) != digest(arguments=arguments)


def test_overrides_are_applied() -> None:
    assert of(settings={"trainer.max_epochs": 5}) == of("base.yaml", "more.yaml") != of()
    assert of(settings={"model.gamma": 1.0}) == of(settings={"model.init_args.gamma": 1.0}) == of()
    assert of(settings={"model.gamma": "1.0"}) == of()  # one argument of the command line
    assert of("more.yaml", "base.yaml") == of() != of("base.yaml", "more.yaml")
    assert digest(arguments=["fit", "--config", "base.yaml", "--model.gamma=2.0"]) == of(settings={"model.gamma": 2.0})


def test_what_jsonargparse_does_in_a_way_of_its_own_is_kept_apart() -> None:
    """At worst equal fits are two; never are two fits one."""
    other = {"class_path": "LabelAnnotator"}
    assert of(settings={"model.annotator": other}) != of(settings={"model.annotator": "LabelAnnotator"})
    Path("other.yaml").write_text(BASE.replace("GradientAnnotator, init_args: {norm_bound: 1.0e-3}", "LabelAnnotator"))
    # Arguments of the class before may be taken over by the one after.
    assert of(settings={"model.annotator.class_path": "LabelAnnotator"}) != of("other.yaml")
    assert of(settings={"model.annotator": other}) != of("other.yaml")
    appended = [of(settings={"trainer.callbacks+": value}) for value in ("a", "b")]
    assert len({*appended, of(), of(settings={"trainer.callbacks": "a"})}) == 4
    assert of(settings={"a.b": 1, "a": {"c": 2}}) != of(settings={"a": {"c": 2}, "a.b": 1})
    Path("one.yaml").write_text("model: {class_path: M, init_args: {shares: {a: 1}}}")
    Path("two.yaml").write_text("model: {class_path: M, init_args: {shares: {b: 2}}}")
    Path("both.yaml").write_text("model: {class_path: M, init_args: {shares: {a: 1, b: 2}}}")
    assert of("one.yaml", "two.yaml") not in (of("both.yaml"), of("two.yaml"))


def test_if_mappings_were_merged_blindly_two_fits_would_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def merged(old: Any, new: Any, *, group: bool = False) -> Any:
        if isinstance(old, dict) and isinstance(new, dict):
            return {**old, **new, **{key: merged(old[key], new[key]) for key in old.keys() & new.keys()}}
        return new

    monkeypatch.setattr("sweeps.runner.digest._merged", merged)
    with pytest.raises(AssertionError):
        test_what_jsonargparse_does_in_a_way_of_its_own_is_kept_apart()


def test_command_seed_and_parents_count() -> None:
    found = {
        of(),
        digest(arguments=("validate",), config=("base.yaml",)),
        of(settings={"seed_everything": 1}),
        of(parents={"teacher": "a"}),
        of(parents={"teacher": "b"}),
    }
    assert len(found) == 5


def test_the_version_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    before = of()
    monkeypatch.setattr("sweeps.runner.digest.VERSION", 3)
    assert of() != before


def test_effective_values() -> None:
    values = effective(["base.yaml", "more.yaml"], [("model.annotator.norm_bound", 2.0), ("model.student.width", "4")])
    assert values["trainer"] == {"max_epochs": 5, "callbacks": ["a"]}
    assert values["model"]["init_args"]["annotator"]["init_args"] == {"norm_bound": 2.0}
    assert values["model"]["init_args"]["student"] == {"width": 4}
