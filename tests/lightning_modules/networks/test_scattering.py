from __future__ import annotations

import math

import pytest
import torch

from lightning_modules.networks.scattering import Scattering

SHAPE = (1, 28, 28)


def wave(angle: float, frequency: float) -> torch.Tensor:
    rows, columns = torch.meshgrid(torch.arange(28.0), torch.arange(28.0), indexing="ij")
    return torch.cos(frequency * (columns * math.cos(angle) + rows * math.sin(angle)))[None, None]


@pytest.mark.parametrize("angle", [0, 3, 5])
@pytest.mark.parametrize("scale", [0, 1])
def test_a_wave_answers_in_its_own_scale_and_angle(scale: int, angle: int) -> None:
    image = wave(math.pi * angle / 8, 3 * math.pi / 4 / 2**scale)
    orders = Scattering(SHAPE).scattered(image)[0, 1:17, 2:5, 2:5].mean(dim=(1, 2)).view(2, 8)
    assert divmod(int(orders.argmax()), 8) == (scale, angle)


def test_against_convolution_in_space() -> None:
    """First order by full resolution, without subsampling on the way."""
    extractor = Scattering(SHAPE)
    image = torch.rand(1, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    padded = torch.nn.functional.pad(image, (4, 4, 4, 4), mode="reflect")
    spectrum = torch.fft.fft2(padded)
    for scale in (0, 1):
        full = torch.fft.ifft2(spectrum * extractor.get_buffer(f"wavelets{scale}")[3]).abs()
        averaged = full.flatten(-2) @ extractor.get_buffer("average0")
        own = extractor.scattered(image)[0, 1 + 8 * scale + 3].flatten()
        assert torch.allclose(own, averaged[0, 0], rtol=0.05, atol=0.005), scale


def test_second_order_tells_apart_what_the_first_cannot() -> None:
    steady = wave(0.0, 3 * math.pi / 4)
    beating = steady * (1 + wave(0.0, 3 * math.pi / 16))
    extractor = Scattering(SHAPE)
    assert float(extractor.scattered(beating)[0, 17:].abs().mean()) > 3 * float(
        extractor.scattered(steady)[0, 17:].abs().mean()
    )
