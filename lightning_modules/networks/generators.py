"""Image generators: DAFL's, from noise, and a VAE, from codes."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class ImageGenerator(nn.Module):
    """Base class of generators, built from image_shape, which map latents (N, latent_dim) to images (N, C, H, W).

    Attributes:
        latent_dim: Width of the input.
    """

    latent_dim: int


class DAFLGenerator(ImageGenerator):
    """The generator of DAFL (Chen et al. 2019). None of the four papers describes its own.

    Dense to `width` x (H/4) x (W/4), BN, double, conv 3x3 (width), BN, LeakyReLU 0.2, double, conv 3x3 (width/2), BN,
    LeakyReLU 0.2, conv 3x3 (C), tanh, BN without weights. The last layer standardises each channel over the batch,
    which data-free training depends on; DAFL's data are standardised as well. `scale` and `shift` then give pixels the
    standard deviation and mean of a prior's images in [-1, 1]; single pixels may lie outside that range. The two inner
    BN layers have DAFL's epsilon of 0.8. Upsampling is nearest-neighbour; a side that is not a multiple of 4 starts at
    its quarter, rounded up, and is resized to its half, rounded up, and to the full side.

    Args:
        image_shape: channels, height, width of the images.
        latent_dim: size of the latent noise z.
        width: channels of the first stage. With DAFL's 128, a batch of 256 takes seconds on two cores.

    Attributes:
        scale: (C, 1, 1), set by whoever builds the generator, as is `shift`; a checkpoint has neither.
    """

    scale: Tensor
    shift: Tensor

    def __init__(
        self, image_shape: tuple[int, int, int] = (1, 28, 28), *, latent_dim: int = 100, width: int = 128
    ) -> None:
        super().__init__()
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
        self.register_buffer("scale", torch.ones(channels, 1, 1), persistent=False)
        self.register_buffer("shift", torch.zeros(channels, 1, 1), persistent=False)

    def forward(self, latents: Tensor) -> Tensor:
        """Maps latents (N, latent_dim) to images (N, C, H, W)."""
        x = self.start(self.project(latents).unflatten(1, self._start))
        x = self.middle(functional.interpolate(x, size=self._half))
        images: Tensor = self.end(functional.interpolate(x, size=self.image_shape[1:])) * self.scale + self.shift
        return images


class ConvVAE(nn.Module):
    """Encoder and decoder of two stages each (DGD trains "convolutional neural networks like" TNAR's; sizes are ours).

    Encoder: conv 3x3 stride 2 (`width`), BN, LeakyReLU 0.2, conv 3x3 stride 2 (2 `width`), BN, LeakyReLU 0.2, dense
    to mean and log-variance. Decoder: dense, BN, ReLU, double, conv 3x3 (`width`), BN, ReLU, double, conv 3x3 (C)
    without a final activation, since generated images may exceed [-1, 1]. A side that is not a multiple of 4 starts at
    its quarter, rounded up, and is resized.

    Args:
        image_shape: channels, height, width of the images.
        latent_dim: width c of the code; 32 in DGD.
        width: channels of the outer stage.
    """

    def __init__(
        self, image_shape: tuple[int, int, int] = (1, 28, 28), *, latent_dim: int = 32, width: int = 32
    ) -> None:
        super().__init__()
        channels, height, columns = image_shape
        self.latent_dim = latent_dim
        self.image_shape = (channels, height, columns)
        self._half = (-(-height // 2), -(-columns // 2))
        self._quarter = (2 * width, -(-height // 4), -(-columns // 4))
        inner = self._quarter[0] * self._quarter[1] * self._quarter[2]
        self.encoder = nn.Sequential(
            nn.Conv2d(channels, width, 3, stride=2, padding=1), nn.BatchNorm2d(width), nn.LeakyReLU(0.2),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), nn.BatchNorm2d(2 * width), nn.LeakyReLU(0.2),
            nn.Flatten(), nn.Linear(inner, 2 * latent_dim),
        )  # fmt: skip
        self.project = nn.Linear(latent_dim, inner)
        self.start = nn.Sequential(nn.BatchNorm2d(2 * width), nn.ReLU())
        self.middle = nn.Sequential(nn.Conv2d(2 * width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
        self.end = nn.Conv2d(width, channels, 3, padding=1)

    def encode(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Maps images (N, C, H, W) to the mean and log-variance of their codes, each (N, latent_dim)."""
        mean, log_variance = self.encoder(images).chunk(2, dim=1)
        # Beyond these bounds the exponential would overflow, or the gradient vanish before the first useful step.
        return mean, log_variance.clamp(-10.0, 10.0)

    def decode(self, codes: Tensor) -> Tensor:
        """Maps codes (N, latent_dim) to images (N, C, H, W)."""
        x = self.start(self.project(codes).unflatten(1, self._quarter))
        x = self.middle(functional.interpolate(x, size=self._half))
        images: Tensor = self.end(functional.interpolate(x, size=self.image_shape[1:]))
        return images

    def forward(self, images: Tensor, *, draw: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Returns reconstructions (N, C, H, W) from sampled codes, and mean and log-variance (N, latent_dim)."""
        mean, log_variance = self.encode(images)
        return self.decode(sample_codes(mean, log_variance, draw=draw)), mean, log_variance


def sample_codes(mean: Tensor, log_variance: Tensor, *, draw: torch.Generator | None = None) -> Tensor:
    """Sample codes (N, latent_dim) from N(mean, exp(log_variance)) by reparametrisation.

    `draw` is the random number generator, on any device; None is the global one.
    """
    device = mean.device if draw is None else draw.device
    noise = torch.randn(mean.shape, generator=draw, device=device, dtype=mean.dtype).to(mean.device)
    return mean + (0.5 * log_variance).exp() * noise


def negative_elbo(reconstructions: Tensor, images: Tensor, mean: Tensor, log_variance: Tensor) -> Tensor:
    """Negative evidence lower bound of each image, (N,), up to a constant (Kingma and Welling 2014).

    Half the squared error summed over pixels, the negative log-likelihood of a Gaussian of unit variance, plus the
    KL divergence of N(mean, exp(log_variance)) from N(0, I): (mean² + variance - 1 - log variance)/2, summed.

    Args:
        reconstructions: (N, C, H, W), decoded from one sampled code per image.
        images: (N, C, H, W).
        mean: (N, latent_dim).
        log_variance: (N, latent_dim).
    """
    error = 0.5 * (reconstructions - images).square().flatten(1).sum(1)
    divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1)
    return error + divergence
