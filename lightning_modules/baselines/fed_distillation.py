"""FedDF, FedDAFL, FedADI and DENSE: distillation of the clients' ensemble at the server, by the terms that differ."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from lightning_modules.base import DataFreeDistillation
from lightning_modules.baselines.image_terms import ImagePool, ImageTerms
from lightning_modules.losses.generator import GeneratorLoss
from lightning_modules.losses.targets import Annotation
from lightning_modules.networks.batchnorm import evaluating, logits_and_statistics
from lightning_modules.networks.classifiers import logits_and_features
from lightning_modules.runtime.hyperparameters import settings_of
from lightning_modules.setting_checks import check_choice
from lightning_modules.teachers.private_teacher import PrivateEnsemble
from privacy.mechanisms import RawResponses

_PIXEL_RATE = 0.05
_REASON = "synthetic images were made against the clients' models"
_SERVER_HOLDS_MODELS = "the clients sent their models to the server, without noise: nothing protects them from it"


class FedDistillation(DataFreeDistillation):
    """Trains the student by KL on the mean logits of the clients' models; methods differ in their images.

    The ensemble is the mean of the clients' logits (AVGLOGITS of Lin et al. 2020, and DENSE).

    - FedDF (Lin et al. 2020): unlabelled images of a prior, or of an untrained generator.
    - FedDAFL (Chen et al. 2019): in each step a generator is trained against the ensemble as well, by `generator_loss`.
    - FedADI (Yin et al. 2020) and DENSE (Zhang et al. 2022): in turns, `image_terms.steps` on one batch of images
      against the ensemble, with classes drawn for them, then `image_terms.student_steps` of the student on images made
      so far. FedADI optimises the pixels of `images.source: prior`, kept in [-1, 1]; DENSE trains a generator.

    `docs/federated.md` lists the omissions for each method.

    **No privacy**: the server has the clients' models, and record-level ε is infinite.

    Args:
        mechanism: What clients release. Default: `RawResponses`.
        generator_loss: DAFL's terms for the clients' models; null trains no generator in each step. Weights of 1, 5 and
            0.1 are the published code's, whose entropy has decimal logarithms: a weight 0.434 times as large.
        image_terms: Loss for optimising images in turns with the student; null draws new images in each step.
        **shared: See `DataFreeDistillation`.
    """

    unused = ("images.pool", "student.replay")
    mechanisms = (RawResponses,)
    of_ensemble = True
    mechanism: RawResponses

    def __init__(
        self,
        *,
        mechanism: RawResponses = RawResponses(),
        generator_loss: GeneratorLoss | None = None,
        image_terms: ImageTerms | None = None,
        **shared: Any,
    ) -> None:
        super().__init__(mechanism=mechanism, **shared)
        self.generator_criterion = generator_loss and settings_of(GeneratorLoss, generator_loss, name="generator_loss")
        self.terms = image_terms and settings_of(ImageTerms, image_terms, name="image_terms")
        kind = self.images.kind
        if self.generator_criterion is not None:
            if self.terms is not None or kind != "generator":
                raise ValueError(
                    f"generator_loss needs images.source generator and no image_terms, got {kind!r}"
                    f"{'' if self.terms is None else ' and image_terms'}"
                )
            if weight := self.generator_criterion.student_loss_weight:
                raise ValueError(f"generator_loss.student_loss_weight must be 0: DAFL has no such term, got {weight}")
        allowed = ("prior", "generator") if self.terms is not None else ("prior", "generator", "both")
        check_choice("images.source", kind, allowed)
        self.pool = ImagePool(most=0 if self.terms is None else self.terms.pool_size, image_shape=self.image_shape)

    @property
    def needs_gradients_of_teacher(self) -> str | None:
        return None if self.terms is None and self.generator_criterion is None else _REASON

    def assumptions(self) -> list[str]:
        return [_SERVER_HOLDS_MODELS]

    def training_step(self, batch: int, batch_idx: int) -> None:
        """One student step, with the steps of the images before or after it. `batch` is only a step index."""
        with self.draws.seeded(self.steps_done):
            if self.terms is not None:
                if self.steps_done % self.terms.student_steps == 0:
                    self.make_images(self.terms)
                draw = self.draws.stream(self.steps_done, "pool")
                self.update_student(self.pool.draw(self.images.rows, generator=draw, device=self.device))
            else:
                latents = self.draw_latents(self.steps_done)
                images = self.draw_images(self.steps_done, latents)
                targets = self.update_student(images)
                if self.generator_criterion is not None:
                    self.update_generator(images, targets)
        self.steps_done += 1

    def logged_names(self) -> set[str]:
        return super().logged_names() | ({"train/image_loss"} if self.terms and self.generator is None else set())

    def make_images(self, terms: ImageTerms) -> None:
        """Optimises one batch of images, by their generator or by themselves, and keeps it."""
        latents = self.draw_latents(self.steps_done)
        draw = self.draws.stream(self.steps_done, "classes")
        classes = torch.randint(self.num_classes, (self.images.rows,), generator=draw).to(self.device)
        if latents is not None:
            targets = F.one_hot(classes, self.num_classes).float()
            for _ in range(terms.steps):
                self.update_generator(self.generate(latents), targets)
            self.pool.add(self.gather_rows(self.draw_images(self.steps_done, latents)))
            return
        images = self.draw_images(self.steps_done, None).clone().requires_grad_()
        optimizer = torch.optim.Adam([images], lr=_PIXEL_RATE)
        with evaluating(self.student):
            for _ in range(terms.steps):
                loss = self.image_loss(images, classes, terms)
                (images.grad,) = torch.autograd.grad(loss, [images])
                optimizer.step()
                images.data.clamp_(-1, 1)
        self.log_in_step("train/image_loss", loss.detach())
        self.pool.add(self.gather_rows(images))

    def image_loss(self, images: torch.Tensor, classes: torch.Tensor, terms: ImageTerms) -> torch.Tensor:
        """Loss of images (N, C, H, W) with classes that were drawn for them, (N,) or one-hot (N, c)."""
        found = [
            logits_and_statistics(client, images) if terms.statistics_weight else (client(images), images.new_zeros(()))
            for client in self._clients()
        ]
        logits, statistics = (torch.stack(each).float().mean(dim=0) for each in zip(*found, strict=True))
        loss = F.cross_entropy(logits, classes) + terms.statistics_weight * statistics + terms.of_pixels(images)
        if terms.boundary_weight or terms.competition_weight:
            loss = loss + terms.of_student(logits, self.student(images).float())
        total: torch.Tensor = loss
        return total

    def generator_loss(self, images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """See `DataFreeDistillation`; with `image_terms`, targets are the classes that were drawn, one-hot."""
        if self.terms is not None:
            return self.image_loss(images, targets, self.terms)
        assert self.generator_criterion is not None
        found = [logits_and_features(client, images) for client in self._clients()]
        logits, features = zip(*found, strict=True)
        return self.generator_criterion.of(torch.stack(logits).float().mean(dim=0), torch.cat(features, dim=1).float())

    def _clients(self) -> list[nn.Module]:
        """Return all clients' networks, in evaluation mode; charged once per run as an unbounded release."""
        return [
            self.teacher.unprotected(self.session, reason=_REASON, teacher=client).to(self.device)
            for client in range(self.teacher.num_teachers)
        ]

    def annotate(self, outputs: torch.Tensor, images: torch.Tensor) -> Annotation:
        """Softmax of the clients' mean logits for images (B, C, H, W): charged as B queries, released without noise."""
        assert isinstance(self.teacher, PrivateEnsemble)
        released = self.session.release(self.mechanism, self.teacher.each(images).mean(dim=0))
        return Annotation(F.softmax(released, dim=1))

    def synthetic_grid(self, count: int = 64) -> torch.Tensor:
        """The newest optimised images, shape (n, C, H, W) with n at most `count`; else images to start from."""
        kept = self.pool.images[-count:].float().to(self.device)
        return kept if len(kept) and self.generator is None else super().synthetic_grid(count)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint["image_pool"] = self.pool.images

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        self.pool.images = checkpoint["image_pool"]
