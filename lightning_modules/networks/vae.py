"""A small convolutional VAE of synthetic images, in whose latent space a student's surroundings are explored (DGD)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class ConvVAE(nn.Module):
    """Encoder and decoder of two stages each (B trains "convolutional neural networks like" TNAR's; sizes are ours).

    Encoder: conv 3x3 stride 2 (`width`), BN, LeakyReLU 0.2, conv 3x3 stride 2 (2 `width`), BN, LeakyReLU 0.2, dense
    to mean and log-variance. Decoder: dense, BN, ReLU, double, conv 3x3 (`width`), BN, ReLU, double, conv 3x3 (C)
    without a last activation, since generated images are not confined to [-1, 1]. A side that is no multiple of 4
    starts at its quarter rounded up and is resized.

    Args:
        image_shape: channels, height, width of the images.
        latent_dim: width c of the code; 32 in DGD.
        width: channels of the outer stage.

    Raises:
        ValueError: if a size is not positive.
    """

    def __init__(
        self, *, image_shape: tuple[int, int, int] = (1, 28, 28), latent_dim: int = 32, width: int = 32
    ) -> None:
        super().__init__()
        if len(image_shape) != 3 or min(image_shape) < 1:
            raise ValueError(f"image_shape must be three positive sizes (channels, height, width), got {image_shape!r}")
        for name, value in (("latent_dim", latent_dim), ("width", width)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value!r}")
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
        """Mean and log-variance of the codes of images (N, C, H, W), each (N, latent_dim)."""
        mean, log_variance = self.encoder(images).chunk(2, dim=1)
        # Beyond these the exponential would overflow or the gradient vanish before the first useful step.
        return mean, log_variance.clamp(-10.0, 10.0)

    def decode(self, codes: Tensor) -> Tensor:
        """Images (N, C, H, W) of codes (N, latent_dim)."""
        x = self.start(self.project(codes).unflatten(1, self._quarter))
        x = self.middle(functional.interpolate(x, size=self._half))
        images: Tensor = self.end(functional.interpolate(x, size=self.image_shape[1:]))
        return images

    def forward(self, images: Tensor, *, draw: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Reconstructions (N, C, H, W) from sampled codes, with mean and log-variance (N, latent_dim)."""
        mean, log_variance = self.encode(images)
        return self.decode(sample_codes(mean, log_variance, draw=draw)), mean, log_variance


def sample_codes(mean: Tensor, log_variance: Tensor, *, draw: torch.Generator | None = None) -> Tensor:
    """Codes from N(mean, exp(log_variance)), by reparametrisation.

    Args:
        mean: (N, latent_dim).
        log_variance: (N, latent_dim).
        draw: source of randomness on its own device; None is the global one.

    Returns:
        (N, latent_dim).
    """
    device = mean.device if draw is None else draw.device
    noise = torch.randn(mean.shape, generator=draw, device=device, dtype=mean.dtype).to(mean.device)
    return mean + (0.5 * log_variance).exp() * noise


def negative_elbo(
    reconstructions: Tensor, images: Tensor, mean: Tensor, log_variance: Tensor, *, kl_weight: float = 1.0
) -> Tensor:
    """Negative evidence lower bound of each image, but for a constant (Kingma and Welling 2014).

    Half the squared error, which is the negative log-likelihood of a Gaussian of unit variance, summed over pixels,
    plus the divergence of N(mean, exp(log_variance)) from N(0, I): (mean² + variance - 1 - log variance)/2, summed.

    Args:
        reconstructions: (N, C, H, W), decoded from codes drawn once for each image.
        images: (N, C, H, W).
        mean: (N, latent_dim).
        log_variance: (N, latent_dim).
        kl_weight: of the divergence; 1 is the bound.

    Returns:
        (N,).

    Raises:
        ValueError: if shapes do not match.
    """
    if reconstructions.shape != images.shape or mean.shape != log_variance.shape or len(mean) != len(images):
        raise ValueError(
            f"reconstructions and images must have one shape, mean and log_variance another with as many rows, got"
            f" {tuple(reconstructions.shape)}, {tuple(images.shape)}, {tuple(mean.shape)}, {tuple(log_variance.shape)}"
        )
    error = 0.5 * (reconstructions - images).square().flatten(1).sum(1)
    divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1)
    return error + kl_weight * divergence
