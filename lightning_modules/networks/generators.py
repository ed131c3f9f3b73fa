"""Networks that turn latent noise into images."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class DAFLGenerator(nn.Module):
    """The generator of DAFL (Chen et al. 2019), which the papers take over.

    Dense to `width` x (H/4) x (W/4), BN, double, conv 3x3 (width), BN, LeakyReLU 0.2, double, conv 3x3 (width/2), BN,
    LeakyReLU 0.2, conv 3x3 (C), tanh, BN without weights. The last layer standardises each channel over the batch
    (`standardised`), which is what makes data-free training work; DAFL's data are standardised as well. `ScaledOutput`
    then brings pixels to the mean and standard deviation of images in [-1, 1] (`Images.pixel_mean`); single pixels may
    lie outside of that range. The two inner BN layers have DAFL's epsilon of 0.8. Doubling is by nearest neighbour; a
    side that is no multiple of 4 starts at its quarter rounded up and is resized to half (rounded up) and to the full
    side instead.

    Args:
        image_shape: channels, height, width of the images.
        latent_dim: size of the latent noise z.
        width: channels of the first stage; DAFL has 128, at which a batch of 256 takes seconds on two cores.

    Raises:
        ValueError: if a size is not positive or `width` is odd.

    Attributes:
        standardised: Pixels have mean 0 and standard deviation 1 in each channel.
    """

    standardised = True

    def __init__(
        self, *, image_shape: tuple[int, int, int] = (1, 28, 28), latent_dim: int = 100, width: int = 128
    ) -> None:
        super().__init__()
        if len(image_shape) != 3 or min(image_shape) < 1:
            raise ValueError(f"image_shape must be three positive sizes (channels, height, width), got {image_shape!r}")
        if latent_dim < 1:
            raise ValueError(f"latent_dim must be at least 1, got {latent_dim!r}")
        if width < 2 or width % 2:
            raise ValueError(f"width must be an even number from 2 on, got {width!r}")
        channels, height, columns = image_shape
        self.latent_dim = latent_dim
        self.image_shape = (channels, height, columns)
        self._start = (width, -(-height // 4), -(-columns // 4))
        self._half = (-(-height // 2), -(-columns // 2))
        self.project = nn.Linear(latent_dim, width * self._start[1] * self._start[2])
        self.start = nn.BatchNorm2d(width)
        self.middle = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width, eps=0.8), nn.LeakyReLU(0.2)
        )
        self.end = nn.Sequential(
            nn.Conv2d(width, width // 2, 3, padding=1),
            nn.BatchNorm2d(width // 2, eps=0.8),
            nn.LeakyReLU(0.2),
            nn.Conv2d(width // 2, channels, 3, padding=1),
            nn.Tanh(),
            nn.BatchNorm2d(channels, affine=False),
        )

    def forward(self, latents: Tensor) -> Tensor:
        """Map latents (N, latent_dim) to images (N, C, H, W)."""
        x = self.start(self.project(latents).unflatten(1, self._start))
        x = self.middle(functional.interpolate(x, size=self._half))
        images: Tensor = self.end(functional.interpolate(x, size=self.image_shape[1:]))
        return images

    def latents(self, batch_size: int, *, generator: torch.Generator | None = None) -> Tensor:
        """Draw standard normal latents (batch_size, latent_dim) on the generator network's device."""
        drawn_on = generator.device if generator is not None else self.project.weight.device
        z = torch.randn(batch_size, self.latent_dim, generator=generator, device=drawn_on)
        return z.to(self.project.weight.device)
