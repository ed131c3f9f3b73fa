"""Clothes, shoes and bags drawn by rule: the prior for FashionMNIST and its like."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lightning_modules.components.priors import ImagePrior, check_sample

__all__ = ["SilhouettePrior"]

_NUMBERS = 64
_SIDE = 28  # the side that edges and textures are stated for


class SilhouettePrior(ImagePrior):
    """Photographs of clothing without data: soft-edged silhouettes with shading and texture on a dark ground.

    The public knowledge it encodes, and no more: what is worn is a **top** (mirrored torso of any length with or
        without
    sleeves, a neckline, perhaps an opening or straps), **trousers** (two mirrored legs), a **shoe** (a sole, a shape
    that is higher at the heel, perhaps a shaft, straps or a heel), a **bag** (a rounded box with a handle), or
    **anything** (mirrored unions of superellipses). Each is drawn with random measures, so that most images lie
    between such things. It knows nothing of how many classes there are.

    Its defaults were chosen by looking at FashionMNIST's public description, and at how well students of a teacher did
    on its public test images.

    The random numbers of one image are one row of one draw from ``generator``. All channels carry the same ink.

    Args:
        shares: relative frequencies of tops, trousers, shoes, bags and anything.
        texture: probability that a part is striped, checked or grained.

    Raises:
        ValueError: for a setting out of its range.
    """

    def __init__(
        self,
        *,
        shares: tuple[float, float, float, float, float] = (4.0, 1.0, 3.0, 1.5, 1.5),
        texture: float = 0.5,
    ) -> None:
        if len(shares) != 5 or min(shares) < 0 or sum(shares) <= 0:
            raise ValueError(f"shares must be five numbers of at least 0, not all 0, got {shares!r}")
        if not 0 <= texture <= 1:
            raise ValueError(f"texture must lie in [0, 1], got {texture!r}")
        self.shares = tuple(float(share) for share in shares)
        self.texture = texture

    def sample(
        self,
        batch_size: int,
        *,
        image_shape: tuple[int, int, int],
        generator: torch.Generator,
        device: torch.device | str,
    ) -> Tensor:
        """Draw ``batch_size`` images (B, C, H, W) in [-1, 1]; see :meth:`ImagePrior.sample`.

        Raises:
            ValueError: if ``batch_size`` or a size in ``image_shape`` is not positive.
        """
        check_sample(batch_size, image_shape)
        _, height, width = image_shape
        with torch.no_grad(), torch.autocast(torch.device(device).type, enabled=False):
            numbers = torch.rand(batch_size, _NUMBERS, generator=generator, device=generator.device).to(device)
            limits = torch.tensor(self.shares, device=device).cumsum(0)
            kind = torch.bucketize(numbers[:, 0] * limits[-1], limits[:-1], right=True)
            ink = torch.zeros(batch_size, height, width, device=device)
            painters: list[Callable[[_Sheet], Tensor]] = [_top, _trousers, _shoe, _bag, _anything]
            for number, paint in enumerate(painters):
                rows = (kind == number).nonzero()[:, 0]
                if len(rows):
                    ink[rows] = paint(_Sheet(numbers[rows, 1:], (height, width), self.texture))
            return (2 * ink.clamp(0, 1) - 1)[:, None].expand(batch_size, *image_shape).contiguous()


class _Sheet:
    """Coordinates in [-1, 1] (x to the right, y down), a row of random numbers per image, and soft-edged shapes.

    Masks and images are (B, H, W), values in [0, 1].
    """

    def __init__(self, numbers: Tensor, size: tuple[int, int], texture: float) -> None:
        self._numbers = numbers
        self._next = 0
        self.texture = texture
        height, width = size
        down = (torch.arange(height, device=numbers.device) + 0.5) / height * 2 - 1
        across = (torch.arange(width, device=numbers.device) + 0.5) / width * 2 - 1
        self.y, self.x = torch.meshgrid(down, across, indexing="ij")
        self.sharp = 1.8 * _SIDE

    def between(self, low: float, high: float) -> Tensor:
        """The next random number of each image, uniform between two values, (B, 1, 1)."""
        value = self._numbers[:, self._next, None, None]
        self._next = (self._next + 1) % self._numbers.shape[1]
        return low + (high - low) * value

    def chance(self, probability: float) -> Tensor:
        """1 with this probability, else 0, (B, 1, 1)."""
        return (self.between(0, 1) < probability).float()

    def edge(self, depth: Tensor) -> Tensor:
        """Mask of where `depth` is positive, with a soft edge."""
        return torch.sigmoid(self.sharp * depth)

    def trapezoid(self, center: Tensor, top: Tensor, bottom: Tensor, upper: Tensor, lower: Tensor) -> Tensor:
        """Half width `upper` at the top and `lower` at the bottom."""
        share = ((self.y - top) / (bottom - top).clamp_min(1e-3)).clamp(0, 1)
        half = upper + (lower - upper) * share
        return self.edge(half - (self.x - center).abs()) * self.edge(self.y - top) * self.edge(bottom - self.y)

    def limb(self, start: tuple[Tensor, Tensor], end: tuple[Tensor, Tensor], width: Tensor) -> Tensor:
        """A straight limb with round ends."""
        along = (end[0] - start[0], end[1] - start[1])
        length = (along[0] ** 2 + along[1] ** 2).clamp_min(1e-6)
        share = (((self.x - start[0]) * along[0] + (self.y - start[1]) * along[1]) / length).clamp(0, 1)
        distance = ((self.x - start[0] - share * along[0]) ** 2 + (self.y - start[1] - share * along[1]) ** 2).sqrt()
        return self.edge(width - distance)

    def ellipse(self, center: tuple[Tensor, Tensor], radii: tuple[Tensor, Tensor], power: Tensor) -> Tensor:
        """A superellipse: power 2 is round, 8 nearly a box."""
        far = ((self.x - center[0]) / radii[0]).abs() ** power + ((self.y - center[1]) / radii[1]).abs() ** power
        return self.edge((1 - far.clamp_min(1e-9) ** (1 / power)) * torch.minimum(radii[0], radii[1]))

    def paint(self) -> Tensor:
        """Brightness with shading, and at times stripes, checks or grain."""
        base = self.between(0.35, 1.1)
        slope = self.between(-0.25, 0.25) * self.x + self.between(-0.25, 0.25) * self.y
        folds = self.between(0.0, 0.15) * torch.sin(self.between(2, 9) * self.x + self.between(-2, 2) * self.y)
        tilt, pitch = self.between(0, 1), self.between(6, 26)
        across = torch.where(tilt < 0.5, self.x.expand_as(slope), self.y.expand_as(slope))
        other = torch.where(tilt < 0.5, self.y.expand_as(slope), self.x.expand_as(slope))
        stripes = torch.sin(pitch * across) * torch.where(self.chance(0.3) > 0, torch.sin(pitch * other), 1.0)
        strength = self.chance(self.texture) * self.between(0.1, 0.45)
        # Grain out of the image's own numbers: a sine of large frequency is noise enough, and costs no further draw.
        grain = torch.sin(self.between(50, 90) * (self.x + 1.7 * self.y) + 7 * torch.sin(self.between(20, 60) * self.y))
        rough = self.chance(self.texture / 2) * self.between(0.05, 0.25)
        return (base + slope + folds + strength * stripes + rough * grain).clamp(0.08, 1)


def _over(below: Tensor, mask: Tensor, paint: Tensor) -> Tensor:
    return below * (1 - mask) + paint * mask


def _top(sheet: _Sheet) -> Tensor:
    """T-shirts, pullovers, coats, shirts, dresses, and what lies between."""
    zero = sheet.between(0, 0)
    shoulder, waist = sheet.between(0.25, 0.6), sheet.between(0.2, 0.6)
    top, bottom = sheet.between(-0.98, -0.8), sheet.between(0.6, 0.98)
    hem = waist * sheet.between(0.8, 1.7)
    middle = top + (bottom - top) * sheet.between(0.25, 0.55)
    paint = sheet.paint()
    body = torch.maximum(
        sheet.trapezoid(zero, top, middle + 0.03, shoulder, waist), sheet.trapezoid(zero, middle, bottom, waist, hem)
    )
    sleeved, length = sheet.chance(0.75), sheet.between(0.15, 1.75)
    spread, thick = sheet.between(0.05, 0.55), sheet.between(0.09, 0.2)
    hand = (shoulder + spread * length, top + 0.15 + length * (1.05 - spread))
    start = (shoulder - thick * 0.6, top + 0.18)
    arms = torch.zeros_like(body)
    for side in (1.0, -1.0):
        arms = torch.maximum(arms, sheet.limb((side * start[0], start[1]), (side * hand[0], hand[1]), thick))
    arms = arms * sleeved
    image = torch.maximum(body, arms) * paint
    # A seam where the arm leaves the body.
    image = image * (1 - sheet.chance(0.5) * 0.5 * arms * body)
    neck = sheet.ellipse((zero, top), (sheet.between(0.08, 0.3), sheet.between(0.03, 0.35)), 2.0 + zero)
    image = _over(image, neck, sheet.chance(0.3) * 0.4 * paint)
    straps = sheet.chance(0.15) * sheet.edge(0.35 * shoulder - sheet.x.abs()) * sheet.edge(top + 0.3 - sheet.y)
    image = image * (1 - straps)
    opening = sheet.edge(sheet.between(0.01, 0.08) - sheet.x.abs()) * sheet.edge(sheet.y - top) * body
    image = _over(image, opening * sheet.chance(0.4), sheet.between(0, 1) + 0 * image)
    belt = sheet.edge(0.05 - (sheet.y - middle).abs()) * body * sheet.chance(0.2)
    return _over(image, belt, sheet.between(0, 1) + 0 * image)


def _trousers(sheet: _Sheet) -> Tensor:
    """Two mirrored legs below a waist."""
    zero = sheet.between(0, 0)
    waist, foot = sheet.between(0.18, 0.4), sheet.between(0.07, 0.22)
    top, bottom = sheet.between(-0.98, -0.8), sheet.between(0.5, 0.98)
    crotch = top + (bottom - top) * sheet.between(0.15, 0.45)
    spread = sheet.between(0.1, 0.4)
    legs = torch.zeros_like(sheet.x.expand(len(zero), -1, -1))
    for side in (1.0, -1.0):
        share = ((sheet.y - crotch) / (bottom - crotch)).clamp(0, 1)
        center = side * (waist / 2 + (spread - waist / 2) * share)
        half = waist / 2 + 0.03 + (foot - waist / 2) * share
        leg = (
            sheet.edge(half - (sheet.x - center).abs())
            * sheet.edge(sheet.y - crotch + 0.05)
            * sheet.edge(bottom - sheet.y)
        )
        legs = torch.maximum(legs, leg)
    hips = sheet.trapezoid(zero, top, crotch + 0.05, waist, waist + 0.06)
    return torch.maximum(hips, legs) * sheet.paint()


def _shoe(sheet: _Sheet) -> Tensor:
    """Sneakers, boots, sandals, pumps: a sole, and a shape over it that rises towards the heel."""
    side = 2 * sheet.chance(0.15) - 1  # most photographs show the toe to the left
    along = -sheet.x * side  # -1 at the heel, 1 at the toe
    length, ground = sheet.between(0.75, 0.97), sheet.between(0.2, 0.75)
    lift = sheet.chance(0.35) * sheet.between(0.0, 0.55)
    share = ((along + length) / (2 * length)).clamp(0, 1)
    # The foot's sole: flat, or raised at the heel.
    floor = ground - lift * (1 - share * 1.35).clamp(0, 1) ** 1.5
    heel_height, toe_height = sheet.between(0.3, 0.75), sheet.between(0.12, 0.35)
    bend = sheet.between(0.6, 2.5)
    roof = floor - toe_height - (heel_height - toe_height) * (1 - share) ** bend
    inside = sheet.edge(length - along.abs())
    upper = inside * sheet.edge(floor - sheet.y) * sheet.edge(sheet.y - roof)
    toe = sheet.edge(length - 0.06 + 0.1 - along - (0.25 * ((sheet.y - floor).abs() / toe_height - 0.5).clamp_min(0)))
    shaft_width, shaft_top = sheet.between(0.3, 0.6), ground - sheet.between(0.9, 1.7)
    shaft = sheet.chance(0.4) * sheet.edge(-length + 2 * shaft_width - along) * sheet.edge(along + length)
    shaft = shaft * sheet.edge(sheet.y - shaft_top) * sheet.edge(floor - sheet.y)
    paint = sheet.paint()
    image = torch.maximum(upper * toe, shaft) * paint
    # Straps: the upper is cut away between them.
    pitch, phase = sheet.between(7, 16), sheet.between(0, 6)
    gaps = torch.sigmoid(6 * torch.sin(pitch * along + sheet.between(-8, 8) * sheet.y + phase))
    image = image * (1 - sheet.chance(0.35) * gaps * sheet.edge(floor - 0.08 - sheet.y))
    throat = sheet.ellipse((-side * -sheet.between(0.1, 0.7) * length, roof.amin((1, 2), keepdim=True)),
                           (sheet.between(0.15, 0.4), sheet.between(0.08, 0.4)), 2.0 + 0 * length)  # fmt: skip
    image = image * (1 - sheet.chance(0.35) * throat)
    thick = sheet.between(0.03, 0.16)
    sole = inside * sheet.edge(floor + thick - sheet.y) * sheet.edge(sheet.y - floor)
    image = _over(image, sole, sheet.between(0.1, 1) + 0 * image)
    heel = sheet.edge(-length + sheet.between(0.15, 0.5) - along) * sheet.edge(along + length)
    heel = heel * sheet.edge(sheet.y - floor) * sheet.edge(ground + thick - sheet.y)
    return _over(image, heel * (lift > 0.05), sheet.between(0.2, 1) + 0 * image)


def _bag(sheet: _Sheet) -> Tensor:
    """A rounded box with a handle or a strap."""
    zero = sheet.between(0, 0)
    top, bottom = sheet.between(-0.5, 0.1), sheet.between(0.4, 0.95)
    upper, lower = sheet.between(0.45, 0.95), sheet.between(0.5, 0.97)
    image = sheet.trapezoid(zero, top, bottom, upper, lower) * sheet.paint()
    reach, rise = sheet.between(0.25, 0.8), sheet.between(0.2, 1.0)
    thick = sheet.between(0.05, 0.16)
    outer = sheet.ellipse((zero, top), (reach, rise), 2.0 + sheet.between(0, 2))
    inner = sheet.ellipse((zero, top), ((reach - thick).clamp_min(0.02), (rise - thick).clamp_min(0.02)), 2.0 + zero)
    handle = (outer - inner).clamp(0, 1) * sheet.edge(top + 0.05 - sheet.y) * sheet.chance(0.8)
    image = torch.maximum(image, handle * sheet.between(0.3, 1))
    flap = sheet.edge(top + (bottom - top) * sheet.between(0.2, 0.6) - sheet.y)
    shade = sheet.chance(0.4) * sheet.between(-0.35, 0.35)
    image = (image + shade * flap * (image > 0.05)).clamp(0, 1)
    clasp = sheet.ellipse((zero, (top + bottom) / 2), (sheet.between(0.03, 0.12), sheet.between(0.03, 0.1)), 2.0 + zero)
    return _over(image, clasp * sheet.chance(0.3), sheet.between(0, 1) + 0 * image)


def _anything(sheet: _Sheet) -> Tensor:
    """Unions of up to four superellipses, mirrored or not, some of them cut out."""
    mirrored = sheet.chance(0.6)
    image = torch.zeros_like(sheet.x.expand(len(mirrored), -1, -1))
    count = sheet.between(1, 5)
    for part in range(4):
        center = (sheet.between(-0.6, 0.6) * sheet.chance(0.6), sheet.between(-0.7, 0.7))
        radii = (sheet.between(0.08, 0.6), sheet.between(0.1, 0.9))
        power = 2 + sheet.between(0, 6)
        mask = sheet.ellipse(center, radii, power)
        twin = sheet.ellipse((-center[0], center[1]), radii, power)
        mask = torch.where(mirrored > 0, torch.maximum(mask, twin), mask) * (part + 1 <= count)
        hole = sheet.chance(0.12) * (part > 0)
        shade = (sheet.between(0.15, 1) + sheet.between(-0.4, 0.4) * sheet.y) * (1 - hole)
        stripes = sheet.chance(sheet.texture / 2) * sheet.between(0.1, 0.4) * torch.sin(sheet.between(4, 20) * sheet.y)
        image = _over(image, mask, (shade + stripes * (1 - hole)).clamp(0, 1))
    return image
