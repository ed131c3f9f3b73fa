"""Views of images: moved and mirrored as stated."""

from __future__ import annotations

import torch
from support.seeded import Seeded

from lightning_modules.teachers.augmentation import Views, shifted


def test_shifts_by_hand() -> None:
    image = torch.arange(16.0).view(1, 1, 4, 4)
    for down, right in ((0, 0), (1, 0), (0, -1), (-2, 2)):
        expected = torch.full((4, 4), -1.0)
        for row in range(4):
            for column in range(4):
                if 0 <= row - down < 4 and 0 <= column - right < 4:
                    expected[row, column] = image[0, 0, row - down, column - right]
        assert torch.equal(shifted(image, torch.tensor([[down, right]]))[0, 0], expected)
    many = torch.randn(5, 3, 4, 6)
    moves = torch.tensor([[0, 0], [1, 1], [-1, 0], [0, 2], [-2, -2]])
    alone = torch.cat([shifted(many[i : i + 1], moves[i : i + 1]) for i in range(5)])
    assert torch.equal(shifted(many, moves), alone)


def test_views_are_moves_and_mirror_images_of_their_own_image() -> None:
    images = torch.rand(3, 2, 5, 6)
    views = Views(count=200, shift=1, flip=True).draw(images, Seeded())
    moves = torch.tensor([[down, right] for down in (-1, 0, 1) for right in (-1, 0, 1)])
    for image, mine in zip(images, views.split(200), strict=True):
        moved = shifted(image.expand(9, *image.shape), moves)
        possible = torch.cat([moved, moved.flip(-1)])
        same = (mine[:, None] == possible).flatten(2).all(dim=2)
        assert bool((same.sum(dim=1) == 1).all()) and bool(same.any(dim=0).all())
        # Each of 18 about 11 times.
        assert int(same.sum(dim=0).min()) >= 2 and int(same.sum(dim=0).max()) <= 30
