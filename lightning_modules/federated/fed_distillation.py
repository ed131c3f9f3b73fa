"""FedDF, FedDAFL, FedADI and DENSE: distillation of the clients' ensemble at the server, by the terms that differ."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from lightning_modules.base import DataFreeDistillation
from lightning_modules.losses.functional import GeneratorLoss, kd, logits_and_statistics
from lightning_modules.losses.targets import Annotation
from lightning_modules.networks.classifiers import logits_and_features
from lightning_modules.networks.network import evaluating
from lightning_modules.teachers.private_teacher import PrivateEnsemble
from privacy.checks import check_choice, check_count, check_number, settings_of
from privacy.mechanisms import RawResponses

_PIXEL_RATE = 0.05
_REASON = "synthetic images were made against the clients' models"
_SERVER_HOLDS_MODELS = "the clients sent their models to the server, without noise: nothing protects them from it"


@dataclass(frozen=True, kw_only=True)
class ImageTerms:
    """Settings of the images' loss, besides the cross-entropy to the classes drawn for them, and of the turns.

    DENSE has L_CE + λ1 L_BN + λ2 L_div. FedADI has L_CE + α_f R_BN + α_tv R_TV + α_l2 R_l2 + α_c R_compete. A weight of
    0 switches a term off.

    Attributes:
        statistics_weight: λ1 or α_f, weight of the mean distance to the BatchNorm statistics of the clients' models.
            DENSE's published code sums over m clients, which is a weight m times as large.
        boundary_weight: λ2, weight of `boundary_support`: images that student and ensemble classify differently.
        competition_weight: α_c, weight of 1 minus the Jensen-Shannon divergence of student and ensemble.
        variation_weight: α_tv, weight of `total_variation`.
        norm_weight: α_l2, weight of the mean norm of an image.
        steps: Steps on one batch: of the generator (DENSE's T_G), or of Adam on its pixels.
        student_steps: Steps of the student before the next batch is made; 1 in DENSE's algorithm.
        pool_size: Number of newest images that the student draws from; DENSE's algorithm uses the last batch only, its
            published code all images.
    """

    statistics_weight: float = 1.0
    boundary_weight: float = 0.0
    competition_weight: float = 0.0
    variation_weight: float = 0.0
    norm_weight: float = 0.0
    steps: int = 30
    student_steps: int = 10
    pool_size: int = 50_000

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self) if field.name.endswith("_weight")):
            check_number(f"image_terms.{name}", getattr(self, name), least=0)
        for name in ("steps", "student_steps", "pool_size"):
            check_count(f"image_terms.{name}", getattr(self, name), minimum=1)


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
                raise ValueError(f"generator_loss needs no image_terms, and images.source generator, got {kind!r}")
            if weight := self.generator_criterion.student_loss_weight:
                raise ValueError(f"generator_loss.student_loss_weight must be 0: DAFL has no such term, got {weight}")
        allowed = ("prior", "generator") if self.terms is not None else ("prior", "generator", "both")
        check_choice("images.source", kind, allowed)
        #: The newest optimised images (n, C, H, W), the oldest first, in half precision on the CPU.
        self.pool = torch.empty(0, *self.image_shape, dtype=torch.float16)

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
                chosen = torch.randint(len(self.pool), (self.images.rows,), generator=draw)
                self.update_student(self.pool[chosen].to(self.device).float())
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
                self.update_generator(self.images.generate(latents), targets)
            images = self.draw_images(self.steps_done, latents)
        else:
            images = self.draw_images(self.steps_done, None).clone().requires_grad_()
            optimizer = torch.optim.Adam([images], lr=_PIXEL_RATE)
            with evaluating(self.student):
                for _ in range(terms.steps):
                    loss = self.image_loss(images, classes, terms)
                    (images.grad,) = torch.autograd.grad(loss, [images])
                    optimizer.step()
                    images.data.clamp_(-1, 1)
            self.log_in_step("train/image_loss", loss.detach())
        kept = torch.cat([self.pool, self.gather_rows(images).detach().cpu().half()])
        self.pool = kept[-terms.pool_size :].clone()  # a slice would keep the whole tensor

    def image_loss(self, images: torch.Tensor, classes: torch.Tensor, terms: ImageTerms) -> torch.Tensor:
        """Loss of images (N, C, H, W) with classes that were drawn for them, (N,) or one-hot (N, c)."""
        found = [
            logits_and_statistics(client, images) if terms.statistics_weight else (client(images), images.new_zeros(()))
            for client in self._clients()
        ]
        logits, statistics = (torch.stack(each).float().mean(dim=0) for each in zip(*found, strict=True))
        loss: torch.Tensor = F.cross_entropy(logits, classes) + terms.statistics_weight * statistics
        if terms.variation_weight:
            loss = loss + terms.variation_weight * total_variation(images)
        if terms.norm_weight:
            loss = loss + terms.norm_weight * torch.linalg.vector_norm(images.flatten(1), dim=1).mean()
        if terms.boundary_weight or terms.competition_weight:
            own = self.student(images).float()
            loss = loss + terms.competition_weight * (1 - jensen_shannon(logits, own))
            loss = loss - terms.boundary_weight * boundary_support(logits, own)
        return loss

    def generator_loss(self, images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """See `DataFreeDistillation`; with `image_terms`, targets are the classes that were drawn, one-hot."""
        if self.terms is not None:
            return self.image_loss(images, targets, self.terms)
        assert self.generator_criterion is not None
        found = [logits_and_features(client, images) for client in self._clients()]
        logits, features = zip(*found, strict=True)
        return self.generator_criterion.of(torch.stack(logits).float().mean(dim=0), torch.cat(features, dim=1).float())

    def _clients(self) -> list[nn.Module]:
        """Returns all clients' networks, in evaluation mode; charged once per run as an unbounded release."""
        return [self.unprotected_teacher(_REASON, teacher=client) for client in range(self.teacher.num_teachers)]

    def annotate(self, outputs: torch.Tensor, images: torch.Tensor) -> Annotation:
        """Softmax of the clients' mean logits for images (B, C, H, W): charged as B queries, released without noise."""
        assert isinstance(self.teacher, PrivateEnsemble)
        released = self.session.release(self.mechanism, self.teacher.each(images).mean(dim=0))
        return Annotation(F.softmax(released, dim=1))

    def synthetic_grid(self, count: int = 64) -> torch.Tensor:
        """The newest optimised images, shape (n, C, H, W) with n at most `count`; else images to start from."""
        kept = self.pool[-count:].float().to(self.device)
        return kept if len(kept) and self.generator is None else super().synthetic_grid(count)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint["image_pool"] = self.pool

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        self.pool = checkpoint["image_pool"]


def boundary_support(ensemble_logits: torch.Tensor, student_logits: torch.Tensor) -> torch.Tensor:
    """KL(ensemble || student) for logits (N, c) if the two classify an image differently, else 0; mean over images.

    DENSE's L_div is this with a minus sign: images between the two decision boundaries teach the student most.
    **Subtracted** from the generator's loss.
    """
    divergence = kd(student_logits, ensemble_logits)
    disagree = (ensemble_logits.argmax(1) != student_logits.argmax(1)).to(divergence.dtype)
    return (disagree * divergence).mean()


def jensen_shannon(first_logits: torch.Tensor, second_logits: torch.Tensor) -> torch.Tensor:
    """Jensen-Shannon divergence of two predictions, logits (N, c), over its largest value ln 2; batch mean, in [0, 1].

    Adaptive DeepInversion (Yin et al. 2020): 1 minus this is its R_compete. Their code differs: predictions have
    temperature 3, probabilities are kept in [0.01, 0.99], KL(middle || prediction) replaces KL(prediction || middle),
    and there is no division by ln 2.
    """
    first, second = (F.log_softmax(logits, 1) for logits in (first_logits, second_logits))
    middle = torch.logsumexp(torch.stack([first, second]), 0) - math.log(2)
    each = [(one.exp() * (one - middle)).sum(1) for one in (first, second)]
    return 0.5 * (each[0] + each[1]).mean() / math.log(2)


def total_variation(images: torch.Tensor) -> torch.Tensor:
    """Norm of the differences of neighbouring pixels, to the right, below and on both diagonals; mean over images.

    Images are (N, C, H, W), with at least 2 pixels per side. This is R_TV of Yin et al. 2020, whose code takes norms
    over the whole batch: √N times as much for N images of equal variation.
    """
    differences = (
        images[..., 1:] - images[..., :-1],
        images[..., 1:, :] - images[..., :-1, :],
        images[..., 1:, 1:] - images[..., :-1, :-1],
        images[..., 1:, :-1] - images[..., :-1, 1:],
    )
    norms = [torch.linalg.vector_norm(one.flatten(1), dim=1).mean() for one in differences]
    return torch.stack(norms).sum()
