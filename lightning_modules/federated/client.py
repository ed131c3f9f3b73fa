"""One client of a federation: a private teacher, its own ledger, and a guarantee that is written locally."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import torch

from lightning_modules.federated.messages import ClientRefusal, Introduction, Question, Terms
from lightning_modules.losses.targets import GradientTargets
from lightning_modules.teachers.private_teacher import PrivateTeacher
from privacy.account import Budget
from privacy.accounting.composition import compose
from privacy.annotators import Annotator, GradientAnnotator, LabelAnnotator
from privacy.events import Gaussian
from privacy.formatting import round_up
from privacy.guarantee import Guarantee
from privacy.identity import Training
from privacy.mechanisms.noise import NoiseSource
from privacy.plan import Plan

# What a server may set of a client's annotator. Its target, its ledger, what counts as spent and where noise comes from
# are the client's own.
_OF_SERVER = {
    "label": frozenset({"epsilon", "smallest", "delta"}),
    "data": frozenset(
        {"release", "noise_multiplier", "norm_bound", "bounding", "stability", "top_k", "granularity", "delta"}
    ),
}


class FederatedClient:
    """A client of DPSD's Algorithm 2 (lines 7 to 12, Fed-FlexPer), and what its owner lets it do.

    Whatever it answers passes its own annotator, which charges its own ledger first: what leaves it is counted there,
    regardless of the server and of what becomes of an answer.

    Args:
        name: By which the server knows it.
        teacher: The classifier that was trained on this client's records.
        target_epsilon: ε, for the unit of the client's guarantee, that all runs together may spend; None for no limit.
        delta: δ of its own figures; None takes the server's, which at a larger one can ask for more than the target.
        trusts_server: Whether it may send gradients without noise, for the server to add it to the sum.
        noise: Source of its noise; None is the operating system's generator.
        ledger: Its ledger's file; None is the private data's own.
        num_records: Number of its records, where its teacher's file does not say.
    """

    def __init__(
        self,
        *,
        name: str,
        teacher: PrivateTeacher,
        target_epsilon: float | None = None,
        delta: float | None = Budget.delta,
        trusts_server: bool = False,
        noise: NoiseSource | None = None,
        ledger: str | None = None,
        num_records: int | None = None,
    ) -> None:
        self.name = name
        self.teacher = teacher
        self.target_epsilon = target_epsilon
        self.delta = delta
        self.trusts_server = trusts_server
        self.noise = noise
        self.ledger = ledger
        self.num_records = num_records or teacher.num_records
        self.folder: Path | None = None
        self._run: tuple[Terms, Annotator] | None = None
        self._plan = Plan()
        self._loss = GradientTargets()
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
        """Agrees to a run: opens the ledger, writes down all that is planned, and says what it will cost.

        A client that was restarted in the middle of a run continues with the ledger's count of that run.

        Raises:
            ClientRefusal: Its owner does not allow that.
            BudgetExceeded: Not one answer fits into its target.
        """
        self._run = None
        annotator, self._loss = self._annotator_for(terms), GradientTargets(**terms.loss)
        noiseless = isinstance(annotator, GradientAnnotator) and not annotator.noise_multiplier
        if (terms.noise_by == "server" or noiseless) and not self.trusts_server:
            raise ClientRefusal(
                f"{self.name} does not send gradients without noise: its owner has not set trusts_server. Take "
                "annotator.release: per_sample_full, whose noise each client adds itself, and noise_multiplier above 0"
            )
        annotator.bind(batch_size=terms.batch_size, num_classes=terms.num_classes, paper="DPSD")
        annotator.open(
            private_data=self.teacher.private_data,
            ledger=self.teacher.ledger,
            num_records=self.num_records,
            # The server's run, so that a restarted client counts on.
            state={
                "run": terms.run,
                "private_data": self.teacher.private_data,
                "training": None,
                "charges": [],
                "mechanisms": [],
            },
            training=self.teacher.training,
        )
        if terms.run in annotator.account.ledger.trained():
            # In the ledger the run's charges would count as that training's releases: it could not be read again.
            raise ClientRefusal(f"the run's identity is that of a training which {self.name} knows: {terms.run}")
        annotator.require_affordable()
        self._run, self.folder = (terms, annotator), folder
        self._answered = 0

        def wanted() -> int | None:
            made = annotator.calls_made()
            return None if terms.calls is None else made + annotator.affordable(limit=max(0, terms.calls - made))

        self._plan = annotator.fix_plan(Plan(), wanted)
        self._write_guarantee()

    def _annotator_for(self, terms: Terms) -> Annotator:
        if others := sorted(set(terms.mechanism) - _OF_SERVER[terms.switch]):
            raise ClientRefusal(f"{', '.join(others)} of {self.name} is for its owner to set, and no server's")
        if terms.switch == "data" and terms.mechanism.get("release") not in ("per_sample_full", "per_sample"):
            raise ClientRefusal(
                f"{self.name} answers with release per_sample_full or per_sample, and was asked for "
                f"{terms.mechanism.get('release')!r}"
            )
        mechanism = dict(terms.mechanism)
        stated = mechanism.pop("delta", Budget.delta)
        delta = stated if self.delta is None else self.delta
        budget = Budget(target_epsilon=self.target_epsilon, delta=delta, ledger=self.ledger)
        kind = LabelAnnotator if terms.switch == "label" else GradientAnnotator
        return kind(**mechanism, budget=budget, noise=self.noise)

    @property
    def agreed(self) -> tuple[Terms, Annotator]:
        """The run's terms, and what answers pass and are charged by.

        Raises:
            ClientRefusal: Nothing was agreed yet.
        """
        if self._run is None:
            raise ClientRefusal(f"{self.name} was asked before a run began")
        return self._run

    @property
    def annotator(self) -> Annotator:
        return self.agreed[1]

    def answer(self, question: Question) -> torch.Tensor:
        """Fed-FlexPer: what leaves this client in one round, on the CPU; charged before its noise is drawn.

        Returns:
            Gradients bounded by C, shape (B, c), float32, with noise where the client adds it; or classes, shape (B,).

        Raises:
            ClientRefusal: The question is not what was agreed: nothing is charged.
            BudgetExceeded: Its budget does not allow the answer: nothing is charged.
        """
        terms, annotator = self.agreed
        if terms.calls is not None and self._answered >= terms.calls:
            # A server that continues has seen the planned answers; one that is resumed begins anew.
            raise ClientRefusal(f"{terms.calls:,} questions were agreed, and all have been answered")
        if not bool(torch.isfinite(question.images).all() and torch.isfinite(question.outputs).all()):
            raise ClientRefusal("images and outputs must be finite")
        self._answered += 1
        teacher, features = self.teacher, question.features
        logits = teacher.logits(question.images) if features is None else teacher.logits_of_extracted(features)
        if isinstance(annotator, LabelAnnotator):
            assert question.candidates is not None
            # As of the smallest set, whatever its size: a server that chose sizes by what it was answered would make of
            # them what no composition of fixed ones covers.
            return annotator.annotate(logits, question.candidates).cpu()
        assert isinstance(annotator, GradientAnnotator)
        return annotator.annotate(self._loss.gradients(question.outputs, logits)).float().cpu()

    def guarantee(self) -> Guarantee:
        """What left this client, and the bound on it, regardless of the server."""
        terms, annotator = self.agreed
        answers = "noisy classes" if terms.switch == "label" else "bounded gradients"
        said = annotator.guarantee(
            artefacts=(
                f"all {answers} that {self.name} sent to the server of run {terms.run}, and whatever anybody computes "
                "from them: the student, the generator, synthetic images",
            ),
            planned=self._plan.covered,
            assumptions=[
                "this client's teacher was trained on this client's records alone, and left it in no other way",
                *self.teacher.assumptions,
            ],
            not_covered=[self._of_trusted_server()] if terms.noise_by == "server" else [],
        )
        return said if said.level == "person" else replace(said, unit="one training record of this client")

    def _of_trusted_server(self) -> str:
        """Guarantee against everyone but a server that adds the noise; its own figure bounds nothing then."""
        terms, annotator = self.agreed
        delta = annotator.budget.delta
        text = (
            "the server, which receives this client's gradients without noise: against it nothing bounds anything but "
            "the teacher's own training"
        )
        if terms.server_mu is None or terms.calls is None or not math.isfinite(terms.server_mu):
            return text
        rounds = max(terms.calls, annotator.calls_made())
        epsilon = compose({Gaussian(terms.server_mu): rounds}, delta).epsilon
        return (
            f"{text}. Against everybody else, if that server is honest, adds the noise it states before anything "
            f"leaves it and keeps what it was sent to itself, epsilon = {round_up(epsilon)} at delta = {delta:g} for "
            f"one record of this client, or all of them ({rounds:,} planned rounds, mu = {terms.server_mu:.4g} "
            "each), by this run alone: earlier ones add to it"
        )

    def _write_guarantee(self) -> None:
        """Writes `guarantee.json` and `guarantee.md` into its folder."""
        if self.folder is not None:
            self.guarantee().write(self.folder)

    def end(self) -> None:
        """Settles its ledger, and writes what left it."""
        if self._run is not None:
            self._run[1].close()
            self._write_guarantee()
