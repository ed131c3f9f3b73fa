"""Base of the sources of a run's images."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import nn

from lightning_modules.priors import ImagePrior
from lightning_modules.runtime.randomness import Draws
from privacy.processes import ProcessesError, share_size


class ImageSource(ABC):
    """Source of the images of each step of a run.

    It holds its networks without owning them: a method registers `generator` as its own submodule, so that it is
    trained, moved and saved with the method.

    Attributes:
        kind: In one word, as in the settings.
        rows: Images of each batch that this process makes: all of them, or its share where there are several.
        generator: What makes images; None where there is none.
        published: What of it a student's owner may publish, in words.
        reset_every: Steps after which the generator is reset; None is never.
        prior: Procedural images; None where none are drawn.
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
        """Fixes the number of images of a batch that this process makes.

        Raises:
            ProcessesError: A batch, or the generated half of one, that the processes cannot share evenly.
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
        """A batch of images, shape (rows, C, H, W), generated ones first; a prior's are in [-1, 1]."""

    @abstractmethod
    def grid(self, count: int, *, seed: int, device: torch.device) -> torch.Tensor:
        """Images for display, shape (n, C, H, W) with n at most `count`, determined by the seed."""

    def reset(self, step: int, draws: Draws) -> None:
        """Gives the generator new weights, determined by seed and step, and so equal in all processes."""
        raise NotImplementedError(f"{type(self).__name__} has no generator to reset")

    def assumptions(self) -> list[str]:
        """Assumptions of a guarantee about this source."""
        return []

    def networks(self) -> dict[str, nn.Module]:
        """Its published networks, by name."""
        return {}
