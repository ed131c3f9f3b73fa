"""Gradients, and directions of logits: what is released has the noise that it is charged for, and is charged before.

What one record or teacher can move is in `test_gradient_bounding.py`.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from scipy import stats
from support.seeded import Seeded, SharedRow, correlated, has_deviation
from support.sessions import asked, session_of

from privacy.account import BudgetExceeded
from privacy.events import Gaussian
from privacy.mechanisms import NoisyMeanResponse, Shape
from privacy.mechanisms.base import NoiseSource, ReproducibleNoise, SystemNoise
from privacy.mechanisms.bounding import GRADIENT_BOUNDINGS
from privacy.mechanisms.noisy_gradients import GRADIENT_RELEASES, GradientBoundings, GradientReleases, NoisyGradients
from privacy.session import PrivacySession
from privacy.statement import described, noise_changed

ONE_VECTOR, OF_TEACHERS = ("batch_mean", "batch_mean_rows"), ("ensemble", "directions")
B, C, CLASSES, SIGMA = 64, 1e-3, 10, 20.0
TEACHERS = 3
#: Deviation per coordinate of what each release adds, by hand; `directions` are those of an ensemble's logits.
DEVIATION = {
    "per_sample": SIGMA * C / B,
    "per_sample_full": SIGMA * C,
    "batch_mean": SIGMA * C / B,
    "batch_mean_rows": SIGMA * C / math.sqrt(B),
    "ensemble": SIGMA * C / TEACHERS,
    "directions": SIGMA / TEACHERS,
}
RELEASES = tuple(DEVIATION)
OF_ROWS = [release for release in RELEASES if release not in ONE_VECTOR]


def session(
    *,
    release: str = "per_sample",
    ready: bool = True,
    batch_size: int = B,
    noise_multiplier: float = SIGMA,
    **more: Any,
) -> PrivacySession:
    kind, own = NoisyGradients, {"release": release, "norm_bound": C}
    if release == "directions":
        kind, own = NoisyMeanResponse, {}  # type: ignore[assignment]
    shape, settings = Shape(batch_size, CLASSES), {"noise_multiplier": noise_multiplier, **own, **more}
    return session_of(kind, shape, opened=ready, **settings)


def gradients(seed: int = 0, batch_size: int = B) -> torch.Tensor:
    return torch.randn(batch_size, CLASSES, generator=torch.Generator().manual_seed(seed))


def answers(release: str, rows: torch.Tensor) -> torch.Tensor:
    """What a release takes: `rows`, and of several teachers two others that have nothing to say."""
    nothing = torch.zeros_like(rows)
    return torch.stack([rows, nothing, nothing]) if release in OF_TEACHERS else rows


def residuals(release: str, noise: NoiseSource, calls: int) -> torch.Tensor:
    """What was added to the bounded gradients or directions, shape (calls, B, c)."""
    made, rows = session(release=release, noise=noise), gradients().double()
    bounded = C * rows / (rows.norm(dim=1, keepdim=True) + 1e-4)
    if release == "directions":
        centred = rows - rows.mean(dim=1, keepdim=True)
        bounded = centred / centred.norm(dim=1, keepdim=True)
    if release in ONE_VECTOR:
        bounded = bounded.mean(dim=0, keepdim=True).expand(B, CLASSES)
    if release in OF_TEACHERS:
        bounded = bounded / TEACHERS
    return torch.stack([asked(made, answers(release, rows)) - bounded for _ in range(calls)])


@pytest.mark.parametrize("release", RELEASES)
def test_noise_has_the_scale_that_is_charged_for(release: str) -> None:
    """Accepted as it is; refused a little below and above, in the release and in its mutants."""
    calls, wrong = (400, (2 / 3, 3 / 2)) if release in ONE_VECTOR else (40, (0.95, 1.05))

    def draws(noise: NoiseSource) -> torch.Tensor:
        added = residuals(release, noise, calls)
        return added[:, :1] if release in ONE_VECTOR else added

    right = draws(SystemNoise())
    assert right.numel() >= 4000
    assert has_deviation(right, DEVIATION[release])
    for factor in wrong:
        assert not has_deviation(right, DEVIATION[release] * factor)
        assert not has_deviation(draws(Seeded(factor=factor)), DEVIATION[release])
    assert stats.kstest(right.flatten().numpy() / DEVIATION[release], "norm").pvalue > 1e-8


@pytest.mark.parametrize("release", OF_ROWS)
def test_each_row_and_each_call_has_noise_of_its_own(release: str) -> None:
    for noise, shared in ((SystemNoise(), False), (SharedRow(), True)):
        added = residuals(release, noise, 100)
        assert correlated(added[:, 0], added[:, 1]) is shared
        assert not correlated(added[1:, 0], added[:-1, 0])


@pytest.mark.parametrize("release", ["per_sample", "per_sample_full", "ensemble"])
def test_the_mask_keeps_the_largest_entries_and_the_noise_is_on_all(release: str) -> None:
    """Which entries are kept depends on the teacher: noise on those alone would tell them."""
    rows = gradients().double()
    silent = session(release=release, top_k=3, noise=Seeded(factor=0.0), stability=0.0)
    kept = asked(silent, answers(release, rows))
    share = 1 / TEACHERS if release == "ensemble" else 1.0
    assert ((kept != 0).sum(dim=1) == 3).all()
    assert torch.allclose(kept.norm(dim=1), torch.tensor(C * share, dtype=torch.float64))
    weakest = rows.abs().masked_fill(kept == 0, math.inf).amin(dim=1)
    assert (weakest >= rows.abs().masked_fill(kept != 0, 0).amax(dim=1)).all()
    made = session(release=release, top_k=3, stability=0.0)
    added = torch.stack([asked(made, answers(release, rows)) - kept for _ in range(7)])
    for entries in (added, added[:, kept == 0]):
        assert has_deviation(entries, DEVIATION[release])
    masked = added * (kept != 0)  # the mutant, whose noise is masked as well
    assert not has_deviation(masked, DEVIATION[release])
    assert made.cost == session(release=release).cost


def test_reproducible_noise_voids_what_the_ledger_says(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    void = session(ready=False, noise=ReproducibleNoise(seed=1), ledger=str(path))
    void.open(private_data="digits/train")
    assert void.affordable(limit=5) == 5
    asked(void, gradients())
    assert void.account.epsilon() == math.inf
    assert void.account.epsilon_published() < 1
    void.close()
    later = session(ready=False, ledger=str(path))
    later.open(private_data="digits/train")
    assert later.account.epsilon() == math.inf
    assert later.account.epsilon(scope="run") == 0


@pytest.mark.parametrize("value", [0.0, math.nan, -math.inf])
@pytest.mark.parametrize(
    ("release", "bounding"),
    [(release, bounding) for release in GRADIENT_RELEASES for bounding in ("normalize", "clip")],
)
def test_broken_rows_are_charged_and_released_like_any_other(value: float, release: str, bounding: str) -> None:
    rows = gradients()
    rows[3] = value
    working, failing, quiet = (
        session(release=release, bounding=bounding, noise=noise) for noise in (None, None, Seeded(factor=0.0))
    )
    asked(working, answers(release, gradients()))
    out, silent = (asked(made, answers(release, rows)) for made in (failing, quiet))
    assert torch.isfinite(out).all() and out.shape == (B, CLASSES) and torch.isfinite(silent).all()
    assert failing.account.counts() == working.account.counts()
    assert release in ONE_VECTOR or (silent[3] == 0).all()


@pytest.mark.parametrize("release", OF_TEACHERS)
@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_a_broken_teacher_is_left_out_of_the_sum_and_counted_in_the_mean(release: str, broken: float) -> None:
    """Dividing by those that work would tell how many do."""
    given = torch.stack([gradients(seed) for seed in range(TEACHERS)]).double()
    zeros = given.clone()
    given[1], zeros[1] = broken, 0.0
    one, other = (asked(session(release=release, noise=Seeded()), rows) for rows in (given, zeros))
    assert torch.isfinite(one).all() and torch.equal(one, other)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_released_detached_in_the_callers_dtype(dtype: torch.dtype) -> None:
    rows = gradients().to(dtype).requires_grad_()
    before = rows.detach().clone()
    for release in RELEASES:
        out = asked(session(release=release), answers(release, rows))
        assert out.dtype == dtype
        assert not out.requires_grad
        out.add_(1)
        assert torch.equal(rows.detach(), before)


def test_autocast_does_not_reach_inside() -> None:
    rows = gradients()
    plain = asked(session(noise=ReproducibleNoise(seed=3)), rows)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = asked(session(noise=ReproducibleNoise(seed=3)), rows)
    assert torch.equal(plain, mixed)


def test_no_noise_is_released_as_it_is_and_bounded_by_nothing() -> None:
    made = session(noise_multiplier=0.0)
    out = asked(made, gradients().double())
    assert float(out.norm(dim=1).max()) <= C
    assert made.account.epsilon() == made.account.epsilon_published() == math.inf
    assert session(noise_multiplier=0, release="batch_mean").cost.release == Gaussian(mu=math.inf)
    refused = session(noise_multiplier=0.0, target_epsilon=1e9)
    with pytest.raises(BudgetExceeded, match="no noise was added"):
        refused.account.require(refused.cost)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("norm_bound", math.nan), ("norm_bound", 1e-31), ("noise_multiplier", -1.0), ("noise_multiplier", math.inf),
        ("stability", -1e-9), ("release", "per_row"), ("top_k", 0), ("bounding", "batch"),
    ],
)  # fmt: skip
def test_settings_without_meaning_or_price_are_refused(setting: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{setting} must"):
        NoisyGradients(**{setting: value})


N = TEACHERS
SHAPES = [(B, CLASSES), (0, B, CLASSES), (N, B - 1, CLASSES), (N, B, CLASSES + 1), (1, N, B, CLASSES), ()]


@pytest.mark.parametrize("release", OF_TEACHERS)
def test_another_shape_is_refused_and_not_charged(release: str) -> None:
    made, single = session(release=release), session()
    for shape in SHAPES:
        with pytest.raises(ValueError, match=r"shape \(n, B, c\) with \(B, c\) = \(64, 10\) that is charged for, got"):
            asked(made, torch.zeros(shape))
    with pytest.raises(ValueError, match=r"shape \(B, c\) = \(64, 10\)"):
        asked(single, torch.zeros(N, B, CLASSES))
    assert not made.account.counts() and not single.account.counts()


def test_a_crash_before_the_first_checkpoint_does_not_hide_that_the_noise_was_changed(tmp_path: Path) -> None:
    """The ledger alone knows of calls with the first noise, and says what they were."""

    def run(sigma: float, state: Any) -> PrivacySession:
        made = session(ready=False, ledger=str(tmp_path / "ledger.jsonl"), noise_multiplier=sigma)
        made.load(state)
        made.open(private_data="digits/train")
        made.fix_plan(lambda: 2)
        asked(made, gradients())
        return made

    state = session().state()
    run(SIGMA, state)
    same = run(SIGMA, state)
    assert not noise_changed(same.account, same.plan)
    changed = run(SIGMA / 2, state)
    assert noise_changed(changed.account, changed.plan) and all(
        f"sigma={sigma:g}" in described(changed).mechanism for sigma in (SIGMA, SIGMA / 2)
    )


def test_every_way_has_a_price_and_is_tested() -> None:
    assert set(get_args(GradientReleases)) == set(GRADIENT_RELEASES) == {*RELEASES} - {"directions"}
    assert set(get_args(GradientBoundings)) == set(GRADIENT_BOUNDINGS)
