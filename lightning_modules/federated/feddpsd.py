"""FedDPSD: DPSD with many teachers, each at its own client, from which only bounded or noisy answers leave."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Literal, NoReturn

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import nn

from datamodules.records import Partition, disjoint
from lightning_modules.base import DataFreeDistillation
from lightning_modules.federated.client import Absence, Introduction, Question, Terms
from lightning_modules.federated.connection import ClientConnection, FederationError, LocalClients
from lightning_modules.losses.functional import GeneratorLoss
from lightning_modules.losses.targets import Annotation, GradientTargets, LabelTargets
from lightning_modules.teachers.config import TeacherConfig
from lightning_modules.teachers.files import TeacherError
from lightning_modules.teachers.private_teacher import PrivateEnsemble, PrivateModel
from lightning_modules.training.run import is_dev_run, run_folder
from privacy.checks import check_choice, check_count, settings_of
from privacy.events import OneOf, Release
from privacy.events.base import Unit
from privacy.identity import Training, UnnamedTraining
from privacy.ledger_place import LedgerPlace, place_of
from privacy.mechanisms import NoisyGradients, NoisyLabels
from privacy.session import PrivacySession


class Federation(PrivateModel):
    """The teachers of all clients as one entry of the server's ledger. It answers no queries: clients do.

    Each record is at one client, so the training of all teachers is bounded by the largest of the clients' bounds, if
    each client states one.

    Args:
        introductions: Introductions of all clients.
        private_data: Public name of the clients' data together.
        num_records: Number of the clients' records together; None takes the sum of the numbers that they state.
        of_clients: Whether guarantees are about whole clients, which DP-SGD training of a teacher does not bound.
        ensemble: The ensemble that all teachers were loaded from, if they are from one file.
    """

    #: The server has no network to try.
    is_external = False

    def __init__(
        self,
        introductions: Sequence[Introduction],
        *,
        private_data: str,
        num_records: int | None = None,
        of_clients: bool = False,
        ensemble: PrivateEnsemble | None = None,
    ) -> None:
        self.names = tuple(introduction.name for introduction in introductions)
        counts = [introduction.num_records for introduction in introductions]
        known = sum(count for count in counts if count is not None) if None not in counts else None
        super().__init__(
            private_data=private_data if ensemble is None else ensemble.private_data,
            training=_training(introductions, of_clients) if ensemble is None else ensemble.training,
            num_records=num_records or (known if ensemble is None else ensemble.num_records),
            path=None if ensemble is None else ensemble.path,
        )
        self._partitions = tuple(one.partition and {**one.partition, "share": None} for one in introductions)
        self.assumptions = _assumptions(introductions) if ensemble is None else ensemble.assumptions

    def ledger_place(self, data: Any = None) -> LedgerPlace:
        """The server's ledger: the ensemble's if one file holds all teachers, otherwise the federation's."""
        return place_of(self.private_data) if self.path is None else super().ledger_place(data)

    @property
    def partitions(self) -> tuple[Partition | None, ...]:
        return self._partitions if any(self._partitions) else super().partitions

    @property
    def num_teachers(self) -> int:
        return len(self.names)

    def require_unlike(self, networks: Mapping[str, nn.Module]) -> list[str]:
        """Checks nothing: the server has no weights to compare."""
        return []

    def _network_of(self, teacher: int) -> NoReturn:
        raise TeacherError("the server of a federation holds no teacher: ask the clients")


_OWN_LEDGER = (
    "no run asked a single client, other clients together, or these from another working folder, about the same "
    "records: such runs are counted in ledgers of their own, and not together with this one"
)


def _assumptions(introductions: Sequence[Introduction]) -> tuple[str, ...]:
    """Collects the assumptions that clients state for their teachers, each with the clients that state it."""
    said: dict[str, list[str]] = {}
    for introduction in introductions:
        for text in dict.fromkeys(introduction.assumptions):
            said.setdefault(text, []).append(introduction.name)
    stated = (f"of the teacher of {', '.join(names)}, as stated there: {text}" for text, names in said.items())
    return (*stated, _OWN_LEDGER)


def _training(introductions: Sequence[Introduction], of_clients: bool) -> Training | UnnamedTraining | None:
    """Joins the clients' trainings into one, determined by the clients and bounded if all of theirs are.

    A record is at one client. A person may be at several, so bounds for persons do not carry over.
    """
    ids = sorted(introduction.training for introduction in introductions)
    if "" in ids:
        return None
    stated = [introduction.releases for introduction in introductions]
    bounds: list[Mapping[Release, int]] = [
        releases for releases in stated if releases and all(one.unit is not Unit.PERSON for one in releases)
    ]
    bounded = len(bounds) == len(stated) and not of_clients
    # Which client is the worst depends on what else is composed.
    joined: Mapping[Release, int] | None = {OneOf.of(bounds): 1} if bounded else None
    # A ledger must not apply a bound for these clients' records to statements about whole clients.
    joint = hashlib.sha256("\n".join([*(["of clients"] if of_clients else []), *ids]).encode()).hexdigest()[:32]
    return Training(joint, kind=f"{len(ids)} clients", releases=joined)


_ABSENT = "which clients answer in a round does not depend on any record (networks and machines fail), and is public"
_CLIENTS = (
    "each record belongs to one client, whose teacher was trained only on that client's records: changing, adding or "
    "removing a record changes that teacher and no other"
)
_TRUSTED = (
    "THE SERVER IS TRUSTED: clients send it bounded gradients without noise, and it adds the noise to their sum. The "
    "figure covers what leaves the server; against the server itself, only the teachers' own trainings bound anything"
)
_OWN_NOISE = "each client adds its own noise, drawn from its operating system's generator, before anything leaves it"

_STATED = "each client's teacher was trained by DP-SGD as the client states, which the server cannot check"


@dataclass(frozen=True, kw_only=True)
class FederationConfig:
    """Settings of the clients as a whole.

    Attributes:
        name: Public name that identifies the server's ledger. Clients of one `TeacherEnsemble` file use that of its
            data.
        unit: Unit of protection: one `record`, or one `client` with all of its records.
        num_records: Public number N of records of all clients together; δ must lie below 1/N. Null is the sum of what
            clients state, each of which may be a bound (as that of `ClientRecords` is).
        min_clients: Fewest answers that make a round.
    """

    name: str = "federation"
    unit: Literal["record", "client"] = "record"
    num_records: int | None = None
    min_clients: int = 1

    def __post_init__(self) -> None:
        check_choice("federation.unit", self.unit, ("record", "client"))
        check_count("federation.min_clients", self.min_clients, minimum=1)
        check_count("federation.num_records", self.num_records, minimum=1, null="the sum of what clients state")
        if not self.name.strip():  # a ledger and a guarantee of no data
            raise ValueError(f"federation.name must be a name, got {self.name!r}")


class FedDPSD(DataFreeDistillation):
    """Liu et al., *Privacy-Preserving Model Transcription with Differentially Private Synthetic Distillation*, Alg. 2.

    The server makes synthetic images and sends them with the student's outputs to every client. A client queries its
    own teacher and returns bounded gradients (*data* switch) or noisy classes (*label* switch), with which the server
    updates student and generator. No teacher and no record ever leaves a client.

    Whom ε protects against depends on who adds the noise to gradients:

    | `mechanism.release` | noise | holds against |
    |---|---|---|
    | `ensemble` (as printed) | once, on the sum, by the server: σC/m on the mean | everyone but the server |
    | `per_sample_full`, `per_sample` | by each client: σC/√m, or σC/(B√m), on the mean | the server as well |

    Both cost the same: one record, or all records of one client, change only that client's rows. With
    `federation.unit: client` ε holds for a whole client whose data are replaced. With the label switch every client
    answers separately, and the cost is that of its own B responses.

    Where the paper leaves a choice:

    - *Line 14 for labels* prints the mean of the clients' one-hot vectors; the default is the mean of the class
      probabilities given each response (`label_targets.noise_correction`), as in `DPSD`.
    - *Line 26* prints ‖g‖₂ without an index, and *line 30's* k is fixed: see `DPSD`, whose settings these are.
    - *A client that is missing or late*, or whose answer cannot be used, is left out of the round; the others continue.
      The noise is not lowered, and the sum is divided by the number of answers.

    Args:
        clients: Connection to the clients: `LocalClients`, all in this process, or a class of your own.
        mechanism: `NoisyGradients` with `release: ensemble`, `per_sample_full` or `per_sample` for the data switch,
            `NoisyLabels` for the label switch. Default: gradients by `ensemble`.
        federation: Name, unit and size of the clients' data together.
        gradient_targets: Data switch: the distillation loss, and how the student uses its noisy gradient.
        label_targets: Label switch: candidates over time, and how the student uses noisy labels.
        generator_loss: The generator's loss.
        **shared: See `DataFreeDistillation`.

    Raises:
        ValueError: A setting is invalid, or the mechanism does not fit the switch.
    """

    paper = "DPSD"
    one_process = True
    unused = ("teacher", "images.pool")
    mechanisms = (NoisyGradients, NoisyLabels)
    mechanism: NoisyGradients | NoisyLabels

    def __init__(
        self,
        *,
        clients: ClientConnection,
        mechanism: NoisyLabels | NoisyGradients | None = None,
        federation: FederationConfig = FederationConfig(),
        gradient_targets: GradientTargets = GradientTargets(),
        label_targets: LabelTargets = LabelTargets(),
        generator_loss: GeneratorLoss = GeneratorLoss(),
        **shared: Any,
    ) -> None:
        mechanism = mechanism or NoisyGradients(release="ensemble")
        if isinstance(mechanism, NoisyGradients):
            check_choice("mechanism.release", mechanism.release, ("ensemble", "per_sample_full", "per_sample"))
        super().__init__(mechanism=mechanism, teacher=TeacherConfig(path="at the clients"), **shared)
        self.clients = clients
        self.federation = settings_of(FederationConfig, federation, name="federation")
        budget, unit = self.session.budget, Unit(self.federation.unit)
        self.session = PrivacySession(mechanism, self.session.shape, budget=budget, unit=unit)
        self.gradient_targets = settings_of(GradientTargets, gradient_targets, name="gradient_targets")
        self.gradient_targets.require(self.mechanism)
        self.label_targets = settings_of(LabelTargets, label_targets, name="label_targets")
        self.generator_criterion = settings_of(GeneratorLoss, generator_loss, name="generator_loss")
        #: Number of rounds that each client was left out of.
        self.absences: Counter[str] = Counter()

    def training_step(self, batch: int, batch_idx: int) -> None:
        """One round of Algorithm 2. `batch` is only a step index."""
        with self.draws.seeded(self.steps_done):
            latents = self.draw_latents(self.steps_done)  # line 3
            images = self.draw_images(self.steps_done, latents)  # line 4
            targets = self.update_student(images)  # lines 5 to 16
            if latents is not None:
                self.update_generator(images[: len(latents)], targets[: len(latents)])  # lines 17 and 18
        self.steps_done += 1

    def annotate(self, outputs: torch.Tensor, images: torch.Tensor) -> Annotation:
        """Lines 6 to 14: the student's targets (B, c), from the clients' answers."""
        mechanism, question = self.mechanism, Question(images=images.float(), outputs=outputs.float())
        if isinstance(mechanism, NoisyGradients):
            if self.server_adds_noise:
                released = self.session.release(mechanism, torch.stack(self._answers(question)), bounded=True)
            else:
                # Before any client is queried: an answer counts as soon as it leaves the client.
                self.session.charge(mechanism)
                released = torch.stack(self._answers(question)).mean(dim=0)
            return self.gradient_targets.annotation(outputs, released.to(outputs.device, outputs.dtype), mechanism)
        candidates, size = self.label_targets.candidates(outputs, step=self.steps_done, smallest=mechanism.smallest)
        self.session.charge(mechanism, size=size)
        answers = self._answers(replace(question, candidates=candidates))
        made, epsilon = self.label_targets.annotation, mechanism.epsilon
        votes = [made(outputs, labels.to(outputs.device), candidates, epsilon=epsilon).targets for labels in answers]
        return Annotation(torch.stack(votes).mean(dim=0))

    def generator_loss(self, images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """L_G with a weight per term, plus L_S if it has one; see `DataFreeDistillation`."""
        return self.generator_criterion(self.student, images, self.student, targets)

    def logged_names(self) -> set[str]:
        return super().logged_names() | {"federation/answers"}

    # --- rounds ---

    @property
    def server_adds_noise(self) -> bool:
        """Whether clients send bounded gradients without noise."""
        return isinstance(self.mechanism, NoisyGradients) and self.mechanism.way.of_ensemble

    def _answers(self, question: Question) -> list[torch.Tensor]:
        """Returns the clients' answers, in the order of their names.

        Raises:
            FederationError: There are fewer than `min_clients`.
        """
        replies = self.clients.ask(question)
        answers = [replies[name] for name in sorted(replies) if not isinstance(replies[name], Absence)]
        absent = {name: reply.reason for name, reply in sorted(replies.items()) if isinstance(reply, Absence)}
        for name, reason in absent.items():
            self.absences[name] += 1
            rank_zero_warn(f"A round goes on without {name}: {reason}")  # which Python shows once
        self.log_in_step("federation/answers", float(len(answers)))
        if len(answers) < self.federation.min_clients:
            why = "; ".join(f"{name}: {reason}" for name, reason in absent.items())
            raise FederationError(
                f"round {self.steps_done} has {len(answers)} answers, and min_clients is {self.federation.min_clients} "
                f"({why}). What was charged stays charged; go on from the last checkpoint when they are back"
            )
        return [answer for answer in answers if isinstance(answer, torch.Tensor)]

    # --- fit hooks ---

    def require_unlike(self, teacher: PrivateModel) -> None:
        """See `LearnsFromTeacher.require_unlike`; checks the clients in this process."""
        for client in self.clients.clients if isinstance(self.clients, LocalClients) else ():
            super().require_unlike(client.teacher)

    def read_teacher(self) -> PrivateModel:
        clients = self.clients.introductions(num_classes=self.num_classes, image_shape=self.image_shape)
        by_training = Counter(client.training for client in clients if client.training)
        if alike := [client.name for client in clients if by_training[client.training] > 1]:
            raise FederationError(f"{', '.join(alike)} have teachers of one training: each client needs its own")
        for one, other in combinations(clients, 2):
            mine, others = one.partition, other.partition
            if mine and others and not disjoint(mine, others):
                raise FederationError(
                    f"{one.name} has {mine['share'] or 'all'} of {mine['data']!r}, and {other.name} "
                    f"{others['share'] or 'all'} of {others['data']!r}: clients of one data set must be different ones "
                    "of one partition (data: ClientRecords); other records need another name"
                )
        if not all(client.secure for client in clients) and self.mechanism.source.secure and not self.server_adds_noise:
            insecure = ", ".join(client.name for client in clients if not client.secure)
            raise FederationError(f"the noise of {insecure} can be reproduced by anyone who knows its seed")
        return Federation(
            clients,
            private_data=f"{self.federation.name}/clients",
            num_records=self.federation.num_records,
            of_clients=self.federation.unit == "client",
            ensemble=getattr(self.clients, "ensemble", None),
        )

    def on_train_start(self) -> None:
        """Also agrees on the terms with the clients, once the plan is fixed."""
        super().on_train_start()
        folder = None if is_dev_run(self.trainer) else run_folder(self.trainer) / "clients"
        out = self.clients.begin(self.terms(), folder=folder)
        left = self.teacher.num_teachers - len(out)
        if left < self.federation.min_clients:
            why = "; ".join(f"{name}: {absence.reason}" for name, absence in sorted(out.items()))
            raise FederationError(f"{left} clients take part, and min_clients is {self.federation.min_clients} ({why})")

    def terms(self) -> Terms:
        """The terms of this run, the same for every client."""
        mechanism: Any = replace(self.mechanism, noise=None)
        if self.server_adds_noise:
            # Without noise a client's own figure is infinite, as it is against a server that adds the noise.
            mechanism = replace(mechanism, release="per_sample_full", noise_multiplier=0.0)
        return Terms(
            run=self.session.ledger.run,
            mechanism=mechanism,
            delta=self.session.budget.delta,
            calls=self.session.plan.calls,
            batch_size=self.batch_size,
            num_classes=self.num_classes,
            image_shape=self.image_shape,
            gradient_targets=self.gradient_targets,
        )

    def on_fit_end(self) -> None:
        """Also lets the clients settle their ledgers and write their guarantees."""
        super().on_fit_end()
        self.clients.end()

    def on_exception(self, exception: BaseException) -> None:
        """Does the same, since answers before an error have left the clients."""
        super().on_exception(exception)
        self.clients.end()

    def assumptions(self) -> list[str]:
        noise = _TRUSTED if self.server_adds_noise else _OWN_NOISE
        assumptions = [_CLIENTS, _ABSENT, noise]
        training = self.teacher.training if isinstance(self.teacher, Federation) else None
        if isinstance(training, Training) and training.releases:
            assumptions.append(_STATED)
        if self.absences:
            absences = ", ".join(f"{name} in {count:,}" for name, count in sorted(self.absences.items()))
            text = f"rounds that clients were left out of: {absences}; they are charged for these all the same"
            assumptions.append(text)
        return assumptions

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint["absences"] = dict(self.absences)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        self.absences = Counter(checkpoint.get("absences", {}))
