"""Features whitened by a prior's statistics: what they do to variances, and that nothing private decides them."""

from __future__ import annotations

import pytest
import torch
from support.features import whitened
from torch import Tensor

from lightning_modules.networks.feature_cache import digest_of
from lightning_modules.networks.fixed_features import (
    WhitenedFeatures,
    moved_each_way,
    whitening_of,
)
from lightning_modules.priors import StrokePrior

SHAPE = (1, 8, 8)


def stretched(count: int = 400, size: int = 12) -> Tensor:
    draw = torch.Generator().manual_seed(0)
    return torch.randn(count, size, generator=draw) * torch.logspace(0, -3, size) + 3


@pytest.mark.parametrize(("power", "expected"), [(0.0, 1e6), (0.25, 1e3), (0.5, 1.0)])
def test_ratios_of_variances_shrink_by_the_power(power: float, expected: float) -> None:
    rows = stretched()
    mean, directions, gains = whitening_of(rows, power=power, floor=1e-9)
    centred = rows - mean
    evened = centred + (centred @ directions * (gains - 1)) @ directions.T
    values = torch.linalg.eigvalsh(torch.cov(evened.double().T))
    assert float(values.max() / values.min()) == pytest.approx(expected, rel=0.5)


@pytest.mark.parametrize(("count", "size"), [(300, 12), (12, 20)])
def test_of_too_many_directions_the_leading_ones_are_kept(count: int, size: int) -> None:
    rows = stretched(count, size)
    known = min(count - 1, size)
    whole = whitening_of(rows, power=0.5, floor=1e-3)
    for most in (known, known + 1, 2000):  # where all are kept, to the bit
        again = whitening_of(rows, power=0.5, floor=1e-3, directions=most)
        assert all(torch.equal(one, other) for one, other in zip(whole, again, strict=True))
    mean, directions, gains = whitening_of(rows, power=0.5, floor=1e-3, directions=5)
    assert directions.shape == (size, 5) and torch.equal(directions, whole[1][:, :5]) and torch.equal(mean, whole[0])
    # Relative to one another as before; relative to the others, which count as of their mean variance.
    assert torch.allclose(gains / gains[0], whole[2][:5] / whole[2][0], rtol=1e-5)
    variances = (rows.double() - rows.double().mean(dim=0)).square().mean(dim=0).sum()
    along = ((rows - mean) @ directions).double().square().mean(dim=0)
    others, least = (variances - along.sum()) / (size - 5), 1e-3 * variances / size
    expected = (((others + least) / (along + least)) ** 0.5).float()
    assert torch.allclose(gains, expected, rtol=1e-3)
    # The mutant: as if nothing were known of the others.
    assert not torch.allclose(whole[2][:5], expected, rtol=1e-2)


@pytest.mark.parametrize("mirrored", [False, True])
def test_features_of_moved_images_are_averaged(mirrored: bool) -> None:
    def found(shifts: int) -> WhitenedFeatures:
        torch.manual_seed(0)
        return whitened(images=60, shifts=shifts, mirrored=mirrored)

    given = StrokePrior().sample(3, image_shape=SHAPE, generator=torch.Generator().manual_seed(1), device="cpu")
    plain, averaged = found(0), found(1)
    each = [plain.before_whitening(view) for view in (given, *moved_each_way(given, 1))]
    assert torch.allclose(averaged.before_whitening(given), torch.stack(each).mean(dim=0), atol=1e-5)
    assert not torch.allclose(averaged.before_whitening(given), each[0], atol=1e-2)
    # Statistics are of the averaged features as well, and the two never count as one.
    assert not torch.equal(plain.mean, averaged.mean) and digest_of(plain) != digest_of(averaged)
