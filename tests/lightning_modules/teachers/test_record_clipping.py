"""Clipped sums: no record moves one by more than its clipping norm, whatever the records are."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from opacus.optimizers import DPOptimizer
from support.dp_teachers import teacher_by_dp_sgd
from support.features import linear, linear_spec
from support.runs import checkpoint
from support.seeded import Seeded
from torch import nn
from torch.nn import functional as F

from lightning_modules import DPSGDTeacher
from lightning_modules.networks import ImageClassifier, SmallCNN
from lightning_modules.teachers import record_clipping as module
from lightning_modules.teachers.clipped_network import ClippedNetwork
from lightning_modules.teachers.losses import PriorCrossEntropy
from lightning_modules.teachers.record_clipping import (
    Clipping,
    FlatClipping,
    GhostClipping,
    flat_sums,
    linear_head,
    linear_sums,
)
from privacy.identity import CheckpointError
from privacy.processes import ALONE

C = 0.3
CLASSES, FEATURES = 4, 11
LINEAR = linear_spec(scales=1, groups=9)


def head(*, bias: bool = True, scale: float = 1.0) -> nn.Linear:
    made = nn.Linear(FEATURES, CLASSES, bias=bias)
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(scale * torch.randn(parameter.shape, generator=draw))
    return made


def records(count: int, *, seed: int, scale: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    features = scale * torch.randn(count, FEATURES, generator=draw)
    return features, torch.randint(CLASSES, (count,), generator=draw)


def vector(sums: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([part.flatten() for part in sums])


def by_autograd(features: torch.Tensor, labels: torch.Tensor, layer: nn.Linear) -> torch.Tensor:
    """The same from gradients that are stored one by one, in float64."""
    exact = nn.Linear(FEATURES, CLASSES, bias=layer.bias is not None).double()
    exact.load_state_dict(layer.state_dict())
    total = torch.zeros(sum(parameter.numel() for parameter in exact.parameters()), dtype=torch.float64)
    for row, label in zip(features.double(), labels, strict=True):
        loss = F.cross_entropy(exact(row[None]), label[None])
        gradient = vector(list(torch.autograd.grad(loss, list(exact.parameters()))))
        total += gradient * (C / gradient.norm()).clamp(max=1.0)
    return total


# Gradients that are held.


def gradients(records: int, *, seed: int, scale: float = 1.0) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [scale * torch.randn(records, *shape, generator=draw) for shape in ((7, 5), (11,))]


def flat(rows: list[torch.Tensor], *, lattice: float | None = None, stability: float | None = None) -> torch.Tensor:
    return vector(flat_sums(rows, norm=C, stability=stability, lattice=lattice)).double() * (lattice or 1.0)


def longest_flat(**settings: Any) -> float:
    """The longest clipped gradient of many single records, in clipping norms."""
    return max(float(flat(gradients(1, seed=seed), **settings).norm()) / C for seed in range(300))


def by_opacus(rows: list[torch.Tensor]) -> torch.Tensor:
    """Negative control: Opacus's own sum, in float32."""
    weights = [nn.Parameter(torch.zeros(each.shape[1:])) for each in rows]
    made = DPOptimizer(torch.optim.SGD(weights), noise_multiplier=0.0, max_grad_norm=C, expected_batch_size=1)
    for weight, each in zip(weights, rows, strict=True):
        weight.grad_sample = each.clone()  # type: ignore[attr-defined]
    made.clip_and_accumulate()
    return vector([weight.summed_grad for weight in weights]).double()  # type: ignore[attr-defined]


def test_no_held_gradient_moves_the_sum_by_more_than_its_clipping_norm() -> None:
    assert 1 - 1e-6 < longest_flat() <= 1.0
    assert longest_flat(lattice=2.0**-20) <= 1.0
    assert 0.99 < longest_flat(stability=0.01) <= 1.0
    assert longest_flat(stability=0.01, lattice=2.0**-20) <= 1.0
    # Negative controls: float32, and a stability below 0, which lengthens what it should bound.
    assert max(float(by_opacus(gradients(1, seed=seed)).norm()) / C for seed in range(300)) > 1.0
    assert longest_flat(stability=-0.01) > 1.0


@pytest.mark.parametrize("lattice", [None, 2.0**-12])
def test_the_sum_is_that_of_the_clipped_or_normalised_gradients(lattice: float | None) -> None:
    rows = gradients(200, seed=1, scale=0.05)
    rows[0][0], rows[1][0] = 0.0, 0.0
    whole = torch.cat([each.flatten(1) for each in rows], dim=1).double()
    factor = (C / whole.norm(dim=1)).clamp(max=1.0)
    assert 20 < int((factor < 1).sum()) < 180
    close = 1e-9 if lattice is None else 200 * 2.0**-12
    found = flat(rows, lattice=lattice)
    assert torch.allclose(found, factor @ whole, atol=close)
    assert lattice is None or torch.equal(found / lattice, (found / lattice).round())
    normalised = C / (whole.norm(dim=1) + 0.01) @ whole
    assert torch.allclose(flat(rows, lattice=lattice, stability=0.01), normalised, atol=close)
    assert not torch.allclose(found, normalised, rtol=0.1)


@pytest.mark.parametrize("stability", [None, 0.01])
def test_a_gradient_that_is_not_finite_counts_as_zeros(stability: float | None) -> None:
    rows = gradients(5, seed=2)
    without = flat([each[1:] for each in rows], stability=stability)
    for value in (torch.nan, torch.inf):
        rows[0][0, 0, 0] = value
        assert torch.allclose(flat(rows, stability=stability), without, atol=1e-12)
    assert not torch.isfinite(by_opacus(rows)).all()  # the mutant tells that there was such a record


# A linear head.


@pytest.mark.parametrize("bias", [True, False])
def test_the_sum_is_that_of_the_clipped_gradients(bias: bool) -> None:
    layer = head(bias=bias, scale=0.5)
    features, labels = records(600, seed=1, scale=0.1)
    expected = by_autograd(features, labels, layer)
    found = linear_sums(features, labels, layer, norm=C)
    assert [part.shape for part in found] == [p.shape for p in layer.parameters()]
    assert torch.allclose(vector(found), expected, rtol=1e-5, atol=1e-9)
    other = linear_sums(features, (labels + 1) % 4, layer, norm=C)
    assert not torch.allclose(vector(other), expected, rtol=1e-2)
    assert not vector(linear_sums(features[:0], labels[:0], layer, norm=C)).any()


def longest(**settings: Any) -> float:
    """The longest contribution of single records, in clipping norms."""
    lengths = []
    for seed in range(200):
        features, labels = records(1, seed=seed, scale=10.0 ** (seed % 7 - 2))
        lengths.append(float(vector(linear_sums(features, labels, head(), norm=C, **settings)).norm()) / C)
    return max(lengths)


def test_no_record_moves_the_sum_by_more_than_its_clipping_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 1 - 1e-5 < longest() <= 1.0
    # Negative controls: no margin in float32, and a norm that forgets the bias.
    with monkeypatch.context() as patch:
        patch.setattr(module, "LINEAR_MARGIN", 0.0)
        patch.setattr(torch.Tensor, "double", torch.Tensor.float)
        assert longest() > 1.0
    square = torch.Tensor.square
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "square", lambda values: square(values) - 1)
        assert longest() > 1.0


SIZES = st.sampled_from([0.0, 1e-45, 1e-30, 1e-8, 1e-3, 1.0, 1e3, 1e12, 1e30, 3e38, torch.inf, torch.nan])


@settings(deadline=None, max_examples=60)
@given(
    sizes=st.lists(SIZES, min_size=1, max_size=8),
    weights=st.sampled_from([0.0, 1e-20, 1.0, 1e10, 1e37]),
    seed=st.integers(0, 2**31),
)
def test_whatever_records_are_each_moves_the_sum_by_at_most_its_clipping_norm(
    sizes: list[float], weights: float, seed: int
) -> None:
    features, labels = records(len(sizes), seed=seed)
    features = features.sign() * features.abs().clamp(0.5, 1.0) * torch.tensor(sizes)[:, None]
    layer = head(scale=weights)
    whole = vector(linear_sums(features, labels, layer, norm=C))
    assert torch.isfinite(whole).all()
    for index, size in enumerate(sizes):
        rest = torch.arange(len(sizes)) != index
        without = vector(linear_sums(features[rest], labels[rest], layer, norm=C))
        assert float((whole - without).norm()) <= C
        if not np.isfinite(size):
            assert torch.equal(whole, without) or float((whole - without).norm()) < 1e-12


def test_small_errors_of_long_inputs_are_clipped() -> None:
    """Squares of the errors underflow, and inputs of float64 can make much of what is left."""
    layer = head(bias=False).double()
    with torch.no_grad():
        layer.weight.zero_()
        layer.weight[0, 0] = 1.0
        layer.weight[1, 1] = 1e-150
    features = torch.zeros(1, FEATURES, dtype=torch.float64)
    features[0, 0], features[0, 1] = 370.0, 1e153
    found = vector(linear_sums(features, torch.zeros(1, dtype=torch.int64), layer, norm=C))
    assert 0 < float(found.norm()) <= C


class _Frozen(ImageClassifier):
    def __init__(self, *, trained: bool = False) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten())
        self.body.requires_grad_(trained)
        self.head = nn.Linear(2 * 36, 10)

    def forward_features(self, images: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.body(images)
        return features


class _OtherForward(_Frozen):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(images)


def test_which_mode_is_chosen() -> None:
    fixed = linear(scales=1, groups=9)
    assert linear_head(fixed) is fixed.head and linear_head(_Frozen()) is not None
    partly = linear(scales=1, groups=9)
    partly.head.bias.requires_grad_(False)
    weighted = linear(scales=1, groups=9)
    nn.utils.parametrizations.weight_norm(weighted.head)
    deeper = SmallCNN(image_shape=(1, 8, 8), norm="group")
    others: list[nn.Module] = [_Frozen(trained=True), _OtherForward(), weighted, deeper, nn.Linear(4, 4)]
    assert all(linear_head(network) is None for network in others)

    def mode(network: nn.Module, **settings: Any) -> str:
        return Clipping(**settings).mode_for(network)

    assert mode(fixed) == "linear" and mode(fixed, granularity=0.1) == "flat"
    assert mode(deeper) == "flat" and mode(deeper, physical_batch_size=10**7) == "ghost"
    assert mode(fixed, mode="flat") == "flat" and mode(fixed, mode="ghost") == "ghost"
    with pytest.raises(ValueError, match=r"clipping\.mode=linear needs a network that trains a linear head alone"):
        mode(deeper, mode="linear")


class Tokens(nn.Module):
    """A layer of 49 patches each, whose gradients add up over an image."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Linear(16, 64, bias=False)
        self.head = nn.Linear(64, 10)
        with torch.no_grad():
            self.head.weight.mul_(20)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.patches(images).sum(dim=1))  # type: ignore[no-any-return]


def _largest_of_patches_that_cancel() -> float:
    """Norm of what ghost clipping makes of one of 40 images, in clipping norms."""
    torch.manual_seed(0)
    network, largest = Tokens(), 0.0
    ghost = GhostClipping(network, Clipping(max_grad_norm=C, mode="ghost"), PriorCrossEntropy())
    for seed in range(40):
        draw = torch.Generator().manual_seed(seed)
        half = torch.randint(0, 256, (24, 16), generator=draw) / 127.5 - 1
        patches = torch.cat([half, -half, torch.full((1, 16), 1 / 255)])[torch.randperm(49, generator=draw)]
        sums = ghost.sums(patches[None], torch.tensor([seed % 10]), network)
        largest = max(largest, float(vector(sums).norm()) / C)
    return largest


def test_ghost_clipping_bounds_what_cancels_within_an_image(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _largest_of_patches_that_cancel() <= 1
    exact = module.compute_linear_norm_sample
    in_float32 = lambda layer, inputs, grads: exact(layer, inputs, grads.float())  # noqa: E731
    monkeypatch.setattr(module, "compute_linear_norm_sample", in_float32)
    assert _largest_of_patches_that_cancel() > 1


def _moved_by_one_of_many_alike() -> float:
    """What leaving out one of 4,096 records takes from the sum of ghost clipping, in clipping norms."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
    ghost = GhostClipping(network, Clipping(max_grad_norm=C, mode="ghost"), PriorCrossEntropy())
    images, labels = torch.randn(1, 64).expand(4096, 64).clone(), torch.zeros(4096, dtype=torch.int64)
    all_of_them, but_one = (vector(ghost.sums(images[first:], labels[first:], network)) for first in (0, 1))
    return float((all_of_them - but_one).norm()) / C


def test_ghost_clipping_leaves_room_for_what_float32_makes_of_a_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _moved_by_one_of_many_alike() <= 1
    monkeypatch.setattr(module, "GHOST_MARGIN", 0.0)
    monkeypatch.setattr(module, "GHOST_RECORDS", 4096)
    assert _moved_by_one_of_many_alike() > 1


@pytest.mark.parametrize("mode", ["flat", "ghost"])
def test_no_gradient_of_records_is_left_for_others_to_log(mode: Any) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    clipped = ClippedNetwork(network, Clipping(max_grad_norm=C, mode=mode), PriorCrossEntropy())
    clipped.settle(image_shape=(1, 8, 8), num_classes=10, batch_size=4, processes=ALONE, resumed=False)
    (sums, _) = clipped.sums(torch.ones(4, 1, 8, 8), torch.zeros(4, dtype=torch.int64), extracted=False)
    assert sums.any() and clipped.mode == mode
    assert all(getattr(weight, name) is None for weight in network.parameters() for name in ("grad", "grad_sample"))


class Precise(Tokens):
    """Notes the precision that a GPU would multiply in, of its copies as well."""

    seen: ClassVar[list[tuple[str, bool]]] = []

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.seen.append((torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32))
        return super().forward(images.flatten(1).unfold(1, 16, 16))


def test_records_are_clipped_without_tf32() -> None:
    torch.set_float32_matmul_precision("high")
    try:
        clipped = ClippedNetwork(Precise(), Clipping(max_grad_norm=C), PriorCrossEntropy())
        shape = {"image_shape": (1, 28, 28), "num_classes": 10, "batch_size": 4}
        clipped.settle(**shape, processes=ALONE, resumed=False)
        assert set(Precise.seen) == {("highest", False)}  # the trial compares batches of one with larger ones
        Precise.seen.clear()
        images = torch.zeros(4, 1, 28, 28)
        clipped.sums(images, torch.zeros(4, dtype=torch.int64), extracted=False)
        clipped.logits(images, extracted=False)
        assert Precise.seen == [("highest", False), ("high", True)]
    finally:
        torch.set_float32_matmul_precision("highest")


def test_a_training_is_that_of_opacus_flat_clipping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of equal coins and noise, through the trainer; and `auto` goes on as a file of `flat` began."""

    def weights(name: str, *arguments: str, **model: Any) -> tuple[torch.Tensor, DPSGDTeacher]:
        stream = Seeded(seed=3)
        monkeypatch.setattr("privacy.mechanisms.noise.SystemNoise.words", lambda self, count: stream.words(count))
        teacher = teacher_by_dp_sgd(name, *arguments, network=LINEAR, noise_multiplier=1.0, **model)
        return torch.cat([p.detach().flatten() for p in teacher.network.parameters()]), teacher

    linear, teacher = weights("linear", epochs=1)
    assert teacher.clipped.mode == checkpoint("linear")["dp_sgd"]["settings"]["clipping.mode"] == "linear"
    flat, _ = weights("flat", epochs=1, clipping={"mode": "flat", "physical_batch_size": 50})
    assert torch.allclose(linear, flat, atol=1e-5)
    resume = "--ckpt_path=flat/checkpoints/last.ckpt"
    assert weights("flat", resume, epochs=2)[1].clipped.mode == "flat"
    with pytest.raises(CheckpointError, match=r"clipping\.mode was 'flat' and is 'linear'"):
        weights("flat", resume, epochs=3, clipping={"mode": "linear"})


# Persons.


def of_persons(mode: str, features: torch.Tensor, labels: torch.Tensor, counts: list[int] | None) -> torch.Tensor:
    """The clipped sum of one mode, each person's mean gradient clipped at C; None clips each picture."""
    network = linear(image_shape=(1, 4, 4), num_classes=CLASSES)
    network.feature_extractor, network.head = nn.Identity(), head()
    settings = Clipping(max_grad_norm=C, mode="auto", granularity=1e-6 if mode == "lattice" else None)
    kind = module.LinearClipping if mode == "linear" else module.FlatClipping
    clipping = kind(network, settings, PriorCrossEntropy(log_prior=None))
    found = vector(clipping.sums(features, labels, network.head, counts)).double()
    clipping.release()
    return found * (settings.lattice or 1.0)


@pytest.mark.parametrize("mode", ["flat", "lattice", "linear"])
def test_a_person_of_50_pictures_moves_the_sum_by_at_most_the_clipping_norm(mode: str) -> None:
    for seed in range(4):
        features, labels = records(50, seed=seed, scale=10.0 ** (seed % 4 - 1))
        assert float(of_persons(mode, features, labels, [50]).norm()) <= C
        # Fifty times one picture, in closed form: its clipped gradient once.
        features[:], labels[:] = features[0].clone(), labels[0].clone()
        alone = of_persons(mode, features[:1], labels[:1], None)
        assert torch.allclose(of_persons(mode, features, labels, [50]), alone, rtol=1e-4, atol=1e-6)
        # The mutant clips by picture.
        assert float(of_persons(mode, features, labels, None).norm()) == pytest.approx(
            50 * float(alone.norm()), rel=1e-4
        )
        assert float(of_persons(mode, features, labels, None).norm()) > C


@pytest.mark.parametrize("mode", ["flat", "linear"])
def test_what_is_clipped_is_the_mean_gradient_of_a_person(mode: str) -> None:
    counts, layer = [1, 200, 7, 130, 1], head().double()  # more than a piece holds
    features, labels = records(sum(counts), seed=5, scale=0.3)
    expected, start = torch.zeros(CLASSES * (FEATURES + 1), dtype=torch.float64), 0
    for count in counts:
        rows, start = slice(start, start + count), start + count
        loss = F.cross_entropy(layer(features[rows].double()), labels[rows])
        mean = vector(list(torch.autograd.grad(loss, list(layer.parameters()))))
        expected += mean * (C / mean.norm()).clamp(max=1.0)
    assert torch.allclose(of_persons(mode, features, labels, counts), expected, rtol=1e-4, atol=1e-7)
    assert not torch.allclose(of_persons(mode, features, labels, counts[::-1]), expected, rtol=1e-2)
    features[3] = torch.nan  # and all of that person counts as zeros
    left = of_persons(
        mode, torch.cat([features[:1], features[201:]]), torch.cat([labels[:1], labels[201:]]), [1, 7, 130, 1]
    )
    assert torch.allclose(of_persons(mode, features, labels, counts), left, atol=1e-9)


def test_pieces_divide_no_person() -> None:
    rows, counts = torch.arange(20), [3, 4, 9, 1, 2, 1]
    pieces = list(module.pieces_of(rows, rows, counts, size=5))
    assert [within for *_, within in pieces] == [[3], [4], [9], [1, 2, 1]]
    assert torch.equal(torch.cat([inputs for inputs, *_ in pieces]), rows)
    assert [len(inputs) for inputs, *_ in module.pieces_of(rows, rows, None, size=8)] == [8, 8, 4]


def test_labels_that_count_for_nothing_do_not_scale_what_others_move() -> None:
    """torch's mean is over labels other than -100: by that, 4 of 64 records would weigh 16 times as much."""
    features, labels = records(64, seed=5)
    labels[4:] = -100
    network = nn.Sequential(head())
    F.cross_entropy(network(features[:1]), labels[:1]).backward()
    own = float(vector([parameter.grad for parameter in network.parameters()]).norm())  # type: ignore[misc]

    def moved(reduction: str) -> float:
        """By the first record."""
        clipping = FlatClipping(network, Clipping(max_grad_norm=1000.0), PriorCrossEntropy())
        clipping._losses.reduction = reduction
        sums = [vector(clipping.sums(features[first:], labels[first:], clipping._hooks)) for first in (0, 1)]
        clipping.release()
        return float((sums[0] - sums[1]).norm())

    assert moved("sum") == pytest.approx(own, rel=1e-4)
    assert moved("mean") != pytest.approx(own, rel=0.1)  # negative control
