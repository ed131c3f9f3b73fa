"""One client of a federation: a private teacher, its own ledger and a locally written guarantee."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import torch

from datamodules.records import Partition
from lightning_modules.losses.targets import GradientTargets
from lightning_modules.teachers.private_teacher import PrivateTeacher
from privacy.account import Budget
from privacy.checks import check_count
from privacy.events import Release
from privacy.guarantee import Guarantee
from privacy.identity import Training
from privacy.mechanisms import NoisyGradients, NoisyLabels, Shape
from privacy.mechanisms.base import NoiseSource
from privacy.session import PrivacySession
from privacy.statement import guarantee_of

_TRUSTED_SERVER = (
    "the server, which receives this client's gradients without noise: against it nothing bounds anything but the "
    "teacher's own training. Against everybody else the guarantee of that server's run holds, if the server is honest, "
    "adds the noise it states before anything leaves it and keeps what it was sent to itself"
)


class ClientRefusal(ValueError):
    """A client does not agree to a run's terms, or a question does not fit them."""


@dataclass(frozen=True, kw_only=True)
class Introduction:
    """A client's description of itself before the first query, which it makes public.

    Attributes:
        name: Its name in messages, logs and guarantees.
        num_records: Number of its records, if it states one.
        training: Identity of its teacher's training; empty if the teacher's file has none.
        releases: Releases of that training, if it was by DP-SGD; None if nothing bounds it.
        secure: Whether its noise comes from the operating system's generator.
        assumptions: Assumptions of any guarantee about its teacher's outputs, one sentence each.
        partition: Identifies its records and their data set (name, classes, settings), if its teacher's file does.
    """

    name: str
    num_records: int | None = None
    training: str = ""
    releases: Mapping[Release, int] | None = None
    secure: bool = True
    assumptions: tuple[str, ...] = ()
    partition: Partition | None = None


@dataclass(frozen=True, kw_only=True)
class Terms:
    """A run's queries to its clients: fixed before the first one, and the same for all clients.

    Attributes:
        run: Identity of the server's run, by which clients' ledgers count.
        mechanism: What clients answer with, gradients or labels. A client takes its settings, and never its source of
            noise. Without noise, for a server that adds it to the sum, a client must trust the server.
        delta: δ of a client's guarantee if its owner has set none.
        calls: Number of questions that the run plans; None if it has no planned end.
        batch_size: B, the number of images in a question.
        num_classes: c.
        image_shape: (C, H, W).
        gradient_targets: The loss whose gradient is queried; not used for labels.
    """

    run: str
    mechanism: NoisyGradients | NoisyLabels
    delta: float
    calls: int | None
    batch_size: int
    num_classes: int
    image_shape: tuple[int, int, int]
    gradient_targets: GradientTargets = GradientTargets()


@dataclass(frozen=True, kw_only=True)
class Question:
    """One round's question (Algorithm 2, line 6): synthetic images and the student's outputs for them.

    Attributes:
        images: Shape (B, C, H, W), float32.
        outputs: The student's logits, shape (B, c), float32.
        candidates: For labels, the classes to choose from, shape (B, c), bool, determined by the student's outputs
            alone; None for gradients.
        features: The images' features, if all teachers in this process share a fixed feature extractor.
    """

    images: torch.Tensor
    outputs: torch.Tensor
    candidates: torch.Tensor | None = None
    features: torch.Tensor | None = None


@dataclass(frozen=True)
class Absence:
    """Why a client's answer is left out of a round.

    Attributes:
        reason: An explanation that reveals nothing about the client's records.
    """

    reason: str


@dataclass(kw_only=True, eq=False, repr=False)
class FederatedClient:
    """A client of DPSD's Algorithm 2 (lines 7 to 12, Fed-FlexPer), with the limits that its owner sets.

    Each answer passes the client's own privacy session, which first charges the client's own ledger. Its accounting
    does not depend on the server or on how answers are used.

    Args:
        name: The client's name in the federation.
        teacher: The classifier that was trained on this client's records.
        target_epsilon: ε, for the unit of the client's guarantee, that all runs together may spend; None for no limit.
        fully_adaptive: Let `target_epsilon` hold also against a server that chooses runs and their mechanisms by
            earlier answers, see `Budget`.
        max_starts: How often a server may begin a run, or go on with one after a restart: each new run costs its whole
            plan from its first answer on, and each restart may ask all questions again.
        delta: δ of the client's guarantee; None takes the server's, and a larger δ lets it ask more within the target.
        trusts_server: Whether the client may send gradients without noise, for the server to add noise to the sum.
        noise: Source of the client's noise; None is the operating system's generator.
        ledger: The client's ledger file; None is the one of the private data.
        num_records: Number of the client's records; None takes it from the teacher's file.
    """

    name: str
    teacher: PrivateTeacher
    target_epsilon: float | None = None
    delta: float | None = Budget.delta
    fully_adaptive: bool = False
    max_starts: int = 10
    trusts_server: bool = False
    noise: NoiseSource | None = None
    ledger: str | None = None
    num_records: int | None = None
    starts: int = field(default=0, init=False)
    folder: Path | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        check_count("max_starts", self.max_starts, minimum=1)
        self.num_records = self.num_records or self.teacher.num_records
        self._run: tuple[Terms, PrivacySession] | None = None
        self._answered = 0

    def introduction(self) -> Introduction:
        training = self.teacher.training
        return Introduction(
            name=self.name,
            num_records=self.num_records,
            training=training.id if isinstance(training, Training) else "",
            releases=training.releases if isinstance(training, Training) else None,
            secure=self.noise is None or self.noise.secure,
            assumptions=tuple(self.teacher.assumptions),
            # The server does not learn where the records are stored.
            partition=next(({**one, "place": None} for one in self.teacher.partitions if one), None),
        )

    def begin(self, terms: Terms, *, folder: Path | None = None) -> None:
        """Agree to a run: open the ledger, reserve the planned answers and write their guarantee, if there is a plan.

        A client that is restarted during a run continues from the ledger's count for that run.

        Raises:
            ClientRefusal: The client's owner does not allow these terms.
            BudgetExceeded: Not even one answer fits into the target.
        """
        self._run = None
        session = self._session_for(terms)
        if _noiseless(session) and not self.trusts_server:
            raise ClientRefusal(
                f"{self.name} does not send gradients without noise: its owner has not set trusts_server. Take "
                "mechanism.release: per_sample_full, whose noise each client adds itself, and noise_multiplier above 0"
            )
        session.open(
            private_data=self.teacher.private_data,
            ledger=self.teacher.ledger_place(),
            num_records=self.num_records,
            training=self.teacher.training,
            # The server's run, so that a restarted client continues its count; by a name that no training has, whatever
            # the server calls it: the two could not be told apart.
            run=f"server-{terms.run}",
        )
        if self.starts == self.max_starts:
            raise ClientRefusal(f"{self.name} has begun {self.starts} times, as often as its owner allows (max_starts)")
        session.account.require(session.cost)
        self.starts += 1
        asked = terms.gradient_targets  # an object of the server's must not see logits
        own = GradientTargets(**{one.name: getattr(asked, one.name) for one in fields(GradientTargets)})
        self._run, self.folder = (replace(terms, gradient_targets=own), session), folder
        self._answered = 0

        def ahead() -> int | None:
            return None if terms.calls is None else session.affordable(limit=max(0, terms.calls - session.calls_made()))

        session.fix_plan(ahead)
        if terms.calls is not None:  # else a page would say that nothing leaves this client, until the run ends
            self._write_guarantee()

    def _session_for(self, terms: Terms) -> PrivacySession:
        asked = terms.mechanism
        if isinstance(asked, NoisyGradients) and asked.release not in ("per_sample_full", "per_sample"):
            raise ClientRefusal(
                f"{self.name} answers with release per_sample_full or per_sample, and was asked for {asked.release!r}"
            )
        kind: type[NoisyGradients | NoisyLabels] = NoisyLabels if isinstance(asked, NoisyLabels) else NoisyGradients
        settings = {one.name: getattr(asked, one.name) for one in fields(kind)}
        budget = Budget(
            target_epsilon=self.target_epsilon,
            delta=terms.delta if self.delta is None else self.delta,
            ledger=self.ledger,
            fully_adaptive=self.fully_adaptive,
        )
        shape = Shape(terms.batch_size, terms.num_classes, "DPSD")
        return PrivacySession(kind(**{**settings, "noise": self.noise}), shape, budget=budget)

    @property
    def agreed(self) -> tuple[Terms, PrivacySession]:
        """The run's terms, and the session that answers pass.

        Raises:
            ClientRefusal: No run has begun.
        """
        if self._run is None:
            raise ClientRefusal(f"{self.name} was asked before a run began")
        return self._run

    @property
    def session(self) -> PrivacySession:
        return self.agreed[1]

    def answer(self, question: Question) -> torch.Tensor:
        """Answer one round (Fed-FlexPer), on the CPU; charged before the noise is drawn.

        Returns:
            Gradients bounded by C, shape (B, c), float32, with noise if the client adds it; or classes, shape (B,).

        Raises:
            ClientRefusal: The question does not fit the terms. Nothing is charged.
            BudgetExceeded: The budget does not allow the answer. Nothing is charged.
        """
        terms, session = self.agreed
        if terms.calls is not None and self._answered >= terms.calls:
            # A server that continues has had all planned answers; one that is resumed calls `begin` again.
            raise ClientRefusal(f"{terms.calls:,} questions were agreed, and all have been answered")
        if not bool(torch.isfinite(question.images).all() and torch.isfinite(question.outputs).all()):
            raise ClientRefusal("images and outputs must be finite")
        outputs = (terms.batch_size, terms.num_classes)
        shapes = [
            tuple(one.shape) for one in (question.images, question.outputs, question.candidates) if one is not None
        ]
        of_labels = isinstance(session.mechanism, NoisyLabels)
        wanted = [(terms.batch_size, *terms.image_shape), outputs, *([outputs] if of_labels else [])]
        if shapes != wanted:
            raise ClientRefusal(f"the tensors of a question must have shapes {wanted}, got {shapes}")
        self._answered += 1
        teacher, features = self.teacher, question.features
        logits = teacher.logits(question.images) if features is None else teacher.logits_of_extracted(features)
        if of_labels:
            assert question.candidates is not None
            # Charged as for the smallest set, whatever the size: composition with fixed parameters would not cover
            # sizes that a server chose by earlier answers.
            return session.release(session.mechanism, logits, question.candidates).cpu()
        gradients = terms.gradient_targets.gradients(question.outputs, logits)
        return session.release(session.mechanism, gradients).float().cpu()

    def guarantee(self) -> Guarantee:
        """State what left this client and bound it, whatever the server does within a run.

        Several runs compose if the server did not choose one by the answers of another, unless `fully_adaptive`.
        """
        terms, session = self.agreed
        answers = "noisy classes" if isinstance(session.mechanism, NoisyLabels) else "bounded gradients"
        said = guarantee_of(
            session,
            artefacts=(
                f"all {answers} that {self.name} sent to the server of run {terms.run}, and whatever anybody computes "
                "from them: the student, the generator, synthetic images",
            ),
            assumptions=[
                "this client's teacher was trained on this client's records alone, and left it in no other way",
                *self.teacher.assumptions,
            ],
            not_covered=[_TRUSTED_SERVER] if _noiseless(session) else [],
        )
        return said if said.level == "person" else replace(said, unit="one training record of this client")

    def _write_guarantee(self) -> None:
        """Writes `guarantee.json` and `guarantee.md` into the client's folder."""
        if self.folder is not None:
            self.guarantee().write(self.folder)

    def end(self) -> None:
        """Settles the ledger and writes the final guarantee."""
        if self._run is not None:
            self._run[1].close()
            self._write_guarantee()


def _noiseless(session: PrivacySession) -> bool:
    return isinstance(session.mechanism, NoisyGradients) and not session.mechanism.noise_multiplier
