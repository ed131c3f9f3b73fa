"""Priors that multiply matrices do so with all digits, where a run allows a GPU fewer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lightning_modules.priors import FractalPrior, ImagePrior, RandomGeneratorPrior, ShaderPrior
from lightning_modules.priors.base import full_float32

PRODUCTS = ("aten::bmm", "aten::baddbmm", "aten::mm", "aten::convolution")


def allowed() -> tuple[str, bool]:
    return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32


class Products(TorchDispatchMode):
    """Notes what was allowed at each product."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, bool]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.name().startswith(PRODUCTS):
            self.seen.append(allowed())
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def run_allows_tf32() -> Iterator[None]:
    before = allowed()
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    yield
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.allow_tf32 = before[1]


@pytest.mark.parametrize(
    "prior", [FractalPrior(), RandomGeneratorPrior(), ShaderPrior()], ids=lambda prior: type(prior).__name__
)
def test_all_products_have_all_digits(prior: ImagePrior) -> None:
    with Products() as products:
        prior.sample(2, image_shape=(3, 16, 16), generator=torch.Generator().manual_seed(0), device="cpu")
    assert len(products.seen) > 4 and set(products.seen) == {("highest", False)}
    assert allowed() == ("high", True)


def test_the_notes_tell_what_a_run_allows_and_it_is_back_after_an_error() -> None:
    with Products() as products, pytest.raises(RuntimeError, match="shapes cannot be multiplied"), full_float32():
        torch.ones(2, 2) @ torch.ones(3, 3)
    with products:
        torch.ones(2, 2) @ torch.ones(2, 2)
    assert products.seen[-1] == ("high", True)
