"""An ε follows the training that it is about: confusions of teachers, files, ledgers and plans that once were silent.

Each test has its control: what holds it is broken on purpose, and the false figure comes back.
"""

from __future__ import annotations

import functools
import json
import math
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Trainer
from support.dp_teachers import PLAIN_SGD, SMALL, private_teacher, teacher_by_dp_sgd, train
from support.runs import RESUME, checkpoint, copy_runs, distil, guarantee, of_digits, shelve, working_in

from datamodules import Digits, SyntheticSteps
from lightning_modules import DPDFD, DPSGDTeacher, Teacher, private_fit
from lightning_modules.networks import SmallCNN
from lightning_modules.teachers import dp_sgd, own_training
from lightning_modules.teachers.config import TeacherConfig
from lightning_modules.teachers.dp_sgd_steps import KnownWeights, PlannedSteps
from lightning_modules.training.run import clear
from privacy import Budget, Ledger, LedgerError, Release, SampledGaussian, compose
from privacy.account import restore_run
from privacy.identity import CheckpointError
from privacy.mechanisms import NoisyGradients, Shape
from privacy.plan import Plan
from privacy.session import PrivacySession

LAST = "checkpoints/last.ckpt"
TEACHER = f"teacher/{LAST}"
#: Answers without noise: bounded by the teacher's own training, or by nothing.
OPEN: dict[str, Any] = {"noise_multiplier": 0.0}


def stated(folder: str) -> dict[str, Any]:
    """A run's guarantee, infinities as numbers."""
    return {key: math.inf if value == "inf" else value for key, value in guarantee(folder).items()}


def student(folder: str, teacher: str = TEACHER, *arguments: str, **mechanism: Any) -> Any:
    return distil(folder, *arguments, model={"teacher": teacher}, mechanism={**OPEN, **mechanism}, steps=2)


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A teacher by DP-SGD, a private one and a student of it, with their ledger."""
    folder = tmp_path_factory.mktemp("trained_once")
    with working_in(folder):
        teacher_by_dp_sgd("teacher", noise_multiplier=1.0)
        private_teacher("private", optimizer=PLAIN_SGD)
        distil("run", model={"teacher": f"private/{LAST}"}, mechanism={"release": "per_sample_full"}, steps=1)
    shelve(folder)
    return folder


@pytest.fixture
def trained(tmp_path: Path, trained_once: Path) -> None:
    """Copies of them in this test's own folder."""
    copy_runs(trained_once, tmp_path)


#: Of the steps that a teacher by DP-SGD takes.
STEP = SampledGaussian(1.0, 128 / 1275)
BOUND = compose({STEP: 6}, 1e-5).epsilon


# Which teacher a bound is about.


# Its control is "two trainings as one" of `tests/privacy/test_identity_mutations.py`.
@pytest.mark.usefixtures("trained")
def test_a_bound_does_not_cover_the_students_of_the_teacher_before() -> None:
    second = Path(TEACHER).read_bytes()
    shutil.copyfile(f"private/{LAST}", TEACHER)
    student("first")
    assert stated("first")["epsilon"] == math.inf
    Path(TEACHER).write_bytes(second)  # another training, in the same file
    student("second")
    assert stated("second")["epsilon"] == math.inf
    # Of its own it costs what its own teacher cost; with all others, nothing bounds the ledger.
    student("third", scope="run")
    made = stated("third")
    assert made["epsilon"] == BOUND and made["epsilon_all_runs"] == math.inf and made["trainings"] == 2


@pytest.mark.usefixtures("trained")
def test_a_session_that_is_open_refuses_another_teacher(monkeypatch: pytest.MonkeyPatch) -> None:
    mechanism = NoisyGradients(noise_multiplier=0.0)
    session = PrivacySession(mechanism, Shape(8, 10, "DPDFD"), budget=Budget(scope="run"))

    def run(path: str) -> DPDFD:
        made: DPDFD = of_digits(DPDFD, teacher=path, mechanism=mechanism, images="prior")
        made.session = session
        train(made, SyntheticSteps(dataset=Digits(), steps_per_epoch=1, batch_size=8))
        return made

    made = run(TEACHER)
    assert made.guarantee().epsilon == BOUND
    with pytest.raises(ValueError, match=r"this session is open for the teacher of training .* build another"):
        run(f"private/{LAST}")
    assert run(TEACHER).guarantee().queries_of_run == 16  # the same teacher may be queried further
    state = session.state()
    session.load({**state, "charged": {**state["charged"], "run": "another"}})
    with pytest.raises(CheckpointError, match=r"this session is open for run .* build another one to resume"):
        session.require_open_for(made.teacher.training)
    # The mutant does not look: the student of a private teacher is given the other's figure.
    monkeypatch.setattr(PrivacySession, "require_open_for", lambda *_: None)
    assert run(f"private/{LAST}").guarantee().epsilon == BOUND


@pytest.mark.usefixtures("trained")
def test_a_run_is_not_resumed_with_another_teacher(monkeypatch: pytest.MonkeyPatch) -> None:
    student("of_dp", scope="run")
    resume = ("--ckpt_path=of_dp/checkpoints/last.ckpt", "--trainer.max_epochs=2")
    with pytest.raises(CheckpointError, match=r"queried the teacher of training .* Resume with the teacher that"):
        student("of_dp", f"private/{LAST}", *resume, scope="run")
    # The same training in another place is the same teacher.
    Path("elsewhere").mkdir()
    shutil.copyfile(TEACHER, "elsewhere/moved.ckpt")
    student("of_dp", "elsewhere/moved.ckpt", *resume, scope="run")
    assert stated("of_dp")["epsilon"] == BOUND

    # The mutant goes on; even then the ledger keeps apart what is about which.
    def of_any(state: Any, ledger: Ledger, *, training: str | None) -> bool:
        return restore_run(state, ledger, training=state and state["training"])

    monkeypatch.setattr("privacy.session.restore_run", of_any)
    student("of_dp", f"private/{LAST}", resume[0], "--trainer.max_epochs=3", scope="run")
    assert stated("of_dp")["epsilon"] == math.inf


# What a training by DP-SGD may go on from.


@pytest.mark.usefixtures("trained")
def test_dp_sgd_goes_on_from_nothing_but_dp_sgd(monkeypatch: pytest.MonkeyPatch) -> None:
    resume = f"--ckpt_path=private/{LAST}"
    with pytest.raises(CheckpointError, match=r"is of .*Teacher, and the configuration is for .*DPSGDTeacher"):
        teacher_by_dp_sgd("fine", resume, target_epsilon=3.0)
    # Nor where no command line compares classes, as in a script.
    content = torch.load(f"private/{LAST}", weights_only=True)
    network = functools.partial(SmallCNN, width=4, hidden=8, norm="group", activation="tanh")
    module = DPSGDTeacher(num_classes=10, image_shape=(1, 8, 8), noise_multiplier=1.0, network=network)
    with pytest.raises(CheckpointError, match="not of a training by DP-SGD: begin anew"):
        module.on_load_checkpoint(content)
    # The mutant takes a missing history for an empty one, and any weights: 3 for those that nothing bounds.
    monkeypatch.setattr(KnownWeights, "require", lambda *_: None)
    monkeypatch.setattr("lightning_modules.cli.fit.TranscriptionCLI._resume", lambda self: None)
    monkeypatch.setattr(DPSGDTeacher, "on_load_checkpoint", lambda self, checkpoint: None)
    assert teacher_by_dp_sgd("fine", resume, target_epsilon=3.0, epochs=3).guarantee().epsilon <= 3.0


@pytest.mark.usefixtures("trained")
def test_dp_sgd_is_not_resumed_on_other_private_data(monkeypatch: pytest.MonkeyPatch) -> None:
    def resumed() -> DPSGDTeacher:
        other = "support.dp_teachers.OtherDigits"
        return teacher_by_dp_sgd("teacher", f"--ckpt_path={TEACHER}", noise_multiplier=1.0, epochs=3, dataset=other)

    # The command line compares settings before that; a script does not.
    monkeypatch.setattr("lightning_modules.cli.fit.TranscriptionCLI._resume", lambda self: None)
    with pytest.raises(CheckpointError, match="private_data was 'Digits/train'"):
        resumed()
    load = own_training.OwnTraining.load
    monkeypatch.setattr(own_training.OwnTraining, "load", lambda own, given: (load(own, given), own._data.clear()))
    assert resumed().guarantee().private_data == "OtherDigits/train"  # the mutant says it of other records


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"noise_multiplier": 50.0}, "noise_multiplier was 1.0 and is 50.0"),
        ({"delta": 1e-6}, "delta was 1e-05 and is 1e-06"),
        ({"clipping": {"max_grad_norm": 0.2}}, r"clipping\.max_grad_norm was 0\.1 and is 0\.2"),
        ({"class_prior": [0.1] * 10}, r"class_prior was None and is \[0\.1, "),
        ({"batch": 64}, "sampled at rate"),
    ],
)
@pytest.mark.usefixtures("trained")
def test_what_dp_sgd_refuses_to_change_on_resuming(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        teacher_by_dp_sgd("teacher", f"--ckpt_path={TEACHER}", **{"noise_multiplier": 1.0, "epochs": 3, **changed})


# What is planned is what is inherited.


STOP = {"monitor": "test_split/accuracy", "mode": "max", "stopping_threshold": 0}
EARLY = [{"class_path": "EarlyStopping", "init_args": STOP}]


@pytest.mark.usefixtures("trained")
def test_results_end_no_training_without_a_plan() -> None:
    with pytest.raises(ValueError, match=r"trainer\.max_epochs must be set with EarlyStopping"):
        teacher_by_dp_sgd("teacher", noise_multiplier=1.0, epochs=-1, callbacks=EARLY)
    with pytest.raises(ValueError, match=r"trainer\.max_epochs must be set with EarlyStopping"):
        distil("run", model={"teacher": f"private/{LAST}", "images": "prior"}, epochs=-1, trainer={"callbacks": EARLY})


@pytest.mark.parametrize("broken", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_teacher_that_stopped_early_costs_its_whole_plan(monkeypatch: pytest.MonkeyPatch, broken: bool) -> None:
    if broken:  # steps taken, in place of steps planned
        monkeypatch.setattr(PlannedSteps, "_with_plan", lambda self, taken: Counter(taken))
    teacher = teacher_by_dp_sgd("teacher", target_epsilon=3.0, epochs=4, callbacks=EARLY)
    assert len(teacher.accountant) == 3 and teacher.trainer.current_epoch < 4
    assert teacher.uncharged_queries == []  # nothing is chosen by private records
    assert "ACCESSED WITHOUT" not in Path("teacher/public/guarantee.md").read_text()
    assert teacher.epsilon() < 2.5
    student("run")
    assert (stated("run")["epsilon"] > 2.98) is not broken
    if broken:
        return
    assert stated("teacher")["epsilon"] == stated("run")["epsilon"]
    # Nor does the plan shrink on resuming.
    again = teacher_by_dp_sgd("teacher", f"--ckpt_path={TEACHER}", target_epsilon=3.0, epochs=2)
    assert len(again.accountant) == 6 and sum(again.steps.plan.charges.values()) == 12
    assert again.guarantee().epsilon > 2.98 > again.epsilon()
    of_file: Any = TeacherConfig(path=TEACHER).load(num_classes=10, image_shape=(1, 8, 8)).training
    assert compose(of_file.releases, 1e-5).epsilon > 2.98
    # The mutant plans anew.
    fix = PlannedSteps.fix_plan

    def anew(self: PlannedSteps, step: Release, ahead: int | None) -> None:
        self.plan = Plan()
        fix(self, step, ahead)

    monkeypatch.setattr(PlannedSteps, "fix_plan", anew)
    third = teacher_by_dp_sgd("teacher", f"--ckpt_path={TEACHER}", target_epsilon=3.0, epochs=3)
    assert compose(third.releases, 1e-5).epsilon < 2.98
    # The ledger remembers all the same.
    assert third.guarantee().epsilon > 2.98


@pytest.mark.usefixtures("trained")
@pytest.mark.parametrize("broken", [False, True])
def test_a_student_whose_epochs_got_shorter_has_a_plan_that_grew(broken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model, settings = {"teacher": f"private/{LAST}", "images": "prior"}, {"release": "per_sample_full", "scope": "run"}
    model["student_lr_scheduler"] = "CosineSchedule"
    distil("run", model=model, mechanism=settings, steps=4)
    if broken:  # as if all epochs had had today's length
        monkeypatch.setattr(private_fit, "steps_of_run", lambda trainer, *, done: 4)
    cli = distil("run", RESUME, model=model, mechanism=settings, steps=1, epochs=4)
    plan, rate = cli.model.session.plan, cli.trainer.optimizers[0].param_groups[0]["lr"]
    assert (plan.changed, plan.calls, rate == 0) == ((False, 4, False) if broken else (True, 7, True))


# What the command line says on resuming is applied or refused.


# One ledger for a private data set.


# What leaves the house.


@pytest.mark.usefixtures("trained")
def test_only_what_the_guarantee_covers_is_in_public() -> None:
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


def test_dp_sgd_in_another_precision_is_refused() -> None:
    for precision in ("bf16-mixed", "16-true", "64-true"):
        with pytest.raises(ValueError, match="precision must be one of 32-true, 32, got"):
            teacher_by_dp_sgd("teacher", noise_multiplier=1.0, precision=precision)


def test_the_ledger_holds_the_plan_before_the_first_step(ledgers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stopped(RuntimeError):
        pass

    def stop(*_: Any, **__: Any) -> None:
        raise Stopped

    monkeypatch.setattr(DPSGDTeacher, "training_step", stop)
    with pytest.raises(Stopped):
        teacher_by_dp_sgd("teacher", noise_multiplier=1.0, epochs=2)
    book = Ledger(path=ledgers / "Digits-train.jsonl", private_data="Digits/train", run="reader")
    ((_, releases),) = book.releases_by_training().items()
    assert sum(releases.values()) == 6 and isinstance(next(iter(releases)), SampledGaussian)


@pytest.mark.slow
def test_training_on_without_noise_is_another_training(monkeypatch: pytest.MonkeyPatch) -> None:
    teacher_by_dp_sgd("teacher", noise_multiplier=2.0)
    network = functools.partial(SmallCNN, width=4, hidden=8, norm="group", activation="tanh")
    module, content = Teacher(num_classes=10, image_shape=(1, 8, 8), network=network), torch.load(TEACHER)
    module.on_load_checkpoint(content)
    module.load_state_dict(content["state_dict"])
    train(module, Digits(), save="fine.ckpt")
    model = {"teacher": "fine.ckpt", "teacher_network": SMALL}
    distil("run", model=model, mechanism=OPEN, steps=1)
    assert stated("run")["epsilon"] == math.inf
    # The mutant keeps the identity; the ledger then knows that the file does not say what it says.
    content = torch.load("fine.ckpt", weights_only=True)
    content["training"]["id"] = torch.load(TEACHER, weights_only=True)["training"]["id"]
    torch.save(content, "mutant.ckpt")
    with pytest.raises(LedgerError, match=r"was by DP-SGD as the privacy ledger .* has it, and the file at hand"):
        distil("other", model={**model, "teacher": "mutant.ckpt"}, mechanism=OPEN, steps=1)


# Its control: `teachers/test_own_training.py`.
@pytest.mark.slow
def test_branches_of_one_training_compose() -> None:
    teacher_by_dp_sgd("base", noise_multiplier=1.0, epochs=1)
    for folder in ("one", "two"):
        teacher_by_dp_sgd(folder, f"--ckpt_path=base/{LAST}", noise_multiplier=1.0, epochs=3)
        student(f"of_{folder}", f"{folder}/{LAST}")
    # Each branch states its own steps, and the data's runs all of them.
    assert stated("one")["epsilon"] == compose({STEP: 9}, 1e-5).epsilon
    assert stated("of_two")["epsilon"] == pytest.approx(compose({STEP: 18}, 1e-5).epsilon)


def test_a_training_that_is_resumed_is_the_same_and_says_that_its_plan_grew() -> None:
    def said(teacher: DPSGDTeacher, text: str = "planned before the first release") -> bool:
        return any(text in assumption for assumption in teacher.guarantee().assumptions)

    first = teacher_by_dp_sgd("teacher", noise_multiplier=1.0, epochs=1)
    assert said(first)
    longer = teacher_by_dp_sgd("teacher", f"--ckpt_path={TEACHER}", noise_multiplier=1.0, epochs=2)
    # The plan is not that of the first release where a fit resumes it for no more steps either.
    again = teacher_by_dp_sgd("teacher", f"--ckpt_path={TEACHER}", noise_multiplier=1.0, epochs=2)
    assert not said(longer) and not said(again) and said(again, "shown to nobody")
    assert first.own_training.id == longer.own_training.id == again.own_training.id
    assert stated("teacher")["epsilon"] == stated("teacher")["epsilon_all_runs"] == again.epsilon()
    # Negative control: what was said before.
    longer.steps.plan = replace(longer.steps.plan, changed=False)
    assert said(longer)


def test_public_holds_nothing_of_another_run_than_the_one_that_is_resumed(tmp_path: Path) -> None:
    of_run = ("figures/step1.png", "student.pt", "guarantee.json")
    names = [*(f"public/{name}" for name in of_run), "private/attack/attack.md", "clients/north/guarantee.md"]
    for resumed, kept in (("one", names), ("two", []), (None, [])):
        for file in (tmp_path / name for name in names):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps({"guarantee": {"run": "one"}}))
        clear(Trainer(default_root_dir=tmp_path, logger=False, accelerator="cpu"), resumed=resumed)
        assert [name for name in names if (tmp_path / name).exists()] == kept


@pytest.mark.slow
def test_a_target_is_kept_where_epochs_change_their_length(monkeypatch: pytest.MonkeyPatch) -> None:
    teacher_by_dp_sgd("teacher", target_epsilon=3.0, epochs=2)
    shorter = ("--data.steps_per_epoch=1", f"--ckpt_path={TEACHER}")
    with pytest.raises(ValueError, match="target_epsilon=3 was what the noise was calibrated to, and 10 steps"):
        teacher_by_dp_sgd("teacher", *shorter, target_epsilon=3.0, epochs=6)
    # Beyond a plan that was wrong, no step is taken that the target does not allow.
    monkeypatch.setattr(dp_sgd, "steps_of_run", lambda *_, **__: 0)
    with pytest.raises(ValueError, match="and 7 steps in all"):
        teacher_by_dp_sgd("teacher", *shorter, target_epsilon=3.0, epochs=6)
