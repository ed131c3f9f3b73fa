"""An ensemble: one changed record changes one teacher, and nothing else decides what becomes of the others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.ensembles import ADDED, Changed, differ, train_ensemble
from support.runs import QUIET, checkpoint, fit, leaks
from torch import Tensor, nn

from datamodules import Digits, Shards, shard_of
from lightning_modules import TeacherEnsemble
from lightning_modules.cli import main
from lightning_modules.networks import DataLensClassifier, SmallCNN, TwoConvNet, logits_and_statistics
from lightning_modules.networks.stacked import stack_states
from lightning_modules.teachers.ensemble import rate_factor
from lightning_modules.teachers.ensemble_accuracy import EnsembleAccuracy
from lightning_modules.teachers.shard_batches import shuffled_passes
from privacy.mechanisms.votes import vote_counts

TEACHERS, STEPS = 6, 24
SHAPE = (1, 8, 8)
LAST = "--ckpt_path=run/checkpoints/last.ckpt"


def small(**given: Any) -> nn.Module:
    return SmallCNN(**given, width=4, hidden=16)


def train(dataset: Digits | None = None, *, num_teachers: int = TEACHERS, **settings: Any) -> TeacherEnsemble:
    """An ensemble whose teachers have seen each record of their shards."""
    given = {"network": small, "steps": STEPS, "teachers_at_once": 3, **settings}
    return train_ensemble(dataset, num_teachers=num_teachers, **given)


@pytest.fixture(scope="module")
def before() -> TeacherEnsemble:
    """An ensemble on all records."""
    return train()


def owner(record: int) -> int:
    return int(shard_of(torch.tensor([record]), num_shards=TEACHERS))


@pytest.mark.parametrize("how", ["taken out", "replaced", "added"])
def test_one_record_changes_one_teacher_and_two_counts(before: TeacherEnsemble, how: str) -> None:
    record = 100
    after = train(Changed(record=record, how=how))
    assert differ(before, after) == [owner(ADDED if how == "added" else record)]
    # Between two digits teachers are undecided: a little of another training changes many a vote.
    test = Digits().read("test").__getitems__(list(range(362)))[0]
    images = (test + test.flip(0)) / 2
    moved = after(images) - before(images)
    assert int(moved.abs().max()) == 1 and set(moved.abs().sum(dim=1).tolist()) == {0, 2}


@pytest.mark.slow
def test_neither_dropout_nor_shifts_couple_teachers() -> None:
    first, second = (
        train(dataset, network=DataLensClassifier, shift=2, num_teachers=3)
        for dataset in (Digits(), Changed(record=7, how="replaced"))
    )
    assert differ(first, second) == [int(shard_of(torch.tensor([7]), num_shards=3))]


class ClippedTogether(TeacherEnsemble):
    """Clips the gradients of a chunk by their common norm, as `gradient_clip_val` would."""

    def _begin_chunk(self) -> None:
        super()._begin_chunk()
        training = self.training_now
        if training is None:
            return
        alone = training.backward

        def backward(images: Tensor, labels: Tensor, *, step: int) -> Tensor:
            losses = alone(images, labels, step=step)
            groups = [group for optimizer in training.optimizers for group in optimizer.param_groups]
            nn.utils.clip_grad_norm_([weight for group in groups for weight in group["params"]], 0.1)
            return losses

        training.backward = backward  # type: ignore[method-assign]


class NormalisedTogether(TeacherEnsemble):
    """Centres the images of a step by the mean over all teachers' batches."""

    def _begin_chunk(self) -> None:
        super()._begin_chunk()
        if self.batches is not None:
            at = self.batches.at
            self.batches.at = lambda step: (at(step)[0] - at(step)[0].mean(), at(step)[1])  # type: ignore[method-assign]


class OrderedTogether(TeacherEnsemble):
    """Draws all teachers' batches from one stream of random numbers, of which a shard takes as many as it is large."""

    def _begin_chunk(self) -> None:
        super()._begin_chunk()
        if self.batches is not None:
            self.batches.at = self.drawn_together  # type: ignore[method-assign]

    def drawn_together(self, step: int) -> tuple[Tensor, Tensor]:
        assert self._records is not None
        if step == 0:
            torch.manual_seed(0)
        rows = []
        for teacher in self.chunk:
            positions = self._records.positions(teacher)
            rows.append(positions.start + torch.randperm(len(positions))[:40])
        images, labels = self._records.records.__getitems__(torch.cat(rows).tolist())
        return images.unflatten(0, (len(rows), 40)), labels.unflatten(0, (len(rows), 40))


@pytest.mark.parametrize("coupled", [ClippedTogether, NormalisedTogether, OrderedTogether])
def test_the_comparison_notices_what_couples_teachers(coupled: type[TeacherEnsemble]) -> None:
    first, second = (train(dataset, kind=coupled) for dataset in (Digits(), Changed(record=100, how="taken out")))
    assert len(differ(first, second)) > 1


@pytest.mark.parametrize("settings", [{"teachers_at_once": 6}, {"teachers_at_once": 4, "workers": 3}, {"workers": 2}])
def test_neither_chunks_nor_threads_change_a_bit(before: TeacherEnsemble, settings: dict[str, Any]) -> None:
    assert differ(before, train(**settings)) == []


def test_another_seed_changes_every_teacher(before: TeacherEnsemble) -> None:
    assert differ(before, train(seed=1)) == list(range(TEACHERS))


def test_a_teacher_is_what_training_it_alone_gives(before: TeacherEnsemble) -> None:
    """The plainest loop over one teacher's records, from the same draws, ends at the same bits."""
    module, number = before, 4
    data = Shards(dataset=Digits(), num_teachers=TEACHERS, batch_size=40)
    data.setup("fit")
    assert module.draw_seed is not None
    network = module.networks.fresh(seed=module.draw_seed, teacher=number).train()
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3, fused=True)
    positions = data.shards.positions(number)
    order = shuffled_passes(len(positions), first=0, count=STEPS * 40, seed=module.draw_seed, teacher=number)
    for step, rows in enumerate(order.view(STEPS, 40)):
        images, labels = data.shards.records.__getitems__((positions.start + rows).tolist())
        optimizer.param_groups[0]["lr"] = 3e-3 * rate_factor("one_cycle", step=step, steps=STEPS)
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(images), labels).backward()
        optimizer.step()
    ours, plain = module.teacher(number).state_dict(), network.state_dict()
    assert all(torch.equal(ours[name], plain[name]) for name in ours)


def test_batch_norm_hooks_fire_on_a_teacher(before: TeacherEnsemble) -> None:
    images = torch.randn(16, *SHAPE)
    found = [float(logits_and_statistics(before.teacher(number), images)[1]) for number in range(TEACHERS)]
    assert len(set(found)) == TEACHERS and min(found) > 0


def configuration(folder: str = "run", **settings: Any) -> dict[str, Any]:
    model = {"network": {"class_path": "SmallCNN", "init_args": {"width": 4, "hidden": 8}}, "steps": 6, **settings}
    return {
        "seed_everything": 3,
        "trainer": {
            "max_epochs": -1,
            "accelerator": "cpu",
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "num_sanity_val_steps": 0,
            "default_root_dir": folder,
        },
        "model": {"class_path": "TeacherEnsemble", "init_args": {"teachers_at_once": 2, "workers": 2, **model}},
        "data": {
            "class_path": "Shards",
            "init_args": {
                "dataset": {"class_path": "Digits"},
                "num_teachers": 5,
                "batch_size": 40,
                "steps_per_epoch": 4,
            },
        },
    }


class Interrupted(RuntimeError):
    pass


def interrupt(monkeypatch: pytest.MonkeyPatch, hook: str, at: int, run: Callable[[], Any]) -> None:
    """Runs until `hook` is called with `at` steps of teachers done, and fails there."""

    def failing(self: TeacherEnsemble, *arguments: Any) -> None:
        if len(self.trained) // 2 * self.steps + self.step_in_chunk == at:
            raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr(TeacherEnsemble, hook, failing)
        with pytest.raises(Interrupted):
            run()


Run = Callable[..., TeacherEnsemble]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """What a whole run with such settings ends as; each is run once."""
    done: dict[str, TeacherEnsemble] = {}

    def run(**settings: Any) -> TeacherEnsemble:
        if repr(settings) not in done:
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(tmp_path_factory.mktemp("whole"))
                done[repr(settings)] = fit(configuration(**settings)).model
        return done[repr(settings)]

    return run


@pytest.mark.parametrize(
    ("hook", "at", "settings"),
    [
        ("on_train_batch_end", 3, {}),  # within the first chunk
        pytest.param("on_train_batch_end", 6, {}, marks=pytest.mark.slow),  # between two chunks
        # at the end of an epoch, in the last chunk, of one teacher
        pytest.param("on_train_epoch_end", 16, {}, marks=pytest.mark.slow),
        pytest.param("on_train_batch_end", 8, {"shift": 1}, marks=pytest.mark.slow),
        pytest.param(
            "on_train_batch_end", 8, {"network": {"class_path": "DataLensClassifier"}}, marks=pytest.mark.slow
        ),
    ],
)
def test_a_resumed_run_ends_as_an_uninterrupted_one(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    uninterrupted: Run,
    hook: str,
    at: int,
    settings: dict[str, Any],
) -> None:
    monkeypatch.chdir(tmp_path)
    interrupt(monkeypatch, hook, at, lambda: fit(configuration(**settings)))
    saved = checkpoint()["ensemble"]
    assert saved["done"] // 2 * 6 + saved["active"]["step"] == at
    resumed = fit(configuration(**settings), LAST).model
    assert len(resumed.trained) == 5 and differ(uninterrupted(**settings), resumed) == []


def test_a_finished_run_has_nothing_left_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uninterrupted: Run
) -> None:
    monkeypatch.chdir(tmp_path)
    fit(configuration())
    again = fit(configuration(), LAST)
    assert differ(uninterrupted(), again.model) == [] and again.trainer.global_step == 18


def test_the_comparison_notices_a_lost_optimizer_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uninterrupted: Run
) -> None:
    monkeypatch.chdir(tmp_path)
    interrupt(monkeypatch, "on_train_batch_end", 3, lambda: fit(configuration()))
    content = checkpoint()
    for state in content["ensemble"]["active"]["optimizers"]:
        state["state"] = {}
    torch.save(content, "run/checkpoints/last.ckpt")
    assert differ(uninterrupted(), fit(configuration(), LAST).model) == [0, 1]


def test_other_shards_are_refused_on_resuming(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    interrupt(monkeypatch, "on_train_batch_end", 3, lambda: fit(configuration()))
    content = checkpoint()
    # Used with other settings than it remembers, which would win over those of the command line.
    content["hyper_parameters"] = {}
    torch.save(content, "run/checkpoints/last.ckpt")
    for argument, message in (
        ("--data.num_teachers=4", "num_teachers was 5"),
        ("--model.teachers_at_once=1", "teachers_at_once was 2"),
    ):
        with pytest.raises(ValueError, match=message):
            fit(configuration(), LAST, argument, "--trainer.default_root_dir=other")


def test_the_files_hold_nothing_of_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    interrupt(monkeypatch, "on_train_batch_end", 8, lambda: fit(configuration()))
    records = Digits().read("train")
    pixels = [records.images[position] for position in range(0, 1435, 20)]
    private = [*pixels, *(values.float() / 8 - 1 for values in pixels)]
    assert leaks("run", private) == []
    assert checkpoint()["state_dict"] == {}
    content = checkpoint()
    content["ensemble"]["active"]["images"] = records.images[:1].float() / 8 - 1
    torch.save(content, "run/checkpoints/last.ckpt")
    assert leaks("run", private) == ["run/checkpoints/last.ckpt"]


@pytest.mark.slow
def test_the_sweep_on_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    smaller = ["--data.num_teachers=8", "--model.steps=60", "--trainer.default_root_dir=run"]
    cli = main(["fit", "--config", "sweeps/methods/ensemble_digits.yaml", *smaller, *QUIET])
    assert cli is not None
    logged = {name: float(value) for name, value in cli.trainer.callback_metrics.items()}
    assert logged["ensemble/teachers_done"] == 8
    assert 0.8 < logged["ensemble/mean_accuracy"] < logged["ensemble/vote_accuracy"]
    test = main(
        [
            "test",
            "--config",
            "sweeps/methods/ensemble_digits.yaml",
            *smaller,
            *QUIET,
            "--ckpt_path=teachers/digits_ensemble.ckpt",
        ]
    )
    assert test is not None
    found = {name: float(value) for name, value in test.trainer.callback_metrics.items()}
    assert found["test/accuracy"] == pytest.approx(logged["ensemble/vote_accuracy"])
    assert found["test/mean_accuracy"] == pytest.approx(logged["ensemble/mean_accuracy"])
    # The same from each teacher by itself.
    images, labels = cli.datamodule.dataset.test_records.__getitems__(list(range(362)))
    decisions = torch.stack([cli.model.teacher(number)(images).argmax(dim=1) for number in range(8)])
    counts = vote_counts(decisions, num_classes=10)
    assert float((counts.argmax(dim=1) == labels).float().mean()) == pytest.approx(found["test/accuracy"])
    assert float((decisions == labels).float().mean()) == pytest.approx(found["test/mean_accuracy"])


def test_each_teacher_is_judged_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked: list[int] = []
    add = EnsembleAccuracy.add

    def counted(self: EnsembleAccuracy, *arguments: Any) -> None:
        asked.append(0 if self._now is None else len(self._now))
        add(self, *arguments)

    monkeypatch.setattr(EnsembleAccuracy, "add", counted)
    cli = fit(configuration())
    assert sum(asked) == 5
    assert float(cli.trainer.callback_metrics["ensemble/teachers_done"]) == 5


def test_a_fit_that_ends_early_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.warns(UserWarning, match="2 of 5 teachers are trained, step 2 of 6"):
        fit(configuration(), "--trainer.max_epochs=2")


def test_settings_without_a_meaning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for settings, message in (
        ({"steps": 0}, "steps"),
        ({"teachers_at_once": 0}, "teachers_at_once"),
        ({"workers": 0}, "workers"),
        ({"label_smoothing": 1.0}, "label_smoothing"),
        ({"schedule": "cosine"}, "schedule"),
        ({"shift": -1}, "shift"),
        ({"shift": 9}, "shift"),
        ({"network": lambda: nn.Linear(3, 3)}, "model.network"),
    ):
        with pytest.raises(ValueError, match=message):
            TeacherEnsemble(num_classes=10, image_shape=SHAPE, **settings)  # type: ignore[arg-type]
    plain = configuration()
    plain["data"] = {"class_path": "Digits"}
    with pytest.raises(ValueError, match=r"disjoint shards.*Shards"):
        fit(plain)
    with pytest.raises(ValueError, match="precision"):
        fit(configuration(), "--trainer.precision=bf16-mixed")
    with pytest.raises(RuntimeError, match="no teacher is trained"):
        TeacherEnsemble(num_classes=10, image_shape=SHAPE)(torch.zeros(1, *SHAPE))


def test_b_s_net_is_the_default() -> None:
    module = TeacherEnsemble(num_classes=10, image_shape=SHAPE)
    assert isinstance(module.networks.fresh(seed=0, teacher=0), TwoConvNet)
    assert module.hparams["network"]["class_path"].endswith("TwoConvNet")


def test_initialisations_follow_the_seed_and_the_teachers_number() -> None:
    module = TeacherEnsemble(num_classes=10, image_shape=SHAPE, network=small)
    same, other, later = (
        stack_states([module.networks.fresh(seed=seed, teacher=teacher)])["head.weight"]
        for seed, teacher in ((5, 3), (6, 3), (5, 4))
    )
    torch.manual_seed(1)
    assert torch.equal(same, stack_states([module.networks.fresh(seed=5, teacher=3)])["head.weight"])
    assert not torch.equal(same, other) and not torch.equal(same, later)


def test_passes_over_a_shard() -> None:
    order = shuffled_passes(7, first=0, count=21, seed=1, teacher=2)
    assert all(sorted(part.tolist()) == list(range(7)) for part in order.split(7))
    assert len({tuple(part.tolist()) for part in order.split(7)}) == 3
    for first, count in ((0, 7), (3, 4), (6, 2), (5, 16)):
        assert torch.equal(
            shuffled_passes(7, first=first, count=count, seed=1, teacher=2), order[first : first + count]
        )
    assert not torch.equal(order, shuffled_passes(7, first=0, count=21, seed=1, teacher=3))


def test_rates() -> None:
    cycle = [rate_factor("one_cycle", step=step, steps=100) for step in range(100)]
    assert cycle.index(max(cycle)) == 30 and max(cycle) == pytest.approx(1) and cycle[0] < 0.1 > cycle[-1]
    assert rate_factor("linear", step=0, steps=10) == 1 == rate_factor("constant", step=9, steps=10)
