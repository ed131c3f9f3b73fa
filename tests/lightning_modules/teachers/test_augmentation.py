"""Images that are moved as stated."""

from __future__ import annotations

import torch

from lightning_modules.teachers.augmentation import shifted


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
