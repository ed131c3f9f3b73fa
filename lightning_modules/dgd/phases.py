"""Settings of DGD's four phases, each with its own checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from lightning_modules.losses.functional import GeneratorLoss
from lightning_modules.networks import ConvVAE
from lightning_modules.networks.network import VAECallable
from lightning_modules.teachers.config import TeacherConfig
from privacy.checks import check_choice, check_count, check_number, settings_of

Selection = Literal["random", "confident"]


@dataclass(frozen=True, kw_only=True)
class GeneratorPhase(GeneratorLoss):
    """Training of the generator against a fixed classifier (Eq. 2); for the weights see `GeneratorLoss`.

    Attributes:
        baseline: What the generator is trained against: a private classifier (see `TeacherConfig`) on the ensemble's
            data, or `student`, which costs nothing and is trained in alternation with the generator. Required if
            `images.source` has a generator.
        steps: Length of this phase; 0 leaves the generator untrained.
        images: Images of the finished generator that all later phases share, to whole batches (60,000 as printed); null
            draws new ones in each step.
        student_loss_weight: 0: no targets are released yet.
    """

    setting = "generator_phase"

    baseline: TeacherConfig | Literal["student"] | None = None
    steps: int = 200
    images: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("generator_phase.images", self.images, minimum=1, null="new ones in each step")
        if self.baseline not in (None, "student"):
            config: Any = settings_of(TeacherConfig, self.baseline, name="generator_phase.baseline")
            object.__setattr__(self, "baseline", config.held())
        check_count("generator_phase.steps", self.steps, minimum=0)
        check_number("generator_phase.student_loss_weight", self.student_loss_weight, least=0, most=0)


@dataclass(frozen=True, kw_only=True)
class VAEPhase:
    """The variational autoencoder, trained on synthetic images.

    Attributes:
        network: Builds the VAE.
        steps: Length of this phase; 0 leaves out the VAE and its loss terms.
    """

    network: VAECallable = ConvVAE
    steps: int = 500

    def __post_init__(self) -> None:
        check_count("vae_phase.steps", self.steps, minimum=0)


@dataclass(frozen=True, kw_only=True)
class QueryPhase:
    """The queries to the ensemble (Eq. 3).

    Attributes:
        queries: N, images that the ensemble is queried about, once each.
        selection: `random` images; or `confident`, in rounds: random images first, then in each round those that the
            student, trained on the labels so far, is surest of, balanced by class. It reads only released labels and
            synthetic images, so it costs nothing.
        candidates: Images drawn for each query that `confident` chooses.
        rounds: Number of rounds of nearly equal size: 2 or more for `confident`, otherwise 1. If a target allows fewer
            than N queries, the rounds divide those that it allows.
        steps_between: Student steps after each round but the last.
    """

    queries: int = 1000
    selection: Selection = "random"
    candidates: int = 10
    rounds: int = 1
    steps_between: int = 100

    def __post_init__(self) -> None:
        for name in ("queries", "candidates", "rounds", "steps_between"):
            check_count(f"query_phase.{name}", getattr(self, name), minimum=1)
        check_choice("query_phase.selection", self.selection, get_args(Selection))
        if (self.selection == "confident") != (self.rounds > 1):
            raise ValueError(
                "query_phase.rounds must be 2 or more for query_phase.selection='confident', and 1 for others, got "
                f"{self.rounds} for {self.selection!r}"
            )
        if self.rounds > self.queries:
            raise ValueError(f"query_phase.rounds must be at most the {self.queries} queries, got {self.rounds}")


@dataclass(frozen=True, kw_only=True)
class StudentPhase:
    """How the student learns the queried labels (Eq. 5); an addition to DGD, off as printed.

    Attributes:
        query_distortion: Strength of the random distortions of queried images, redrawn in each step. The labels are
            few and noisy, and a network would learn their noise (`docs/dgd.md`).
    """

    query_distortion: float = 0.0

    def __post_init__(self) -> None:
        check_number("student_phase.query_distortion", self.query_distortion, least=0)
