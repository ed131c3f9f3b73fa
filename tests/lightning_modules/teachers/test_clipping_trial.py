"""Networks of one's own under DP-SGD: one in which clipping bounds no record is refused before the first step.

Each refusal has its negative control: with the check taken out, the same fit trains and publishes.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning import Callback, LightningModule, Trainer
from opacus.validators import ModuleValidator
from support.dp_teachers import dp_sgd as dp_sgd_fit
from support.dp_teachers import train, trainer_settings
from support.runs import fit
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from datamodules import Digits, PoissonSampled
from datamodules.poisson_sampled import PoissonBatches, PoissonLoader
from datamodules.records import ImageDataset, keep_batch
from lightning_modules import DPSGDTeacher
from lightning_modules.networks import ImageClassifier, LinearOnFeatures, SmallCNN, Whitening
from lightning_modules.networks.memory import feature_memory
from lightning_modules.networks.stacked import fixed_extractor
from lightning_modules.priors import ImagePrior
from lightning_modules.teachers import clipped_network, clipping_trial, dp_sgd
from lightning_modules.teachers.clipped_network import ClippedNetwork
from lightning_modules.teachers.clipping_trial import ClippingTrial, keeps_nothing
from lightning_modules.teachers.losses import PriorCrossEntropy
from lightning_modules.teachers.record_clipping import Clipping, Mode
from privacy import SampledGaussian, Unbounded, compose
from privacy.mechanisms.noise import ReproducibleNoise
from privacy.processes import ALONE


class Plain(nn.Module):
    """A network that treats each image by itself."""

    def __init__(self, *, padding_mode: Any = "zeros", features: int = 8 * 64) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, padding=1, padding_mode=padding_mode)
        self.norm = nn.GroupNorm(2, 8)
        self.head = nn.Linear(features, 10)

    def features(self, images: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.norm(self.conv(images))).flatten(1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(images))  # type: ignore[no-any-return]


class BagOfPatches(Plain):
    def __init__(self) -> None:
        super().__init__(features=8 * 16)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        patches = images.unfold(2, 4, 4).unfold(3, 4, 4).reshape(-1, 1, 4, 4)
        return super().forward(patches).unflatten(0, (-1, 4)).mean(dim=1)


class Centred(Plain):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.features(images)
        return self.head(features - features.mean(dim=0))  # type: ignore[no-any-return]


class PartlyCentred(Plain):
    """Starts with a head of zeros, behind which nothing of the body would show."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.zeros_(self.head.weight)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.features(images)
        return self.head(features - 0.1 * features.mean(dim=0))  # type: ignore[no-any-return]


class NearlyApart(Plain):
    """Couples records through a gate that is all but closed, or in batches that are larger than the trial's records."""

    def __init__(self, *, gate: float, above: int) -> None:
        super().__init__()
        self.gate, self.above = gate, above

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.features(images)
        mean = features.mean(dim=0) if len(features) > self.above else 0.0
        return self.head(features - self.gate * mean)  # type: ignore[no-any-return]


class Hooked(Plain):
    """Triples the gradient that ghost clipping sums up; a copy of the network has no such hook."""

    def __init__(self) -> None:
        super().__init__()
        self.head.weight.register_hook(lambda gradient: 3 * gradient)


class Capped(Plain):
    """Caps the gradient of a batch, which a module's hook sees: 1.113 C for one record were measured so."""

    def __init__(self) -> None:
        super().__init__()
        self.norm.register_full_backward_hook(capped)


def capped(module: Any, inputs: Any, outputs: Any) -> Any:
    return (inputs[0] * min(1.0, 30.0 / float(inputs[0].norm())),)


class KeepsTheLast(Plain):
    last: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.zeros(1, 8, 8))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.last.copy_(images[-1].detach())
        return super().forward(images)


class Remembers(Plain):
    """Keeps what it saw in an attribute, which is not saved, and takes it off the next batch."""

    seen: torch.Tensor | float = 0.0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        before, self.seen = self.seen, images.detach().mean(dim=0)
        return super().forward(images - before)


class DividesByThePeak(ImageClassifier):
    """Keeps the largest value so far in an attribute: seen once, it stays, whatever the next batch is."""

    def __init__(self, *, linear: bool) -> None:
        super().__init__()
        self.body = nn.Flatten() if linear else nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Tanh())
        self.head = nn.Linear(64, 10)
        self.peak = torch.tensor(1e-3)

    def forward_features(self, images: torch.Tensor) -> torch.Tensor:
        self.peak = torch.maximum(self.peak.to(images), images.detach().abs().amax())
        return self.body(images / self.peak)  # type: ignore[no-any-return]


class TiedAutoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(64, 16)
        self.head = nn.Linear(64, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        code = torch.tanh(self.encoder(images.flatten(1)))
        return self.head(torch.tanh(F.linear(code, self.encoder.weight.t())))  # type: ignore[no-any-return]


class Dropped(Plain):
    def __init__(self, probability: float = 0.1) -> None:
        super().__init__()
        self.dropout = nn.Dropout(probability)

    def features(self, images: torch.Tensor) -> torch.Tensor:
        return self.dropout(super().features(images))  # type: ignore[no-any-return]


class SeldomDraws(Plain):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return super().forward(images * float(np.random.rand() > 1e-4))


class RoundedByThePeak(Plain):
    """Rounds features to 7 bits of the batch's largest one, in float32 alone."""

    def features(self, images: torch.Tensor) -> torch.Tensor:
        found = super().features(images.float())
        step = float(found.detach().abs().max()) / 63
        return torch.fake_quantize_per_tensor_affine(found, step, 0, -64, 63)


class FrozenBatchNorm(Plain):
    def __init__(self, *, tracks: bool) -> None:
        super().__init__()
        norm: Any = nn.BatchNorm2d(8, affine=False, track_running_stats=tracks)
        self.norm = norm


class Unused(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(2, 2)


class LowContrast(nn.Module):
    """Norms of its gradients are differences of large numbers where an image is faint."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 32, bias=False)
        self.norm = nn.GroupNorm(32, 32, eps=1e-8)
        self.head = nn.Linear(32, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        channels = self.norm(self.linear(images.flatten(1).unsqueeze(2)).transpose(1, 2))
        return self.head(torch.tanh(channels).square().mean(dim=2))  # type: ignore[no-any-return]


def made(network: Callable[..., nn.Module], **settings: Any) -> DPSGDTeacher:
    sgd = partial(torch.optim.SGD, lr=0.1)
    settings = {
        "noise_multiplier": 1.0,
        "optimizer": sgd,
        "network": lambda num_classes, image_shape: network(),
        **settings,
    }
    return DPSGDTeacher(num_classes=10, image_shape=(1, 8, 8), **settings)


def fitted(teacher: DPSGDTeacher, **settings: Any) -> DPSGDTeacher:
    train(teacher, PoissonSampled(dataset=Digits(), batch_size=64, steps_per_epoch=2), **settings)
    return teacher


def without_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClippingTrial, "__call__", lambda self, network, mode: (mode, None))
    monkeypatch.setattr(clipped_network, "refuse_hooks", lambda network, tried: None)
    monkeypatch.setattr(clipped_network, "random_states", lambda device: ())


REFUSED: dict[str, tuple[Callable[..., nn.Module], dict[str, Any], str]] = {
    "patches": (BagOfPatches, {}, r"'conv\.weight' has 48 rows for 12 records"),
    "centred": (Centred, {}, r"'conv\.weight' is zero .* over the batch"),
    "behind zeros": (PartlyCentred, {}, "flat clipping makes of a batch of 12"),
    "remembers": (Remembers, {}, "draws at random|flat clipping makes of a batch"),
    "peak": (partial(DividesByThePeak, linear=False), {}, "depend on the batch before it"),
    "peak of features": (partial(DividesByThePeak, linear=True), {}, "depend on the batch before it"),
    "buffer": (KeepsTheLast, {}, "'last' changes when images are passed"),
    "tied, ghost": (
        TiedAutoencoder,
        {"clipping": {"mode": "ghost"}},
        r"flat clipping makes .* the layer of 'encoder\.weight'",
    ),
    "reflect": (partial(Plain, padding_mode="reflect"), {"clipping": {"mode": "ghost"}}, r"flat clip.* 'conv\.weight'"),
    "dropout": (Dropped, {}, "Dropout 'dropout' draws at random in train mode"),
    "seldom": (SeldomDraws, {}, "it draws at random"),
    "all but closed": (partial(NearlyApart, gate=1e-7, above=0), {}, "depend on another image"),
    "large batches": (partial(NearlyApart, gate=2e-3, above=20), {}, "depend on another image"),
    "batches above the expected": (partial(NearlyApart, gate=2e-3, above=100), {}, "depend on another image"),
    "rounded by the peak": (RoundedByThePeak, {}, "flat clipping makes of a batch"),
    "hook": (Hooked, {"clipping": {"mode": "ghost"}}, r"'head\.weight' has a hook"),
    "hook of a module": (Capped, {}, "'norm' has a hook on its gradient"),
    "statistics": (partial(FrozenBatchNorm, tracks=False), {}, "flat clipping makes of a batch"),
    "running statistics": (partial(FrozenBatchNorm, tracks=True), {}, r"'norm\.\w+' changes"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_network_in_which_clipping_bounds_no_record_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network, settings, message = REFUSED[name]
    teacher = made(network, **settings)
    with pytest.raises(ValueError, match=re.compile(rf"model\.network: .*({message})", re.DOTALL)):
        fitted(teacher)
    assert not len(teacher.accountant)
    without_trial(monkeypatch)
    monkeypatch.setattr(ClippedNetwork, "refuse_written_state", lambda self: None)
    assert len(fitted(made(network, **settings)).accountant)


def test_a_parameter_that_no_image_reaches_is_refused() -> None:
    with pytest.raises(ValueError, match=r"gradient of 'unused\.weight' is zero"):
        fitted(made(Unused))


def test_what_the_trial_accepts_it_leaves_as_it_was() -> None:
    network = SmallCNN(num_classes=10, image_shape=(1, 8, 8), norm="group", activation="tanh")
    before = {name: value.clone() for name, value in network.state_dict().items()}
    torch.manual_seed(5)
    state = torch.get_rng_state()
    trial = ClippingTrial(image_shape=(1, 8, 8), num_classes=10, physical=32, criterion=PriorCrossEntropy())
    modes: list[Mode] = ["flat", "ghost"]
    for mode in modes:
        assert trial(network, mode) == (mode, None)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())
    # And a second fit of one module, whose hooks of the first are taken off.
    teacher = fitted(made(Plain))
    assert len(fitted(teacher).accountant.history) == 1 and len(teacher.accountant) == 4


class CentredPixels(nn.Module):
    """A fixed extractor of the whole batch, of float32 only: what is remembered of a batch is found again by itself."""

    output_shape = (64,)

    def __init__(self, image_shape: tuple[int, int, int], prior: ImagePrior) -> None:
        super().__init__()
        self.fixed = torch.eye(64)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        pixels = images.flatten(1) @ self.fixed
        return pixels - pixels.mean(dim=0)


class BesideTheBrightest(nn.Module):
    """A fixed extractor that adds a little of each pixel's largest value in the batch."""

    output_shape = (64,)

    def __init__(self, image_shape: tuple[int, int, int], prior: ImagePrior, *, share: float, above: int) -> None:
        super().__init__()
        self.share, self.above = share, above

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        pixels = images.flatten(1)
        return pixels + (self.share * pixels.amax(dim=0) if len(pixels) > self.above else 0.0)


def tried(features: Any) -> tuple[Mode, str | None]:
    network = LinearOnFeatures(image_shape=(1, 8, 8), features=features, whitening=Whitening(images=40))
    form: dict[str, Any] = {"image_shape": (1, 8, 8), "num_classes": 10, "extracts": "feature_extractor"}
    with feature_memory():
        return ClippingTrial(**form, physical=1, criterion=PriorCrossEntropy())(network, "linear")


def test_an_extractor_of_the_whole_batch_is_refused_where_features_are_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ValueError, match="makes of a batch"):
        tried(CentredPixels)
    monkeypatch.setattr(clipping_trial, "without_memory", nullcontext)
    assert tried(CentredPixels) == ("linear", None)


def test_an_extractor_that_mixes_large_batches_alone_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    mixing = partial(BesideTheBrightest, share=0.1, above=20)
    with pytest.raises(ValueError, match="features of one depend on another image"):
        tried(mixing)
    monkeypatch.setattr(clipping_trial, "_require_features_apart", lambda tried, double: None)
    assert tried(mixing) == ("linear", None)


def test_only_networks_that_are_known_to_keep_nothing_are_called_by_several_threads() -> None:
    """Two calls at once of one that keeps a layer's output gave records each other's features."""
    network = LinearOnFeatures(image_shape=(1, 8, 8))
    assert keeps_nothing(network) and not keeps_nothing(Plain())
    network.feature_extractor.register_forward_hook(lambda *_: None)
    assert not keeps_nothing(network)
    layer = nn.Flatten()
    assert keeps_nothing(layer)
    layer.forward = lambda images: images.flatten(1)  # type: ignore[method-assign]
    assert not keeps_nothing(layer)


class CentredLater(Plain):
    """Centres features by their batch from a certain call on, of which it keeps no buffer."""

    calls = 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        features = self.features(images)
        return self.head(features - (self.calls > 40) * features.mean(dim=0))  # type: ignore[no-any-return]


@pytest.mark.parametrize("broken", [False, True])
def test_what_no_trial_finds_is_an_assumption_of_the_guarantee(monkeypatch: pytest.MonkeyPatch, broken: bool) -> None:
    if broken:
        monkeypatch.setattr(clipped_network, "keeps_nothing", lambda network: True)
    assumed = "treats each image by itself"
    unknown = fitted(made(CentredLater, clipping={"mode": "flat"}), epochs=30)  # the trial lets it pass
    assert unknown.network.calls > 40 and math.isfinite(unknown.guarantee().epsilon)
    known = partial(SmallCNN, num_classes=10, image_shape=(1, 8, 8), norm="group", activation="tanh")
    hooked = made(known, clipping={"mode": "flat"})
    handle = hooked.network.register_forward_hook(lambda *_: None)  # after it was made
    fitted(hooked, save="hooked.ckpt")
    resumed = fitted(made(known, clipping={"mode": "flat"}), epochs=2, resume="hooked.ckpt")  # without the hook
    handle.remove()
    plain = fitted(made(known, clipping={"mode": "flat"}))
    for teacher, stated in ((unknown, not broken), (hooked, not broken), (resumed, not broken), (plain, False)):
        assert (assumed in " ".join(teacher.guarantee().assumptions)) == stated


def faint_contribution(teacher: DPSGDTeacher, mode: Any) -> float:
    """Norm of what one faint image contributes at most, in clipping norms."""
    trial = ClippingTrial(image_shape=(1, 8, 8), num_classes=10, physical=1, criterion=PriorCrossEntropy())
    reference = clipping_trial._Reference(clipping_trial._Copy(teacher.network, trial, double=True))
    tried = clipping_trial._Copy(teacher.network, trial, double=False)
    noise = torch.rand(300, 1, 1, 8, 8, generator=torch.Generator().manual_seed(0)) - 0.5
    tried.images, tried.labels = 0.95 + noise / 500, torch.zeros(300, dtype=torch.int64)
    sums = (tried.clipped([row], mode, reference.limit) for row in range(300))
    return max(map(clipping_trial._norm, sums)) / reference.limit


def test_ghost_clipping_that_float32_breaks_gives_way_to_flat_and_stays_so_on_resume(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    teacher = fitted(made(LowContrast, clipping={"mode": "ghost"}), save="first.ckpt")
    assert teacher.clipped.mode == "flat"
    assert faint_contribution(made(LowContrast), "ghost") > 1 >= faint_contribution(made(LowContrast), "flat")
    resumed = made(LowContrast, clipping={"mode": "ghost"})
    fitted(resumed, epochs=2, resume="first.ckpt")
    assert resumed.clipped.mode == "flat" and len(resumed.accountant) == 4
    without_trial(monkeypatch)
    assert fitted(made(LowContrast, clipping={"mode": "ghost"})).clipped.mode == "ghost"


class WritesLater(Plain):
    """As a schedule might: not in the trial, which has seen fewer images."""

    kept: torch.Tensor
    armed = False

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(1, 8, 8))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.training and self.armed:
            self.kept.copy_(images[-1].detach())
        return super().forward(images)


@pytest.mark.parametrize("checked", [True, False])
def test_what_a_network_wrote_in_training_is_neither_saved_nor_published(
    monkeypatch: pytest.MonkeyPatch, checked: bool
) -> None:
    teacher = made(WritesLater)
    step = DPSGDTeacher.training_step

    def armed(self: DPSGDTeacher, *arguments: Any) -> None:
        self.network.armed = True  # type: ignore[assignment]
        step(self, *arguments)

    monkeypatch.setattr(DPSGDTeacher, "training_step", armed)
    if not checked:
        monkeypatch.setattr(ClippedNetwork, "refuse_written_state", lambda self: None)
        fitted(teacher, save="leaks.ckpt")
        kept = torch.load("leaks.ckpt", weights_only=False)["state_dict"]["network.kept"]
        assert kept.any() and list(Path().rglob("teacher.pt"))
        return
    with pytest.raises(ValueError, match="'kept' changed in training"):
        fitted(teacher)
    with pytest.raises(ValueError, match="'kept' changed in training"):
        teacher.trainer.save_checkpoint("leaks.ckpt")
    assert not list(Path().rglob("teacher.pt")) and not Path("leaks.ckpt").exists()


class Repeated(PoissonSampled):
    """One record fills each batch."""

    def train_dataloader(self) -> Any:
        loader: Any = DataLoader(self.dataset.loaded_records, batch_size=64, sampler=[0] * 128, collate_fn=keep_batch)
        loader.batches = super().train_dataloader().batches
        return loader


class FourTimes(PoissonBatches):
    def __iter__(self) -> Iterator[list[int]]:
        return (4 * drawn for drawn in super().__iter__())


class FirstOnly(ImageDataset):
    def __getitems__(self, indices: Any) -> Any:
        return tuple(part[:1].expand_as(part) for part in super().__getitems__(indices))


class OwnBatches(PoissonSampled):
    """The loader with other batches: each record four times."""

    def train_dataloader(self) -> Any:
        loader = super().train_dataloader()
        loader.batches.__class__ = FourTimes
        return loader


class OwnRecords(PoissonSampled):
    """The loader with other records: the first of a batch in place of the others."""

    def train_dataloader(self) -> Any:
        records = self.train_records
        mixed = FirstOnly(images=records.images, labels=records.labels, ids=records.ids, peak=records.peak)
        return PoissonLoader(mixed, super().train_dataloader().batches)


class Oversampled(PoissonSampled):
    """The loader, of batches and records as they should be: but each record of a rare class is there four times."""

    def train_dataloader(self) -> Any:
        own, drawn = self.train_records, super().train_dataloader().batches
        rows = torch.cat([torch.arange(len(own)), *[torch.nonzero(own.labels == 3).flatten()] * 3])
        images, labels = own.images[rows], own.labels[rows]
        records = ImageDataset(images=images, labels=labels, ids=torch.arange(len(rows)), peak=own.peak)
        batches = PoissonBatches(records=len(rows), sample_rate=drawn.sample_rate, steps=len(drawn))
        return PoissonLoader(records, batches)


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("own", [Repeated, OwnBatches, OwnRecords, Oversampled])
def test_batches_of_another_sampler_are_refused(monkeypatch: pytest.MonkeyPatch, own: Any, broken: bool) -> None:
    teacher, data = made(Plain), own(dataset=Digits(), batch_size=64)
    if not broken:
        with pytest.raises(ValueError, match="train_dataloader must not be overridden for DP-SGD"):
            train(teacher, data)
    monkeypatch.setattr(dp_sgd, "require_batches_as_drawn", lambda *_: None)
    if not broken and own is not Oversampled:  # nor within a fit, by a callback
        with pytest.raises(ValueError, match="must give a PoissonLoader at the sample_rate"):
            train(teacher, data)
        return
    monkeypatch.setattr(dp_sgd, "require_poisson", lambda *_: None)
    train(teacher, data)
    assert teacher.guarantee().epsilon < 10


class Changes(Callback):
    """Lets a setting differ from what the first epoch's steps were made with, and notes what is really drawn."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.drawn: Counter[Any] = Counter()
        self.seeded = ReproducibleNoise(seed=0)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.current_epoch != 1:
            return
        if self.what == "batch_size":
            trainer.datamodule.batch_size = 4
        elif self.what == "noise_multiplier":
            pl_module.noise_multiplier = 20.0
        elif self.what == "coins":
            trainer.train_dataloader.batches.noise = self.seeded
        else:
            pl_module.optimizers().optimizer.source = self.seeded

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        batches, optimizer = trainer.train_dataloader.batches, pl_module.optimizers().optimizer
        known = self.seeded in (batches.noise, optimizer.source)
        sampled = SampledGaussian(optimizer.noise_multiplier, batches.sample_rate)
        self.drawn[Unbounded("seeded") if known else sampled] += 1


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("what", ["batch_size", "noise_multiplier", "coins", "source"])
def test_a_step_is_charged_as_it_is_drawn(monkeypatch: pytest.MonkeyPatch, what: str, broken: bool) -> None:
    teacher, data, changes = made(Plain), PoissonSampled(dataset=Digits(), batch_size=64), Changes(what)
    settings = {**trainer_settings(".", -1), "max_steps": 30, "logger": False, "callbacks": [changes]}
    if broken:
        monkeypatch.setattr(DPSGDTeacher, "_require_charged", lambda self: self.optimizers().optimizer)
        Trainer(**settings).fit(teacher, data)
        assert teacher.guarantee().epsilon < 0.9 * compose(changes.drawn, teacher.delta).epsilon
        return
    with pytest.raises(ValueError, match=r"must stay what|PoissonLoader at 0\.0\d+, whose"):
        Trainer(**settings).fit(teacher, data)


class TrainsItsFront(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.feature_extractor = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten())
        self.head = nn.Linear(2 * 36, 10)

    def forward_extracted(self, features: torch.Tensor) -> torch.Tensor:
        return self.head(features)  # type: ignore[no-any-return]

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.forward_extracted(self.feature_extractor(images))


def test_a_front_that_is_called_like_a_fixed_one_is_trained() -> None:
    teacher = made(TrainsItsFront)
    before = {name: weight.clone() for name, weight in teacher.network.state_dict().items()}
    fitted(teacher)
    assert not any(torch.equal(weight, before[name]) for name, weight in teacher.network.state_dict().items())
    assert fixed_extractor(TrainsItsFront()) is None and fixed_extractor(TrainsItsFront().requires_grad_(False))


class FrozenBody(ImageClassifier):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten()).requires_grad_(False)
        self.head = nn.Linear(2 * 36, 10)

    def forward_features(self, images: torch.Tensor) -> torch.Tensor:
        return self.body(images)  # type: ignore[no-any-return]


def test_statistics_that_are_fixed_pass_where_features_are_computed_in_eval_mode() -> None:
    assert fitted(made(FrozenBody)).clipped.mode == "linear"
    with pytest.raises(ValueError, match=r"'body\.1\.\w+' changes"):
        fitted(made(FrozenBody, clipping={"mode": "flat"}))


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("torchvision.squeezenet1_1", {"dropout": 0.0}),
        pytest.param("torchvision.mobilenet_v2", {"dropout": 0.0}, marks=pytest.mark.slow),
        pytest.param("timm.vit_tiny_patch16_224", {"img_size": 32, "patch_size": 8}, marks=pytest.mark.slow),
        pytest.param("timm.regnetz_b16", {"norm_layer": "groupnorm1"}, marks=pytest.mark.slow),
    ],
)
def test_networks_of_libraries_pass_the_trial(name: str, settings: dict[str, Any]) -> None:
    package, _, kind = name.partition(".")
    library: Any = pytest.importorskip("timm" if package == "timm" else "torchvision.models")
    build = partial(library.create_model, kind) if package == "timm" else getattr(library, kind)
    torch.manual_seed(0)
    network = ModuleValidator.fix(build(num_classes=10, **settings))  # GroupNorm in place of BatchNorm
    trial = ClippingTrial(image_shape=(3, 32, 32), num_classes=10, physical=4, criterion=PriorCrossEntropy())
    assert trial(network, "flat") == ("flat", None)


class Watches(Callback):
    """As W&B's `watch` does, after the trial."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for parameter in pl_module.parameters():
            parameter.register_hook(lambda gradient: print(gradient.norm()))


@pytest.mark.parametrize("broken", [False, True])
def test_a_hook_that_comes_after_the_trial_sees_no_private_image(broken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor may it couple records whose features are kept."""
    seen: list[int] = []

    class Looks(Callback):
        def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
            network: Any = pl_module.network
            network.feature_extractor.register_forward_hook(lambda *given: seen.append(len(given[1][0])))

    if broken:
        monkeypatch.setattr(clipped_network.ClippedNetwork, "refuse_new_hooks", lambda self: None)
    with nullcontext() if broken else pytest.raises(ValueError, match="has a hook on its outputs"):
        fitted(made(partial(LinearOnFeatures, image_shape=(1, 8, 8))), callbacks=[Looks()])
    assert bool(seen) is broken


class TurnsDropoutOn(Callback):
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        pl_module.network.dropout.p = 0.5  # type: ignore[union-attr]


@pytest.mark.parametrize("broken", [False, True])
def test_draws_that_begin_after_the_trial_are_refused(monkeypatch: pytest.MonkeyPatch, broken: bool) -> None:
    if broken:
        monkeypatch.setattr(clipped_network, "random_states", lambda device: ())
    with nullcontext() if broken else pytest.raises(ValueError, match="draws at random in train mode"):
        fitted(made(partial(Dropped, 0.0)), callbacks=[TurnsDropoutOn()])


def test_anomaly_detection_is_refused_before_a_record_can_end_the_fit() -> None:
    with pytest.raises(ValueError, match=r"trainer\.detect_anomaly must be false"):
        fit(dp_sgd_fit(trainer={"detect_anomaly": True}, noise_multiplier=1.0))
    assert not Path("run/public").exists()


class DetectsAnomalies(Callback):
    """After `on_train_start`, which a derived class may override without calling this class's."""

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        torch.autograd.set_detect_anomaly(True)


def test_anomaly_detection_that_begins_later_is_refused_too() -> None:
    with pytest.raises(ValueError, match=r"trainer\.detect_anomaly must be false"):
        fitted(made(Plain), callbacks=[DetectsAnomalies()])


def scaled(*given: Any) -> Any:
    """Inputs, outputs or gradients, far smaller in a batch of an even number of records: others then depend on one."""
    values = given[-1] if isinstance(given[-1], tuple) else (given[-1],)
    scaled = tuple(1e-3 * one if one.dim() > 1 and len(one) % 2 == 0 else one for one in values)
    return scaled if isinstance(given[-1], tuple) else scaled[0]


HOOKS: dict[str, Callable[[Plain], Any]] = {
    "forward": lambda network: network.norm.register_forward_hook(scaled),
    "forward, before": lambda network: network.head.register_forward_pre_hook(scaled),
    "backward": lambda network: network.norm.register_full_backward_hook(lambda *given: scaled(given[1])),
    "backward, before": lambda network: network.norm.register_full_backward_pre_hook(scaled),
    "of each module": lambda network: nn.modules.module.register_module_forward_hook(scaled),
    "of each module, backward": lambda network: nn.modules.module.register_module_full_backward_pre_hook(scaled),
}


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_of_a_module_that_comes_after_the_trial_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise one record more moves a sum of ten by more than C."""
    torch.manual_seed(0)
    network, (images, labels) = Plain(), (torch.rand(11, 1, 8, 8), torch.arange(11) % 10)
    clipped = ClippedNetwork(network, Clipping(max_grad_norm=0.1, mode="flat"), PriorCrossEntropy())
    clipped.settle(image_shape=(1, 8, 8), num_classes=10, batch_size=64, processes=ALONE, resumed=False)

    def moved() -> float:
        with_it, without = (clipped.sums(images[:n], labels[:n], extracted=False) for n in (11, 10))
        return clipping_trial._norm([one - other for one, other in zip(with_it, without, strict=True)]) / 0.1

    assert moved() <= 1
    with HOOKS[name](network):
        with pytest.raises(ValueError, match=r"'(norm|head|each module)' has a hook on its (gradient|outputs)"):
            moved()
        without_trial(monkeypatch)
        assert moved() > 1.02


def test_a_hook_that_comes_after_the_trial_is_refused_before_it_sees_a_gradient(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(ValueError, match="has a hook on its gradient"):
        fitted(made(Plain), callbacks=[Watches()])
    assert "tensor(" not in capsys.readouterr().out
