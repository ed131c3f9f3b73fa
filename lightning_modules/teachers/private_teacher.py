"""Private teachers, one or an ensemble, held outside of every module: queried, and never written anywhere."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import nn

from datamodules.records import Partition, bytes_of, same_data
from lightning_modules.networks.feature_cache import digest_of
from lightning_modules.networks.network import check_network
from lightning_modules.teachers.ensemble_networks import NetworkStack
from lightning_modules.teachers.external import TRIAL_ACCESS, AdaptedTeacher, try_external
from lightning_modules.teachers.files import TeacherError, common_prefix
from lightning_modules.teachers.libraries import OnnxNetwork
from privacy.identity import Training, UnnamedTraining
from privacy.ledger_place import DataHome, LedgerPlace, place_of
from privacy.mechanisms.noisy_votes import vote_counts
from privacy.session import PrivacySession


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateModel(ABC):
    """A private classifier or an ensemble of them, held outside of every `nn.Module`.

    No attribute is a network, so that no `state_dict`, checkpoint, logger or copy can reach one; the networks are
    queried by methods, whose responses are private until a session has released something of them.

    Args:
        private_data: Public name of its training data.
        training: Its training; None if unknown, so that nothing bounds what is computed from it.
        num_records: Number of its training records, if known.
        path: The file it came from.
        assumptions: Assumptions that its file, or the content of the file, adds to a guarantee.
    """

    private_data: str
    training: Training | UnnamedTraining | None
    num_records: int | None = None
    path: Path | None = None
    assumptions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.path is not None:
            self.path = self.path.resolve()  # a symbolic link must not lead to another ledger
            if isinstance(self.training, UnnamedTraining):
                self.training = replace(self.training, folder=self.path.parent)
        self._admitted: tuple[PrivacySession, str | None] | None = None

    @property
    def partitions(self) -> tuple[Partition | None, ...]:
        """Which records are private according to its file; None for plain weights, about which nothing is known."""
        return (self.training.partition if isinstance(self.training, Training) else None,)

    @property
    @abstractmethod
    def num_teachers(self) -> int:
        """n."""

    def logits(self, images: torch.Tensor) -> torch.Tensor:
        """One teacher's logits, (N, C, H, W) → (N, c), float32.

        Raises:
            TeacherError: They are several, see `each`, or at the clients of a federation.
        """
        raise TeacherError(f"{self.name()} gives no logits of its own: it is not one teacher")

    def each(self, images: torch.Tensor) -> torch.Tensor:
        """Every teacher's logits of an ensemble, (N, C, H, W) → (n, N, c), float32.

        Raises:
            TeacherError: It is no ensemble.
        """
        raise TeacherError(f"{self.name()} is not the file of an ensemble")

    @abstractmethod
    def _network_of(self, teacher: int) -> nn.Module:
        """One network; only for the checks of this package and for `unprotected`."""

    def unprotected(self, session: PrivacySession, *, reason: str, teacher: int = 0) -> nn.Module:
        """Hands out a network itself, for gradients with respect to images or for its BatchNorm statistics.

        Args:
            session: Charged first, once per run, with a release that only the teacher's own training bounds.
            reason: What it is used for, in words.
            teacher: Its number, from 0.

        Raises:
            BudgetExceeded: The target does not allow it.
            TeacherError: It is a graph without gradients.
        """
        if self._admitted is None or self._admitted[0] is not session:
            self._admitted = (session, session.admit(self.training))
        self.require_gradients(reason=reason)
        session.charge_nonprivate_access(reason, training=self._admitted[1])
        return self._network_of(teacher).eval()

    def ledger_place(self, data: Any = None) -> LedgerPlace:
        """Place of the private data's ledger, to which a data module of them leads; in memory for a script's model."""
        if self.path is None:
            return LedgerPlace(None)
        recorded = self.training.ledger if isinstance(self.training, Training) else None
        home: DataHome | None = getattr(data, "home", None)
        if home is not None and data.private_data != self.private_data:
            same = any(one is not None and same_data(one, data.partition) for one in self.partitions)
            # What weights from elsewhere were trained on is not known: perhaps on the private files at hand.
            perhaps = isinstance(self.training, UnnamedTraining) and len(home.folders) > 1
            home = home if same or perhaps else None
        return place_of(self.private_data, home=home, beside=self.path, recorded=recorded)

    def require_usable(self, *, num_classes: int, image_shape: tuple[int, int, int]) -> None:
        """Refuses a model without usable responses, before anything is charged.

        Raises:
            TeacherError: Its weights, or its logits for blank images, are not finite, or those are not (N, c).
        """
        for index in range(self.num_teachers):
            network = self._network_of(index)
            values = (value for value in network.state_dict().values() if value.is_floating_point())
            if not all(bool(torch.isfinite(value).all()) for value in values):
                raise TeacherError(f"{self.name(index)} holds weights that are not finite: train with a lower rate")
            try:
                check_network(network, num_classes=num_classes, image_shape=image_shape, name="model.teacher")
            except ValueError as error:
                raise TeacherError(f"{self.name(index)} is of no use here: {error}") from error

    def require_unlike(self, networks: Mapping[str, nn.Module]) -> list[str]:
        """Refuses networks that begin with a teacher's weight, which would be published and which no charge covers.

        Returns:
            Names of common weights that are frozen, such as those of a public feature extractor.

        Raises:
            TeacherError: A common weight is not frozen; the message names it.
        """
        begun = [(kind, *one) for kind, network in networks.items() for one in _varied(network)]
        shapes = {value.shape for *_, value in begun}
        theirs = (value for index in range(self.num_teachers) for value in self._network_of(index).parameters())
        own = {tensors_digest({"": value}) for value in theirs if value.shape in shapes}
        common = [one for one in begun if tensors_digest({"": one[2]}) in own]
        for kind, name, value in common:
            if value.requires_grad:
                raise TeacherError(
                    f"model.{kind}: {name!r} begins as a weight of {self.name()}, which would be published and which "
                    "no noise of this run covers: begin with new weights. Public ones that both have must be frozen"
                )
        return [f"model.{kind}: {name!r}" for kind, name, _ in common]

    @property
    def is_external(self) -> bool:
        """Whether it was trained elsewhere, and may expect other images or not return logits."""
        return isinstance(self.training, UnnamedTraining) or isinstance(self._network_of(0), AdaptedTeacher)

    def try_external(self, session: PrivacySession, *, image_shape: tuple[int, int, int], named: str) -> None:
        """Tries a teacher that was trained elsewhere, see `external.try_external`; the session notes it."""
        if self.is_external:
            session.note(TRIAL_ACCESS)
            network, whose, from_file = self._network_of(0), self.name(), self.path is not None
            try_external(network, image_shape=image_shape, whose=whose, named=named, from_file=from_file)

    def require_gradients(self, *, reason: str) -> None:
        """Refuses a graph without gradients if gradients or BatchNorm statistics are needed.

        Raises:
            TeacherError: It is one.
        """
        if any(isinstance(module, OnnxNetwork) for module in self._network_of(0).modules()):
            raise TeacherError(
                f"{self.name()} is in ONNX, which gives outputs and no gradients, and they are needed: {reason}. Take "
                "discriminator or baseline: student, images.source: prior, or the teacher's weights"
            )

    def name(self, teacher: int = 0) -> str:
        """Its name in messages."""
        return "the teacher" if self.path is None else f"teacher {self.path}"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a private teacher is never written, copied or sent to another process")


class PrivateTeacher(PrivateModel):
    """One private classifier; see `PrivateModel`.

    Args:
        network: The classifier, (N, C, H, W) → (N, c) logits.
        training: See `PrivateModel`; None identifies it by its weights.
        origin: The other arguments of `PrivateModel`.
    """

    num_teachers = 1

    def __init__(
        self, network: nn.Module, *, training: Training | UnnamedTraining | None = None, **origin: Any
    ) -> None:
        super().__init__(training=training or _of_script([network]), **origin)
        network.eval().requires_grad_(False)
        # Behind a function: an attribute could be reached, and a copy could register it.
        self._held: Callable[[], nn.Module] = lambda: network

    def _network_of(self, teacher: int) -> nn.Module:
        return self._held()

    def logits(self, images: torch.Tensor) -> torch.Tensor:
        """Logits (N, c) in float32, whatever the precision of the run, on the device of `images`.

        Anything computed from them is private until a session has released it.
        """
        return self._respond(self._ready(images.device), images)

    def shares_extractor(self, extractor: nn.Module | None) -> bool:
        """Whether `logits_of_extracted` accepts the outputs of `extractor`, a fixed and public one."""
        own = getattr(self._held(), "feature_extractor", None)
        if extractor is None or own is None or not hasattr(self._held(), "forward_extracted"):
            return False
        return digest_of(own) == digest_of(extractor)

    def shares_features(self, other: PrivateTeacher) -> bool:
        """Whether another teacher's `features` equal its own."""
        extractor: Any = getattr(other._held(), "feature_extractor", None)
        return self.shares_extractor(extractor)

    @torch.no_grad()
    def features(self, images: torch.Tensor) -> torch.Tensor:
        """Features of images (N, C, H, W) from its fixed extractor, for teachers that share it; see `logits`."""
        extract: Any = self._ready(images.device).feature_extractor
        with torch.autocast(images.device.type, enabled=False):
            extracted: torch.Tensor = extract(images.detach().float())
        return extracted

    def logits_of_extracted(self, features: torch.Tensor) -> torch.Tensor:
        """Like `logits`, for features (N, ...) of images from an extractor that `shares_extractor` accepts."""
        after: Any = self._ready(features.device).forward_extracted
        return self._respond(after, features)

    @staticmethod
    def _respond(network: Callable[[torch.Tensor], torch.Tensor], inputs: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode(), torch.autocast(inputs.device.type, enabled=False):
            outputs = network(inputs.detach().float())
        # A copy made outside inference mode: autograd accepts no inference tensor, not even as a constant.
        return outputs.float().clone()

    def _ready(self, device: torch.device) -> nn.Module:
        """The network in eval mode on a device; its modules are visited only if something must change."""
        network = self._held()
        weight = next(network.parameters(), None)
        if weight is None or weight.device != device:
            network.to(device)
        return network.eval() if any(map(attrgetter("training"), network.modules())) else network


class PrivateEnsemble(PrivateModel):
    """n private classifiers, trained on disjoint shards; see `PrivateModel`.

    One changed record (replaced, added or removed, its id deciding its shard) changes one teacher arbitrarily and the
    others not by a bit. So for any images chosen without looking at that record, **two of an image's counts move by at
    most 1 each, and one teacher's logits arbitrarily**. Noisy votes and the `ensemble` gradient release rest on that,
    under record-level replace-one and add-or-remove neighbours alike.

    Args:
        teachers: The networks.
        training: See `PrivateModel`; None identifies them by their weights.
        origin: The other arguments of `PrivateModel`.
    """

    def __init__(
        self, teachers: NetworkStack, *, training: Training | UnnamedTraining | None = None, **origin: Any
    ) -> None:
        networks = [teachers.network(index) for index in range(len(teachers))] if training is None else []
        super().__init__(training=training or _of_script(networks), **origin)
        # Behind a function, see `PrivateTeacher`.
        self._held: Callable[[], NetworkStack] = lambda: teachers

    @property
    def num_teachers(self) -> int:
        return len(self._held())

    def _network_of(self, teacher: int) -> nn.Module:
        return self._held().network(teacher)

    @torch.no_grad()
    def each(self, images: torch.Tensor) -> torch.Tensor:
        """Each teacher's logits, (N, C, H, W) → (n, N, c), float32, on the device of `images`.

        A sample that is not finite is replaced by zeros: whether a teacher breaks on an image depends on its records,
        and stopping the run would reveal it. Anything computed from the logits is private until a session has
        released it.
        """
        logits = self._held().logits(images)
        return torch.where(torch.isfinite(logits).all(dim=2, keepdim=True), logits, torch.zeros_like(logits))

    def votes(self, images: torch.Tensor) -> torch.Tensor:
        """Votes per class, (N, C, H, W) → (N, c), int64; rows sum to n. As private as the logits.

        Every teacher has one vote on every image, which goes to class 0 if its logits are not finite.
        """
        logits = self.each(images)
        return vote_counts(logits.argmax(dim=2), num_classes=logits.shape[2])

    def per_client(self) -> list[PrivateTeacher]:
        """Returns each teacher as that of one client, with its own private data and ledger.

        A client is known by its number: the file's n-th teacher always belongs to the same shard.
        """
        return [
            PrivateTeacher(
                self._network_of(index),
                private_data=f"{self.private_data}/client-{index}",
                num_records=self.num_records,  # of all clients together: more than this one's
                path=self.path,
                assumptions=self.assumptions,
            )
            for index in range(self.num_teachers)
        ]

    def name(self, teacher: int = 0) -> str:
        """Name of one of its teachers in messages."""
        return f"teacher {teacher} of {'the ensemble' if self.path is None else f'ensemble {self.path}'}"


def require_own_weights(networks: Iterable[nn.Module]) -> tuple[str, ...]:
    """Refuses teachers with a weight in common: one record would then move the answers of several.

    Frozen weights may be public and common to all, but not be all of a teacher: whoever only queries a network
    often freezes all of it.

    Returns:
        What must be assumed about common frozen weights; empty if there are none.

    Raises:
        TeacherError: There is a common weight; the message names it.
    """
    owners: dict[bytes, int] = {}
    frozen: dict[str, None] = {}
    for index, network in enumerate(networks):
        weights = [(name, value.requires_grad, tensors_digest({"": value})) for name, value in _varied(network)]
        common = [one for one in weights if owners.setdefault(one[2], index) != index]
        for name, trained, digest in common:
            if trained or len(common) == len(weights):
                raise TeacherError(
                    f"teachers {owners[digest]} and {index} both have the weight {name!r}: each must be trained by "
                    "itself. Public weights that all have must be frozen (requires_grad), and not be all of a teacher"
                )
            frozen[name] = None
    if not frozen:
        return ()
    return (f"the {len(frozen)} frozen weights that teachers have in common, {next(iter(frozen))} first, are public",)


def _varied(network: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Weights by name, except constant ones, such as those of a normalisation before training."""
    return [(name, value) for name, value in network.named_parameters() if bool((value != value.flatten()[:1]).any())]


def tensors_digest(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """Hash of names, shapes and values. **Private**: a ledger keeps only a keyed hash of it.

    Floating-point numbers count as float32, and BatchNorm's counters and a prefix of all names are left out: a copy
    without them is the same teacher.
    """
    digest, shared = hashlib.sha256(), len(common_prefix(tensors))
    for name in sorted(name for name in tensors if not name.endswith("num_batches_tracked")):
        value = tensors[name].float() if tensors[name].is_floating_point() else tensors[name]
        digest.update(f"{name[shared:]}|{tuple(value.shape)}|{value.dtype}|".encode())
        digest.update(bytes_of(value))
    return digest.digest()


def _of_script(networks: list[nn.Module]) -> UnnamedTraining:
    """Training of a script's networks, identified by their weights, whatever inputs they are adapted to."""
    plain = [network.network if isinstance(network, AdaptedTeacher) else network for network in networks]
    states = [network.state_dict() for network in plain]
    stacked = {f"{index}.{name}": value for index, state in enumerate(states) for name, value in state.items()}
    return UnnamedTraining(tensors_digest(states[0] if len(states) == 1 else stacked), kind="network of a script")
