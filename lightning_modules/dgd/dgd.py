"""DGD, discriminative-generative distillation: noisy votes on a few images, and unsupervised terms that cost nothing.

Also the baselines of its Fig. 7: DGD+ (Gaussian votes), PATE and PATE+ (a public pool, no VAE).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar, Literal, get_args

import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import nn
from torch.nn import functional as F

from lightning_modules.base import DataFreeDistillation
from lightning_modules.dgd.phases import GeneratorPhase, QueryPhase, StudentPhase, VAEPhase
from lightning_modules.dgd.queries import QuerySet, balanced_quotas, confident_samples
from lightning_modules.dgd.tangent_normal import TangentNormalLoss, distort
from lightning_modules.images import PoolSource
from lightning_modules.networks import ConvVAE
from lightning_modules.networks.generators import negative_elbo, sample_codes
from lightning_modules.networks.network import VAECallable, built, evaluating, frozen_statistics, network_of
from lightning_modules.teachers.config import TeacherConfig
from lightning_modules.teachers.private_teacher import PrivateEnsemble, PrivateModel
from lightning_modules.training.manual_optimization import OptimizedGroup
from lightning_modules.training.randomness import stream
from lightning_modules.training.run import share_of
from privacy.checks import check_choice, settings_of
from privacy.ledger import RECORDS
from privacy.mechanisms import NoisyVotes
from privacy.processes import by_all

Phase = Literal["generator", "vae", "query", "student"]
PHASES: tuple[Phase, ...] = get_args(Phase)

_BASELINE = "the generator was trained against a classifier that was fitted to all private data without privacy"
_POOL = "the pool that the student was trained on is the private data itself, as in the paper's comparison with PATE"


class DGD(DataFreeDistillation):
    """Ge et al., *Learning Privacy-Preserving Student Networks via Discriminative-Generative Distillation*, TIP 2023.

    Four phases follow a counter that checkpoints keep; see `training_step`. Queries in several rounds
    (`query_phase.rounds`) alternate with student steps. A budget that is used up ends the queries, not the run. Where
    the paper leaves a choice, or does not work (see `docs/dgd.md`):

    - *The baseline* is fitted to all private data. Nothing bounds what a generator trained against it reveals, however
      sound the votes: record-level ε is infinite, unless that baseline was trained by DP-SGD (then it **composes** with
      the votes), the baseline is `student`, or images come from a prior.
    - *The entropy term* of Eq. 6 as printed makes outputs uniform, contrary to its text.
    - *Normals* are found and added in image space, orthogonal to the decoder's tangent (TNAR); Eq. 4 adds both
      perturbations to the code (`tangent_normal.normals`), where no direction is normal to the manifold. Perturbed
      images are compared by the student's **features** (Eq. 6), while the divergence of its predictions finds the
      directions.
    - *Laplace noise on latent codes*, the source of ε₁ in the paper's theorem, is `mechanism.latent_epsilon`. At
      ε₁=0.01 its scale is 6400 on codes in [-1, 1], so that the decoder sees random codes. It bounds nothing about a
      private record (`NoisyVotes.perturb_latents`).
    - *Additions* that read only released labels and synthetic images: distorted queries (`student_phase`), and queries
      that the student of earlier rounds is sure of (`query_phase.selection`).

    Args:
        mechanism: The noise on the votes. Default: `NoisyVotes`, Laplace of scale 40.
        generator_phase: Training of the generator against a fixed classifier.
        vae_phase: Training of the variational autoencoder on synthetic images.
        query_phase: The queries to the ensemble.
        student_phase: How the student learns the queried labels.
        tangent_normal: The student's terms on the VAE's triples.
        **shared: See `DataFreeDistillation`.
    """

    paper: ClassVar[str] = "DGD"
    unused = ("student.balance", "student.replay", "images.reset_every")
    takes_private_pool = True
    mechanisms = (NoisyVotes,)
    of_ensemble = True
    mechanism: NoisyVotes

    def training_step(self, batch: int, batch_idx: int) -> None:
        """One step of the current phase. `batch` is only a step index."""
        with self.draws.seeded(self.steps_done):
            latents = self.draw_latents(self.steps_done)
            if self.phase == "generator":  # Eq. 2
                self.update_generator(self.images.generate(latents))
            elif self.phase == "vae":
                self.update_vae(self.draw_images(self.steps_done, latents).detach())
            elif self.phase == "query":  # Eq. 3
                self.query_ensemble()
            else:  # Eq. 1: the supervised energy of the queries plus the unsupervised energy of synthetic images
                loss = self.supervised_loss()  # Eq. 5
                if self.vae is not None and self.tangent_normal.switched_on:
                    images = self.draw_images(self.steps_done, latents).detach()
                    loss = loss + self.tangent_normal_loss(self.vae, images)  # Eq. 6
                self.step_student(loss)
                if self.generator_phase.baseline == "student" and latents is not None:
                    self.update_generator(self.images.generate(latents), scheduled=False)
        self.steps_done += 1
        self.phase_step += 1
        self._enter_next_phase()

    def __init__(
        self,
        *,
        mechanism: NoisyVotes = NoisyVotes(),
        generator_phase: GeneratorPhase = GeneratorPhase(),
        vae_phase: VAEPhase = VAEPhase(),
        query_phase: QueryPhase = QueryPhase(),
        student_phase: StudentPhase = StudentPhase(),
        tangent_normal: TangentNormalLoss = TangentNormalLoss(),
        **shared: Any,
    ) -> None:
        super().__init__(mechanism=mechanism, **shared)
        self.generator_phase = settings_of(GeneratorPhase, generator_phase, name="generator_phase")
        self.vae_phase = settings_of(VAEPhase, vae_phase, name="vae_phase")
        self.query_phase = settings_of(QueryPhase, query_phase, name="query_phase")
        self.student_phase = settings_of(StudentPhase, student_phase, name="student_phase")
        self.tangent_normal = settings_of(TangentNormalLoss, tangent_normal, name="tangent_normal")
        check_choice("images.source", self.images.kind, ("generator", "prior", "both", "pool"))
        baseline = self.generator_phase.baseline
        if (self.generator is not None) != (baseline is not None):
            raise ValueError(
                f"generator_phase.baseline must be the file of a classifier or 'student' for images.source='generator' "
                f"or 'both', and null for every other, got {baseline!r} with images.source={self.images.kind!r}"
            )
        self.vae: ConvVAE | None = None
        if self.vae_phase.steps:
            network = network_of(self.vae_phase.network, VAECallable)
            self.vae = built(network, self.image_shape, name="model.vae_phase.network")
        self.covered_artefacts += ("noisy labels of the queried images", *(["VAE"] if self.vae is not None else []))
        self._baseline: PrivateModel | None = None
        #: Number of steps of the phases of fixed length.
        generating = 0 if self.generator is None else self.generator_phase.steps
        self._lengths: dict[Phase, int] = {"generator": generating, "vae": self.vae_phase.steps}
        #: Position in PHASES, and steps made in that phase.
        self.phase_index = self.phase_step = 0
        self.query_set = QuerySet(self.image_shape)

    # --- the phases ---

    @property
    def phase(self) -> Phase:
        """Phase that the next step belongs to."""
        return PHASES[self.phase_index]

    def _enter_next_phase(self) -> None:
        while self._phase_is_over():
            queried, queries = len(self.query_set), self.query_phase.queries
            if self.phase == "query" and queried < queries and not self.session.affordable(limit=1):
                rank_zero_info(f"The budget ended the queries after {queried} of {queries}; the student goes on.")
            self.phase_index += -1 if self.phase == "student" else 1  # from the student back to the next round
            self.phase_step = 0

    def _phase_is_over(self) -> bool:
        if self.phase in self._lengths:
            return self.phase_step >= self._lengths[self.phase]
        if self.phase == "query":  # a round that is to begin has made no step
            return self.next_calls == 0 or (self.phase_step > 0 and len(self.query_set) in self._round_ends)
        # Checked at that step only, and not at each one once the budget has ended the queries.
        turn_is_over = self._is_between_rounds and self.phase_step == self.query_phase.steps_between
        return turn_is_over and self.session.affordable(limit=1) > 0

    @property
    def _is_between_rounds(self) -> bool:
        """Whether more rounds of queries follow these student steps, unless a budget has ended them."""
        settings = self.query_phase
        return (
            self.phase == "student"
            and settings.rounds > 1
            and self.phase_step <= settings.steps_between
            and len(self.query_set) < self._round_ends[-1]
        )

    @property
    def _round_ends(self) -> list[int]:
        """Number of queries made when each round ends; several rounds divide the queries that the plan covers."""
        queries, rounds = self.query_phase.queries, self.query_phase.rounds
        covered = min(queries, self.session.plan.calls or queries) if rounds > 1 else queries
        return [covered * (number + 1) // rounds for number in range(rounds)]

    # --- Eq. 2: the generator ---

    def generator_loss(self, images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """See `DataFreeDistillation.generator_loss`; uses no targets."""
        # The baseline is charged already, when the fit began, once per run.
        against = self.student if self._baseline is None else self._unprotected_baseline().to(images.device)
        return self.generator_phase(against, images)

    def _unprotected_baseline(self) -> nn.Module:
        assert self._baseline is not None
        return self._baseline.unprotected(self.session, reason=_BASELINE)

    def draw_latents(self, step: int) -> torch.Tensor | None:
        """See `DataFreeDistillation.draw_latents`; begins again after `generator_phase.images`."""
        if self.generator_phase.images is not None and self.phase != "generator":
            step %= math.ceil(self.generator_phase.images / self.batch_size)
        return super().draw_latents(step)

    # --- the VAE ---

    def update_vae(self, images: torch.Tensor) -> None:
        """One step of the VAE on synthetic images (B, C, H, W)."""
        assert self.vae is not None
        reconstructions, mean, log_variance = self.vae(images)
        loss = negative_elbo(reconstructions, images, mean, log_variance).mean()
        self.descend("vae", loss)
        self.log_in_step("train/vae_loss", loss.detach())

    # --- Eq. 3: the queries ---

    def query_ensemble(self) -> None:
        """Queries as many images as a step has, each once, and keeps their labels."""
        if len(self.query_set.images) == len(self.query_set):
            # All processes take the same choice, yet each computes it: layers that synchronise would wait for them.
            choice = by_all(self.processes, lambda: (self.choose_queries().half().cpu(), self.query_set.positions))
            chosen, self.query_set.positions = self.processes.broadcast(choice)
            self.query_set.images = torch.cat([self.query_set.images, chosen])
        images = self.query_set.next(self.next_calls)
        share = images[share_of(len(images), self.processes)].to(self.device)
        assert isinstance(self.teacher, PrivateEnsemble)
        counts = self.teacher.votes(share) if len(share) else torch.empty(0, self.num_classes, dtype=torch.int64)
        self.query_set.add(self.gather_rows(self.session.release(self.mechanism, counts)))
        # Lightning writes no checkpoint unless its count of optimizer steps has grown, and these labels are charged.
        # Without gradients the step changes nothing.
        optimizer = self.optimizer("student")
        optimizer.zero_grad()
        optimizer.step()

    @torch.no_grad()
    def choose_queries(self) -> torch.Tensor:
        """Chooses the images (n, C, H, W) to query in this round, without using the ensemble."""
        settings, queried = self.query_phase, len(self.query_set)
        number, end = next((number, end) for number, end in enumerate(self._round_ends) if end > queried)
        count, draw = end - queried, self.draws.stream(number, "queries")
        chooses = settings.selection == "confident" and queried > 0
        least = count * (settings.candidates if chooses else 1)
        pool = self.images if isinstance(self.images, PoolSource) else None
        candidates = self._images_to_choose_from(least, first=queried * settings.candidates) if pool is None else pool
        positions = torch.randperm(len(candidates), generator=draw)
        if pool is not None:
            positions = positions[~torch.isin(positions, self.query_set.positions)]
        positions = positions[:least]
        batches = (batch.to(self.device) for batch in candidates[positions].split(512))
        if chooses:  # those the student is surest of, with quotas that balance the released labels
            with evaluating(self.student):
                logits = torch.cat([self.student(batch).float().cpu() for batch in batches])
            quotas = balanced_quotas(self.query_set.labels.bincount(minlength=self.num_classes), count=count)
            positions = positions[confident_samples(logits.softmax(dim=1), quotas=quotas)]
        if pool is not None:
            self.query_set.positions = torch.cat([self.query_set.positions, positions])
        return candidates[positions]

    def _images_to_choose_from(self, least: int, *, first: int) -> torch.Tensor:
        parts: list[torch.Tensor] = []
        while sum(map(len, parts)) < least:
            # Negative steps, which no training step has, and lower than those of earlier rounds.
            step = -1 - first - len(parts)
            with torch.no_grad(), frozen_statistics(self):
                parts.append(self.draw_images(step, self.draw_latents(step)).cpu())
        return torch.cat(parts)

    # --- Eqs. 5 and 6: the student ---

    def supervised_loss(self) -> torch.Tensor:
        """Eq. 5 on a batch of queries; 0, with the student's graph, if no label was released."""
        draw = self.draws.stream(self.steps_done, "student")
        queried, labels = (part.to(self.device) for part in self.query_set.batch(self.images.rows, draw))
        if not len(labels):
            return 0 * torch.stack([parameter.sum() for parameter in self.student.parameters()]).sum()
        queried = distort(queried, strength=self.student_phase.query_distortion, draw=draw)
        return F.cross_entropy(self.student(queried).float(), labels)

    def tangent_normal_loss(self, vae: ConvVAE, images: torch.Tensor) -> torch.Tensor:
        """Eq. 6 on the triples of synthetic images (B, C, H, W)."""
        draw = self.draws.stream(self.steps_done, "triples")
        vae.eval()
        with torch.no_grad():
            codes = self.mechanism.perturb_latents(sample_codes(*vae.encode(images), draw=draw))
        return self.tangent_normal(self.student, vae.decode, codes, draw=draw)

    # --- fit hooks ---

    def prepare_fit(self) -> None:
        """Loads ensemble, baseline and pool before any other work of a fit.

        Raises:
            TeacherError: A file is missing or unusable.
            ValueError: Ensemble and baseline are of different private data, or the pool has too few images.
        """
        loaded = self._teacher is not None
        super().prepare_fit()
        if loaded:
            return
        baseline, private_data = self.generator_phase.baseline, self.teacher.private_data
        if self._lengths["generator"] and isinstance(baseline, TeacherConfig):
            config = replace(baseline, private_data=baseline.private_data or self.teacher_config.private_data)
            self._baseline = config.load(num_classes=self.num_classes, image_shape=self.image_shape)
            self._baseline.require_gradients(reason="the generator is trained against generator_phase.baseline")
            self.admit(self._baseline, config, named="model.generator_phase.baseline")
            if self._baseline.private_data != private_data:
                raise ValueError(
                    f"teacher is of {private_data!r} and generator_phase.baseline of {self._baseline.private_data!r}: "
                    "they must be of one data set. Set private_data where they are"
                )
        if isinstance(self.images, PoolSource) and (size := len(self.images)) < self.query_phase.queries:
            raise ValueError(f"query_phase.queries must be at most the pool's {size}, got {self.query_phase.queries}")

    def on_fit_start(self) -> None:
        """Charges everything used besides votes, and refuses a budget that allows no query."""
        super().on_fit_start()
        if self._baseline is not None:
            self._unprotected_baseline()
        if isinstance(self.images, PoolSource) and self.images.is_private:
            # Charged to no training: no teacher's guarantee covers the records themselves.
            self.session.charge_nonprivate_access(_POOL, training=RECORDS)
        if not len(self.query_set) and self.phase != "student":
            by_all(self.processes, lambda: self.session.account.require(self.session.cost))
        self._enter_next_phase()

    def calls_ahead(self, steps: int | None) -> int:
        """See `DataFreeDistillation.calls_ahead`: a call is one query, whatever the number of steps."""
        ended = self.phase == "student" and not self._is_between_rounds
        left = 0 if ended else self.query_phase.queries - len(self.query_set)
        return self.session.affordable(limit=left) if left else 0

    def calls_of(self, steps: int) -> int:
        return self.query_phase.queries if steps else 0

    @property
    def next_calls(self) -> int:
        """Number of queries of the next step that the budget allows; 0 outside the query phase."""
        if self.phase != "query":
            return 0
        queried = len(self.query_set)
        left = min(self.batch_size, next((end - queried for end in self._round_ends if end > queried), 0))
        return self.session.affordable(limit=left) if left else 0

    def optimized_groups(self) -> dict[str, OptimizedGroup]:
        vae = {} if self.vae is None else {"vae": OptimizedGroup(self.vae.parameters())}
        return {**super().optimized_groups(), **vae}

    def schedule_steps(self, name: str, steps: float) -> float:
        if name == "generator":
            return self._lengths["generator"]
        querying = math.ceil(self.query_phase.queries / self.batch_size)  # if all queries are affordable
        return steps - sum(self._lengths.values()) - querying

    # --- logging, figures and checkpoints ---

    @torch.no_grad()
    def synthetic_grid(self, count: int = 64) -> torch.Tensor:
        """See `DataFreeDistillation.synthetic_grid`; for a pool, images decoded from random codes."""
        if not isinstance(self.images, PoolSource) or self.vae is None:
            return super().synthetic_grid(count)
        draw = stream(self.draw_seed or 0, 0, 0, "grid")
        self.vae.eval()
        return self.vae.decode(torch.randn(count, self.vae.latent_dim, generator=draw).to(self.device))

    def covered_networks(self) -> dict[str, nn.Module]:
        return {**super().covered_networks(), **({} if self.vae is None else {"vae": self.vae})}

    def assumptions(self) -> list[str]:
        notes = super().assumptions()
        if self._baseline is not None:
            notes += [*self._baseline.assumptions, "releases of the baseline's own training compose with the votes"]
        return notes

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Also saves the phase, and the queries with their labels, which a resumed run must not draw again."""
        super().on_save_checkpoint(checkpoint)
        checkpoint["dgd"] = {
            "phase": self.phase_index,
            "phase_step": self.phase_step,
            **self.query_set.state(of_pool=isinstance(self.images, PoolSource)),
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Inverse of `on_save_checkpoint`.

        Raises:
            CheckpointError: The pool is not the one that the queries were chosen from.
        """
        super().on_load_checkpoint(checkpoint)
        state = checkpoint["dgd"]
        self.phase_index, self.phase_step = int(state["phase"]), int(state["phase_step"])
        self.query_set.load(state, pool=self.images if isinstance(self.images, PoolSource) else None)
