"""An ε follows the training that it is about: confusions of teachers, files, ledgers and plans that once were silent.

Each test has its control: what holds it is broken on purpose, and the false figure comes back.
"""

from __future__ import annotations

import functools
import json
import math
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Trainer
from support.dp_teachers import PLAIN_SGD, SMALL, private_teacher, teacher_by_dp_sgd, train
from support.runs import checkpoint, distil

from datamodules import Digits, PoissonSampled, SyntheticSteps
from lightning_modules import DPDFD, DPSGDTeacher, Teacher
from lightning_modules.images.source import Images
from lightning_modules.networks import SmallCNN
from lightning_modules.private_run import PrivateRun
from lightning_modules.runtime import publication
from lightning_modules.runtime.publication import clear
from lightning_modules.teachers import dp_sgd
from lightning_modules.teachers.config import TeacherConfig
from lightning_modules.teachers.dp_sgd_steps import PlannedSteps
from lightning_modules.teachers.own_training import CheckpointError
from privacy import (
    BudgetExceeded,
    Gaussian,
    GradientAnnotator,
    Ledger,
    LedgerError,
    PrivacyAccount,
    Release,
    SampledGaussian,
    compose,
)
from privacy.ledger import Charge
from privacy.plan import Plan

PRIOR = Images(source="prior")

LAST = "checkpoints/last.ckpt"
TEACHER = f"teacher/{LAST}"
#: Answers without noise: bounded by the teacher's own training, or by nothing.
OPEN: dict[str, Any] = {"noise_multiplier": 0.0}


def stated(folder: str) -> dict[str, Any]:
    """A run's guarantee, infinities as numbers."""
    content: dict[str, Any] = json.loads(Path(f"{folder}/public/guarantee.json").read_text())["guarantee"]
    return {key: math.inf if value == "inf" else value for key, value in content.items()}


def student(folder: str, teacher: str = TEACHER, *arguments: str, **annotator: Any) -> Any:
    return distil(folder, *arguments, model={"teacher": teacher}, annotator={**OPEN, **annotator}, steps=2)


def blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: what bounds this run's teacher is applied to every charge in the ledger, as it once was."""

    def as_one(counts: Mapping[Charge, int]) -> dict[str | None, Counter[Release]]:
        total: Counter[Release] = Counter()
        for charge, count in counts.items():
            total[charge.release] += count
        return {last[0]: total} if total else {}

    last: list[str | None] = [None]
    covering = PrivacyAccount._covering

    def remember(self: PrivacyAccount, counts: Mapping[Charge, int]) -> Any:
        last[0] = self.training
        return covering(self, counts)

    monkeypatch.setattr(PrivacyAccount, "_covering", remember)
    monkeypatch.setattr(PrivacyAccount, "_by_training", staticmethod(as_one))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A teacher by DP-SGD, a private one and a student of it, with their ledgers: what is only looked at afterwards."""
    folder = tmp_path_factory.mktemp("trained_once")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        patched.setenv("TRANSCRIPTION_LEDGERS", str(folder / "ledgers"))
        teacher_by_dp_sgd("teacher", noise_multiplier=1.0)
        private_teacher("private")
        distil("run", model={"teacher": f"private/{LAST}"}, annotator={"release": "per_sample_full"}, steps=1)
    return folder


# Which teacher a bound is about.


@pytest.mark.parametrize("broken", [False, True])
def test_a_bound_does_not_cover_the_students_of_the_teacher_before(
    monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    private_teacher("teacher")
    student("first")
    assert stated("first")["epsilon"] == math.inf
    teacher_by_dp_sgd("teacher", target_epsilon=3.0)  # another training, in the same file
    if broken:
        blind(monkeypatch)
    student("second")
    made = stated("second")
    assert (made["epsilon"] == math.inf) is not broken
    if broken:
        assert 2.98 < made["epsilon"] <= 3.0
        return
    # Of its own it costs what its own teacher cost; with all others, nothing bounds the ledger.
    student("third", scope="run")
    alone = stated("third")
    assert 2.98 < alone["epsilon"] <= 3.0 and alone["epsilon_all_runs"] == math.inf and alone["trainings"] == 2


# Its control is fast as "two trainings as one" of `tests/privacy/test_identity_mutations.py`.
@pytest.mark.parametrize("broken", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_two_teachers_by_dp_sgd_at_one_path_compose(monkeypatch: pytest.MonkeyPatch, broken: bool) -> None:
    steps: Counter[Release] = Counter()
    for folder in ("first", "second"):
        teacher = teacher_by_dp_sgd("teacher", target_epsilon=3.0)
        steps.update(teacher.releases)
        if broken:
            blind(monkeypatch)
        student(folder)
    both = compose(steps, 1e-5).epsilon
    assert both > 3.5
    assert stated("second")["epsilon"] == pytest.approx(3.0 if broken else both, rel=1e-3)


@pytest.mark.parametrize("broken", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_shared_ledger_composes_what_it_holds(monkeypatch: pytest.MonkeyPatch, broken: bool) -> None:
    private_teacher("private")
    teacher_by_dp_sgd("teacher", target_epsilon=3.0)
    shared = {"ledger": "shared.jsonl", "noise_multiplier": 100.0, "release": "per_sample_full"}
    distil("of_private", model={"teacher": f"private/{LAST}"}, annotator={**shared, "noise_multiplier": 3.0}, steps=2)
    of_private = stated("of_private")["epsilon"]
    if broken:
        blind(monkeypatch)
    student("of_dp", ledger="shared.jsonl")
    found = stated("of_dp")["epsilon"]
    assert of_private > 10 and (found > of_private) is not broken


def test_an_annotator_that_is_open_refuses_another_teacher(monkeypatch: pytest.MonkeyPatch) -> None:
    teacher_by_dp_sgd("teacher", target_epsilon=3.0)
    private_teacher("private")
    annotator = GradientAnnotator(noise_multiplier=0.0)

    def module(path: str) -> DPDFD:
        return DPDFD(
            num_classes=10,
            image_shape=(1, 8, 8),
            batch_size=8,
            teacher=path,
            annotator=annotator,
            images=PRIOR,
        )

    def run(path: str) -> DPDFD:
        made = module(path)
        train(made, SyntheticSteps(dataset=Digits(), steps_per_epoch=1, batch_size=8))
        return made

    assert 2.98 < run(TEACHER).guarantee().epsilon <= 3.0
    with pytest.raises(ValueError, match=r"this annotator is open for the teacher of training .* build another"):
        run(f"private/{LAST}")
    assert run(TEACHER).guarantee().runs == 1  # the same teacher may be asked on
    # The mutant does not look: the student of a private teacher is given the other's figure.
    monkeypatch.setattr(GradientAnnotator, "require_open_for", lambda *_, **__: None)
    assert run(f"private/{LAST}").guarantee().epsilon <= 3.0


def test_a_run_is_not_resumed_with_another_teacher(monkeypatch: pytest.MonkeyPatch) -> None:
    teacher_by_dp_sgd("teacher", target_epsilon=3.0)
    private_teacher("private")
    student("run")
    resume = ("--ckpt_path=run/checkpoints/last.ckpt", "--trainer.max_epochs=2")
    with pytest.raises(
        CheckpointError, match=r"queried the teacher of training .* Resume with the teacher that the run"
    ):
        student("run", f"private/{LAST}", *resume)
    # The same training in another place is the same teacher.
    Path("elsewhere").mkdir()
    shutil.copyfile(TEACHER, "elsewhere/moved.ckpt")
    student("run", "elsewhere/moved.ckpt", *resume)
    assert 2.98 < stated("run")["epsilon"] <= 3.0
    # The mutant goes on; even then the ledger keeps apart what is about which.
    monkeypatch.setattr(PrivacyAccount, "require_training", lambda *_: None)
    student("run", f"private/{LAST}", resume[0], "--trainer.max_epochs=3")
    assert stated("run")["epsilon"] == math.inf


# What a training by DP-SGD may go on from.


def test_dp_sgd_goes_on_from_nothing_but_dp_sgd(monkeypatch: pytest.MonkeyPatch) -> None:
    private_teacher("private", optimizer=PLAIN_SGD)
    resume = f"--ckpt_path=private/{LAST}"
    with pytest.raises(CheckpointError, match=r"is of .*Teacher, and the configuration is for .*DPSGDTeacher"):
        teacher_by_dp_sgd("teacher", resume, target_epsilon=3.0)
    # Nor where the class is not asked for, as in a script.
    content = torch.load(f"private/{LAST}", weights_only=True)
    network = functools.partial(SmallCNN, width=4, hidden=8, norm="group", activation="tanh")
    module = DPSGDTeacher(num_classes=10, image_shape=(1, 8, 8), noise_multiplier=1.0, network=network)
    with pytest.raises(CheckpointError, match="of no training by DP-SGD: its weights were computed from private"):
        module.on_load_checkpoint(content)
    # The mutant takes a missing history for an empty one: 3 for weights that nothing bounds.
    monkeypatch.setattr("lightning_modules.cli.fit.TranscriptionCLI._parse_ckpt_path", lambda self: None)
    monkeypatch.setattr(DPSGDTeacher, "on_load_checkpoint", lambda self, checkpoint: None)
    assert teacher_by_dp_sgd("teacher", resume, target_epsilon=3.0, epochs=3).guarantee().epsilon <= 3.0


def test_dp_sgd_is_not_resumed_on_other_private_data(monkeypatch: pytest.MonkeyPatch) -> None:
    teacher_by_dp_sgd("teacher", noise_multiplier=1.0)
    resume = f"--ckpt_path={TEACHER}"
    # The command line compares settings before that; a script does not.
    monkeypatch.setattr("lightning_modules.cli.fit.TranscriptionCLI._parse_ckpt_path", lambda self: None)
    with pytest.raises(CheckpointError, match="private_data of the checkpoint is 'Digits/train'"):
        teacher_by_dp_sgd("teacher", resume, noise_multiplier=1.0, epochs=3, dataset="support.dp_teachers.OtherDigits")
    monkeypatch.setattr("lightning_modules.teachers.own_training.OwnTraining._refuse_other_data", lambda *_: None)
    other = teacher_by_dp_sgd(
        "teacher", resume, noise_multiplier=1.0, epochs=3, dataset="support.dp_teachers.OtherDigits"
    )
    assert other.guarantee().private_data == "OtherDigits/train"  # the mutant says it of other records


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"noise_multiplier": 50.0}, "noise_multiplier was 1.0 and is 50.0"),
        ({"delta": 1e-6}, "delta was 1e-05 and is 1e-06"),
        ({"max_grad_norm": 0.2}, "max_grad_norm was 0.1 and is 0.2"),
        ({"clipping": "ghost"}, "clipping was 'flat' and is 'ghost'"),
        ({"granularity": 1e-3}, "granularity was None and is 0.001"),
        ({"batch": 64}, "sampled at rate"),
        ({"precision": "64-true"}, "precision was '32-true'"),
    ],
)
def test_what_dp_sgd_refuses_to_change_on_resuming(
    tmp_path: Path, trained_once: Path, changed: dict[str, Any], message: str
) -> None:
    shutil.copytree(trained_once, tmp_path, dirs_exist_ok=True)
    with pytest.raises(CheckpointError, match=message):
        teacher_by_dp_sgd("teacher", f"--ckpt_path={TEACHER}", **{"noise_multiplier": 1.0, "epochs": 3, **changed})


# What is planned is what is inherited.


def stopped_early(monitor: str = "test_split/accuracy") -> list[dict[str, Any]]:
    return [{"class_path": "EarlyStopping", "init_args": {"monitor": monitor, "mode": "max", "stopping_threshold": 0}}]


EARLY = stopped_early()


@pytest.mark.parametrize("broken", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_student_of_a_teacher_that_stopped_early_costs_its_whole_plan(
    monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    if broken:  # steps taken, in place of steps planned
        monkeypatch.setattr(PlannedSteps, "_with_plan", lambda self, taken: Counter(taken))
    teacher = teacher_by_dp_sgd("teacher", target_epsilon=3.0, epochs=4, callbacks=EARLY)
    assert len(teacher.accountant) == 3 and teacher.trainer.current_epoch < 4
    assert teacher.epsilon() < 2.5
    student("run")
    assert (stated("run")["epsilon"] > 2.98) is not broken
    if not broken:
        assert stated("teacher")["epsilon"] == stated("run")["epsilon"]


def test_a_plan_never_shrinks_on_resuming(monkeypatch: pytest.MonkeyPatch) -> None:
    teacher_by_dp_sgd("teacher", target_epsilon=3.0, epochs=4, callbacks=EARLY)
    again = teacher_by_dp_sgd("teacher", f"--ckpt_path={TEACHER}", target_epsilon=3.0, epochs=2)
    assert len(again.accountant) == 6 and sum(again.steps.plan.charges.values()) == 12
    assert again.guarantee().epsilon > 2.98 > again.epsilon()
    assert compose(dict(PrivateFile(TEACHER).releases), 1e-5).epsilon > 2.98
    # The mutant plans anew.
    fix = DPSGDTeacher._fix_plan

    def anew(self: DPSGDTeacher) -> None:
        self.steps.plan = Plan()
        fix(self)

    monkeypatch.setattr(DPSGDTeacher, "_fix_plan", anew)
    third = teacher_by_dp_sgd("teacher", f"--ckpt_path={TEACHER}", target_epsilon=3.0, epochs=3)
    assert compose(third.releases, 1e-5).epsilon < 2.98
    # The ledger remembers all the same.
    assert third.guarantee().epsilon > 2.98


def test_a_student_that_was_stopped_does_not_shed_its_plan_by_more_noise() -> None:
    """By the command line; every annotator and setting: `tests/privacy/test_plan.py`."""
    private_teacher("private")
    settings = {"release": "per_sample_full", "noise_multiplier": 30.0, "scope": "run"}
    model = {"teacher": f"private/{LAST}", "images": "prior"}
    distil("run", "--trainer.max_steps=2", model=model, annotator=settings, steps=2, epochs=2)
    before, release = stated("run"), 8**0.5 * 2 / 30
    assert before["epsilon"] == compose({Gaussian(release): 4}, 1e-5).epsilon
    assert before["epsilon_spent"] == compose({Gaussian(release): 2}, 1e-5).epsilon
    resume = "--ckpt_path=run/checkpoints/last.ckpt"
    cli = distil("run", resume, model=model, annotator={**settings, "noise_multiplier": 1e9}, steps=2, epochs=2)
    after = stated("run")
    assert after["epsilon_all_runs"] >= after["epsilon"] > 1.2 * after["epsilon_spent"]
    assert after["epsilon"] >= before["epsilon"] * (1 - 1e-12)
    assert cli.model.run.plan.changed and any("THE NOISE WAS CHANGED" in text for text in after["assumptions"])
    assert "sigma=30" in after["mechanism"] and "sigma=1e+09" in after["mechanism"]
    # A checkpoint holds the plan as plain values.
    assert len(checkpoint()["distillation"]["planned_charges"]) == 2


@pytest.mark.slow
def test_more_steps_than_a_target_was_calibrated_for_are_refused() -> None:
    teacher_by_dp_sgd("teacher", target_epsilon=3.0, epochs=2)
    with pytest.raises(ValueError, match=r"target_epsilon=3 was what the noise was calibrated to, and 15 steps"):
        teacher_by_dp_sgd("teacher", f"--ckpt_path={TEACHER}", target_epsilon=3.0, epochs=5)


@pytest.mark.parametrize("evaluation", ["test", "validation"])
def test_nothing_is_chosen_by_private_records(evaluation: str) -> None:
    settings: dict[str, Any] = {"noise_multiplier": 1.0, "callbacks": EARLY, "evaluation": evaluation}
    if evaluation == "test":
        assert teacher_by_dp_sgd("teacher", **settings).uncharged_queries == []
        assert "ACCESSED WITHOUT" not in Path("teacher/public/guarantee.md").read_text()
        return
    with pytest.raises(ValueError, match="EarlyStopping chooses by 'val/accuracy', which is measured on private"):
        teacher_by_dp_sgd("teacher", **{**settings, "callbacks": stopped_early("val/accuracy")})
    teacher_by_dp_sgd("teacher", **{**settings, "callbacks": None})
    page = Path("teacher/public/guarantee.md").read_text()
    assert "ACCESSED WITHOUT CHARGE: accuracy on held-out private records" in page


# What the command line says on resuming is applied or refused.


def test_a_budget_given_on_resuming_is_applied() -> None:
    private_teacher("teacher")
    settings = {"noise_multiplier": 100.0, "release": "per_sample_full"}
    distil("run", model={"teacher": TEACHER}, annotator=settings, steps=2)
    resume = "--ckpt_path=run/checkpoints/last.ckpt"
    noisier = {**settings, "noise_multiplier": 5000.0, "accounting": "record", "scope": "run", "delta": 1e-6}
    cli = distil("run", resume, model={"teacher": TEACHER}, annotator=noisier, steps=2, epochs=2)
    charged = cli.model.annotator.account.counts(scope="run")
    assert sorted(charge.release.gaussian_mu for charge in charged) == [
        pytest.approx(8**0.5 * 2 / sigma) for sigma in (5000.0, 100.0)
    ]
    assert cli.model.annotator.account.budget.delta == 1e-6
    with pytest.raises(BudgetExceeded, match=r"target_epsilon=0\.001"):
        tight = {**noisier, "target_epsilon": 0.001}
        distil("run", resume, model={"teacher": TEACHER}, annotator=tight, steps=2, epochs=3)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"images": "prior"}, r"model\.images\.source was 'generator' and is 'prior'"),
        ({"annotator": {"norm_bound": 0.5}}, r"model\.annotator\.norm_bound was 0\.001 and is 0\.5"),
        ({"annotator": {"release": "per_sample"}}, r"annotator\.release was 'per_sample_full'"),
        ({"class_path": "DPSD"}, r"is of .*DPDFD, and the configuration is for .*DPSD"),
    ],
)
def test_what_cannot_be_changed_by_resuming_is_refused_by_name(
    tmp_path: Path, trained_once: Path, changed: dict[str, Any], message: str
) -> None:
    shutil.copytree(trained_once, tmp_path, dirs_exist_ok=True)
    settings: dict[str, Any] = {"release": "per_sample_full"}
    resume = ("--ckpt_path=run/checkpoints/last.ckpt",)
    model = {"teacher": f"private/{LAST}", **({"images": changed["images"]} if "images" in changed else {})}
    class_path = changed.get("class_path", "DPDFD")
    with pytest.raises(CheckpointError, match=message):
        distil(
            "run", *resume, model=model, class_path=class_path, annotator={**settings, **changed.get("annotator", {})},
            steps=1, epochs=2,
        )  # fmt: skip


# One ledger for a private data set.


def test_trainings_ensembles_and_queries_stand_in_one_ledger_that_composes_them(ledgers: Path) -> None:
    first = teacher_by_dp_sgd("teacher", noise_multiplier=2.0)
    second = teacher_by_dp_sgd("other", noise_multiplier=1.5)
    student("run", scope="run")
    both = compose({**first.releases, **second.releases}, 1e-5).epsilon
    made = stated("run")
    assert made["epsilon"] == compose(first.releases, 1e-5).epsilon
    assert made["epsilon_all_runs"] == stated("other")["epsilon_all_runs"] == both > made["epsilon"]
    assert (made["trainings"], made["runs"]) == (2, 1)
    page = Path("teacher/public/guarantee.md").read_text()
    assert "(1 training of teachers, 0 runs on them)" in page
    assert [path.name for path in ledgers.iterdir()] == ["Digits-train.jsonl"]


@pytest.mark.slow
def test_a_symbolic_link_leads_to_the_same_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRANSCRIPTION_LEDGERS")
    private_teacher("teacher")
    Path("linked").mkdir()
    Path("linked/teacher.ckpt").symlink_to(Path(TEACHER).resolve())
    noisy = {"noise_multiplier": 100.0, "release": "per_sample_full"}
    one = distil("one", model={"teacher": TEACHER}, annotator=noisy, steps=1).model.annotator.account
    two = distil("two", model={"teacher": "linked/teacher.ckpt"}, annotator=noisy, steps=1).model.annotator.account
    assert one.ledger.path == two.ledger.path and two.epsilon() > two.epsilon(scope="run")


@pytest.mark.slow
def test_the_teachers_file_names_the_ledger_from_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRANSCRIPTION_LEDGERS")
    teacher_by_dp_sgd("teacher", noise_multiplier=1.0)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    made = distil("run", model={"teacher": str(tmp_path / TEACHER)}, annotator=OPEN, steps=1)
    assert made.model.annotator.account.ledger.path == tmp_path / "ledgers" / "Digits-train.jsonl"


@pytest.mark.parametrize(
    "harm", ["edited", *(pytest.param(harm, marks=pytest.mark.slow) for harm in ("cut", "exchanged"))]
)
def test_tampering_with_a_ledger_is_named(ledgers: Path, harm: str) -> None:
    teacher_by_dp_sgd("teacher", noise_multiplier=1.0)
    student("run")
    file = ledgers / "Digits-train.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    if harm == "edited":
        position = next(number for number, line in enumerate(lines) if b'"reserve"' in line)
        lines[position] = lines[position].replace(b'"count":', b'"count":1').replace(b'"count":16', b'"count":1')
        file.write_bytes(b"".join(lines))
    elif harm == "cut":
        file.write_bytes(b"".join(lines[:-2]))
    else:
        file.unlink()
    resume = ("--ckpt_path=run/checkpoints/last.ckpt", "--trainer.max_epochs=2")
    if harm == "exchanged":
        student("run", TEACHER, *resume)
        assert "ANOTHER LEDGER" in Path("run/public/guarantee.md").read_text()
        return
    with pytest.raises(LedgerError, match=r"hash of the line before|not what the .* saw of it"):
        student("run", TEACHER, *resume)


@pytest.mark.slow
def test_an_untouched_ledger_is_not_accused(ledgers: Path) -> None:
    teacher_by_dp_sgd("teacher", noise_multiplier=1.0)
    student("run")
    student("run", TEACHER, "--ckpt_path=run/checkpoints/last.ckpt", "--trainer.max_epochs=2")
    assert "ANOTHER LEDGER" not in Path("run/public/guarantee.md").read_text()


# What leaves the house.


def test_only_what_the_guarantee_covers_is_in_public() -> None:
    private_teacher("private")
    teacher_by_dp_sgd("teacher", noise_multiplier=2.0)
    student("covered")
    student("uncovered", f"private/{LAST}")
    assert {path.name for path in Path("covered/public").iterdir()} == {
        "guarantee.json", "guarantee.md", "student.pt", "generator.pt", "figures",
    }  # fmt: skip
    # Nothing bounds the other: the page says so, and it stands alone.
    assert {path.name for path in Path("uncovered/public").iterdir()} == {"guarantee.json", "guarantee.md"}
    assert Path("uncovered/private/figures").is_dir()
    assert {path.name for path in Path("teacher/public").iterdir()} == {"guarantee.json", "guarantee.md", "teacher.pt"}
    weights = torch.load("covered/public/student.pt", weights_only=True)
    kept = checkpoint("covered")["state_dict"]
    assert weights and all(torch.equal(value, kept[f"student.{name}"]) for name, value in weights.items())


@pytest.mark.parametrize("asked", [False, True])
def test_an_access_to_the_teacher_is_told_and_kept_apart(asked: bool) -> None:
    private_teacher("teacher")
    checks = {"accuracy": asked}
    distil("run", "--trainer.callbacks+=ResultRecord", model={"teacher": TEACHER, "teacher_checks": checks}, steps=1)
    page = Path("run/public/guarantee.md").read_text()
    assert ("ACCESSED WITHOUT CHARGE: the teacher's accuracy" in page) is asked
    assert ("information about a teacher was released only through the annotator" in page) is not asked
    assert Path("run/private/uncharged_queries.json").is_file() is asked
    assert "teacher_accuracy" not in json.loads(Path("run/result.json").read_text())


# Precision.


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true", "16-true"])
def test_dp_sgd_in_half_precision_is_refused(precision: str) -> None:
    with pytest.raises(ValueError, match="precision must be 32-true or 64-true for DP-SGD"):
        teacher_by_dp_sgd("teacher", noise_multiplier=1.0, precision=precision)


class PrivateFile:
    """What a teacher's file says of itself."""

    def __init__(self, path: str) -> None:

        teacher = TeacherConfig(path=path).load(num_classes=10, image_shape=(1, 8, 8))
        assert teacher.training is not None and teacher.training.releases is not None
        self.releases: Mapping[Release, int] = teacher.training.releases


def test_the_ledger_holds_the_plan_before_the_first_step(ledgers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stopped(RuntimeError):
        pass

    def stop(*_: Any, **__: Any) -> None:
        raise Stopped

    monkeypatch.setattr(DPSGDTeacher, "training_step", stop)
    with pytest.raises(Stopped):
        teacher_by_dp_sgd("teacher", noise_multiplier=1.0, epochs=2)
    book = Ledger(path=ledgers / "Digits-train.jsonl", private_data="Digits/train", run="reader")
    ((_, releases),) = book.trained().items()
    assert sum(releases.values()) == 6 and isinstance(next(iter(releases)), SampledGaussian)


# What a second reading of this change found.


@pytest.mark.slow
def test_training_on_without_noise_is_another_training(monkeypatch: pytest.MonkeyPatch) -> None:
    teacher_by_dp_sgd("teacher", noise_multiplier=2.0)
    network = functools.partial(SmallCNN, width=4, hidden=8, norm="group", activation="tanh")
    module = Teacher.load_from_checkpoint(TEACHER, network=network, num_classes=10, image_shape=(1, 8, 8))
    train(module, Digits(), save="fine.ckpt")
    model = {"teacher": "fine.ckpt", "teacher_network": SMALL}
    distil("run", model=model, annotator=OPEN, steps=1)
    assert stated("run")["epsilon"] == math.inf
    # The mutant keeps the identity; the ledger then knows that the file does not say what it says.
    content = torch.load("fine.ckpt", weights_only=True)
    content["training"]["id"] = torch.load(TEACHER, weights_only=True)["training"]["id"]
    torch.save(content, "mutant.ckpt")
    with pytest.raises(LedgerError, match=r"was by DP-SGD as the privacy ledger .* has it, and the file at hand"):
        distil("other", model={**model, "teacher": "mutant.ckpt"}, annotator=OPEN, steps=1)


# Its control is kept fast on doubles in `teachers/test_own_training.py`.
@pytest.mark.slow
@pytest.mark.parametrize("broken", [False, True])
def test_branches_of_one_training_compose(monkeypatch: pytest.MonkeyPatch, broken: bool) -> None:
    teacher_by_dp_sgd("base", noise_multiplier=1.0, epochs=1)
    if broken:  # what was saved last is asked for neither before a fit nor when it writes
        monkeypatch.setattr(Ledger, "note_saved", lambda *_, **__: None)
        monkeypatch.setattr(
            "lightning_modules.teachers.own_training.Ledger.saved", lambda self, training: BRANCH[0]._token
        )
        keep = DPSGDTeacher.on_fit_start

        def remember(self: DPSGDTeacher) -> None:
            BRANCH[:] = [self.own_training]
            keep(self)

        monkeypatch.setattr(DPSGDTeacher, "on_fit_start", remember)
    folders = ("one", "two", "three")
    for folder in folders:
        teacher_by_dp_sgd(folder, f"--ckpt_path=base/{LAST}", noise_multiplier=1.0, epochs=3)
        student(f"of_{folder}", f"{folder}/{LAST}")
    nine = compose({SampledGaussian(1.0, 128 / 1275): 9}, 1e-5).epsilon
    trainings = {
        torch.load(f"{folder}/{LAST}", weights_only=True)["training"]["id"] for folder in ("one", "two", "three")
    }
    assert len(trainings) == (1 if broken else 3)
    # Each branch states its own steps, and the data's runs all of them.
    assert stated("one")["epsilon"] == nine
    total = compose({SampledGaussian(1.0, 128 / 1275): 9 if broken else 27}, 1e-5).epsilon
    assert stated("of_three")["epsilon"] == pytest.approx(total)


BRANCH: list[Any] = []


def test_what_is_gone_on_with_is_the_same_training() -> None:
    first = teacher_by_dp_sgd("teacher", noise_multiplier=1.0, epochs=1)
    second = teacher_by_dp_sgd("teacher", f"--ckpt_path={TEACHER}", noise_multiplier=1.0, epochs=2)
    third = teacher_by_dp_sgd("teacher", f"--ckpt_path={TEACHER}", noise_multiplier=1.0, epochs=3)
    assert first.own_training.id == second.own_training.id == third.own_training.id
    assert stated("teacher")["epsilon"] == stated("teacher")["epsilon_all_runs"] == third.epsilon()
    assert any("shown to nobody" in text for text in stated("teacher")["assumptions"])


def test_a_plan_that_grew_after_its_first_step_was_not_made_beforehand() -> None:
    def said(teacher: DPSGDTeacher) -> bool:
        return any("planned before the first release" in text for text in teacher.guarantee().assumptions)

    first = teacher_by_dp_sgd("teacher", noise_multiplier=1.0, epochs=1)
    assert said(first)
    longer = teacher_by_dp_sgd("teacher", f"--ckpt_path={TEACHER}", noise_multiplier=1.0, epochs=2)
    assert not said(longer)
    # Nor is it where a fit goes on for no more than that.
    assert not said(teacher_by_dp_sgd("teacher", f"--ckpt_path={TEACHER}", noise_multiplier=1.0, epochs=2))
    # Negative control: what was said before.
    longer.steps.plan = replace(longer.steps.plan, changed=False)
    assert said(longer)


@pytest.mark.slow
def test_a_second_fit_of_the_same_object_adds_its_steps() -> None:
    teacher = teacher_by_dp_sgd("teacher", noise_multiplier=1.0, epochs=1)
    data = PoissonSampled(dataset=Digits(), batch_size=128, steps_per_epoch=3)
    train(teacher, data, epochs=2, save="again.ckpt")
    assert len(teacher.accountant) == sum(teacher.steps.plan.charges.values()) == 9
    assert dict(PrivateFile("again.ckpt").releases) == {SampledGaussian(1.0, 128 / 1275): 9}
    with pytest.raises(ValueError, match="precision must be 32-true or 64-true"):
        train(teacher, data, precision="bf16-mixed")


@pytest.mark.slow
def test_an_open_annotator_is_not_handed_another_runs_checkpoint() -> None:
    teacher_by_dp_sgd("teacher", noise_multiplier=2.0)
    private_teacher("private")
    annotator = GradientAnnotator(noise_multiplier=0.0)
    data = SyntheticSteps(dataset=Digits(), steps_per_epoch=1, batch_size=8)

    def module(path: str, given: GradientAnnotator) -> DPDFD:
        shape = (1, 8, 8)
        return DPDFD(
            num_classes=10,
            image_shape=shape,
            batch_size=8,
            teacher=path,
            annotator=given,
            images=PRIOR,
        )

    train(module(TEACHER, annotator), data)
    train(module(f"private/{LAST}", GradientAnnotator(noise_multiplier=0.0)), data, save="of_private.ckpt")
    with pytest.raises(
        CheckpointError, match=r"this annotator is open for run .* build another annotator to resume it"
    ):
        train(module(TEACHER, annotator), data, epochs=2, resume="of_private.ckpt")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["private", "by DP-SGD"])
def test_another_ledger_is_told_of_every_teacher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    if kind == "private":
        private_teacher("teacher")
    else:
        teacher_by_dp_sgd("teacher", noise_multiplier=2.0, epochs=1)
    noisy = {"noise_multiplier": 100.0, "release": "per_sample_full"}
    distil("one", model={"teacher": TEACHER}, annotator=noisy, steps=1)
    assert "ANOTHER LEDGER" not in Path("one/public/guarantee.md").read_text()
    monkeypatch.setenv("TRANSCRIPTION_LEDGERS", str(tmp_path / "others"))
    distil("two", model={"teacher": TEACHER}, annotator=noisy, steps=1)
    assert "ANOTHER LEDGER" in Path("two/public/guarantee.md").read_text()
    # And of whatever goes on from there.
    distil(
        "two", "--ckpt_path=two/checkpoints/last.ckpt", model={"teacher": TEACHER}, annotator=noisy, steps=1, epochs=2
    )
    assert "ANOTHER LEDGER" in Path("two/public/guarantee.md").read_text()
    if kind == "by DP-SGD":
        teacher_by_dp_sgd("teacher", f"--ckpt_path={TEACHER}", noise_multiplier=2.0, epochs=2)
        assert "ANOTHER LEDGER" in Path("teacher/public/guarantee.md").read_text()
        student("three")
        assert "ANOTHER LEDGER" in Path("three/public/guarantee.md").read_text()


@pytest.mark.slow
def test_accesses_are_not_forgotten_on_resuming() -> None:
    teacher_by_dp_sgd("teacher", noise_multiplier=1.0, evaluation="validation", epochs=1)
    teacher_by_dp_sgd("teacher", f"--ckpt_path={TEACHER}", noise_multiplier=1.0, epochs=2)
    assert "ACCESSED WITHOUT CHARGE" in Path("teacher/public/guarantee.md").read_text()
    distil("run", model={"teacher": TEACHER, "teacher_checks": {"accuracy": True}}, steps=1)
    distil("run", "--ckpt_path=run/checkpoints/last.ckpt", model={"teacher": TEACHER}, steps=1, epochs=2)
    assert "ACCESSED WITHOUT CHARGE" in Path("run/public/guarantee.md").read_text()


@pytest.mark.slow
def test_public_holds_nothing_of_an_earlier_fit() -> None:
    teacher_by_dp_sgd("teacher", noise_multiplier=2.0)
    private_teacher("private")
    student("run")
    assert Path("run/public/generator.pt").is_file()
    distil("run", model={"teacher": TEACHER, "images": "prior"}, annotator=OPEN, steps=1)
    assert not Path("run/public/generator.pt").exists() and Path("run/public/student.pt").is_file()
    student("run", f"private/{LAST}")
    assert {path.name for path in Path("run/public").rglob("*") if path.is_file()} == {"guarantee.json", "guarantee.md"}


def test_public_holds_nothing_of_another_run_than_the_one_that_is_resumed(tmp_path: Path) -> None:
    def left(resumed: str | None) -> bool:
        folder = tmp_path / "run" / "public"
        (folder / "figures").mkdir(parents=True, exist_ok=True)
        (folder / "guarantee.json").write_text(json.dumps({"guarantee": {"run": "one"}}))
        for file in (folder / "figures" / "step1.png", folder / "student.pt"):
            file.touch()
        trainer = Trainer(default_root_dir=tmp_path / "run", logger=False, accelerator="cpu")
        clear(trainer, resumed=resumed)
        found = [(folder / "figures" / "step1.png").exists(), (folder / "student.pt").exists()]
        assert found[0] is found[1] is (folder / "guarantee.json").exists()
        return found[0]

    assert left("one") and not left("two") and not left(None)


@pytest.mark.parametrize("broken", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_resume_into_the_folder_of_another_run_leaves_nothing_of_it(
    monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    if broken:  # whatever is resumed is taken for what is there
        monkeypatch.setattr(publication, "_run_in", lambda folder: "any")
        monkeypatch.setattr(PrivateRun, "resumed", "any")
    private_teacher("private")
    noisy = {"noise_multiplier": 100.0}
    for folder in ("one", "two"):
        distil(folder, model={"teacher": f"private/{LAST}"}, annotator=noisy, steps=1)
    figure = Path("two/public/figures/of_two.png")
    figure.parent.mkdir(parents=True, exist_ok=True)
    figure.touch()
    resume = ("--ckpt_path=two/checkpoints/last.ckpt", "--ckpt_path=one/checkpoints/last.ckpt")
    for resumed, kept in zip(resume, (True, broken), strict=True):
        distil("two", resumed, model={"teacher": f"private/{LAST}"}, annotator=noisy, steps=1, epochs=2)
        assert figure.exists() is kept


@pytest.mark.slow
def test_a_target_is_kept_where_epochs_change_their_length(monkeypatch: pytest.MonkeyPatch) -> None:
    teacher_by_dp_sgd("teacher", target_epsilon=3.0, epochs=2)
    shorter = ("--data.steps_per_epoch=1", f"--ckpt_path={TEACHER}")
    with pytest.raises(ValueError, match="target_epsilon=3 was what the noise was calibrated to, and 10 steps"):
        teacher_by_dp_sgd("teacher", *shorter, target_epsilon=3.0, epochs=6)
    # Beyond a plan that was wrong, no step is taken that the target does not allow.
    monkeypatch.setattr(dp_sgd, "steps_ahead", lambda *_: 0)
    with pytest.raises(ValueError, match="and 7 steps in all"):
        teacher_by_dp_sgd("teacher", *shorter, target_epsilon=3.0, epochs=6)
