"""Base class of image sources."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import nn

from lightning_modules.priors import ImagePrior
from lightning_modules.runtime.randomness import Draws
from privacy.processes import ProcessesError, share_size


class ImageSource(ABC):
    """Base class for sources of the images of each step of a run.

    A method registers `generator` as its own submodule, so that it is trained, moved and saved with the method.

    Attributes:
        kind: `images.source` in the settings.
        rows: Number of images of each batch that this process makes: all, or its share of several processes.
        generator: The generator, or None.
        published: Names of the parts that a student's owner may publish.
        reset_every: Steps after which the generator is reset; None is never.
        prior: Procedural images, or None.
    """

    kind: str
    rows: int
    generator: nn.Module | None = None
    published: tuple[str, ...] = ()
    reset_every: int | None = None
    prior: ImagePrior | None = None

    @property
    def generated(self) -> int:
        """Number of images of a batch that the generator makes."""
        return 0

    def share(self, batch_size: int, processes: int) -> None:
        """Set the number of images of a batch that this process makes.

        Raises:
            ProcessesError: The processes cannot share a batch, or the generated half of it, evenly.
        """
        self.rows = share_size(batch_size, processes)
        if self.kind == "both" and (batch_size // 2) % processes:
            raise ProcessesError(
                f"data.batch_size must be a multiple of 2 x {processes} processes for images.source='both', got "
                f"{batch_size}"
            )

    @property
    def latent_dim(self) -> int:
        """Width of the generator's input."""
        return int(getattr(self.generator, "latent_dim"))  # noqa: B009 - nn.Module types every attribute as a tensor

    def latents(self, step: int, draws: Draws) -> torch.Tensor | None:
        """Latent inputs of the generator for a step; None without a generator."""
        return None

    @abstractmethod
    def images(self, step: int, latents: torch.Tensor | None, draws: Draws) -> torch.Tensor:
        """Return a batch of images, shape (rows, C, H, W), generated ones first; a prior's are in [-1, 1]."""

    @abstractmethod
    def grid(self, count: int, *, seed: int, device: torch.device) -> torch.Tensor:
        """Images for display, shape (n, C, H, W) with n at most `count`, determined by the seed."""

    def reset(self, step: int, draws: Draws) -> None:
        """Reset the generator to random weights, determined by seed and step and equal in all processes."""
        raise NotImplementedError(f"{type(self).__name__} has no generator to reset")

    def assumptions(self) -> list[str]:
        """Assumptions that a guarantee makes about this source."""
        return []

    def networks(self) -> dict[str, nn.Module]:
        """Published networks by name."""
        return {}
