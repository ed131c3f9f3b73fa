"""DGD: phases in order and resumed in any, what is charged for them, and what never leaves."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import seed_everything
from support.dgd_variants import GuidedDGD, LedDGD, plain_votes
from support.ensembles import ensemble_weights
from support.runs import (
    BATCH_SIZE,
    checkpoint,
    distil,
    equal,
    fit_script,
    interrupted,
    leaks,
    of_digits,
    teacher_weights,
    tensors,
    watched,
)
from torch import nn

from datamodules import Digits
from lightning_modules.base import DataFreeDistillation
from lightning_modules.cli.fit import TranscriptionCLI
from lightning_modules.dgd import DGD
from lightning_modules.images import Images, PoolSource
from lightning_modules.networks import SmallCNN
from lightning_modules.teachers.private_teacher import PrivateEnsemble
from privacy.account import BudgetExceeded
from privacy.accounting.composition import compose
from privacy.events import Gaussian, LaplaceVotes, Release, SampledGaussian
from privacy.identity import Training, new_training_id
from privacy.mechanisms import NoisyVotes, Shape

GENERATOR, VAE, QUERIES = 2, 2, 20
ASKING = math.ceil(QUERIES / BATCH_SIZE)
STEPS, EPOCHS = 5, 2
BEFORE_STUDENT = GENERATOR + VAE + ASKING
LAST = "--ckpt_path=run/checkpoints/last.ckpt"


def run(
    folder: str = "run",
    *arguments: str,
    kind: str = "DGD",
    epochs: int = EPOCHS,
    votes: dict[str, Any] | None = None,
    **model: Any,
) -> TranscriptionCLI:
    settings: dict[str, Any] = {
        "teacher": "teachers/ensemble.ckpt",
        "images": "prior",
        "vae": {"class_path": "ConvVAE", "init_args": {"width": 4, "latent_dim": 8}},
        "queries": QUERIES,
        "generator_steps": GENERATOR,
        "vae_steps": VAE,
        "mechanism": {"class_path": "NoisyVotes", "init_args": votes or {}},
    }
    path = f"lightning_modules.dgd.{kind}" if kind == "DGD" else f"support.dgd_variants.{kind}"
    return distil(folder, *arguments, class_path=path, steps=STEPS, epochs=epochs, model={**settings, **model})


BASELINE = {"images": "generator", "baseline": "teachers/digits.ckpt"}


def laplace(queries: int) -> float:
    return compose({LaplaceVotes(40.0): queries}, 1e-5).epsilon


def steps_of(monkeypatch: pytest.MonkeyPatch, changed: list[set[str]] | None = None) -> list[str]:
    """Names of the phases, step by step, and in `changed` the networks that each step trains."""
    seen: list[str] = []
    method = DGD.training_step

    def step(self: DGD, batch: int, batch_idx: int) -> None:
        seen.append(self.phase)
        before = {name: value.detach().clone() for name, value in self.named_parameters()}
        method(self, batch, batch_idx)
        if changed is not None:
            after = dict(self.named_parameters())
            changed.append({name.split(".")[0] for name in before if not torch.equal(before[name], after[name])})

    monkeypatch.setattr(DGD, "training_step", step)
    return seen


ORDER = ["generator"] * GENERATOR + ["vae"] * VAE + ["query"] * ASKING


def test_phases_follow_the_counter_and_train_their_own_network_alone(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed: list[set[str]] = []
    seen = steps_of(monkeypatch, changed)
    model = run(**BASELINE).model
    assert seen == ORDER + ["student"] * (STEPS * EPOCHS - BEFORE_STUDENT)
    assert model.steps_done == STEPS * EPOCHS == len(seen)
    assert model.session.calls_made() == len(model.query_set.labels) == model.session.plan.calls == QUERIES
    assert changed == [set() if phase == "query" else {phase} for phase in seen]
    # Of a baseline without privacy nothing bounds what its generator shows; no file has it or a teacher.
    assert model.guarantee().epsilon == math.inf
    assert "VOID: the generator was trained against a classifier" in Path("run/public/guarantee.md").read_text()
    private = ensemble_weights() + teacher_weights("teachers/digits.ckpt")
    assert leaks("run", private) == [] != leaks("teachers", private)


SGD: dict[Release, int] = {SampledGaussian(1.0, 0.01): 1000}


def test_a_baseline_by_dp_sgd_composes_with_the_votes(place: Path) -> None:
    """Once, however often the run is resumed: of the digits' teacher as if it had been trained by DP-SGD."""
    content = torch.load("teachers/digits.ckpt", map_location="cpu", weights_only=True)
    content["training"] = Training(new_training_id(), kind="DPSGDTeacher", releases=SGD).to_dict()
    content["dp_sgd"] = {"assumptions": ["the sky is blue"], "uncharged_queries": ["a look"]}
    torch.save(content, "teachers/dp.ckpt")
    settings = {"images": "generator", "baseline": "teachers/dp.ckpt"}
    run(epochs=1, **settings)
    guarantee = run("run", LAST, **settings).model.guarantee()
    together = compose({LaplaceVotes(40.0): QUERIES, **SGD}, 1e-5).epsilon
    assert guarantee.epsilon == pytest.approx(together)
    assert guarantee.epsilon > max(laplace(QUERIES), compose(SGD, 1e-5).epsilon)
    assert guarantee.relation == "add-or-remove of one training record"
    assert not any("VOID" in text for text in guarantee.assumptions)
    assert any("compose with the votes" in text for text in guarantee.assumptions)
    assert "the sky is blue" in guarantee.assumptions and any("a look" in text for text in guarantee.assumptions)


def test_ensemble_and_baseline_of_other_data_are_refused(place: Path) -> None:
    content = torch.load("teachers/digits.ckpt", map_location="cpu", weights_only=True)
    torch.save({**content, "private_data": "Others/train"}, "teachers/others.ckpt")
    with pytest.raises(ValueError, match=r"'Digits/train' and generator_phase\.baseline of 'Others/train'"):
        run(images="generator", baseline="teachers/others.ckpt")


ROUNDS = {"rounds": 2, "steps_between": 2}
IN_ROUNDS: dict[str, Any] = {"query_phase": {"selection": "confident", "candidates": 3, **ROUNDS}}
ROUND = ["query"] * math.ceil(QUERIES / 2 / BATCH_SIZE)
TURNS = ["vae"] * VAE + ROUND + ["student"] * 2 + ROUND


@pytest.mark.parametrize("kind", ["DGD", "CuriousDGD"])
def test_rounds_of_queries_take_turns_with_the_student_and_what_is_shown_is_charged_for(
    place: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    seen, shown = steps_of(monkeypatch), watched(monkeypatch, PrivateEnsemble, "votes")
    model = run(kind=kind, **IN_ROUNDS).model
    assert (sum(shown) == model.session.account.queries() == QUERIES) is (kind == "DGD")
    assert seen == TURNS + ["student"] * (STEPS * EPOCHS - len(TURNS))
    assert model.session.calls_made() == len(model.query_set.labels) == model.session.plan.calls == QUERIES
    assert model.guarantee().epsilon == pytest.approx(laplace(QUERIES))
    assert len(model.query_set.images.flatten(1).unique(dim=0)) == QUERIES


@pytest.mark.parametrize("known", [True, False])
def test_a_later_round_leaves_out_what_was_asked_about(known: bool) -> None:
    """Of twelve images six are left; where nobody knows which were asked about, some are chosen again."""
    torch.manual_seed(0)
    confident = {"selection": "confident", "candidates": 2, "rounds": 2}
    module = _module(images="pool", pool=Digits(), vae_steps=0, queries=12, query_phase=confident)
    module.draw_seed = 1
    module.images.records = Digits().read("test").at(torch.arange(12))  # type: ignore[union-attr]
    module.query_set.labels = torch.arange(6)
    module.query_set.images = module.images[:6].half()  # type: ignore[index]
    module.query_set.positions = torch.arange(6 if known else 0)
    module.choose_queries()
    assert (set(module.query_set.positions[-6:].tolist()) == set(range(6, 12))) is known


def kept(cli: TranscriptionCLI) -> dict[str, torch.Tensor]:
    model = cli.model
    return {**model.state_dict(), "asked": model.query_set.images, "answers": model.query_set.labels}


QUIET_MODEL: dict[str, Any] = {**BASELINE, "query_distortion": 0.5}


@pytest.mark.parametrize(
    ("settings", "step"),
    [
        (QUIET_MODEL, GENERATOR + 1),
        (IN_ROUNDS, len(TURNS) - 1),
        ({**IN_ROUNDS, "kind": "ForgetfulDGD"}, len(TURNS) - 1),
    ],
    ids=["generator", "second round", "control"],
)
def test_a_run_resumed_in_any_phase_ends_as_an_uninterrupted_one_and_pays_for_no_label_twice(
    place: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], step: int
) -> None:
    monkeypatch.setattr(NoisyVotes, "answer", plain_votes)
    settings = {"student": "DataLensClassifier", **settings}
    interrupted(DGD, step, lambda: run("run", **settings))
    resumed = run("run", LAST, **settings)
    kept_labels, made = "kind" not in settings, resumed.model.session.calls_made()
    assert made == QUERIES if kept_labels else made > QUERIES
    assert resumed.model.session.plan.changed is not kept_labels
    assert not kept_labels or equal(kept(run("whole", **settings)), kept(resumed))


def test_a_budget_that_is_used_up_ends_the_queries_and_not_the_run(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = steps_of(monkeypatch)
    model = run(votes={"target_epsilon": laplace(11) * (1 + 1e-9)}).model
    assert len(model.query_set.labels) == 11 == model.session.calls_made() == model.session.plan.calls
    assert seen == ["vae"] * VAE + ["query"] * 2 + ["student"] * (STEPS * EPOCHS - VAE - 2)
    assert model.guarantee().epsilon == pytest.approx(laplace(11))


@pytest.mark.parametrize("settings", [{}, BASELINE])
def test_a_budget_in_which_nothing_fits_is_refused_before_any_work(
    place: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    seen = steps_of(monkeypatch)
    target = 1e-6 if not settings else 100.0  # of a baseline without privacy, no target holds
    with pytest.raises(BudgetExceeded):
        run(votes={"target_epsilon": target}, **settings)
    assert not seen


POOL = {"images": "pool", "pool": {"class_path": "Digits"}}


@pytest.mark.parametrize("named", ["Digits/train", "Others/train"])
def test_a_pool_with_other_classes_of_the_private_data_is_private(named: str) -> None:
    settings = Images(source="pool", pool=Digits(classes=[7, 8]), pool_part="train")
    pool = PoolSource(settings, image_shape=(1, 8, 8), batch_size=4)
    pool.open(private={named}, partitions=[])
    assert pool.is_private is named.startswith("Digits")


@pytest.mark.parametrize("part", ["train", "test"])
def test_a_private_pool_is_neither_kept_nor_drawn(place: Path, part: str) -> None:
    epsilon = run(**POOL, pool_part=part, vae_steps=0).model.guarantee().epsilon
    pool = Digits()
    pool.setup("fit" if part == "train" else "test")
    records = pool.train_records if part == "train" else pool.test_records
    images = records.__getitems__(range(len(records)))[0].half().flatten(1)
    kept = [value for value in tensors(checkpoint()) if value.dtype == torch.float16 and value.ndim == 4]
    found = {tuple(row) for value in kept for row in value.flatten(1).tolist()}
    assert not found & {tuple(row) for row in images.tolist()}
    written = Path("run/checkpoints/last.ckpt").read_bytes()
    assert not any(row.numpy().tobytes() in written for row in images)
    assert len(checkpoint()["dgd"]["query_positions"]) == QUERIES
    page = Path("run/public/guarantee.md").read_text()
    assert ("is public and existed independently of the private data" in page) is (part == "test")
    assert ("VOID: the pool" in page) is (part == "train") is math.isinf(epsilon)
    drawn = list(Path("run").rglob("synthetic_*.png"))
    # Without a VAE the only images are the pool's own: public ones are shown, private ones are not.
    assert bool(drawn) is (part == "test") and not any("private" in path.parts for path in drawn)
    # A resumed run asks for the same images again, by their positions.
    before = checkpoint()["dgd"]
    again = run("run", LAST, **POOL, pool_part=part, vae_steps=0, epochs=EPOCHS + 1).model
    assert torch.equal(again.query_set.labels, before["query_labels"])
    assert torch.equal(again.query_set.images, again.images[before["query_positions"]].half())


def test_pate_is_a_public_pool_without_vae(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = steps_of(monkeypatch)
    model = run(**POOL, vae_steps=0, votes={"kind": "gaussian"}).model
    assert model.vae is None and seen[:ASKING] == ["query"] * ASKING and set(seen[ASKING:]) == {"student"}
    assert model.guarantee().epsilon == pytest.approx(compose({Gaussian(2**0.5 / 40.0): QUERIES}, 1e-5).epsilon)
    images = Digits().read("test").__getitems__(range(362))[0].half().flatten(1)
    asked = model.query_set.images.flatten(1)
    assert bool((asked[:, None] == images[None]).all(dim=2).any(dim=1).all())
    assert len(asked.unique(dim=0)) == QUERIES


def _votes(
    kind: type[DGD], teachers: list[nn.Module], *, labels: torch.Tensor | None = None, **query_phase: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """What the mechanism is given in a run on these teachers, and the images asked about.

    `labels` are what it releases in place of noisy ones, the same in each call.
    """
    seed_everything(5, verbose=False)
    given: list[torch.Tensor] = []

    class Watching(NoisyVotes):
        def answer(self, shape: Shape, *tensors: torch.Tensor, **settings: Any) -> torch.Tensor:
            given.append(tensors[0])
            released = super().answer(shape, *tensors, **settings)
            return released if labels is None else labels[: len(released)]

    module = of_digits(
        kind, mechanism=Watching(), teacher=nn.ModuleList(teachers), images="prior", queries=QUERIES, vae_steps=1,
        tangent_weight=0.1, query_phase=query_phase,
    )  # fmt: skip
    fit_script(module, steps=9)
    return torch.cat(given), module.query_set.images


def _largest_change(kind: type[DGD], **settings: Any) -> tuple[int, bool]:
    """Sum of the counts' changes in one query when one of seven teachers is another, and whether images stay."""
    torch.manual_seed(0)
    nets = [SmallCNN(image_shape=(1, 8, 8), width=4, hidden=16) for _ in range(8)]
    first, images = _votes(kind, [*nets[:6], nets[6]], **settings)
    second, others = _votes(kind, [*nets[:6], nets[7]], **settings)
    return int((first - second).abs().sum(dim=1).max()), torch.equal(images, others)


#: Of equal labels one changed teacher moves no image, in any round: they are chosen by what was released.
LATER: dict[str, Any] = {"labels": torch.arange(8), "selection": "confident", **ROUNDS}


@pytest.mark.parametrize(("kind", "settings"), [(DGD, {}), (GuidedDGD, {}), (DGD, LATER), (LedDGD, LATER)])
def test_one_changed_teacher_moves_two_counts_by_one_and_no_image(kind: type[DGD], settings: dict[str, Any]) -> None:
    assert (_largest_change(kind, **settings) == (2, True)) is (kind is DGD)


def _module(**settings: Any) -> DGD:
    module: DGD = of_digits(DGD, **{"teacher": "teachers/none.ckpt", "images": "prior", "batch_size": 6, **settings})
    return module


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"images": "generator"}, "baseline must be the file of a classifier"),
        ({"baseline": "student"}, "baseline must be the file of a classifier"),
        ({"images": "pool"}, "pool must be given"),
        ({"query_selection": "confident"}, "and 1 for others, got 1 for 'confident'"),
        ({"query_phase": {"rounds": 2}}, "and 1 for others, got 2 for 'random'"),
        (
            {"query_phase": {"selection": "confident", "rounds": 9, "queries": 8}},
            "rounds must be at most the 8 queries",
        ),
    ],
)
def test_settings_without_meaning_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _module(**settings)


def test_later_phases_share_the_images_of_the_finished_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DataFreeDistillation, "draw_latents", lambda self, step: step)
    module = _module(images="generator", generator_phase={"baseline": "student", "images": 12})  # two batches of 6
    for module.phase_index, drawn in enumerate([5, 1, 1, 1]):
        assert module.draw_latents(5) == drawn


def test_a_pool_that_is_too_small_is_refused(place: Path) -> None:
    with pytest.raises(ValueError, match="queries must be at most the pool's 362"):
        run(**POOL, queries=400)
