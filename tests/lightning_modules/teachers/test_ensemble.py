"""An ensemble: one changed record changes one teacher, and nothing else decides what becomes of the others.

Teachers are networks, linear heads that are trained on fixed features, and linear heads in closed form.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.dp_teachers import SMALL
from support.ensembles import ADDED, Changed, differ, of_shards, train_ensemble
from support.features import linear_spec
from support.processes import fit_in_processes, saved_by
from support.runs import checkpoint, equal, fit, leaks, working_in
from torch import Tensor, nn

from datamodules import Digits, ImageDataset, Shards, shard_of
from datamodules.base import Part
from lightning_modules import TeacherEnsemble
from lightning_modules.networks import LinearOnFeatures, SmallCNN
from lightning_modules.teachers import ensemble, ensemble_networks, joint_training
from lightning_modules.teachers.config import TeacherConfig
from lightning_modules.teachers.ensemble import rate_factor
from lightning_modules.teachers.ensemble_networks import solve_head, with_feature_extractor
from lightning_modules.teachers.joint_training import shifted, shuffled_passes
from privacy.mechanisms.noisy_votes import vote_counts

TEACHERS, STEPS = 6, 24
SHAPE = (1, 8, 8)
LAST = "--ckpt_path=run/checkpoints/last.ckpt"
WAYS: dict[str, dict[str, Any]] = {
    "networks": {"network": partial(SmallCNN, width=4, hidden=16)},
    "heads": {"network": LinearOnFeatures, "steps": 12},
    "ridge": {"network": LinearOnFeatures, "ridge": 0.1},
}


def train(
    dataset: Digits | None = None, *, way: str = "networks", num_teachers: int = TEACHERS, **settings: Any
) -> TeacherEnsemble:
    """An ensemble whose teachers have seen each record of their shards."""
    given = {"steps": STEPS, "teachers_at_once": 4, **WAYS[way], **settings}
    return train_ensemble(dataset, num_teachers=num_teachers, **given)


@pytest.fixture(scope="module")
def before() -> dict[str, TeacherEnsemble]:
    """Ensembles on all records."""
    return {way: train(way=way) for way in WAYS}


@pytest.fixture(scope="module")
def images() -> Tensor:
    """Between two digits teachers are undecided: a little of another training changes many a vote."""
    test: Tensor = Digits().read("test").__getitems__(list(range(362)))[0]
    return (test + test.flip(0)) / 2


def owner(record: int) -> int:
    return int(shard_of(torch.tensor([record]), num_shards=TEACHERS))


@pytest.mark.parametrize("how", ["taken out", "replaced", "added"])
@pytest.mark.parametrize("way", WAYS)
def test_one_record_changes_one_teacher_and_two_counts(
    before: dict[str, TeacherEnsemble], images: Tensor, way: str, how: str
) -> None:
    record = 100
    after = train(Changed(record=record, how=how), way=way)
    assert differ(before[way], after) == [owner(ADDED if how == "added" else record)]
    moved = after(images) - before[way](images)
    assert int(moved.abs().max()) <= 1 and set(moved.abs().sum(dim=1).tolist()) <= {0, 2}
    assert bool(moved.any()) or way == "heads"


class Masks(nn.Module):
    """Masks pixels by as many draws as an image has of them, bright ones or only the very brightest."""

    def __init__(self, num_classes: int, image_shape: tuple[int, int, int], by_numpy: bool, seldom: bool) -> None:
        super().__init__()
        self.by_numpy, self.seldom = by_numpy, seldom
        self.head = nn.Linear(image_shape[1] * image_shape[2], num_classes)

    def forward(self, images: Tensor) -> Tensor:
        images = images.flatten(1)
        masked = images == 1 if self.seldom else images > 0
        if self.training and masked.any():
            count = int(masked.sum())
            drawn = torch.from_numpy(np.random.rand(count)).float() if self.by_numpy else torch.rand(count)
            images = images.masked_scatter(masked, drawn)
        return self.head(images)  # type: ignore[no-any-return]


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize(("by_numpy", "seldom"), [(False, False), (False, True), (True, False)])
def test_draws_that_depend_on_records_couple_no_teachers(
    monkeypatch: pytest.MonkeyPatch, by_numpy: bool, seldom: bool, broken: bool
) -> None:
    network = partial(Masks, by_numpy=by_numpy, seldom=seldom)
    if broken:
        monkeypatch.setattr(joint_training, "random_states", lambda device: ())
        monkeypatch.setattr(ensemble_networks, "_draws_at_random", lambda *_, **__: False)
    refused = (by_numpy or seldom) and not broken
    with pytest.raises(ValueError, match="it draws random numbers") if refused else nullcontext():
        first, second = (train(data, network=network) for data in (Digits(), Changed(record=100, how="taken out")))
        assert (differ(first, second) == [owner(100)]) is not broken


class SolvedTogether(TeacherEnsemble):
    """Fits each teacher to the records of its neighbour as well: shards that overlap."""

    def _solved(self) -> list[nn.Module]:
        records: Any = self._records
        solved = []
        for teacher in self.chunk:
            rows = [*records.positions(teacher), *records.positions((teacher + 1) % TEACHERS)]
            network = self.networks.fresh(seed=self.draw_seed, teacher=teacher)  # type: ignore[arg-type]
            solved.append(solve_head(network, *records.records.__getitems__(rows), penalty=self.ridge))  # type: ignore[arg-type]
        return solved


def test_the_comparison_notices_teachers_that_are_solved_together() -> None:
    """Of teachers that are trained together, random numbers couple the mutants above."""
    pair = (train(one, kind=SolvedTogether, way="ridge") for one in (Digits(), Changed(record=100, how="taken out")))
    assert len(differ(*pair)) > 1


@pytest.mark.parametrize("way", WAYS)
def test_neither_chunks_nor_threads_change_a_bit(before: dict[str, TeacherEnsemble], way: str) -> None:
    usual = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert differ(before[way], train(way=way, teachers_at_once=3)) == []
    finally:
        torch.set_num_threads(usual)


def test_a_teacher_is_what_training_it_alone_gives(before: dict[str, Any]) -> None:
    """The plainest loop over one teacher's records, from the same draws, ends at the same bits."""
    module, number = before["networks"], 4
    data = Shards(dataset=Digits(), num_teachers=TEACHERS, batch_size=40)
    data.setup("fit")
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
    assert equal(module.trained_teachers[number].state_dict(), network.state_dict())


def configuration(folder: str = "run", **settings: Any) -> dict[str, Any]:
    network = {"class_path": "SmallCNN", "init_args": {"width": 4, "hidden": 8}}
    model = {"network": network, "steps": 6, "teachers_at_once": 2, **settings}
    data = {"num_teachers": 5, "batch_size": 40, "steps_per_epoch": 1 if "ridge" in settings else 4}
    return of_shards(folder, data=data, trainer={"log_every_n_steps": 1, "limit_val_batches": 1}, **model)


RIDGE: dict[str, Any] = {"network": linear_spec(), "ridge": 0.1}
HEADS: dict[str, Any] = {"network": linear_spec()}


def interrupt(monkeypatch: pytest.MonkeyPatch, hook: str, at: tuple[int, int], run: Callable[[], Any]) -> None:
    """Runs until `hook` is called with so many teachers done and so many steps of the next, and fails there."""

    def failing(self: TeacherEnsemble, *arguments: Any) -> None:
        steps = 0 if self.training_now is None else self.training_now.steps_done
        if (len(self.trained_teachers), steps) == at:
            raise InterruptedError

    with monkeypatch.context() as patch:
        patch.setattr(TeacherEnsemble, hook, failing)
        with pytest.raises(InterruptedError):
            run()


Run = Callable[..., TeacherEnsemble]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """What a whole run with such settings ends as; each is run once."""
    done: dict[str, TeacherEnsemble] = {}

    def run(**settings: Any) -> TeacherEnsemble:
        if repr(settings) not in done:
            with working_in(tmp_path_factory.mktemp("whole")):
                done[repr(settings)] = fit(configuration(**settings)).model
        return done[repr(settings)]

    return run


@pytest.mark.parametrize(
    ("hook", "at", "settings"),
    [
        ("on_train_batch_end", (0, 3), {}),  # within the first chunk
        ("on_train_batch_end", (2, 0), RIDGE),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("on_train_batch_end", (2, 0), HEADS),  # between two chunks
                ("on_train_epoch_end", (4, 4), {"shift": 1}),  # in the last chunk, of one teacher
                ("on_train_batch_end", (2, 2), {"network": "DataLensClassifier"}),
            )
        ),
    ],
)
def test_a_resumed_run_ends_as_an_uninterrupted_one(
    monkeypatch: pytest.MonkeyPatch,
    uninterrupted: Run,
    hook: str,
    at: tuple[int, int],
    settings: dict[str, Any],
) -> None:
    interrupt(monkeypatch, hook, at, lambda: fit(configuration(**settings)))
    saved = checkpoint()["ensemble"]
    assert saved["done"] == at[0]
    assert not [name for name in saved["weights"] if "feature_extractor" in name]
    resumed = fit(configuration(**settings), LAST).model
    assert len(resumed.trained_teachers) == 5 and differ(uninterrupted(**settings), resumed) == []


def test_other_shards_are_refused_on_resuming(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt(monkeypatch, "on_train_batch_end", (0, 3), lambda: fit(configuration()))
    content = checkpoint()
    # Used with other settings than it remembers, which would win over those of the command line.
    content["hyper_parameters"] = {}
    torch.save(content, "run/checkpoints/last.ckpt")
    for argument, message in (
        ("--data.num_teachers=4", "num_teachers was 5"),
        ("--model.teachers_at_once=1", "teachers_at_once was 2"),
        ("--model.steps=7", "steps was 6"),
    ):
        with pytest.raises(ValueError, match=message):
            fit(configuration(), LAST, argument, "--trainer.default_root_dir=other")


@pytest.mark.parametrize("broken", [False, True])
def test_records_that_moved_to_other_shards_are_refused_on_resuming(
    broken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of records known by position, the first is taken out and one is added at the end: no number has changed."""
    if broken:
        monkeypatch.setattr(ensemble, "tensors_digest", lambda weights: b"")
    interrupt(monkeypatch, "on_train_batch_end", (2, 0), lambda: fit(configuration(**RIDGE)))
    read = Digits.read

    def moved(self: Digits, part: Part) -> ImageDataset:
        records = read(self, part)
        if part == "test":
            return records
        labels = records.labels.roll(-1)
        return ImageDataset(images=records.images.roll(-1, 0), labels=labels, ids=records.ids, peak=16)

    monkeypatch.setattr(Digits, "read", moved)
    with nullcontext() if broken else pytest.raises(ValueError, match="records differ from those of the first"):
        fit(configuration(**RIDGE), LAST)


@pytest.mark.parametrize("settings", [RIDGE, HEADS, {}])
def test_the_file_gives_the_same_votes(images: Tensor, settings: dict[str, Any]) -> None:
    cli = fit(configuration(**settings))
    logged = {name: float(value) for name, value in cli.trainer.callback_metrics.items()}
    assert logged["ensemble/teachers_done"] == 5
    file = Path("run/checkpoints/last.ckpt")
    loaded = TeacherConfig(path=str(file)).load_ensemble(num_classes=10, image_shape=SHAPE)
    votes = loaded.votes(images)
    assert torch.equal(votes, cli.model(images)) and loaded.num_teachers == 5
    assert votes.dtype == torch.int64 and set(votes.sum(dim=1).tolist()) == {5}
    with torch.no_grad():
        extractor = cli.model.networks.feature_extractor
        alone = torch.stack([with_feature_extractor(one, extractor)(images) for one in cli.model.trained_teachers])
    assert torch.allclose(loaded.each(images), alone, atol=1e-5)
    assert torch.equal(votes, vote_counts(alone.argmax(dim=2), num_classes=10))
    # Another teacher's weights in one place are noticed.
    content = torch.load(file, weights_only=True)
    content["ensemble"]["weights"]["head.weight"][0] = content["ensemble"]["weights"]["head.weight"][1]
    torch.save(content, "other.ckpt")
    assert not torch.equal(
        TeacherConfig(path="other.ckpt").load_ensemble(num_classes=10, image_shape=SHAPE).votes(images), votes
    )


def test_the_files_hold_nothing_of_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[Tensor] = []
    end = TeacherEnsemble.on_fit_end

    def keep(self: Any) -> None:  # before they are let go of
        used.append(self._records.records.inputs[::20])
        end(self)

    monkeypatch.setattr(TeacherEnsemble, "on_fit_end", keep)
    fit(configuration(**RIDGE))
    records = Digits().read("train")
    pixels = [records.images[position] for position in range(0, 1435, 20)]
    (features,) = used
    private = [*pixels, *(values.float() / 8 - 1 for values in pixels), *features, *features.float()]
    assert leaks("run", private) == []
    assert checkpoint()["state_dict"] == {}
    content = checkpoint()
    content["ensemble"]["features"] = features[3]
    torch.save(content, "run/checkpoints/last.ckpt")
    assert "run/checkpoints/last.ckpt" in leaks("run", private)


def test_settings_without_a_meaning() -> None:
    for settings, message in (
        ({"shift": 9}, "shift"),
        ({"network": LinearOnFeatures, "shift": 1}, r"shift=1 moves images.*set shift to 0"),
        ({"network": SmallCNN, "ridge": 0.1}, "linear head on fixed features.*got SmallCNN"),
        ({"network": LinearOnFeatures, "ridge": 0.1, "schedule": "linear"}, "would have no effect"),
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


def test_shifts_by_hand() -> None:
    images, moves = torch.randn(4, 3, 4, 6), torch.tensor([[0, 0], [1, 0], [0, -1], [-2, 2]])
    black = nn.functional.pad(images, (2, 2, 2, 2), value=-1.0)
    expected = [one.roll(tuple(move), (1, 2))[:, 2:-2, 2:-2] for one, move in zip(black, moves.tolist(), strict=True)]
    assert torch.equal(shifted(images, moves), torch.stack(expected))


_own: Any = TeacherEnsemble.own_chunk.fget


def test_two_processes_train_the_same_teachers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last chunk is of one teacher, so that a process has none."""

    def made(folder: str, epochs: int = -1) -> dict[str, Any]:
        data = {"num_teachers": 4, "batch_size": 16, "steps_per_epoch": 2}
        settings = {"network": SMALL, "steps": 4, "teachers_at_once": 3}
        return of_shards(folder, epochs, data=data, trainer={"callbacks": []}, **settings)

    def weights(folder: str, done: int = 4) -> dict[str, Tensor]:
        found = checkpoint(folder)["ensemble"]
        assert found["done"] == done
        return found["weights"]  # type: ignore[no-any-return]

    fit(made("one"))
    one = weights("one")
    fit_in_processes(made("part", epochs=2))
    weights("part", done=3)
    fit_in_processes(made("part"), "--ckpt_path=part/checkpoints/last.ckpt")
    assert equal(weights("part"), one)
    assert not saved_by(0)["error"] and not any("anchor" in name for name in checkpoint("part")["state_dict"])
    # Negative control: a process numbers its own teachers from 0.
    monkeypatch.setattr(TeacherEnsemble, "own_chunk", property(lambda self: range(len(_own(self)))))
    fit_in_processes(made("broken"))
    assert not equal(weights("broken"), one)


@pytest.mark.parametrize("broken", [False, True])
def test_processes_that_divide_the_records_in_two_ways_are_refused(
    broken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Shards, "shard_settings", property(lambda self: {"seed": int(os.environ["LOCAL_RANK"])}))
    if broken:
        monkeypatch.setattr(ensemble, "require_same", lambda *given: None)
    data = {"num_teachers": 4, "batch_size": 16, "steps_per_epoch": 2}
    run = of_shards("two", data=data, trainer={"callbacks": []}, network=SMALL, steps=2)
    with working_in(tmp_path):
        ended = fit_in_processes(run, check=False)
    assert [end.code == 0 for end in ended] == [broken, broken]
    assert any("the processes have different settings or private records" in end.printed for end in ended) is not broken
