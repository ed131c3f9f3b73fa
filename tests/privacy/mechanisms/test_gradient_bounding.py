"""What one record can move where gradients are bounded, each or a batch as a whole: this is what is charged."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings, strategies as st
from support.seeded import Seeded
from support.threads import in_threads

import privacy.mechanisms.noisy_gradients
import privacy.mechanisms.responses
from privacy import Gaussian
from privacy.mechanisms import Mechanism, NoisyGradients, NoisyMeanResponse, Shape
from privacy.mechanisms.bounding import GRADIENT_BOUNDINGS, normalize_per_sample
from privacy.mechanisms.noisy_gradients import GRADIENT_RELEASES, output_gradient_mu
from privacy.plan import Charge
from privacy.processes import Processes
from privacy.session import PrivacySession

C, SIGMA = 1e-3, 20.0
RELEASES = tuple(GRADIENT_RELEASES)
ONE_VECTOR, OF_TEACHERS = ("batch_mean", "batch_mean_rows"), ("ensemble", "directions")
BOUNDED = [*itertools.product(RELEASES, GRADIENT_BOUNDINGS), ("directions", "")]
#: Logits of one teacher whose sum is beyond all numbers, (1, 1, 3).
HUGE = torch.full((1, 1, 3), 1.7e308, dtype=torch.float64)


Neighbours = tuple[torch.Tensor, torch.Tensor]

_ENTRIES = st.one_of(
    st.floats(width=64),
    st.sampled_from([0.0, 1.7e308, -1.7e308, 1e308, -1e308, 5e-324, math.inf, -math.inf, math.nan, 1e-3, -1.0]),
    st.floats(min_value=-300, max_value=308).map(lambda power: 10.0**power),
)


@st.composite
def neighbours(draw: st.DrawFn, *, changed: int = 1) -> Neighbours:
    """Two tensors (n, B, c) of which `changed` teachers differ, on every image and in whatever way."""
    teachers, rows, classes = draw(st.integers(changed, 5)), draw(st.integers(1, 3)), draw(st.integers(2, 4))

    def table() -> torch.Tensor:
        drawn = draw(st.lists(_ENTRIES, min_size=rows * classes, max_size=rows * classes))
        return torch.tensor(drawn, dtype=torch.float64).view(rows, classes)

    first = torch.stack([table() for _ in range(teachers)])
    second = first.clone()
    for number in draw(st.lists(st.integers(0, teachers - 1), min_size=changed, max_size=changed, unique=True)):
        second[number] = table()
    return first, second


def worst_neighbours(*, changed: int, teachers: int = 3) -> Neighbours:
    """The first `changed` teachers say the opposite of what they said, on every image."""
    first = torch.zeros(teachers, 2, 3, dtype=torch.float64)
    first[..., 0] = 1e6
    second = first.clone()
    second[:changed] *= -1
    return first, second


class Scattered(NoisyGradients):
    """The mutant that bounds each sample by itself and charges for a batch that is bounded as a whole."""

    def bounded(self, gradients: torch.Tensor, **settings: Any) -> torch.Tensor:
        rows = super().bounded(gradients, **settings).flatten(0, -2)
        return normalize_per_sample(rows, norm_bound=self.norm_bound, stability=0.0).view(gradients.shape)


class PricedAsWhole(NoisyGradients):
    """The mutant that charges for a batch that is bounded as a whole."""

    def cost(self, shape: Shape) -> Charge:
        mu = output_gradient_mu(self.release, shape.batch_size, self.noise_multiplier, bounding="normalize_batch")
        return Charge(release=Gaussian(mu=mu), claim=super().cost(shape).claim)


class Loose(NoisyGradients):
    """The mutant that bounds nothing."""

    def bounded(self, gradients: torch.Tensor, **settings: Any) -> torch.Tensor:
        return gradients.double()


class MeanFirst(NoisyGradients):
    """The mutant that bounds the teachers' mean in place of each teacher's gradients."""

    def bounded(self, gradients: torch.Tensor, **settings: Any) -> torch.Tensor:
        return super().bounded(gradients.mean(dim=0), **settings).expand_as(gradients)


def mechanism(release: str, *, kind: type[NoisyGradients] = NoisyGradients, **more: Any) -> Mechanism:
    if release == "directions":  # of the logits of an ensemble, which have no bound of their own
        return NoisyMeanResponse(noise_multiplier=SIGMA, noise=Seeded(factor=0.0))
    settings: dict[str, Any] = {
        "release": release,
        "bounding": "normalize_batch",
        "norm_bound": C,
        "noise_multiplier": SIGMA,
        "noise": Seeded(factor=0.0),
        **more,
    }
    return kind(**settings)


def asked(release: str, rows: torch.Tensor, **more: Any) -> torch.Tensor:
    """What a new session releases of such rows."""
    made = PrivacySession(mechanism(release, **more), Shape(*rows.shape[-2:]))
    made.open(private_data="digits/train")
    return made.release(made.mechanism, rows)


def changed_teacher(pair: Neighbours) -> int:
    first, second = (rows.nan_to_num() for rows in pair)
    return int((first != second).flatten(1).any(dim=1).int().argmax())


def moved(release: str, pair: Neighbours, **more: Any) -> float:
    """μ as it is measured: how far what is released moves, over the deviation of its noise; both for all coordinates.

    Of the releases of one vector that vector counts once, and the noise of a mean of samples is that of the mean.
    """
    teachers, batch_size, _ = pair[0].shape
    only = changed_teacher(pair) if release not in OF_TEACHERS else slice(None)
    one, other = (asked(release, rows[only], **more) for rows in pair)
    difference = one - other
    scale = SIGMA * more.get("norm_bound", C)
    deviation = {
        "per_sample": scale / batch_size,
        "per_sample_full": scale,
        "batch_mean": scale / batch_size,
        "batch_mean_rows": scale / math.sqrt(batch_size),
        "ensemble": scale / teachers,
        "directions": SIGMA / teachers,
    }[release]
    # hypot neither overflows nor rounds more than once.
    entries = difference[:1] if release in ONE_VECTOR else difference
    return math.hypot(*entries.flatten().tolist()) / deviation


def charged(release: str, pair: Neighbours, **more: Any) -> float:
    mu = PrivacySession(mechanism(release, **more), Shape(*pair[0].shape[1:])).cost.release.gaussian_mu
    assert mu is not None
    return mu


def covered(release: str, pair: Neighbours, **more: Any) -> bool:
    return moved(release, pair, **more) <= charged(release, pair, **more) * (1 + 1e-12)


def tight(release: str, pair: Neighbours, **more: Any) -> bool:
    return moved(release, pair, **more) == pytest.approx(charged(release, pair, **more), rel=1e-6)


@pytest.mark.parametrize(("release", "bounding"), BOUNDED)
@settings(max_examples=30)
@given(
    neighbours(),
    st.sampled_from([1e-30, 1e-3, 1.0, 1e30]),
    st.sampled_from([0.0, 1e-4]),
    st.sampled_from([None, 1]),
)
@example(worst_neighbours(changed=1), C, 0.0, None)
@example((HUGE.repeat(2, 1, 1), torch.cat([HUGE * torch.tensor([-1.0, 0.0, 1.0]), HUGE])), C, 0.0, None)
def test_one_record_moves_no_more_than_is_charged(
    release: str, bounding: str, pair: Neighbours, norm_bound: float, stability: float, top_k: int | None
) -> None:
    assert covered(release, pair, bounding=bounding, norm_bound=norm_bound, stability=stability, top_k=top_k)


@pytest.mark.parametrize("release", RELEASES)
def test_the_price_is_reached_and_a_wrong_one_is_refused(release: str) -> None:
    """Negative controls: samples bounded by themselves at the price of a whole batch."""
    pair = worst_neighbours(changed=1)
    for bounding in GRADIENT_BOUNDINGS:
        assert covered(release, pair, bounding=bounding) and tight(release, pair, bounding=bounding)
    for bounding in ("normalize", "clip"):
        assert not covered(release, pair, bounding=bounding, kind=PricedAsWhole)
    assert not covered(release, pair, kind=Scattered)


def test_what_is_not_bounded_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the mean of teachers, one loud one decides alone where it points."""
    first, second = worst_neighbours(changed=1)
    first[0], second[0] = 1e3 * first[0], 1e3 * second[0]
    broken = first.clone()
    broken[0, 0, 1] = math.inf

    def holds(pair: Neighbours, **more: Any) -> bool:
        return covered("ensemble", pair, bounding="normalize", norm_bound=7.3, **more)

    assert holds((first, second)) and holds((first, broken))
    assert not holds((first, second), kind=Loose) and not holds((first, second), kind=MeanFirst)
    assert not holds(worst_neighbours(changed=2))  # shards that overlap
    monkeypatch.setattr(privacy.mechanisms.noisy_gradients, "zero_non_finite_samples", torch.Tensor.double)
    assert not holds((first, broken))


def test_directions_that_are_not_bounded_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert covered("directions", worst_neighbours(changed=1)) and tight("directions", worst_neighbours(changed=1))
    assert not covered("directions", worst_neighbours(changed=2))
    monkeypatch.setattr(privacy.mechanisms.responses, "normalize_per_sample", lambda rows, **_: rows)
    assert not covered("directions", worst_neighbours(changed=1))


def test_the_batch_has_the_printed_norm() -> None:
    rows = torch.tensor([[3.0, 0.0], [0.0, 4.0]], dtype=torch.float64)
    out = asked("per_sample", rows, stability=0.05)
    assert torch.allclose(out, C * rows / 5.05, rtol=1e-12, atol=0)
    both = torch.stack([rows, 100 * rows])  # each teacher by its own norm
    mean = asked("ensemble", both, stability=0.0)
    assert torch.allclose(mean, C * rows / 5, rtol=1e-9, atol=0)


def test_the_norm_is_of_all_processes_rows() -> None:
    rows = torch.tensor([[3.0, 0.0], [0.0, 4.0]], dtype=torch.float64)

    def act(processes: Processes) -> torch.Tensor:
        made = PrivacySession(mechanism("per_sample", stability=0.0), Shape(2, 2))
        made.open(private_data="digits/train", processes=processes)
        return made.release(made.mechanism, rows[processes.rank : processes.rank + 1])

    shares = torch.cat(in_threads(act))
    assert torch.allclose(shares, C * rows / 5, rtol=1e-9, atol=0)
    by_process = torch.cat([C * row / row.norm() for row in rows.split(1)])
    assert not torch.allclose(shares, by_process)
