"""B: discriminative-generative distillation (DGD): noisy votes on a few images, and all that can be had without asking.

Also its peers of B Fig. 7: DGD+ (Gaussian votes), PATE and PATE+ (a public pool, no VAE).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal, get_args

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import nn
from torch.nn import functional as F

from datamodules import ImageDataModule
from lightning_modules.base import DataFreeDistillation
from lightning_modules.functional.generator_terms import GeneratorTerms
from lightning_modules.functional.self_training import distort, pseudo_label_loss
from lightning_modules.functional.spread import spread_rows
from lightning_modules.functional.tangent_normal import entropy, feature_distance, find_directions
from lightning_modules.networks import ConvVAE, logits_and_features, logits_and_statistics
from lightning_modules.networks.batchnorm import frozen_statistics
from lightning_modules.networks.vae import negative_elbo, sample_codes
from lightning_modules.priors import ImagePrior
from lightning_modules.runtime.randomness import seeded, stream
from lightning_modules.runtime.runs import datamodule_of
from lightning_modules.teachers.private_ensemble import PrivateEnsemble
from lightning_modules.teachers.private_teacher import PrivateTeacher
from privacy.annotators.votes import VoteAnnotator
from privacy.mechanisms.vote_counts import REJECTED

__all__ = ["DGD", "Phase"]

Phase = Literal["generator", "vae", "query", "student"]
PHASES: tuple[Phase, ...] = get_args(Phase)
DGDImages = Literal["generator", "prior", "both", "pool"]

_BASELINE = "the generator was trained against a classifier that was fitted to all private data without privacy"
_POOL = "the pool that the student was trained on is the private data itself, as in the paper's comparison with PATE"


class DGD(DataFreeDistillation):
    """Ge et al., *Learning Privacy-Preserving Student Networks via Discriminative-Generative Distillation*.

    Four phases, which follow a counter of the module's own that checkpoints keep:

    1. *generator*: trained against a fixed baseline classifier (Eq. 2);
    2. *vae*: trained on synthetic images;
    3. *query*: N synthetic images are shown to the ensemble once, and their noisy votes kept (Eq. 3). A budget that is
       used up ends this phase, not the run;
    4. *student*, until the fit ends: cross-entropy on the queried labels (Eq. 5) with tangent, normal and entropy terms
       on the VAE's triples of ever new synthetic images (Eq. 6).

    Where the paper leaves a choice, or does not work (see also `docs/dgd.md`):

    - *The baseline* is fitted to all private data. What a generator that was trained against it reveals is bounded by
      nothing, however sound the votes: record-level ε is infinite, unless that baseline was trained by DP-SGD (then it
      **composes** with the votes), the baseline is `student`, or images come from a prior.
    - *The entropy term* of Eq. 6 as printed makes outputs uniform, contrary to its text: `entropy_term: determinate`
      has the other sign, `letter` is as printed.
    - *Normals* are found and added in image space, orthogonal to the tangent as the decoder shows it (TNAR); Eq. 4 adds
      both perturbations to the code, where no direction is normal to the manifold. Perturbed images are compared by the
      student's **features** (Eq. 6), while the divergence of its predictions finds the directions.
      `directions: random` takes B's "random perturbation noise" along them.
    - *Laplace noise on latent codes*, where ε₁ of the paper's theorem comes from, is `annotator.latent_epsilon`. At
      ε₁=0.01 its scale is 6400 on codes in [-1, 1]: decoded are random codes. It bounds nothing about a private record
      (`VoteAnnotator.perturb_latents`).
    - *Pseudo-labels* (`pseudo_label_weight`), plain and distorted images, distorted queries (`query_distortion`), and
      queries that are spread over the latent space (`query_selection`) are additions: they read released labels and
      synthetic images alone.

    Args:
        num_classes: See `DataFreeDistillation`.
        image_shape: See `DataFreeDistillation`.
        batch_size: B, images in each step of every phase.
        teacher: The ensemble's file, or networks (an `nn.ModuleList`) in a script.
        annotator: Mechanism, noise and budget of the votes. Default: `VoteAnnotator`, Laplace of scale 40.
        baseline: What the generator is trained against: the file of a private classifier, or `student`, which is free
            and is trained with the generator in turn. Needed where `images` asks for a generator.
        teacher_network: Builds one teacher where the ensemble's file does not say.
        baseline_network: Builds the baseline where its file holds nothing but weights.
        private_data: Public name of what ensemble and baseline were trained on, where their files do not say.
        student: See `DataFreeDistillation`.
        generator: See `DataFreeDistillation`.
        vae: Builds the VAE, called with `image_shape`. Default: `ConvVAE`, code of 32.
        images: Where images come from: `generator`, `prior`, `both`, or `pool`.
        prior: See `DataFreeDistillation`.
        pool: Images for `pool`: a data set that is declared to be public. Its labels are never read.
        pool_part: Part of it, `test` or `train`. The train part of the private data itself, which the paper takes to
            stand for public data, voids the guarantee.
        queries: N.
        query_selection: `random` images, or `spread`: those nearest to N centres of their codes in the VAE.
        query_candidates: Images that `spread` chooses each query from, on the average.
        generator_steps: Steps of the first phase; 0 leaves the generator as it is made.
        vae_steps: Steps of the second phase; 0 leaves the VAE and its terms out.
        one_hot_weight: See `GeneratorTerms`.
        balance_weight: α of Eq. 2, see `GeneratorTerms`.
        activation_weight: β of Eq. 2, see `GeneratorTerms`.
        statistics_weight: Weight of the distance to the baseline's BatchNorm statistics (A Eq. 2); none in B.
        tangent_weight: Of the tangent term of Eq. 6; 1 in B, where it drowned the labels of the digits.
        normal_weight: Of the normal term of Eq. 6; as above.
        entropy_weight: Of the entropy term of Eq. 6; as above.
        entropy_term: Its sign, see above.
        tangent_length: Length of a tangent, in the latent space.
        normal_length: Length of a normal, in image space.
        directions: `adversarial` or `random`, see above.
        pseudo_label_weight: Of the pseudo-label loss on distorted synthetic images.
        pseudo_label_threshold: Probability from which on a pseudo-label counts.
        distortion: Strength of these distortions.
        query_distortion: Strength of distortions of the queried images, anew in each step; none in B. The labels are
            few and noisy, and a network learns their noise (`docs/dgd.md`).
        student_optimizer: See `DataFreeDistillation`.
        student_lr_scheduler: See `DataFreeDistillation`; stepped in the student's phase alone.
        generator_optimizer: See `DataFreeDistillation`.
        generator_lr_scheduler: Stepped once for each step of the generator. Default: none.
        vae_optimizer: Default: Adam, rate 1e-3.

    Raises:
        ValueError: A setting that has no meaning.
    """

    paper: ClassVar[str] = "B"
    annotator: VoteAnnotator

    def __init__(
        self,
        *,
        num_classes: int,
        image_shape: tuple[int, int, int],
        batch_size: int,
        teacher: str | nn.ModuleList,
        annotator: VoteAnnotator | None = None,
        baseline: str | None = None,
        teacher_network: Callable[..., nn.Module] | None = None,
        baseline_network: Callable[..., nn.Module] | None = None,
        private_data: str | None = None,
        student: Callable[..., nn.Module] | None = None,
        generator: Callable[..., nn.Module] | None = None,
        vae: Callable[..., ConvVAE] | None = None,
        images: DGDImages = "generator",
        prior: ImagePrior | None = None,
        pool: ImageDataModule | None = None,
        pool_part: Literal["test", "train"] = "test",
        queries: int = 1000,
        query_selection: Literal["random", "spread"] = "random",
        query_candidates: int = 10,
        generator_steps: int = 200,
        vae_steps: int = 500,
        one_hot_weight: float = 1.0,
        balance_weight: float = 5.0,
        activation_weight: float = 0.1,
        statistics_weight: float = 0.0,
        tangent_weight: float = 0.01,
        normal_weight: float = 0.01,
        entropy_weight: float = 0.01,
        entropy_term: Literal["determinate", "letter"] = "determinate",
        tangent_length: float = 1.0,
        normal_length: float = 1.0,
        directions: Literal["adversarial", "random"] = "adversarial",
        pseudo_label_weight: float = 0.0,
        pseudo_label_threshold: float = 0.95,
        distortion: float = 0.2,
        query_distortion: float = 0.0,
        student_optimizer: OptimizerCallable | None = None,
        student_lr_scheduler: LRSchedulerCallable | None = None,
        generator_optimizer: OptimizerCallable | None = None,
        generator_lr_scheduler: LRSchedulerCallable | None = None,
        vae_optimizer: OptimizerCallable | None = None,
    ) -> None:
        if images not in get_args(DGDImages):
            raise ValueError(f"images must be one of {', '.join(get_args(DGDImages))}, got {images!r}")
        super().__init__(
            num_classes=num_classes,
            image_shape=image_shape,
            batch_size=batch_size,
            annotator=annotator or VoteAnnotator(),
            teacher=teacher,
            teacher_network=teacher_network,
            private_data=private_data,
            student=student,
            generator=generator,
            images=None if images == "pool" else images,
            prior=prior,
            student_optimizer=student_optimizer,
            student_lr_scheduler=student_lr_scheduler,
            generator_optimizer=generator_optimizer,
        )
        if not isinstance(self.annotator, VoteAnnotator):
            raise ValueError(f"annotator must be a VoteAnnotator, got {type(self.annotator).__name__}")
        for name, value, allowed in (
            ("pool_part", pool_part, ("test", "train")),
            ("query_selection", query_selection, ("random", "spread")),
            ("entropy_term", entropy_term, ("determinate", "letter")),
            ("directions", directions, ("adversarial", "random")),
        ):
            if value not in allowed:
                raise ValueError(f"{name} must be {' or '.join(allowed)}, got {value!r}")
        if (self.generator is not None) != (baseline is not None):
            raise ValueError(
                f"baseline must be the file of a classifier or 'student' for images='generator' or 'both', and null "
                f"for every other, got baseline={baseline!r} with images={images!r}"
            )
        if (pool is not None) != (images == "pool"):
            raise ValueError(f"pool must be given for images='pool', and for no other, got images={images!r}")
        if pool is not None and tuple(pool.image_shape) != self.image_shape:
            raise ValueError(f"pool must have images of shape {self.image_shape}, {pool.name} has {pool.image_shape}")
        for name, number, least in (
            ("queries", queries, 1),
            ("query_candidates", query_candidates, 1),
            ("generator_steps", generator_steps, 0),
            ("vae_steps", vae_steps, 0),
        ):
            if number < least:
                raise ValueError(f"{name} must be {least} or more, got {number}")
        for name, weight in (
            ("tangent_weight", tangent_weight),
            ("normal_weight", normal_weight),
            ("entropy_weight", entropy_weight),
            ("pseudo_label_weight", pseudo_label_weight),
            ("distortion", distortion),
            ("query_distortion", query_distortion),
        ):
            if weight < 0:
                raise ValueError(f"{name} must be 0 or more, got {weight}")
        if not (tangent_length > 0 and normal_length > 0):
            raise ValueError(
                f"tangent_length and normal_length must be positive, got {tangent_length} and {normal_length}"
            )
        if query_selection == "spread" and not vae_steps:
            raise ValueError("query_selection='spread' needs the codes of a VAE: vae_steps must be above 0")
        self.baseline = baseline
        self.baseline_network = baseline_network
        self.image_source: DGDImages = images
        self.pool, self.pool_part = pool, pool_part
        self.queries = queries
        self.query_selection, self.query_candidates = query_selection, query_candidates
        self.generator_steps = generator_steps if self.generator is not None else 0
        self.vae_steps = vae_steps
        self.generator_terms = GeneratorTerms(
            one_hot_weight=one_hot_weight, balance_weight=balance_weight, activation_weight=activation_weight
        )
        self.statistics_weight = statistics_weight
        self.tangent_weight, self.normal_weight, self.entropy_weight = tangent_weight, normal_weight, entropy_weight
        self.entropy_term = entropy_term
        self.tangent_length, self.normal_length = tangent_length, normal_length
        self.directions = directions
        self.pseudo_label_weight, self.pseudo_label_threshold = pseudo_label_weight, pseudo_label_threshold
        self.distortion, self.query_distortion = distortion, query_distortion
        self.generator_lr_scheduler_factory = generator_lr_scheduler
        self.vae_optimizer_factory = vae_optimizer
        self.vae = (vae or ConvVAE)(image_shape=self.image_shape) if vae_steps else None
        self.published_artefacts = (*self.published_artefacts, "noisy labels of the queried images")
        if self.vae is not None:
            self.published_artefacts = (*self.published_artefacts, "VAE")
        self._baseline: PrivateTeacher | None = None
        self._pool_images = torch.empty(0, *self.image_shape)
        self._pool_is_private = False
        #: Position in PHASES, and steps made in that phase.
        self.phase_index = self.phase_step = 0
        #: What is asked about, (N, C, H, W) in half precision, and the answers so far, (n,); -1 is none.
        self.query_images = torch.empty(0, *self.image_shape, dtype=torch.float16)
        self.query_labels = torch.empty(0, dtype=torch.int64)
        #: Of a pool, where in it these images lie: a checkpoint keeps no image that might be private.
        self.query_positions = torch.empty(0, dtype=torch.int64)

    @property
    def phase(self) -> Phase:
        """What the next step is part of."""
        return PHASES[self.phase_index]

    @property
    def teacher(self) -> PrivateEnsemble:
        """The private ensemble, while a fit runs; see `DataFreeDistillation.teacher`."""
        teacher = super().teacher
        assert isinstance(teacher, PrivateEnsemble)
        return teacher

    def setup(self, stage: str) -> None:
        """Loads ensemble, baseline and pool for a fit, before any other work.

        Raises:
            TeacherError: A file is missing or unusable.
            ValueError: Ensemble and baseline are of different private data, or the pool has too few images.
        """
        if stage != "fit" or self._teacher is not None:
            return
        ensemble = self.load_ensemble()
        if self.generator_steps and self.baseline not in (None, "student"):
            self._baseline = self._load_baseline(ensemble.private_data)
        if self.pool is not None:
            self._open_pool(self.pool)
            # A name that was given by hand must not make the private data public.
            private = {ensemble.private_data, getattr(datamodule_of(self.trainer), "private_data", None)}
            self._pool_is_private = self.pool_part == "train" and self.pool.private_data in private
        self._teacher = ensemble

    def _load_baseline(self, private_data: str) -> PrivateTeacher:
        assert self.baseline is not None
        baseline = PrivateTeacher.load(
            self.baseline,
            num_classes=self.num_classes,
            image_shape=self.image_shape,
            network=self.baseline_network,
            private_data=self._teacher_source[2],
        )
        if baseline.private_data != private_data:
            raise ValueError(
                f"teacher is of {private_data!r} and baseline of {baseline.private_data!r}: what they cost together is "
                "known for one private data set alone. Set private_data where both are of it"
            )
        return baseline

    def _open_pool(self, pool: ImageDataModule) -> None:
        if pool.download:
            pool.fetch(self.pool_part)
        pool.setup("fit" if self.pool_part == "train" else "test")
        records = pool.train_records if self.pool_part == "train" else pool.test_records
        self._pool_images = records.__getitems__(range(len(records)))[0]
        if len(self._pool_images) < self.queries:
            raise ValueError(f"queries must be at most the {len(records)} images of the pool, got {self.queries}")

    def on_fit_start(self) -> None:
        """Opens the ledger, charges what is used besides votes, and refuses a budget in which no query fits."""
        super().on_fit_start()
        if self._baseline is not None:
            self._unprotected_baseline()
        if self._pool_is_private:
            # Of no training at all: no teacher's guarantee covers what was never its own.
            self.annotator.reveal_records(_POOL)
        if not len(self.query_labels) and self.phase != "student":
            self.annotator.require_affordable()
        self._enter_next_phase()

    def on_train_start(self) -> None:
        """Fixes how many queries this run plans, before its first: the guarantee is about the plan."""
        self._fix_plan()
        left = self.trainer.num_training_batches * (self.trainer.max_epochs or 0) - self.steps_done
        needed = self.steps_before_student
        if self.trainer.max_epochs not in (None, -1) and left <= needed:
            rank_zero_warn(
                f"{left:g} steps are left in this fit, and {needed} are needed before the student's first: it will "
                "learn nothing. Raise trainer.max_epochs or data.steps_per_epoch"
            )

    @property
    def steps_before_student(self) -> int:
        """Steps that generator, VAE and queries have yet to make, unless a budget ends the queries early."""
        lengths = {
            "generator": self.generator_steps,
            "vae": self.vae_steps,
            "query": math.ceil((self.queries - len(self.query_labels)) / self.batch_size),
            "student": 0,
        }
        # The query phase's own steps are in how many labels there are.
        own = self.phase_step if self.phase in ("generator", "vae") else 0
        return sum(lengths[phase] for phase in PHASES[self.phase_index :]) - own

    def _fix_plan(self) -> None:
        made = self.annotator.calls_made()
        left = 0 if self.phase == "student" else self.queries - len(self.query_labels)
        # How far a target carries confident votes depends on their answers: the plan is all of them.
        confident = self.annotator.mechanism == "confident"
        plan = made + (left if confident else self.annotator.affordable(limit=left) if left else 0)
        before = self.planned_calls
        if made and (before is None or plan > before):
            self.plan_changed = True
        elif made and before is not None:
            # Whoever resumes for fewer queries may have seen what the first ones gave: the first plan stays.
            plan = before
        self.planned_calls = plan

    def calls_of(self, steps: int) -> int:
        """See `DataFreeDistillation.calls_of`: a call is one query."""
        return self.queries if steps else 0

    @property
    def next_calls(self) -> int:
        """Queries of the next step, as far as the budget allows them; 0 outside of their phase."""
        if self.phase != "query":
            return 0
        left = min(self.batch_size, self.queries - len(self.query_labels))
        return self.annotator.affordable(limit=left) if left > 0 else 0

    def training_step(self, batch: int, batch_idx: int) -> None:
        """One step of the phase that the counter stands at."""
        assert self.draw_seed is not None
        with seeded(self.draw_seed, self.steps_done, self.global_rank, self.device):
            if self.phase == "generator":
                self.generator_step()
            elif self.phase == "vae":
                self.vae_step()
            elif self.phase == "query":
                self.query_step()
            else:
                self.student_step()
        self.log_privacy()
        self.steps_done += 1
        self.phase_step += 1
        self._enter_next_phase()

    def _enter_next_phase(self) -> None:
        while self._phase_is_over():
            if self.phase == "query":
                self._report_queries()
            self.phase_index += 1
            self.phase_step = 0

    def _phase_is_over(self) -> bool:
        if self.phase == "generator":
            return self.phase_step >= self.generator_steps
        if self.phase == "vae":
            return self.phase_step >= self.vae_steps
        return self.phase == "query" and self.next_calls == 0

    def _report_queries(self) -> None:
        asked = len(self.query_labels)
        if asked < self.queries:
            rank_zero_info(f"The budget ended the queries after {asked} of {self.queries}; the student goes on.")

    def generator_step(self) -> None:
        """Eq. 2: one step of the generator against the baseline."""
        latents = self.draw_latents(self.steps_done)
        assert latents is not None
        self.update_generator(latents, torch.empty(0, self.num_classes, device=self.device))
        self._step_scheduler("generator")

    def generator_loss(self, images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """See `DataFreeDistillation.generator_loss`; no targets are used."""
        if self._baseline is None:
            return self.generator_terms(self.student, images)[0]
        # Charged once in a run, when the fit began.
        baseline = self._unprotected_baseline().to(images.device)
        loss, _ = self.generator_terms(baseline, images)
        if self.statistics_weight:
            loss = loss + self.statistics_weight * logits_and_statistics(baseline, images)[1]
        return loss

    def _unprotected_baseline(self) -> nn.Module:
        assert self._baseline is not None
        return self._baseline.unprotected(self.annotator, reason=_BASELINE)

    def vae_step(self) -> None:
        """One step of the VAE on synthetic images."""
        assert self.vae is not None and self.draw_seed is not None
        images = self.draw_images(self.steps_done, self.draw_latents(self.steps_done))
        optimizer = self._optimizers()[-1]
        with self.toggled_optimizer(optimizer):
            loss = negative_elbo(*_first(self.vae(images), images)).mean()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        self.log("train/vae_loss", loss.detach())

    def query_step(self) -> None:
        """Eq. 3: as many queries as a step has images, asked once and kept."""
        if not len(self.query_images):
            self.query_images = self.choose_queries().half().cpu()
        asked = len(self.query_labels)
        images = self.query_images[asked : asked + self.next_calls].to(self.device).float()
        labels = self.annotator.annotate(self.teacher.votes(images))
        self.query_labels = torch.cat([self.query_labels, labels.cpu()])
        # Lightning writes no checkpoint where its count of optimizer steps has not moved, and these labels are paid
        # for. Without gradients the step changes nothing.
        optimizer = self._optimizers()[0]
        optimizer.zero_grad()
        optimizer.step()

    @torch.no_grad()
    def choose_queries(self) -> torch.Tensor:
        """N images to ask about, (N, C, H, W), chosen without the ensemble."""
        assert self.draw_seed is not None
        draw = stream(self.draw_seed, 0, self.global_rank, "queries")
        spread = self.query_selection == "spread"
        wanted = self.queries * (self.query_candidates if spread else 1)
        if self.image_source == "pool":
            self.query_positions = torch.randperm(len(self._pool_images), generator=draw)[:wanted]
            candidates = self._pool_images[self.query_positions]
        else:
            parts: list[torch.Tensor] = []
            while sum(map(len, parts)) < wanted:
                # Steps below 0 are of no training step.
                step = -1 - len(parts)
                with frozen_statistics(self):
                    parts.append(self.draw_images(step, self.draw_latents(step)).cpu())
            candidates = torch.cat(parts)
            candidates = candidates[torch.randperm(len(candidates), generator=draw)[:wanted]]
        if not spread:
            return candidates
        assert self.vae is not None
        self.vae.eval()
        codes = torch.cat([self.vae.encode(rows.to(self.device))[0].cpu() for rows in candidates.split(512)])
        chosen = spread_rows(codes, count=self.queries, draw=draw)
        if self.image_source == "pool":
            self.query_positions = self.query_positions[chosen]
        return candidates[chosen]

    def student_step(self) -> None:
        """Eq. 1: supervised energy of the queries plus unsupervised energy of synthetic images."""
        latents = self.draw_latents(self.steps_done)
        images = self.draw_images(self.steps_done, latents)
        optimizer = self._optimizers()[0]
        with self.toggled_optimizer(optimizer):
            loss = self.supervised_loss(images)
            if self.vae is not None and (self.tangent_weight or self.normal_weight or self.entropy_weight):
                loss = loss + self.triple_loss(images)
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        self._step_scheduler("student")
        self.log("train/student_loss", loss.detach())
        if self.baseline == "student" and latents is not None:
            self.update_generator(latents, torch.empty(0, self.num_classes, device=self.device))

    def supervised_loss(self, images: torch.Tensor) -> torch.Tensor:
        """Eq. 5 on a batch of queries, and the pseudo-label loss on synthetic images (B, C, H, W).

        Both go through the student in one batch, so that BatchNorm sees the same statistics for both.
        """
        assert self.draw_seed is not None
        draw = stream(self.draw_seed, self.steps_done, self.global_rank, "student")
        answered = torch.nonzero(self.query_labels != REJECTED)[:, 0]
        rows = (
            answered[torch.randint(max(1, len(answered)), (self.batch_size,), generator=draw)]
            if len(answered)
            else answered
        )
        labelled = self.query_images[rows].to(self.device).float()
        if len(rows) and self.query_distortion:
            labelled = distort(labelled, strength=self.query_distortion, draw=draw)
        labels = self.query_labels[rows].to(self.device)
        parts = [labelled] if len(rows) else []
        guide = None
        if self.pseudo_label_weight:
            guide = self._eval_logits(images)
            parts.append(distort(images, strength=self.distortion, draw=draw))
        loss = torch.zeros((), device=self.device)
        if not parts:
            return loss + 0 * sum(parameter.sum() for parameter in self.student.parameters())
        logits = self.student(torch.cat(parts)).float()
        if len(rows):
            loss = loss + F.cross_entropy(logits[: len(rows)], labels)
        if guide is not None:
            loss = loss + self.pseudo_label_weight * pseudo_label_loss(
                logits[len(rows) :], guide, threshold=self.pseudo_label_threshold
            )
        return loss

    @torch.no_grad()
    def _eval_logits(self, images: torch.Tensor) -> torch.Tensor:
        training = self.student.training
        self.student.eval()
        logits: torch.Tensor = self.student(images).float()
        self.student.train(training)
        return logits

    def triple_loss(self, images: torch.Tensor) -> torch.Tensor:
        """Eq. 6 on the triples of synthetic images (B, C, H, W)."""
        assert self.vae is not None and self.draw_seed is not None
        draw = stream(self.draw_seed, self.steps_done, self.global_rank, "triples")
        self.vae.eval()
        training = self.student.training
        self.student.eval()
        with torch.no_grad():
            codes = self.annotator.perturb_latents(sample_codes(*self.vae.encode(images), draw=draw))
        found = find_directions(
            self.student,
            self.vae.decode,
            codes,
            tangent_length=self.tangent_length,
            normal_length=self.normal_length,
            draw=draw,
            adversarial=self.directions == "adversarial",
        )
        self.student.train(training)
        with torch.no_grad():
            plain = self.vae.decode(codes)
        with frozen_statistics(self.student):
            triples = torch.cat([plain, plain + found.displacement, plain + found.normal])
            logits, features = logits_and_features(self.student, triples)
        own, along, across = features.float().chunk(3)
        uncertainty = entropy(logits[: len(plain)].float())
        return (
            self.tangent_weight * feature_distance(own, along)
            + self.normal_weight * feature_distance(own, across)
            + self.entropy_weight * (uncertainty if self.entropy_term == "determinate" else -uncertainty)
        )

    @torch.no_grad()
    def draw_images(self, step: int, latents: torch.Tensor | None) -> torch.Tensor:
        """See `DataFreeDistillation.draw_images`; of a pool, a batch drawn with replacement."""
        if self.image_source != "pool":
            return super().draw_images(step, latents)
        assert self.draw_seed is not None
        draw = stream(self.draw_seed, step, self.global_rank, "pool")
        rows = torch.randint(len(self._pool_images), (self.batch_size,), generator=draw)
        return self._pool_images[rows].to(self.device)

    @torch.no_grad()
    def synthetic_grid(self, count: int = 64) -> torch.Tensor:
        """See `DataFreeDistillation.synthetic_grid`; of a pool, images decoded from random codes."""
        if self.image_source != "pool":
            return super().synthetic_grid(count)
        if self.vae is None:
            # Images of a private pool are private records: never drawn.
            return self._pool_images[: 0 if self._pool_is_private else count]
        draw = stream(self.draw_seed or 0, 0, 0, "grid")
        self.vae.eval()
        return self.vae.decode(torch.randn(count, self.vae.latent_dim, generator=draw).to(self.device))

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """The student's optimizer, the generator's if there is one, and last the VAE's if there is one."""
        optimizers = [(self.student_optimizer_factory or _adam)(self.student.parameters())]
        schedulers: list[Any] = []
        self._schedulers: list[str] = []
        if self.student_lr_scheduler_factory is not None:
            schedulers.append(self.student_lr_scheduler_factory(optimizers[0]))
            self._schedulers.append("student")
        if self.generator is not None:
            optimizers.append((self.generator_optimizer_factory or _adam)(self.generator_parameters()))
            if self.generator_lr_scheduler_factory is not None:
                schedulers.append(self.generator_lr_scheduler_factory(optimizers[1]))
                self._schedulers.append("generator")
        if self.vae is not None:
            optimizers.append((self.vae_optimizer_factory or _adam)(self.vae.parameters()))
        return optimizers, schedulers

    def _step_scheduler(self, name: str) -> None:
        schedulers = self.lr_schedulers()
        listed = schedulers if isinstance(schedulers, list) else [schedulers]
        if name in self._schedulers:
            scheduler = listed[self._schedulers.index(name)]
            assert isinstance(scheduler, torch.optim.lr_scheduler.LRScheduler)
            scheduler.step()

    def published_networks(self) -> dict[str, nn.Module]:
        """See `DataFreeDistillation.published_networks`."""
        return {**super().published_networks(), **({} if self.vae is None else {"vae": self.vae})}

    def assumptions(self) -> list[str]:
        """See `DataFreeDistillation.assumptions`."""
        notes = ["teachers of different shards share nothing, and a record's stable id alone decides its shard"]
        if self.pool is not None and not self._pool_is_private:
            notes.append(
                f"the pool of unlabelled images, the {self.pool_part} part of {self.pool.name}, is public and was "
                "there without the private data"
            )
        if self._baseline is not None:
            notes.append("releases of the baseline's own training compose with the votes")
        return notes

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """With the phase, and the queries with their labels, which a resumed run must not draw again."""
        super().on_save_checkpoint(checkpoint)
        checkpoint["dgd"] = {
            "phase": self.phase_index,
            "phase_step": self.phase_step,
            "query_images": self.query_images[: 0 if self.image_source == "pool" else None],
            "query_positions": self.query_positions,
            "query_labels": self.query_labels,
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Inverse of `on_save_checkpoint`.

        Raises:
            ValueError: The pool is not the one that the queries were chosen from.
        """
        super().on_load_checkpoint(checkpoint)
        state = checkpoint["dgd"]
        self.phase_index, self.phase_step = int(state["phase"]), int(state["phase_step"])
        self.query_images, self.query_labels = state["query_images"], state["query_labels"]
        self.query_positions = state.get("query_positions", self.query_positions)
        # Outside of a fit the pool is not open, and nothing asks for its images.
        if len(self.query_positions) and len(self._pool_images):
            if int(self.query_positions.max()) >= len(self._pool_images):
                raise ValueError(
                    f"pool has {len(self._pool_images)} images, and the checkpoint's queries are of a larger one: "
                    "resume with the same pool"
                )
            self.query_images = self._pool_images[self.query_positions].half()


def _first(made: tuple[torch.Tensor, ...], images: torch.Tensor) -> tuple[torch.Tensor, ...]:
    reconstructions, mean, log_variance = made
    return reconstructions, images, mean, log_variance


def _adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-3)
