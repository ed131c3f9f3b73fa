"""Clipped sums: no record moves one by more than its clipping norm, whatever the records and the network are."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from opacus.grad_sample import GradSampleModule
from opacus.optimizers import DPOptimizer
from support.dp_teachers import train
from support.features import linear
from torch import nn
from torch.nn import functional as F

from datamodules import Digits, PoissonSampled
from lightning_modules import DPSGDTeacher
from lightning_modules.networks import ImageClassifier, LinearOnFeatures, SmallCNN, Whitening
from lightning_modules.networks.feature_cache import feature_memory
from lightning_modules.priors import ImagePrior
from lightning_modules.teachers import record_clipping as module
from lightning_modules.teachers.record_clipping import ClippedNetwork, Clipping, flat_sums, linear_head, linear_sums
from lightning_modules.teachers.teacher import PriorCrossEntropy

C = 0.3
CLASSES, FEATURES = 4, 11


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


def by_autograd(
    features: torch.Tensor,
    labels: torch.Tensor,
    layer: nn.Linear,
    log_prior: torch.Tensor | None = None,
    counts: list[int] | None = None,
) -> torch.Tensor:
    """The same from gradients that are stored one by one, in float64; `counts` are persons' numbers of records."""
    criterion = PriorCrossEntropy(log_prior)
    exact = nn.Linear(FEATURES, CLASSES, bias=layer.bias is not None).double()
    exact.load_state_dict(layer.state_dict())
    total = torch.zeros(sum(parameter.numel() for parameter in exact.parameters()), dtype=torch.float64)
    for rows, own in zip(features.double().split(counts or 1), labels.split(counts or 1), strict=True):
        loss = criterion(exact(rows), own)
        gradient = vector(list(torch.autograd.grad(loss, list(exact.parameters()))))
        total += gradient * (C / gradient.norm()).clamp(max=1.0)
    return total


# Gradients that are held.


def gradients(records: int, *, seed: int, scale: float = 1.0) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [scale * torch.randn(records, *shape, generator=draw) for shape in ((7, 5), (11,))]


def flat(rows: list[torch.Tensor], *, stability: float | None = None) -> torch.Tensor:
    return vector(flat_sums(rows, norm=C, stability=stability)).double()


def longest(clipped: Callable[[int], torch.Tensor]) -> float:
    """The longest contribution of many single records, in clipping norms."""
    return max(float(clipped(seed).norm()) / C for seed in range(300))


def longest_flat(**settings: Any) -> float:
    return longest(lambda seed: flat(gradients(1, seed=seed), **settings))


def by_opacus(rows: list[torch.Tensor]) -> torch.Tensor:
    """Negative control: Opacus's own sum, in float32."""
    weights = [nn.Parameter(torch.zeros(each.shape[1:])) for each in rows]
    made = DPOptimizer(torch.optim.SGD(weights), noise_multiplier=0.0, max_grad_norm=C, expected_batch_size=1)
    for weight, each in zip(weights, rows, strict=True):
        weight.grad_sample = each.clone()  # type: ignore[attr-defined]
    made.clip_and_accumulate()
    return vector([weight.summed_grad for weight in weights]).double()  # type: ignore[attr-defined]


def test_no_held_gradient_moves_the_sum_by_more_than_its_clipping_norm() -> None:
    assert 1 - 1e-5 < longest_flat() <= 1.0
    assert 0.99 < longest_flat(stability=0.01) <= 1.0
    # Negative controls: float32, and a stability below 0, which lengthens what it should bound.
    assert longest(lambda seed: by_opacus(gradients(1, seed=seed))) > 1.0
    assert longest_flat(stability=-0.01) > 1.0


def test_the_sum_is_that_of_the_clipped_or_normalised_gradients() -> None:
    rows = gradients(200, seed=1, scale=0.05)
    rows[0][0], rows[1][0] = 0.0, 0.0
    whole = torch.cat([each.flatten(1) for each in rows], dim=1).double()
    factor = (C / whole.norm(dim=1)).clamp(max=1.0)
    assert 20 < int((factor < 1).sum()) < 180
    found = flat(rows)
    assert torch.allclose(found, factor @ whole, atol=1e-9)
    normalised = C / (whole.norm(dim=1) + 0.01) @ whole
    assert torch.allclose(flat(rows, stability=0.01), normalised, atol=1e-9)
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


@pytest.mark.parametrize("log_prior", [None, torch.tensor([0.7, 0.2, 0.05, 0.05]).log()], ids=["plain", "prior"])
@pytest.mark.parametrize("bias", [True, False])
def test_the_sum_is_that_of_the_clipped_gradients(bias: bool, log_prior: torch.Tensor | None) -> None:
    layer = head(bias=bias, scale=0.5)
    features, labels = records(600, seed=1, scale=0.1)
    expected = by_autograd(features, labels, layer, log_prior)
    found = linear_sums(features, labels, layer, norm=C, log_prior=log_prior)
    assert [part.shape for part in found] == [p.shape for p in layer.parameters()]
    assert torch.allclose(vector(found), expected, rtol=1e-5, atol=1e-4)  # the margin, where sums cancel
    for other, prior in (((labels + 1) % 4, log_prior), (labels, torch.arange(4.0))):
        found = linear_sums(features, other, layer, norm=C, log_prior=prior)
        assert not torch.allclose(vector(found), expected, rtol=1e-2)
    assert not vector(linear_sums(features[:0], labels[:0], layer, norm=C)).any()


def alone(seed: int) -> torch.Tensor:
    return vector(linear_sums(*records(1, seed=seed, scale=10.0 ** (seed % 7 - 2)), head(), norm=C))


def test_no_record_moves_the_sum_by_more_than_its_clipping_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 1 - 1e-5 < longest(alone) <= 1.0
    # Negative controls: no margin in float32, and a norm that forgets the bias.
    with monkeypatch.context() as patch:
        patch.setattr(module, "LINEAR_MARGIN", 0.0)
        patch.setattr(torch.Tensor, "double", torch.Tensor.float)
        assert longest(alone) > 1.0
    square = torch.Tensor.square
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "square", lambda values: square(values) - 1)
        assert longest(alone) > 1.0


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


def test_which_heads_have_a_closed_form() -> None:
    fixed, partly, weighted = linear(), linear(), linear()
    assert linear_head(fixed) is fixed.head and linear_head(_Frozen()) is not None
    partly.head.bias.requires_grad_(False)
    nn.utils.parametrizations.weight_norm(weighted.head)
    others: list[nn.Module] = [_Frozen(trained=True), _OtherForward(), partly, weighted, nn.Linear(4, 4)]
    assert all(linear_head(network) is None for network in others)
    assert made(linear()).head is not None
    assert made(linear(), bounding="normalize").extracts == "feature_extractor"


# Persons.


def of_persons(mode: str, features: torch.Tensor, labels: torch.Tensor, counts: list[int] | None) -> torch.Tensor:
    """The clipped sum of one mode, each person's mean gradient clipped at C; None clips each picture."""
    network = linear(image_shape=(1, 4, 4), num_classes=CLASSES)
    network.feature_extractor, network.head = nn.Identity(), head()
    clipped = made(network, (1, 1, FEATURES))
    clipped.head = network.head if mode == "linear" else None
    found = clipped.sums(features, labels, None if counts is None else torch.tensor(counts))
    return vector(found).double()


@pytest.mark.parametrize("mode", ["flat", "linear"])
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
    counts = [1, 200, 7, 130, 1]  # more than a piece holds
    features, labels = records(sum(counts), seed=5, scale=0.3)
    expected = by_autograd(features, labels, head(), counts=counts)
    assert torch.allclose(of_persons(mode, features, labels, counts), expected, rtol=1e-4, atol=1e-7)
    assert not torch.allclose(of_persons(mode, features, labels, counts[::-1]), expected, rtol=1e-2)
    features[3] = torch.nan  # and all of that person counts as zeros
    left = of_persons(
        mode, torch.cat([features[:1], features[201:]]), torch.cat([labels[:1], labels[201:]]), [1, 7, 130, 1]
    )
    assert torch.allclose(of_persons(mode, features, labels, counts), left, atol=1e-9)


# Networks: the gradient of each record is a function of that record.

IMAGES = 2 * torch.rand(11, 1, 8, 8, generator=torch.Generator().manual_seed(0)) - 1
LABELS = torch.arange(11) % 10


class Plain(nn.Module):
    """A network that treats each image by itself."""

    def __init__(self, *, padding_mode: Any = "zeros", norm: nn.Module | None = None) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, padding=1, padding_mode=padding_mode)
        self.norm = norm or nn.GroupNorm(2, 8)
        self.head = nn.Linear(8 * 64, 10)

    def features(self, images: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.norm(self.conv(images))).flatten(1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(images))  # type: ignore[no-any-return]


class Centred(Plain):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.features(images)
        return self.head(features - 0.9 * features.mean(dim=0))  # type: ignore[no-any-return]


class Remembers(Plain):
    """Keeps what it saw in an attribute, which is not saved, and takes it off the next batch."""

    seen: torch.Tensor | float = 0.0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        before, self.seen = self.seen, 0.9 * images.detach()
        return super().forward(images - before)


class HookedLater(Plain):
    """Scales what a layer gives in a batch of an even number of records: others then depend on one."""

    def __init__(self) -> None:
        super().__init__()
        self.norm.register_forward_hook(lambda _, __, out: 1e-3 * out if len(out) % 2 == 0 else out)
        self.head.weight.register_hook(lambda gradient: 3 * gradient)


def made(
    network: nn.Module, image_shape: tuple[int, int, int] = (1, 8, 8), *, max_grad_norm: float = C, **settings: Any
) -> ClippedNetwork:
    clipping = Clipping(max_grad_norm=max_grad_norm, **settings)
    return ClippedNetwork(network, clipping, PriorCrossEntropy(), image_shape=image_shape)


def of_opacus(self: ClippedNetwork, inputs: torch.Tensor, labels: torch.Tensor) -> list[torch.Tensor]:
    """Negative control: per-sample gradients by hooks, which assume that rows are records."""
    hooks = GradSampleModule(self.network, loss_reduction="sum", strict=False)
    F.cross_entropy(hooks(inputs), labels, reduction="sum").backward()
    each = [parameter.grad_sample[: len(inputs)] for parameter in self.parameters]  # type: ignore[attr-defined]
    hooks.cleanup()
    return each


OF_THE_BATCH = partial(Plain, norm=nn.BatchNorm2d(8, affine=False, track_running_stats=False))  # which are of one image
COUPLED: list[Callable[[], nn.Module]] = [Centred, OF_THE_BATCH, HookedLater]


@pytest.mark.parametrize(
    ("network", "broken"),
    [(partial(Plain, padding_mode="reflect"), False), *((one, broken) for one in COUPLED for broken in (False, True))],
)
def test_whatever_a_network_does_a_record_has_the_gradient_of_a_batch_of_one(
    network: Callable[[], nn.Module], broken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that one record more moves a sum by its own clipped gradient and no other."""
    torch.manual_seed(0)
    clipped, alike = made(network()), True
    if broken:
        monkeypatch.setattr(ClippedNetwork, "gradients", of_opacus)
    found = clipped.gradients(IMAGES[:10], LABELS[:10])  # an even number, see `HookedLater`
    for row in range(10):
        loss = F.cross_entropy(clipped._copy()(IMAGES[row : row + 1]), LABELS[row : row + 1])
        exact = torch.autograd.grad(loss, clipped.parameters)
        if network is HookedLater:
            exact = (*exact[:-2], exact[-2] / 3, exact[-1])  # which no hook has changed
        alike &= all(torch.allclose(one[row], other, atol=1e-5) for one, other in zip(found, exact, strict=True))
    assert alike is not broken


@pytest.mark.parametrize("broken", [False, True])
def test_no_batch_is_remembered(broken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    clipped = made(Remembers())
    if broken:  # torch revives within `vmap` what an earlier one has left
        monkeypatch.setattr(ClippedNetwork, "_copy", lambda self, **_: self.network)
    first = vector(clipped.sums(IMAGES, LABELS))
    clipped.sums(IMAGES.flip(0), LABELS)
    assert torch.equal(first, vector(clipped.sums(IMAGES, LABELS))) is not broken
    assert isinstance(clipped.network.seen, float) is not broken


class Kept(Plain):
    kept: torch.Tensor

    def __init__(self, *, training: bool, replaced: bool = False) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(1, 8, 8))
        self.when, self.replaced = training, replaced

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.replaced:
            self.kept = images[-1].detach().clone()
        elif self.training is self.when:
            self.kept.copy_(images[-1].detach())
        return super().forward(images)


class Draws(Plain):
    drawing = True

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return super().forward(images * float(np.random.rand()) if self.drawing else images)


class OfAGlobal(Plain):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        before = SEEN[-1] if SEEN else 0.0
        SEEN.append(images.detach())
        return super().forward(images - before)


SEEN: list[torch.Tensor] = []


class Centring(torch.autograd.Function):
    """Its own rule for vmap takes the mean over records off."""

    @staticmethod
    def forward(features: torch.Tensor) -> torch.Tensor:
        return features.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient

    @staticmethod
    def vmap(info: Any, in_dims: Any, features: torch.Tensor) -> tuple[torch.Tensor, int]:
        return features - features.mean(dim=in_dims[0], keepdim=True), in_dims[0]


class CentredByItsRule(Plain):
    def features(self, images: torch.Tensor) -> torch.Tensor:
        return Centring.apply(super().features(images))  # type: ignore[no-any-return, no-untyped-call]


def test_physical_batches_change_nothing() -> None:
    torch.manual_seed(0)
    network = Plain()
    whole, pieces = (made(network, physical_batch_size=size).sums(IMAGES, LABELS) for size in (256, 3))
    assert torch.allclose(vector(whole), vector(pieces), atol=1e-6)


def test_a_hook_of_a_later_time_is_refused() -> None:
    network = Plain()
    clipped = made(network)
    handle = network.conv.register_forward_hook(lambda *_: None)
    with pytest.raises(ValueError, match="other hooks than when it was built"):
        clipped.sums(IMAGES, LABELS)
    handle.remove()
    clipped.sums(IMAGES, LABELS)


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "statistics": (partial(SmallCNN, 10, (1, 8, 8)), r"BatchNorm2d mixes records.*GroupNorm.*LinearOnFeatures"),
    "dropout": (partial(Plain, norm=nn.Dropout(0.1)), "Dropout mixes.* random.*no dropout"),
    "draws": (Draws, "other gradients the second time"),
    "a rule of vmap": (CentredByItsRule, "another gradient beside others than by itself"),
    "a buffer": (partial(Kept, training=True), "Kept mixes records, keeps something"),
    "a global": (OfAGlobal, "mixes records, keeps something of them|other gradients the second time"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_network_that_torch_cannot_treat_record_by_record_is_refused_where_it_is_built(name: str) -> None:
    network, message = REFUSED[name]
    with pytest.raises(ValueError, match=re.compile(rf"model\.network: .*({message})", re.DOTALL)):
        teacher(network)
    SEEN.clear()


def teacher(network: Callable[[], nn.Module], **given: Any) -> DPSGDTeacher:
    given = {"network": lambda *_: network(), "optimizer": partial(torch.optim.SGD, lr=0.1), **given}
    return DPSGDTeacher(num_classes=10, image_shape=(1, 8, 8), noise_multiplier=1.0, **given)


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("replaced", [False, True])
def test_what_a_network_writes_of_a_record_is_not_published(
    replaced: bool, broken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a private record in training, or a held-out one in validation."""
    model = teacher(partial(Kept, training=False, replaced=replaced))
    if broken:
        monkeypatch.setattr(ClippedNetwork, "logits", lambda self, images, extracted: self.network(images))
    train(model, PoissonSampled(dataset=Digits(), batch_size=64, steps_per_epoch=2), save="saved.ckpt")
    published = torch.load("script/public/teacher.pt", weights_only=True)
    assert bool(torch.load("saved.ckpt", weights_only=True)["state_dict"]["network.kept"].any()) is broken
    assert bool(published["kept"].any()) is broken


class Precise(Plain):
    """Notes the precision that a GPU would multiply in, of its copies as well."""

    seen: ClassVar[list[tuple[str, bool]]] = []

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.seen.append((torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32))
        return super().forward(images)


def test_records_are_clipped_without_tf32() -> None:
    torch.set_float32_matmul_precision("high")
    try:
        clipped = made(Precise())
        Precise.seen.clear()
        clipped.sums(IMAGES, LABELS)
        clipped.logits(IMAGES, extracted=False)
        assert Precise.seen == [("highest", False), ("high", True)]
    finally:
        torch.set_float32_matmul_precision("highest")


class CentredPixels(nn.Module):
    """A fixed extractor of the whole batch, with an attribute that the next call reads."""

    output_shape = (64,)
    last: torch.Tensor | float = 0.0

    def __init__(self, image_shape: tuple[int, int, int], prior: ImagePrior) -> None:
        super().__init__()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        before, self.last = self.last, images.flatten(1).mean(dim=0)
        return images.flatten(1) - self.last + before


@pytest.mark.parametrize("remembered", [False, True])
def test_fixed_features_are_those_of_each_image_by_itself(remembered: bool) -> None:
    network = LinearOnFeatures(image_shape=(1, 8, 8), features=CentredPixels, whitening=Whitening(images=40))
    clipped = made(network)
    images = IMAGES.repeat(4, 1, 1, 1)  # more than are computed at once
    alone = torch.cat([clipped._copy().eval().feature_extractor(image[None]) for image in images])
    if remembered:
        with feature_memory():
            found = clipped.features(images)
            assert torch.equal(clipped.features(images[:3]), found[:3])
    else:
        found = clipped.features(images)
    assert torch.allclose(found, alone, rtol=1e-3, atol=1e-2 if remembered else 1e-4)
    assert not torch.allclose(network.eval().feature_extractor(images), alone, rtol=1e-1)  # negative control


def test_draws_that_begin_later_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Draws, "drawing", False)
        clipped = made(Draws())
    with pytest.raises(ValueError, match="draws at random, which depends"):
        clipped.sums(IMAGES, LABELS)
