"""The command `attack`: its shadows, its report, and that no shadow is made twice."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from support.dp_teachers import dp_sgd
from support.runs import configuration, copy_runs, fit, shelve, working_in
from torch import nn

from datamodules import Digits, ImageDataModule, Shadowed
from datamodules.records import id_fraction
from lightning_modules.cli import main
from lightning_modules.cli.fit import TranscriptionCLI
from privacy.attacks import Answers, AttackResult, Records, Shadows, inversion
from privacy.attacks.answers import overfitted
from privacy.attacks.inversion import InversionResult
from privacy.identity import CheckpointError
from privacy.mechanisms.base import Description
from sweeps.attacking import attack as command
from sweeps.attacking.report import InvertedModel, MembershipResult, page
from sweeps.attacking.shadows import AttackError, Pipelines, QueriedRecords, recipe_of

AVERAGED = {"class_path": "EMAWeightAveraging", "init_args": {"decay": 0.5}}
TEACHER = dp_sgd(
    "t",
    data={"batch_size": 16, "steps_per_epoch": 1},
    trainer={"limit_val_batches": 0, "callbacks": [AVERAGED]},
    target_epsilon=1.0,
)
OWN = {"teacher": "t/checkpoints/last.ckpt", "pool_size": 8}
STUDENT = configuration("s", class_path="Distillation", model=OWN, trainer={"limit_val_batches": 0}, steps=1)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished runs, a teacher by DP-SGD in `t` and a student of it in `s`."""
    folder = tmp_path_factory.mktemp("made")
    with working_in(folder):
        for config in (TEACHER, STUDENT):
            fit(config)
    shelve(folder)
    return folder


@pytest.fixture
def runs(made: Path, tmp_path: Path) -> Path:
    """A working folder with a copy of them."""
    return copy_runs(made, tmp_path)


def attacked(*args: str, run: Any = main) -> dict[str, Any]:
    """The content of `attack.json` after the command."""
    command.attack(list(args), run=run, build=lambda rest: TranscriptionCLI(rest, run=False))
    content: dict[str, Any] = json.loads((Path(args[0]) / "private" / "attack" / "attack.json").read_text())
    return content


def opened(data: ImageDataModule) -> ImageDataModule:
    data.setup("fit")
    data.setup("test")
    return data


def test_a_shadow_s_data_differ_by_coins_and_canaries_alone() -> None:
    plain, shadow, other = (
        opened(one) for one in (Digits(), *(Shadowed(dataset=Digits(), number=n, canaries=20) for n in (0, 1)))
    )
    assert isinstance(shadow, Shadowed) and isinstance(other, Shadowed)
    assert torch.equal(shadow.test_records.ids, plain.test_records.ids)
    ordinary = shadow.train_records.ids[shadow.train_records.ids >= 0]
    assert torch.equal(ordinary, plain.train_records.ids[shadow.members(plain.train_records.ids)])
    assert 0.4 < len(ordinary) / len(plain.train_records) < 0.6
    canaries = shadow.canaries()
    taken = shadow.members(canaries.ids)
    assert torch.equal(shadow.train_records.ids[len(ordinary) :], canaries.ids[taken]) and 0 < taken.sum() < 20
    assert torch.equal(other.canaries().images, canaries.images) and not torch.equal(other.members(canaries.ids), taken)
    assert not (id_fraction(canaries.ids, purpose="validation") < shadow.val_fraction).any()
    facts = ("name", "private_data", "num_classes", "image_shape", "partition")
    assert [getattr(shadow, fact) for fact in facts] == [getattr(plain, fact) for fact in facts]
    first = plain.test_records.at(torch.argsort(plain.test_records.ids)[:10])
    assert torch.equal(canaries.images[:10], first.images)
    assert torch.equal(canaries.labels[:10], (first.labels + 1) % 10)
    assert set(canaries.images[10:].unique().tolist()) == {0, canaries.peak}


def test_a_shadow_of_the_real_command_line(runs: Path) -> None:
    """A teacher by DP-SGD and a student of it, on a random half; nothing is written elsewhere, no ledger touched."""
    ledgers = {path: path.read_bytes() for path in (runs / "ledgers").rglob("*") if path.is_file()}
    config = yaml.safe_load(Path("s/config.yaml").read_text())
    config["model"]["init_args"]["budget"] = {"ledger": "ledgers/named.jsonl"}
    Path("s/config.yaml").write_text(yaml.safe_dump(config))
    asked = QueriedRecords.choose(Shadowed(dataset=Digits(), number=0, canaries=4), records=20)
    recipe, folders = recipe_of(Path("s"), teacher=None)
    pipelines = Pipelines(recipe=recipe, canaries=4, asked=asked.digest, folders=folders)
    pipelines.train(1, main, asked)
    # A second student of the teacher takes its shadows as they are, and is charged for no other student.
    made: list[str] = []
    pipelines = replace(pipelines, folders={**folders, "student": Path("t/private/second")})
    pipelines.train(1, lambda line: made.append(line[1]) or main(line), asked)
    assert len(made) == 1 and "t/private/second" in made[0]
    first, second = (
        sum(len(file.read_text().splitlines()) for file in Path(name).rglob("*.jsonl"))
        for name in ("s", "t/private/second")
    )
    assert first == second > 0
    for role in ("teacher", "student"):
        claim = pipelines.claim(role, 1)
        assert claim is not None and 0.9 < claim["epsilon"] <= 1.0
        assert claim["relation"] == "add-or-remove of one training record"
        answers = pipelines.answers(role, 1, asked)
        assert answers.confidences.shape == (1, 44, 5) and not answers.members[0, 24:].any()
    with pytest.raises(AttackError, match="another process is still making"):
        pipelines.notes("teacher", 2)
    assert {path.name for path in runs.iterdir()} == {"ledgers", "t", "s", "given.json"}
    assert {path: path.read_bytes() for path in (runs / "ledgers").rglob("*") if path.is_file()} == ledgers


class Stub:
    """In the place of a fit: a network that knows its records by heart, with a claim that it cannot keep."""

    def __init__(self, *, fail_at: int | None = None) -> None:
        self.made = 0
        self.fail_at = fail_at

    def __call__(self, line: list[str]) -> Any:
        if self.made == self.fail_at:
            raise KeyboardInterrupt
        self.made += 1
        config = json.loads(Path(line[1].removeprefix("--config=")).read_text())
        settings = config["data"]["init_args"]["dataset"]["init_args"]
        folder = Path(next(part for part in line if part.startswith("--trainer.default_root_dir=")).split("=")[1])
        folder.mkdir(parents=True)
        claim = {"epsilon_of_run": 0.01, "epsilon": 9.0, "delta": 1e-5, "unit": "one training record"}
        claim["relation"] = Description(mechanism="", source="").relation
        (folder / "guarantee.json").write_text(json.dumps({"guarantee": claim}))
        data = opened(Shadowed(dataset=Digits(), number=settings["number"], canaries=settings["canaries"]))
        records = Records(*data.train_records.__getitems__(range(len(data.train_records))))
        return SimpleNamespace(model=overfitted(records, num_classes=10, hidden=64, steps=30))


def test_a_killed_attack_goes_on_and_a_false_claim_fails(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "_CONTROLS", 4)
    line = ["t", "--attacks", "lira", "loss", "--shadows", "8", "--records", "700", "--canaries", "20"]
    killed, after = Stub(fail_at=3), Stub()
    with pytest.raises(KeyboardInterrupt):
        attacked(*line, run=killed)
    assert not Path("t/private/attack/attack.json").exists()
    with pytest.raises(SystemExit, match="the claim fails for the model, by lira"):
        attacked(*line, run=after)
    assert (killed.made, after.made) == (3, 5)
    content = json.loads(Path("t/private/attack/attack.json").read_text())
    rows = [(one["model"], one["records"], one["attack"]) for one in content["leaks"]]
    assert ("control", "record", "lira") in rows and ("model", "mislabelled", "loss") in rows
    assert rows[-2:] == [("this run", "record", "lira-offline"), ("this run", "record", "loss")]
    found = next(one for one in content["leaks"] if (one["model"], one["attack"]) == ("model", "lira"))
    assert found["audited"]["fails"] and found["auc"] > 0.55
    # Two attacks on three kinds of records share the 5 %.
    assert found["audited"]["confidence"] == pytest.approx(1 - 0.05 / 6)
    # The run's own model has a claim that holds, and it was trained for one step.
    assert abs(content["leaks"][-2]["auc"] - 0.5) < 0.15
    assert "**fails**" in Path("t/private/attack/attack.md").read_text()
    assert "Private, like all files next to it" in capsys.readouterr().out


def test_the_run_s_own_model_is_inverted(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_BACKGROUND", 60)
    # Of files that come class by class, as those of folders do, those of all classes are taken.
    read, trained = Digits.read, []
    monkeypatch.setattr(Digits, "read", lambda *args: (found := read(*args)).at(torch.argsort(found.labels)))
    monkeypatch.setattr(command, "_JUDGED", 60)
    monkeypatch.setattr(command, "overfitted", lambda of, **more: trained.append(of) or overfitted(of, **more))
    for name, short in (("background", {}), ("generative", {"search": 3}), ("data_free", {}), ("gradient", {})):
        quick = functools.partial(getattr(inversion, f"{name}_inversion"), steps=3, **short)
        monkeypatch.setattr(inversion, f"{name}_inversion", quick)
    content = attacked("s", "--attacks", "inversion", "--records", "200")
    assert [one["model"] for one in content["inversions"]] == ["control"] * 4 + ["this run"] * 4
    assert len(trained[0].labels.unique()) == 10
    assert not content["leaks"] and content["epsilon"] == pytest.approx(1.0, abs=0.1)
    assert {path.name for path in Path("s/private/attack").iterdir()} == {
        "attack.json",
        "attack.md",
        "attack.png",
        "given.json",
    }


def test_what_is_refused(runs: Path) -> None:
    Path("alone").mkdir()
    config = json.loads(json.dumps(STUDENT))
    config["model"]["init_args"]["teacher"] = "elsewhere.ckpt"
    Path("alone/config.yaml").write_text(json.dumps(config))
    Path("votes").mkdir()
    Path("votes/config.yaml").write_text(json.dumps({**STUDENT, "model": "TeacherEnsemble"}))
    Path("chain").mkdir()
    chain = {"class_path": "X", "init_args": {"teacher": str(runs / "s/checkpoints/last.ckpt")}}
    Path("chain/config.yaml").write_text(json.dumps({**STUDENT, "model": chain}))
    for line, message in (
        (["s", "--shadows", "7"], "--shadows must be at least 8, got 7"),
        (["absent"], "a fit's folder must hold its config.yaml, and absent is not there"),
        (["alone"], "add --teacher"),
        (["votes"], "votes is an ensemble, whose votes nobody is shown"),
        (["chain"], "model.teacher.path='.*t/checkpoints/last.ckpt' was trained on the private records before"),
    ):
        with pytest.raises(AttackError, match=message):
            attacked(*line)
    config = yaml.safe_load(Path("t/config.yaml").read_text())
    recipe_of(Path("s"), teacher="t/config.yaml")
    config["model"]["init_args"]["target_epsilon"] = 3.0
    config["trainer"]["max_epochs"] -= 1
    Path("other.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(AttackError, match=r"target_epsilon was 1\.0 and is 3\.0; trainer\.max_epochs was \d and is \d"):
        recipe_of(Path("s"), teacher="other.yaml")
    whole = torch.load("s/checkpoints/last.ckpt", weights_only=True)
    torch.save({**whole, "state_dict": {}}, "s/checkpoints/last.ckpt")
    with pytest.raises(AttackError, match=r"(?s)^s has weights of another model than its config\.yaml: .*Missing key"):
        attacked("s", "--records", "20")
    torch.save({"state_dict": {}}, "s/checkpoints/last.ckpt")
    with pytest.raises(CheckpointError, match="lacks loops"):
        attacked("s", "--records", "20")


def test_an_attack_without_power_on_the_control_gets_a_verdict_and_no_other_does() -> None:
    """An AUC of 0.57 on networks that memorised, significantly above a half, was let stand as a success."""
    members = np.arange(2000)[None] % 2 == 0
    noise = np.random.default_rng(0).normal(size=members.shape)
    facts = {"run": "r", "epsilon": 1.0, "published": None, "shadows": 8, "targets": 2, "judge": 0.9}
    for model, shift, classes, accuracy, weak in (
        ("control", 0.25, 10, 0.19, True),  # an AUC of 0.57
        ("control", 1.0, 10, 0.21, False),
        ("control", 0.0, 2, 0.7, True),
        ("control", 2.0, 2, 0.8, False),
        ("this run", 0.0, 10, 0.1, False),
    ):
        result = AttackResult(noise + shift * members, members)
        drawn = Records(torch.zeros(classes, 1, 8, 8), torch.arange(classes))
        judged = InversionResult(
            classes, accuracy, 1.0, distance_train=1.0, distance_test=1.0, nearer=0.5, nearer_error=0.1
        )
        found = MembershipResult(model, "record", "lira", result, None), InvertedModel(model, "gradient", drawn, judged)
        text = page(facts, [found[0]], [found[1]])
        assert [f"`{name}` has no power here" in text for name in ("lira", "gradient")] == [weak, weak]
    assert AttackResult(noise + 0.25 * members, members).auc_interval()[0] > 0.5


def test_a_model_that_saw_nothing_of_either_kind_is_no_better_than_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """All records alike, and the model surer of them than its shadows: it was trained on twice as many."""
    draw, count = np.random.default_rng(0), 64
    asked: Any = SimpleNamespace(records=None, kinds=np.repeat(["record", "held out"], 1000))
    coins = draw.random((count, 2000)) < 0.5
    spread = np.exp(draw.normal(0, 0.7, 2000))
    seen = (spread * draw.normal(size=(count, 2000)))[..., None]
    shadows = Shadows(seen, seen > 0, coins & (asked.kinds != "held out"))
    pipelines: Any = SimpleNamespace(recipe={"model": {}}, answers=lambda *_: shadows, coins=lambda *_: coins)
    sure = (0.7 + spread * draw.normal(size=2000))[:, None]
    monkeypatch.setattr(command, "answers_of", lambda *_: Answers(sure, sure > 0))
    for leak in command._of_run(nn.Identity(), pipelines, asked, ["lira", "rmia"], count):
        low, high = leak.result.auc_interval(confidence=0.999)
        assert low < 0.5 < high


def test_shadows_of_other_records_are_not_taken(tmp_path: Path) -> None:
    asked = [
        QueriedRecords.choose(Shadowed(dataset=Digits(val_fraction=share), number=0), records=20)
        for share in (0.1, 0.1, 0.3)
    ]
    pipelines = Pipelines(recipe={"model": {}}, canaries=0, folders={"model": tmp_path})
    stores = [replace(pipelines, asked=one.digest).store("model").root for one in asked]
    assert stores[0] == stores[1] != stores[2]
