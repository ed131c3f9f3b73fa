"""Pretraining that no photograph takes part in: a network that learns which views are of one procedural image."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

import torch
from lightning import LightningModule
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn

from lightning_modules.functional.contrastive import Contrast, contrast
from lightning_modules.functional.views import Views, random_views_of
from lightning_modules.networks import ResNetEncoder
from lightning_modules.networks.pretraining_file import (
    SECTION,
    check_encoder,
    described_factory,
    described_prior,
    provenance_of,
)
from lightning_modules.procedural_images import ProceduralImages
from lightning_modules.runtime.checkpoint_io import take_back_unfinished_step
from lightning_modules.runtime.hyperparameters import GuardedLoading, keep_plain_hyperparameters, settings_of
from lightning_modules.runtime.processes import check_strategy
from lightning_modules.runtime.randomness import stream
from lightning_modules.runtime.runs import datamodule_of
from lightning_modules.runtime.trainer_settings import PRECISIONS
from lightning_modules.setting_checks import check_number, check_whole_number
from privacy.identity import CheckpointError
from privacy.processes import ProcessesError, everywhere

__all__ = ["ProceduralPretraining"]


class ProceduralPretraining(GuardedLoading, LightningModule):
    """Contrastive pretraining on procedural images (SimCLR, Chen et al. 2020; on such images Baradad et al. 2021).

    Of each image two random views are drawn, and each is to name its partner among all views of the batch. No record of
    anybody's takes part: there is no teacher, no label, no ledger and nothing to bound. The checkpoint declares that,
    with the prior, the seed and the encoder, and `PretrainedClassifier` takes it for features.

    Needs the data module `ProceduralImages`, and refuses every other: what is declared would not be true.

    Args:
        image_shape: (C, H, W); linked from the data.
        encoder: Builds what is pretrained, called with `image_shape`: images (N, C, H, W) to maps (N, F, h, w), of
            which the mean is taken. Default: `ResNetEncoder`.
        views: What a view may change of an image.
        temperature: Cosines of embeddings are divided by it.
        hidden: Width of the projection's hidden layer; null is the encoder's number of channels F.
        embedding: Size D of an embedding. The projection is thrown away in the end.
        optimizer: Default: AdamW with the rate 2e-3 and a weight decay of 0.01.
        lr_scheduler: A schedule stepped once an epoch. Default: up to the optimizer's rate over a tenth of all steps,
            and down to nothing along half a cosine.

    Raises:
        ValueError: A setting that has no meaning, or an encoder that gives no maps.

    Attributes:
        provenance: What the checkpoint declares of the images: `PROVENANCE`, or None where a class of anyone's drew
            them or built the encoder. Known when a fit begins.
    """

    def __init__(
        self,
        *,
        image_shape: tuple[int, int, int],
        encoder: Callable[..., nn.Module] | None = None,
        views: Views = Views(),
        temperature: float = 0.2,
        hidden: int | None = None,
        embedding: int = 128,
        optimizer: OptimizerCallable | None = None,
        lr_scheduler: LRSchedulerCallable | None = None,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        keep_plain_hyperparameters(self)
        check_number("temperature", temperature, above=0)
        check_whole_number("hidden", hidden, least=1, null="the encoder's channels")
        check_whole_number("embedding", embedding, least=1)
        self.image_shape: tuple[int, int, int] = (image_shape[0], image_shape[1], image_shape[2])
        self.views = settings_of(Views, views, name="views")
        self.temperature = temperature
        made = encoder or ResNetEncoder
        # The command line hands over a factory, and keeps what it was made of.
        self._encoder_spec = described_factory(self.hparams.get("encoder") or made)
        self.encoder = made(image_shape=self.image_shape)
        channels = check_encoder(self.encoder, image_shape=self.image_shape)[0]
        self.encoder.to(memory_format=torch.channels_last)
        width = channels if hidden is None else hidden
        self.projection = nn.Sequential(
            nn.Linear(channels, width, bias=False), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, embedding)
        )
        self.optimizer_factory = optimizer
        self.scheduler_factory = lr_scheduler
        self.provenance: str | None = None
        self._learnt_undeclared = False
        self.draw_seed: int | None = None
        self._images: dict[str, Any] = {}
        self._restored: dict[str, Any] | None = None
        self._cycle: int | None = None
        self._cycle_before: int | None = None
        self._step_before_batch = -1

    def setup(self, stage: str) -> None:
        """Refuses data that are not procedural, and a trainer that this is not made for.

        Raises:
            ValueError: With what to set instead.
        """
        if stage != "fit":
            return
        check_strategy(self.trainer)
        if self.trainer.world_size > 1:
            raise everywhere(
                ProcessesError(
                    f"ProceduralPretraining compares the views of a whole batch, which one process holds, got "
                    f"{self.trainer.world_size} processes: set --trainer.devices 1"
                )
            )
        if self.trainer.precision not in PRECISIONS:
            raise ValueError(f"trainer.precision must be one of {', '.join(PRECISIONS)}, got {self.trainer.precision}")
        data = datamodule_of(self.trainer)
        if type(data) is not ProceduralImages:
            raise ValueError(
                "ProceduralPretraining declares that no image was anybody's, and takes them from the data module "
                f"ProceduralImages itself, got {type(data).__name__}"
            )
        self.provenance = None if self._learnt_undeclared else provenance_of(data.prior, self.encoder)
        self._images = {
            "prior": described_prior(data.prior),
            "num_images": data.num_images,
            "seed": data.seed,
        }

    def on_fit_start(self) -> None:
        """Goes on with what a checkpoint declares.

        Raises:
            CheckpointError: More steps than the schedule of the rate was made for.
        """
        if self.draw_seed is None:
            self.draw_seed = torch.initial_seed()
        if self._cycle is not None and self._cycle_before is not None and self._cycle > self._cycle_before:
            raise CheckpointError(
                f"the rate follows one cycle over {self._cycle_before} steps, which the checkpoint is part of, and "
                f"this fit has {self._cycle} in all: resume with the same trainer.max_epochs, data.num_images and "
                "data.batch_size, give model.lr_scheduler from the start, or start a new run without --ckpt_path"
            )
        if self._restored is not None and self._restored.get("provenance") is None:
            self.provenance = None  # what was learnt before is in the weights
        self._learnt_undeclared = self.provenance is None

    def forward(self, images: Tensor) -> Tensor:
        """Features, (N, C, H, W) in [-1, 1] → (N, F)."""
        maps: Tensor = self.encoder(images.contiguous(memory_format=torch.channels_last))
        return maps.mean(dim=(2, 3))

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        """NT-Xent of two views of each image of a batch (B, C, H, W), uint8."""
        assert self.draw_seed is not None
        found = self._contrast(batch, stream(self.draw_seed, self.global_step, 0, "views"))
        self._log("train", found, rows=len(batch))
        return found.loss

    def _contrast(self, images: Tensor, generator: torch.Generator) -> Contrast:
        pixels = images.float() / 127.5 - 1
        views = random_views_of(torch.cat([pixels, pixels]), self.views, generator=generator)
        first, second = self.projection(self(views)).chunk(2)
        return contrast(first, second, temperature=self.temperature)

    def _log(self, part: str, found: Contrast, *, rows: int) -> None:
        shown = part != "train"
        figures = {"contrastive_loss": found.loss.detach(), "pair_accuracy": found.pair_accuracy}
        if shown:
            figures |= {"alignment": found.alignment, "uniformity": found.uniformity}
        for name, value in figures.items():
            self.log(f"{part}/{name}", value, on_step=False, on_epoch=True, batch_size=rows, prog_bar=shown)

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        """The same figures of held-out images, by the same views each time."""
        self._log("val", self._held_out(batch, batch_idx), rows=len(batch))

    def test_step(self, batch: Tensor, batch_idx: int) -> None:
        """As `validation_step`."""
        self._log("test", self._held_out(batch, batch_idx), rows=len(batch))

    def _held_out(self, batch: Tensor, number: int) -> Contrast:
        return self._contrast(batch, stream(0, number, 0, "held-out views"))

    @torch.no_grad()
    def figures(self, loader: Iterable[Tensor]) -> dict[str, float]:
        """What is measured of held-out images (B, C, H, W), for the record of the run."""
        training = self.training
        self.eval()
        totals: dict[str, float] = {}
        rows = 0
        for number, batch in enumerate(loader):
            for name, value in vars(self._held_out(batch.to(self.device), number)).items():
                totals[name] = totals.get(name, 0.0) + float(value) * len(batch)
            rows += len(batch)
        self.train(training)
        means = {name: total / max(1, rows) for name, total in totals.items()}
        return {"accuracy": means.pop("pair_accuracy"), **means}

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """One optimizer, one schedule."""
        optimizer = (
            torch.optim.AdamW(self.parameters(), lr=2e-3, weight_decay=0.01, fused=True)
            if self.optimizer_factory is None
            else self.optimizer_factory(self.parameters())
        )
        if self.scheduler_factory is not None:
            return {"optimizer": optimizer, "lr_scheduler": self.scheduler_factory(optimizer)}
        self._cycle = steps = int(self.trainer.estimated_stepping_batches)
        peaks = [group["lr"] for group in optimizer.param_groups]
        cycle = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=peaks, total_steps=max(2, steps), pct_start=0.1, cycle_momentum=False
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": cycle, "interval": "step"}}

    def on_train_batch_start(self, batch: Tensor, batch_idx: int) -> None:
        """Remembers where a step begins, to know one that was cut short."""
        self._step_before_batch = self.global_step

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds what was pretrained, and on what: all that a classifier needs to take it over, and to refuse it."""
        checkpoint[SECTION] = {
            **(self._restored or {}),
            **self._images,
            "provenance": self.provenance if self._images else (self._restored or {}).get("provenance"),
            "encoder": self._encoder_spec,
            "image_shape": list(self.image_shape),
            "views": asdict(self.views),
            "draw_seed": self.draw_seed,
            "steps": self.global_step if self._trainer is not None else None,
        }
        if self._trainer is not None and self.global_step == self._step_before_batch:
            take_back_unfinished_step(checkpoint)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Goes on with the seed and with what is declared.

        Raises:
            CheckpointError: It is of something else.
        """
        found = checkpoint.get(SECTION)
        if not isinstance(found, dict):
            raise CheckpointError(
                "the checkpoint is of no ProceduralPretraining: what its weights were computed from is not known"
            )
        self._restored = dict(found)
        self.draw_seed = found.get("draw_seed")
        if not self._images:  # else a fit goes on, and `setup` knows of what: the file speaks of what was before alone
            self.provenance = found.get("provenance")
        self._cycle_before = next((state.get("total_steps") for state in checkpoint.get("lr_schedulers", ())), None)
