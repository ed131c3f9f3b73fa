"""Distillation of responses that may be published: of a DP-SGD teacher, or noisy ones of an ensemble."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from datamodules import ImageDataModule
from datamodules.progress import tracked
from lightning_modules.base import DataFreeDistillation
from lightning_modules.images import Images, tell_informativeness
from lightning_modules.losses.functional import class_weights, kd, logit_distance
from lightning_modules.networks import LinearOnFeatures, build_network, logits_and_features
from lightning_modules.networks.fixed_features import fixed_extractor
from lightning_modules.priors import ImagePrior
from lightning_modules.teachers.private_teacher import PrivateEnsemble, PrivateTeacher
from lightning_modules.training.manual_optimization import joined
from lightning_modules.training.run import share_of
from privacy.checks import check_choice, check_count, check_number
from privacy.identity import CheckpointError
from privacy.mechanisms import NoisyMeanResponse, RawResponses

#: Standard deviation that answers fitted to directions are scaled to: about that of a classifier's logits.
_LOGIT_DEVIATION = 3.0

#: Below it a SmallCNN was 20 points or more behind its teacher on two data sets, above it 2 to 10 (docs/choosing.md).
_INFORMATIVE = 0.7

#: Ratios of noise to signal variance to try, in units of the features' mean squared singular value.
_RATIOS = torch.logspace(-5, 4, 73, dtype=torch.float64)


class Distillation(DataFreeDistillation):
    """Trains a student on responses to procedural images: post-processing, free for any number of images and steps.

    The mechanism decides which responses:

    - `RawResponses`: the raw responses of one teacher. If it was trained by DP-SGD, its guarantee is the
      student's; if it was trained without privacy, the guarantee says that ε is infinite.
    - `NoisyMeanResponse`: those of an ensemble on disjoint shards, which is **private**. It is queried about
      `queries` images, each mean response is released with noise, and a linear function of fixed scattering features is
      fitted to them (`fit_noisy_responses`), which averages the noise away and chooses its own regularisation. That
      function then labels the pool. The number of queries makes little difference: at one ε the noise on each grows
      with its square root.

    Args:
        mechanism: Which responses. Default: `RawResponses`.
        prior: Where the images come from. Default: `StrokePrior`.
        pool: Public images to vary instead of a prior; see `Images`.
        pool_size: Number of answered images that the student is fitted to, rounded up to whole batches.
        queries: Images sent to an ensemble, rounded up to whole batches; None for one teacher.
        balance: Exponent b of the weight n_y^-b with which an image of class y is drawn, where n_y images of the pool
            are answered with that class: 0 draws all images equally often, 1 all classes.
        loss: `logits`, the squared distance of logits up to a constant of each row; or `kl`, of class probabilities.
        temperature: Divides both sides' logits in `kl`. A teacher with large logits is sure of nearly everything, and
            at temperature 1 its probabilities say nothing about the other classes.
        **shared: See `DataFreeDistillation`.
    """

    unused = ("images", "student.balance", "student.replay")
    mechanisms = (RawResponses, NoisyMeanResponse)
    mechanism: RawResponses | NoisyMeanResponse

    def __init__(
        self,
        *,
        mechanism: RawResponses | NoisyMeanResponse | None = None,
        prior: ImagePrior | None = None,
        pool: ImageDataModule | str | None = None,
        pool_size: int = 50_000,
        queries: int | None = None,
        balance: float = 0.5,
        loss: Literal["logits", "kl"] = "logits",
        temperature: float = 1.0,
        **shared: Any,
    ) -> None:
        super().__init__(
            mechanism=mechanism or RawResponses(),
            images=Images(source="pool" if pool else "prior", prior=prior, pool=pool, pool_varied=pool is not None),
            **shared,
        )
        check_count("pool_size", pool_size, minimum=1)
        check_count("queries", queries, minimum=2, null="one teacher")
        check_number("balance", balance, least=0, most=1)
        check_choice("loss", loss, ("logits", "kl"))
        check_number("temperature", temperature, above=0)
        if temperature != 1 and loss != "kl":
            raise ValueError(f"temperature must be 1 for loss={loss!r}, which has none, got {temperature}")
        if (queries is not None) != self.of_ensemble:
            raise ValueError(
                "queries must be given for a NoisyMeanResponse, and for no other, got "
                f"{queries} with {type(self.mechanism).__name__}"
            )
        self.pool_calls = -(-pool_size // self.batch_size)
        self.charged_calls = self.pool_calls if queries is None else -(-queries // self.batch_size)
        self.balance = balance
        self.loss: Literal["logits", "kl"] = loss
        self.temperature = temperature
        # In a tuple, so that it is not registered and saved twice.
        self._feature_extractor = (fixed_extractor(self.student),)
        #: Extracted features of the evaluated images, by batch: a loader gives the same batches each epoch.
        self._evaluated: dict[int, torch.Tensor] = {}
        self._pool: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None
        #: Released noisy answers of an ensemble, (N, c): charged once, and kept in checkpoints.
        self.noisy_answers: torch.Tensor | None = None
        #: Standard deviation of the noise on each of them.
        self.answer_deviation = 0.0
        if self.of_ensemble:
            self.covered_artefacts = (*self.covered_artefacts, "noisy answers")

    @property
    def of_ensemble(self) -> bool:
        return isinstance(self.mechanism, NoisyMeanResponse)

    @property
    def next_calls(self) -> int:
        """All charged calls before the first step of a fit, none after it."""
        return self.charged_calls if self._pool is None and self.noisy_answers is None else 0

    def calls_ahead(self, steps: int | None) -> int:
        """See `DataFreeDistillation.calls_ahead`; only a whole pool is begun."""
        if not self.next_calls or (steps is not None and steps <= self.steps_done):
            return 0
        return self.charged_calls if self.session.affordable(limit=self.charged_calls) == self.charged_calls else 0

    def calls_of(self, steps: int) -> int:
        """See `DataFreeDistillation.calls_of`: the pool, or the queries, are sent to the teacher once."""
        return self.charged_calls if steps else 0

    def training_step(self, batch: int, batch_idx: int) -> None:
        """One step on kept answers. `batch` is only a step index."""
        if self._pool is None:
            self._pool = self.answer_pool()
        inputs, answers, weights = self._pool
        draw = self.draws.stream(self.steps_done, "pool")
        rows = torch.multinomial(weights, self.batch_size // self.processes.size, replacement=True, generator=draw)
        with self.draws.seeded(self.steps_done):
            given, targets = inputs[rows].to(self.device).float(), answers[rows].to(self.device)
            extracted = self._feature_extractor[0] is not None
            outputs = (self._forward_extracted(given) if extracted else self.student(given)).float()
            if self.loss == "logits":
                distance = logit_distance(outputs, targets)
            else:
                distance = kd(outputs, targets, temperature=self.temperature)
            self.step_student(distance.mean())
        self.steps_done += 1

    @torch.no_grad()
    def answer_pool(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Images, or the student's fixed features of them, in float16; answers (n, c); weights (n,). On the CPU.

        A resumed run draws the same images. A single teacher is queried again: the ledger counts the queries, at no
        further cost. An ensemble is not.
        """
        fitted = self.fit_answers() if self.of_ensemble else None
        extract, teacher = self._feature_extractor[0], self.teacher
        # Features take most of the time: a teacher that shares the student's is queried about the extracted ones.
        sharing = teacher if isinstance(teacher, PrivateTeacher) and teacher.shares_extractor(extract) else None
        if torch.is_autocast_enabled(self.device.type):
            sharing = None

        def respond(images: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
            if fitted is not None:
                return fitted(images)
            logits = teacher.logits(images) if sharing is None else sharing.logits_of_extracted(features)
            return self.session.release(self.mechanism, logits)

        rank_zero_info(f"{self.pool_calls * self.batch_size:,} images are answered once.")
        inputs, answers = [], []
        for call in self._tracked(self.pool_calls, "answers to batches"):
            images = self._own_images(call)
            features = images if extract is None else extract(images)
            answers.append(self.gather_rows(respond(images, features)))
            inputs.append(self.gather_rows(features.half()))
        logits = torch.cat(answers)
        if not self.of_ensemble:  # answers fitted to an ensemble are scaled, and do not show how sure it is
            tell_informativeness(self.images, logits, whose="the teacher", least=_INFORMATIVE)
            self.images.told = True
        return joined(inputs), logits, class_weights(logits, power=self.balance).double()

    @torch.no_grad()
    def draw_images(self, step: int, latents: torch.Tensor | None) -> torch.Tensor:
        """Draws the batch of all processes, the same whatever their number: noisy answers about it are kept."""
        return self.images.images(step, latents, self.draws.common)

    def _own_images(self, step: int) -> torch.Tensor:
        """This process's share of `draw_images`."""
        # In half precision from the start, so that what is kept is what was answered.
        return self.draw_images(step, None)[share_of(self.batch_size, self.processes)].half().float()

    def prepare_fit(self) -> None:
        super().prepare_fit()
        self.images.rows = self.batch_size  # see `draw_images`

    @torch.no_grad()
    def fit_answers(self) -> Callable[[torch.Tensor], torch.Tensor]:
        """Queries the ensemble, unless that is done, and returns a public function that imitates its answers.

        The function maps images (B, C, H, W) to answers (B, c).
        """
        teacher, mechanism = self.teacher, self.mechanism
        assert isinstance(teacher, PrivateEnsemble) and isinstance(mechanism, NoisyMeanResponse)
        describe = build_network(
            LinearOnFeatures, num_classes=self.num_classes, image_shape=self.image_shape, name="features"
        ).to(self.device)
        answers, parts = [], []
        for call in self._tracked(self.charged_calls, "batches of queries"):
            # Negative steps, which no image of the pool has.
            images = self._own_images(-1 - call)
            parts.append(self.gather_rows(logits_and_features(describe, images)[1]))
            if self.noisy_answers is None:
                answers.append(self.gather_rows(self.session.release(mechanism, teacher.each(images))))
        if self.noisy_answers is None:
            self.noisy_answers = torch.cat(answers)
            self.answer_deviation = mechanism.noise_multiplier / teacher.num_teachers
        features = torch.cat(parts)
        fitted = fit_noisy_responses(features, self.noisy_answers, std=self.answer_deviation)
        if not fitted.learnt:
            rank_zero_warn(
                f"Nothing could be learnt from {len(self.noisy_answers):,} answers with noise of deviation "
                f"{self.answer_deviation:.3g}: lower noise_multiplier or train more teachers"
            )
        # Directions have norms of at most 1, from which students learn next to nothing at rates that suit logits: 31
        # against 92 % (MNIST, 200 steps).
        scale = _LOGIT_DEVIATION / fitted(features).std().clamp_min(1e-6)
        return lambda images: scale.to(images) * fitted(logits_and_features(describe, images)[1])

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> None:
        """Validates as the base class does, but computes features of a fixed extractor once per fit."""
        extract = self._feature_extractor[0]
        if extract is None or self.trainer.state.fn != "fit":
            super().validation_step(batch, batch_idx)
            return
        images, labels = batch
        if batch_idx not in self._evaluated:
            self._evaluated[batch_idx] = extract(images)
        self.evaluation.log("val", self, self._forward_extracted(self._evaluated[batch_idx]), labels)

    def on_fit_start(self) -> None:
        """Also drops the features that an earlier fit has evaluated: this fit may have other images."""
        self._evaluated.clear()
        super().on_fit_start()

    def _tracked(self, calls: int, description: str) -> Any:
        return tracked(range(calls), description, calls, silent=not self.trainer.is_global_zero)

    def _forward_extracted(self, features: torch.Tensor) -> torch.Tensor:
        after: Any = self.student.forward_extracted
        logits: torch.Tensor = after(features)
        return logits

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Also saves the noisy answers, which a resumed run must not pay for again."""
        super().on_save_checkpoint(checkpoint)
        noisy = {"answers": self.noisy_answers, "deviation": self.answer_deviation, **self._about_images()}
        checkpoint["noisy_answers"] = None if self.noisy_answers is None else noisy

    def _about_images(self) -> dict[str, Any]:
        queries = self.charged_calls * self.batch_size if self.of_ensemble else 0
        return {"batch_size": self.batch_size, "prior": repr(self.hparams.get("prior")), "queries": queries}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Inverse of `on_save_checkpoint`.

        Raises:
            CheckpointError: The run would not draw the images again that the answers are about.
        """
        super().on_load_checkpoint(checkpoint)
        noisy = checkpoint.get("noisy_answers")
        if noisy is None:
            return
        for name, value in self._about_images().items():
            if noisy[name] != value:
                was = f"{name} was {noisy[name]} for the queries"
                raise CheckpointError(f"{was} and is {value} now: resume with the same")
        self.noisy_answers, self.answer_deviation = noisy["answers"], float(noisy["deviation"])


@dataclass(frozen=True)
class LinearResponses:
    """An affine function of features.

    Attributes:
        weights: (F, c).
        offset: (c,).
        ratio: estimated noise variance over signal variance; large if little could be learnt.
        evidence: log evidence of these weights over pure noise, in nats.
    """

    weights: torch.Tensor
    offset: torch.Tensor
    ratio: float
    evidence: float

    @property
    def learnt(self) -> bool:
        """Whether the responses carry information besides their mean."""
        return self.evidence > 2

    def __call__(self, features: torch.Tensor) -> torch.Tensor:
        """Maps features (N, F) to responses (N, c)."""
        return features @ self.weights.to(features) + self.offset.to(features)


def fit_noisy_responses(features: torch.Tensor, responses: torch.Tensor, *, std: float) -> LinearResponses:
    """Bayesian linear regression with known noise; the signal's variance maximises the evidence.

    responses = offset + (features - mean) W + N(0, std²), W ~ N(0, a I): ridge regression with the penalty
    std²/a, where a maximises the marginal likelihood of the responses (MacKay 1992; Rasmussen and Williams 2006,
    Sec. 5.4). Everything is computed from released responses, so it is post-processing.

    Args:
        features: (N, F), of the queried images.
        responses: (N, c), the released responses.
        std: standard deviation of the noise on each coordinate, above 0.
    """
    middle = features.double().mean(dim=0)
    rows = features.double() - middle
    offset = responses.double().mean(dim=0)
    targets = responses.double() - offset
    wide = rows.shape[0] <= rows.shape[1]
    squares, vectors = torch.linalg.eigh(rows @ rows.T if wide else rows.T @ rows)
    # Directions outside the span of the rows carry no information.
    kept = squares > 1e-10 * squares.amax()
    squares, vectors = squares[kept], vectors[:, kept]
    # Targets in the basis of left singular vectors; the orthogonal part has the same likelihood for every a.
    moved = vectors.T @ targets if wide else (vectors.T @ (rows.T @ targets)) / squares.sqrt()[:, None]
    penalties = _RATIOS * squares.mean()
    variances = std**2 * (squares[:, None] / penalties + 1)
    energy = moved.square().sum(dim=1)
    evidence = -0.5 * ((energy[:, None] / variances).sum(dim=0) + responses.shape[1] * variances.log().sum(dim=0))
    best = int(evidence.argmax())
    shrunk = moved / (squares + penalties[best])[:, None]
    weights = rows.T @ (vectors @ shrunk) if wide else vectors @ (shrunk * squares.sqrt()[:, None])
    alone = -0.5 * (energy.sum() / std**2 + responses.shape[1] * len(energy) * math.log(std**2))
    return LinearResponses(
        weights=weights.float(),
        offset=(offset - middle @ weights).float(),
        ratio=float(_RATIOS[best]),
        evidence=float(evidence[best] - alone),
    )
