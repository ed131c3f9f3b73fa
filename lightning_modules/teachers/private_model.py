"""What every private model offers, one classifier or many: responses, and no way around an annotator."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import nn

from datamodules.partition import Partition
from lightning_modules.networks import check_network
from lightning_modules.networks.memory import bytes_of
from lightning_modules.teachers.errors import TeacherError
from lightning_modules.teachers.onnx_network import OnnxNetwork
from lightning_modules.teachers.teacher_input import OURS, AdaptedTeacher, TeacherOutputs
from lightning_modules.teachers.trial import try_teacher
from privacy.annotators import Annotator
from privacy.identity import Training, UnnamedTraining, ledger_file

__all__ = [
    "PrivateModel",
    "TeacherError",
    "has_finite_weights",
    "training_of",
    "weights_digest",
]


class PrivateModel(ABC):
    """A private classifier or an ensemble of them, held outside of every `nn.Module`.

    No attribute is a network, so that no `state_dict`, checkpoint, logger or copy can reach one; the networks are
    queried by methods, whose responses are private until an annotator has released something of them.

    Args:
        private_data: Public name of what was trained on.
        training: Which training it comes from; None: unknown, and nothing bounds what is computed from it.
        num_records: Number of records that were trained on, where known.
        path: The file it came from.
        outputs: What its networks give.
    """

    def __init__(
        self,
        *,
        private_data: str,
        training: Training | UnnamedTraining | None,
        num_records: int | None = None,
        path: Path | None = None,
        outputs: TeacherOutputs = "logits",
    ) -> None:
        self.outputs: TeacherOutputs = outputs
        self.private_data = private_data
        if isinstance(training, UnnamedTraining) and path is not None:
            training = replace(training, folder=path.resolve().parent)
        self.training = training
        self.num_records = num_records
        # Resolved: a symbolic link must not lead to another ledger.
        self.path = None if path is None else path.resolve()
        #: The ledger that knows it by its weights, where its file names no private data.
        self.known_ledger: Path | None = None
        #: What a guarantee rests on because of the file that it came from, or of what is in it.
        self.assumptions: tuple[str, ...] = ()
        self._admitted: tuple[Annotator, str | None] | None = None

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """Which records its file says are private; none where it holds plain weights, of which nothing is known."""
        stated = self.training.partition if isinstance(self.training, Training) else None
        return () if stated is None else (stated,)

    @property
    @abstractmethod
    def num_teachers(self) -> int:
        """n."""

    @abstractmethod
    def logits(self, images: torch.Tensor) -> torch.Tensor:
        """Its decision, (N, C, H, W) → (N, c), float32: logits of one teacher, votes of many."""

    @abstractmethod
    def each(self, images: torch.Tensor) -> torch.Tensor:
        """Every teacher's logits, (N, C, H, W) → (n, N, c), float32."""

    @abstractmethod
    def _network_of(self, teacher: int) -> nn.Module:
        """One network, only for the checks of this module and for `unprotected`."""

    def unprotected(self, annotator: Annotator, *, reason: str, teacher: int = 0) -> nn.Module:
        """One network itself, for a gradient with respect to images or its BatchNorm statistics.

        Args:
            annotator: Charged first, once in a run, with a release that nothing but the teacher's own training bounds.
            reason: What is done with it, in words.
            teacher: Its number, from 0.

        Raises:
            BudgetExceeded: The target does not allow it.
            TeacherError: It is a graph that has only outputs.
        """
        if self._admitted is None or self._admitted[0] is not annotator:
            self._admitted = (annotator, annotator.admit(self.training))
        network = self._network_of(teacher)
        _require_gradients(network, whose=self._name(teacher), reason=reason)
        annotator.charge_nonprivate_access(reason, training=self._admitted[1])
        return network.eval()

    @property
    def ledger(self) -> Path | None:
        """Where the ledger of the private data lies; None for a model of a script, whose ledger is kept in memory."""
        if self.path is None:
            return None
        if self.known_ledger is not None:
            return self.known_ledger
        recorded = self.training.ledger if isinstance(self.training, Training) else None
        return ledger_file(self.private_data, beside=self.path, recorded=recorded)

    def require_usable(self, *, num_classes: int, image_shape: tuple[int, int, int]) -> None:
        """Refuses, before anything is charged, a model without usable responses.

        Raises:
            TeacherError: Weights that are not finite, or not (N, c) finite logits for blank images.
        """
        for index in range(self.num_teachers):
            whose = self._name(index)
            network = self._network_of(index)
            if not has_finite_weights(network):
                raise TeacherError(
                    f"{whose} holds weights that are not finite; it was refused before anything was charged. Train "
                    "with a lower rate (model.optimizer)"
                )
            try:
                check_network(network, num_classes=num_classes, image_shape=image_shape, name="model.teacher")
            except ValueError as error:
                raise TeacherError(f"{whose} is of no use here: {error}") from error

    @property
    def is_foreign(self) -> bool:
        """Whether it was not trained here, on images as they are here: it may expect others, and give no logits."""
        return isinstance(self.training, UnnamedTraining) or isinstance(self._network_of(0), AdaptedTeacher)

    def require_gradients(self, *, reason: str) -> None:
        """Refuses a graph that has only outputs where gradients are needed.

        Raises:
            TeacherError: It is one.
        """
        _require_gradients(self._network_of(0), whose=self._name(0), reason=reason)

    def tried_on(self, images: torch.Tensor, *, named: str) -> list[str]:
        """Looks at what one network gives for public images (N, C, H, W), on the CPU: what its owner should know.

        A non-private access: nothing of it may be published, stored or chosen by.

        Args:
            images: In [-1, 1].
            named: The setting that says what it takes, for messages.

        Returns:
            Warnings that name what to set.

        Raises:
            TeacherError: Its outputs are not what `teacher.outputs` states.
        """
        network = self._network_of(0)
        inputs, outputs = OURS, self.outputs
        if isinstance(network, AdaptedTeacher):
            inputs, network = network.stated, network.network
        try:
            return try_teacher(network, images, inputs=inputs, outputs=outputs, whose=self._name(0), named=named)
        except ValueError as error:
            raise TeacherError(str(error)) from error

    def _name(self, teacher: int) -> str:
        return "the teacher" if self.path is None else f"teacher {self.path}"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a private teacher is never written, copied or sent to another process")


def _require_gradients(network: nn.Module, *, whose: str, reason: str) -> None:
    """Refuses a graph that has only outputs where gradients or BatchNorm statistics are needed.

    Raises:
        TeacherError: It is one.
    """
    if any(isinstance(module, OnnxNetwork) for module in network.modules()):
        raise TeacherError(
            f"{whose} is in ONNX, which gives outputs and no gradients, and they are needed: {reason}. Train the "
            "generator against the student (discriminator: student, baseline: student), take images.source: prior, or "
            "give the teacher as weights with model.teacher.network"
        )


def has_finite_weights(network: nn.Module) -> bool:
    """Whether every weight and buffer is finite."""
    if not all(module.finite for module in network.modules() if isinstance(module, OnnxNetwork)):
        return False
    values = (value for value in network.state_dict().values() if value.is_floating_point())
    return all(bool(torch.isfinite(value).all()) for value in values)


def weights_digest(weights: Mapping[str, torch.Tensor]) -> bytes:
    """Hash of names, shapes and values. **Private**: a ledger keeps no more of it than a keyed hash."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        value = weights[name]
        digest.update(f"{name}|{tuple(value.shape)}|{value.dtype}|".encode())
        digest.update(bytes_of(value))
    return digest.digest()


def training_of(content: Any, weights: Mapping[str, torch.Tensor], file: Path) -> Training | UnnamedTraining:
    """Identifies a file's training run, as the file names it or else by its weights.

    Raises:
        TeacherError: What it says describes no training.
    """
    stated = content.get("training") if isinstance(content, dict) else None
    if stated is not None:
        try:
            return Training.from_dict(stated)
        except ValueError as error:
            raise TeacherError(f"teacher {file}: {error}") from error
    return UnnamedTraining(weights_digest(weights), kind="file without an identity")
