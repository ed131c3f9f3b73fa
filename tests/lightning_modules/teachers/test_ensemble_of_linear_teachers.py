"""Linear teachers on fixed features: one changed record changes one of them, in closed form as by training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.ensembles import ADDED, Changed, differ, train_ensemble
from support.features import linear, linear_spec
from support.runs import checkpoint, fit, leaks
from torch import Tensor, nn

from datamodules import Digits, ShardedRecords, Shards, shard_of
from datamodules.mapped import MappedRecords
from lightning_modules import TeacherEnsemble
from lightning_modules.losses.regression import solve_head
from lightning_modules.networks import LinearOnFeatures, SmallCNN
from lightning_modules.networks.scattering import Scattering2d
from lightning_modules.teachers.config import TeacherConfig
from privacy.mechanisms.votes import vote_counts

TEACHERS, STEPS = 6, 12
SHAPE = (1, 8, 8)
LAST = "--ckpt_path=run/checkpoints/last.ckpt"
#: A feature extractor of three channels: quick, and enough to couple teachers if it did.
COARSE = {"scales": 1, "angles": 2, "groups": 1}
#: In closed form, and by training; both on features that are computed once.
WAYS: dict[str, dict[str, Any]] = {"ridge": {"ridge": 0.1}, "trained": {}}


def coarse(**given: Any) -> nn.Module:
    return linear(**given, **COARSE)


def train(dataset: Digits | None = None, *, num_teachers: int = TEACHERS, **settings: Any) -> TeacherEnsemble:
    given = {"network": coarse, "steps": STEPS, "teachers_at_once": 4, **settings}
    return train_ensemble(dataset, num_teachers=num_teachers, **given)


@pytest.fixture(scope="module")
def before() -> dict[str, TeacherEnsemble]:
    """Ensembles on all records."""
    return {way: train(**settings) for way, settings in WAYS.items()}


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
    after = train(Changed(record=record, how=how), **WAYS[way])
    assert differ(before[way], after) == [owner(ADDED if how == "added" else record)]
    moved = after(images) - before[way](images)
    assert int(moved.abs().max()) <= 1 and set(moved.abs().sum(dim=1).tolist()) <= {0, 2}
    assert bool(moved.any()) or way != "ridge"


class PenalisedTogether(TeacherEnsemble):
    """Takes for each teacher the penalty in units of all records' features."""

    def on_fit_start(self) -> None:
        super().on_fit_start()
        assert self._records is not None and self.ridge is not None
        records = self._records.records
        assert isinstance(records, MappedRecords)
        self.ridge *= float(records.inputs.float().square().mean())


class CentredTogether(TeacherEnsemble):
    """Centres features by the mean over all shards."""

    def on_fit_start(self) -> None:
        super().on_fit_start()
        assert self._records is not None and isinstance(self._records.records, MappedRecords)
        inputs = self._records.records.inputs.float()
        self._records = ShardedRecords(
            MappedRecords(inputs - inputs.mean(dim=0), self._records.records.labels), self._records.starts
        )


class SolvedTogether(TeacherEnsemble):
    """Fits each teacher to the records of its neighbour as well: shards that overlap."""

    def _solved(self) -> list[nn.Module]:
        assert self._records is not None and self.draw_seed is not None and self.ridge is not None
        positions, solved = self._records.positions, []
        for teacher in self.chunk:
            rows = [*positions(teacher), *positions((teacher + 1) % TEACHERS)]
            network = self.networks.fresh(seed=self.draw_seed, teacher=teacher)
            solved.append(solve_head(network, *self._records.records.__getitems__(rows), penalty=self.ridge))
        return solved


@pytest.mark.parametrize(
    ("coupled", "way"),
    [
        (PenalisedTogether, "ridge"),
        (CentredTogether, "ridge"),
        (CentredTogether, "trained"),
        (SolvedTogether, "ridge"),
    ],
)
def test_the_comparison_notices_what_couples_teachers(coupled: type[TeacherEnsemble], way: str) -> None:
    first, second = (
        train(dataset, kind=coupled, **WAYS[way]) for dataset in (Digits(), Changed(record=100, how="taken out"))
    )
    assert len(differ(first, second)) > 1


@pytest.mark.parametrize("settings", [{"teachers_at_once": 6}, {"teachers_at_once": 1}, {"workers": 2}])
@pytest.mark.parametrize("way", ["ridge", "trained"])
def test_neither_chunks_nor_threads_change_a_bit(
    before: dict[str, TeacherEnsemble], way: str, settings: dict[str, Any]
) -> None:
    assert differ(before[way], train(**{**WAYS[way], **settings})) == []


def test_a_closed_form_draws_nothing_and_training_does(before: dict[str, TeacherEnsemble]) -> None:
    assert differ(before["ridge"], train(seed=1, **WAYS["ridge"])) == []
    assert differ(before["trained"], train(seed=1, **WAYS["trained"])) == list(range(TEACHERS))


def test_a_teacher_is_what_its_own_shard_alone_gives(before: dict[str, TeacherEnsemble]) -> None:
    """A whole network, solved by itself on images; features in half precision apart."""
    data = Shards(dataset=Digits(), num_teachers=TEACHERS, batch_size=40)
    data.setup("fit")
    test = Digits().read("test").__getitems__(list(range(362)))[0]
    answers = []
    for number in range(TEACHERS):
        images, labels = data.shards.records.__getitems__(data.shards.positions(number))
        network = solve_head(coarse(image_shape=SHAPE), images, labels, penalty=0.1)
        with torch.no_grad():
            answers.append(network(test))
        assert torch.allclose(before["ridge"].teacher(number)(test), answers[-1], atol=2e-2)
    farthest = min(float((answers[0] - other).abs().max()) for other in answers[1:])
    assert farthest > 0.2


def test_the_front_is_computed_once_and_is_in_no_teacher(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    forward = Scattering2d.forward

    def counted(self: Any, given: Tensor) -> Tensor:
        asked.append(len(given))
        found: Tensor = forward(self, given)
        return found

    monkeypatch.setattr(Scattering2d, "forward", counted)
    for settings in WAYS.values():
        asked.clear()
        module = train(**settings)
        assert sum(count for count in asked if count > 2) == 1435  # those of two are blank, to try a network out
        assert all(isinstance(network.feature_extractor, nn.Identity) for network in module.trained)
        assert not any("feature_extractor" in name for network in module.trained for name in network.state_dict())


def test_settings_that_a_fixed_front_or_a_closed_form_does_not_go_with() -> None:
    for settings, message in (
        ({"network": LinearOnFeatures, "shift": 1}, r"shift=1 moves images.*set shift to 0"),
        ({"network": LinearOnFeatures, "shift": 1, "ridge": 0.1}, "set shift to 0"),
        ({"network": SmallCNN, "ridge": 0.1}, "linear head on fixed features.*got SmallCNN"),
        ({"ridge": 0.1}, "linear head on fixed features.*got TwoConvNet"),
        (
            {"network": LinearOnFeatures, "ridge": 0.0},
            "ridge must be above 0 and finite",
        ),
        ({"network": LinearOnFeatures, "ridge": float("nan")}, "ridge must be above 0"),
        ({"network": LinearOnFeatures, "ridge": 0.1, "schedule": "linear"}, "would have no effect"),
        ({"network": LinearOnFeatures, "ridge": 0.1, "label_smoothing": 0.1}, "would have no effect"),
        ({"network": LinearOnFeatures, "ridge": 0.1, "optimizer": torch.optim.Adam}, "would have no effect"),
    ):
        with pytest.raises(ValueError, match=message):
            TeacherEnsemble(num_classes=10, image_shape=SHAPE, **settings)  # type: ignore[arg-type]
    TeacherEnsemble(num_classes=10, image_shape=SHAPE, network=SmallCNN, shift=1)


def configuration(folder: str = "run", **settings: Any) -> dict[str, Any]:
    model = {
        "network": linear_spec(**COARSE),
        "steps": 6,
        "teachers_at_once": 2,
        **settings,
    }
    return {
        "seed_everything": 3,
        "trainer": {
            "max_epochs": -1,
            "accelerator": "cpu",
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "num_sanity_val_steps": 0,
            "log_every_n_steps": 1,
            "limit_val_batches": 1,
            "default_root_dir": folder,
        },
        "model": {"class_path": "TeacherEnsemble", "init_args": {"workers": 1, **model}},
        "data": {
            "class_path": "Shards",
            "init_args": {
                "dataset": {"class_path": "Digits"},
                "num_teachers": 5,
                "batch_size": 40,
                "steps_per_epoch": 1 if "ridge" in settings else 4,
            },
        },
    }


class Interrupted(RuntimeError):
    pass


def interrupt(monkeypatch: pytest.MonkeyPatch, hook: str, at: tuple[int, int], run: Callable[[], Any]) -> None:
    """Runs until `hook` is called with so many teachers done and so many steps of the next, and fails there."""

    def failing(self: TeacherEnsemble, *arguments: Any) -> None:
        if (len(self.trained), self.step_in_chunk) == at:
            raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr(TeacherEnsemble, hook, failing)
        with pytest.raises(Interrupted):
            run()


@pytest.mark.parametrize(
    ("settings", "hook", "at"),
    [
        ({"ridge": 0.1}, "on_train_batch_end", (2, 0)),
        pytest.param({"ridge": 0.1}, "on_train_epoch_end", (4, 0), marks=pytest.mark.slow),
        ({}, "on_train_batch_end", (0, 3)),  # within the first chunk
        pytest.param({}, "on_train_batch_end", (2, 0), marks=pytest.mark.slow),  # between two chunks
    ],
)
def test_a_resumed_run_ends_as_an_uninterrupted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], hook: str, at: tuple[int, int]
) -> None:
    monkeypatch.chdir(tmp_path)
    whole = fit(configuration("whole", **settings)).model
    interrupt(monkeypatch, hook, at, lambda: fit(configuration(**settings)))
    saved = checkpoint()["ensemble"]
    assert saved["done"] == at[0]
    assert not [name for name in saved["weights"] if "feature_extractor" in name]
    resumed = fit(configuration(**settings), LAST).model
    assert len(resumed.trained) == 5 and differ(whole, resumed) == []


@pytest.mark.slow
def test_the_comparison_notices_other_features_after_the_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    whole = fit(configuration("whole", ridge=0.1)).model
    interrupt(monkeypatch, "on_train_batch_end", (2, 0), lambda: fit(configuration(ridge=0.1)))
    # The mutant scatters something else from then on.
    mapped = ShardedRecords.mapped
    monkeypatch.setattr(
        ShardedRecords, "mapped", lambda self, function: mapped(self, lambda images: function(images.flip(3)))
    )
    assert differ(whole, fit(configuration(ridge=0.1), LAST).model) == [2, 3, 4]


@pytest.mark.slow
def test_another_penalty_is_refused_on_resuming(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    interrupt(monkeypatch, "on_train_batch_end", (2, 0), lambda: fit(configuration(ridge=0.1)))
    content = checkpoint()
    # Used with other settings than it remembers, which would win over those of the command line.
    content["hyper_parameters"] = {}
    torch.save(content, "run/checkpoints/last.ckpt")
    for other, now in (("0.2", "0.2"), ("null", "None")):
        with pytest.raises(ValueError, match=f"ridge was 0.1 when .* and is {now} now"):
            fit(configuration(ridge=0.1), LAST, f"--model.ridge={other}", "--trainer.default_root_dir=other")


@pytest.mark.parametrize("settings", [{"ridge": 0.1}, {}])
def test_the_file_gives_the_same_votes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, images: Tensor, settings: dict[str, Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    cli = fit(configuration(**settings))
    logged = {name: float(value) for name, value in cli.trainer.callback_metrics.items()}
    assert logged["ensemble/teachers_done"] == 5
    file = Path("run/checkpoints/last.ckpt")
    loaded = TeacherConfig(path=str(file)).load_ensemble(num_classes=10, image_shape=SHAPE)
    votes = loaded.votes(images)
    assert torch.equal(votes, cli.model(images)) and loaded.num_teachers == 5
    with torch.no_grad():
        alone = torch.stack([cli.model.teacher(number)(images) for number in range(5)])
    assert torch.allclose(loaded.each(images), alone, atol=1e-5)
    assert torch.equal(votes, vote_counts(alone.argmax(dim=2), num_classes=10))
    # Another teacher's weights in one place are noticed.
    content = torch.load(file, weights_only=True)
    content["ensemble"]["weights"]["head.weight"][0] = content["ensemble"]["weights"]["head.weight"][1]
    torch.save(content, "other.ckpt")
    assert not torch.equal(
        TeacherConfig(path="other.ckpt").load_ensemble(num_classes=10, image_shape=SHAPE).votes(images), votes
    )


def test_the_files_hold_nothing_of_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    used: list[Tensor] = []
    end = TeacherEnsemble.on_fit_end

    def keep(self: TeacherEnsemble) -> None:  # before they are let go of
        assert self._records is not None and isinstance(self._records.records, MappedRecords)
        used.append(self._records.records.inputs[::20])
        end(self)

    monkeypatch.setattr(TeacherEnsemble, "on_fit_end", keep)
    fit(configuration(ridge=0.1))
    records = Digits().read("train")
    pixels = [records.images[position] for position in range(0, 1435, 20)]
    (features,) = used
    private = [*pixels, *(values.float() / 8 - 1 for values in pixels), *features, *features.float()]
    # Pixels and some features are round numbers, as some figures of the metrics are.
    assert [file for file in leaks("run", private) if not file.endswith("metrics.csv")] == []
    assert checkpoint()["state_dict"] == {}
    content = checkpoint()
    content["ensemble"]["features"] = features[3]
    torch.save(content, "run/checkpoints/last.ckpt")
    assert "run/checkpoints/last.ckpt" in leaks("run", private)


def test_linear_teachers_of_the_digits_are_of_use() -> None:
    module = train(num_teachers=6, ridge=0.1, network=LinearOnFeatures)
    images, labels = Digits().read("test").__getitems__(list(range(362)))
    votes = module(images)
    assert float((votes.argmax(dim=1) == labels).float().mean()) > 0.93
    assert int(votes.sum()) == 6 * 362
