"""Trained teachers on disjoint shards that must never be written anywhere, loaded when a fit begins and not before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from lightning_modules.networks.stacked import NetworkStack
from lightning_modules.teachers.private_model import PrivateModel, TeacherError, training_of, weights_digest
from lightning_modules.teachers.private_teacher import PrivateTeacher, architecture
from lightning_modules.teachers.teacher_input import OURS, TeacherInput, TeacherOutputs, adapted, as_logits
from privacy.identity import Training, UnnamedTraining
from privacy.mechanisms.vote_counts import vote_counts

__all__ = ["PrivateEnsemble"]


class PrivateEnsemble(PrivateModel):
    """n private classifiers, see `PrivateModel`.

    One changed record (replaced, or added or taken out, its id deciding its shard) changes one teacher arbitrarily and
    leaves the others equal to the last bit. So for any images chosen without looking at that record, **two of an
    image's counts move by at most 1 each, and one teacher's logits by whatever they may**. That is what `LaplaceVotes`,
    `GaussianVotes` and the `ensemble` gradient release are computed for, under record-level replace-one or
    add-or-remove neighbours alike.

    Args:
        teachers: The networks.
        num_classes: c.
        private_data: Public name of what they were trained on.
        training: See `PrivateModel`; None takes their weights for their identity.
        num_records: Number of records they were trained on together, where known.
        path: The file they came from.
        inputs: What the networks take, where it is not images as they are here.
        outputs: What they give.
    """

    def __init__(
        self,
        teachers: NetworkStack,
        *,
        num_classes: int,
        private_data: str,
        training: Training | UnnamedTraining | None = None,
        num_records: int | None = None,
        path: Path | None = None,
        inputs: TeacherInput = OURS,
        outputs: TeacherOutputs = "logits",
    ) -> None:
        states = [teachers.network(index).state_dict() for index in range(len(teachers))] if training is None else []
        named = {f"{index}.{name}": value for index, state in enumerate(states) for name, value in state.items()}
        super().__init__(
            private_data=private_data,
            training=training or UnnamedTraining(weights_digest(named), kind="networks of a script"),
            num_records=num_records,
            path=path,
            outputs=outputs,
        )
        self.inputs = inputs
        self.num_classes = num_classes
        # In a function, see `PrivateTeacher`.
        self._held: Callable[[], NetworkStack] = lambda: teachers

    @property
    def num_teachers(self) -> int:
        """n."""
        return len(self._held())

    def _network_of(self, teacher: int) -> nn.Module:
        return adapted(self._held().network(teacher), inputs=self.inputs, outputs=self.outputs)

    @torch.no_grad()
    def each(self, images: torch.Tensor) -> torch.Tensor:
        """Each teacher's logits, (N, C, H, W) → (n, N, c), float32, on the device of `images`.

        A sample that is not finite is given as zeros: whether a teacher breaks on an image depends on its records, and
        a run that stopped there would have answered. Whatever is computed from them is private until an annotator has
        released it.
        """
        logits = as_logits(self._held().logits(self.inputs(images.detach().float())), self.outputs)
        return torch.where(torch.isfinite(logits).all(dim=2, keepdim=True), logits, torch.zeros_like(logits))

    def votes(self, images: torch.Tensor) -> torch.Tensor:
        """Votes per class, (N, C, H, W) → (N, c), int64; rows sum to n. As private as the logits.

        Every teacher has one vote on every image: where its logits are not finite, it goes to class 0.
        """
        return vote_counts(self.each(images).argmax(dim=2), num_classes=self.num_classes)

    def logits(self, images: torch.Tensor) -> torch.Tensor:
        """The votes as numbers, shape (N, c): their argmax is what most teachers say. As private as they are."""
        return self.votes(images).float()

    def apart(self) -> list[PrivateTeacher]:
        """Each teacher by itself, as the one of a client, with private data and a ledger of its own.

        A client is known by its number: the file's n-th teacher is that of the same shard whatever the others are.
        """
        found = []
        for index in range(self.num_teachers):
            teacher = PrivateTeacher(
                self._held().network(index),
                private_data=f"{self.private_data}/client-{index}",
                num_records=self.num_records,  # of all clients together: more than this one's
                path=self.path,
                inputs=self.inputs,
                outputs=self.outputs,
            )
            teacher.assumptions = self.assumptions
            found.append(teacher)
        return found

    def _name(self, teacher: int) -> str:
        where = "the ensemble" if self.path is None else f"ensemble {self.path}"
        return f"teacher {teacher} of {where}"

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        num_classes: int,
        image_shape: tuple[int, int, int],
        network: Callable[..., nn.Module] | None = None,
        private_data: str | None = None,
        teachers_at_once: int = 25,
        workers: int | None = None,
        inputs: TeacherInput = OURS,
        outputs: TeacherOutputs = "logits",
    ) -> PrivateEnsemble:
        """Reads a checkpoint of `TeacherEnsemble`.

        Args:
            path: The file; read without unpickling code.
            num_classes: c that the run expects.
            image_shape: (C, H, W) that the run expects.
            network: Builds the architecture. A checkpoint made on the command line knows its own.
            private_data: Public name of the private data; the checkpoint knows it.
            teachers_at_once: How many are queried in one call on an accelerator: bounds the memory.
            workers: Threads on a CPU; None as many as torch would use.
            inputs: What the networks take, where it is not images as they are here.
            outputs: What they give.

        Raises:
            TeacherError: Missing file, not an ensemble or an unfinished one, other architecture or class count, weights
                that are not finite.
        """
        file = Path(path)
        if not file.is_file():
            raise TeacherError(
                f"checkpoint {file} of an ensemble does not exist. Make one with `LightningCLI fit --config "
                "sweeps/ensemble_<dataset>.yaml` (a federation's: sweeps/clients_<dataset>.yaml), or set the path to "
                "your own file"
            )
        try:
            content = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:
            raise TeacherError(f"{file} cannot be read as plain weights ({type(error).__name__}: {error})") from error
        ensemble = content.get("ensemble") if isinstance(content, dict) else None
        if not isinstance(ensemble, dict) or "weights" not in ensemble:
            raise TeacherError(
                f"{file} holds no ensemble: give a checkpoint of `LightningCLI fit` with a TeacherEnsemble"
            )
        done, wanted = int(ensemble["done"]), int(ensemble["settings"]["num_teachers"])
        if done < wanted:
            raise TeacherError(
                f"{file} holds an unfinished ensemble, {done} of {wanted} teachers: go on with `LightningCLI fit "
                f"--config ... --ckpt_path {file}`"
            )
        template = architecture(
            network,
            content,
            file,
            whose=f"the teachers in {file}",
            num_classes=num_classes,
            image_shape=inputs.shape(image_shape),
        )
        try:
            teachers = NetworkStack.from_states(
                template, ensemble["weights"], at_once=teachers_at_once, workers=workers
            )
        except RuntimeError as error:
            raise TeacherError(
                f"the weights in {file} do not fit the architecture {type(template).__name__} with "
                f"num_classes={num_classes} and image_shape={image_shape}: {error}. Set model.teacher.network to the "
                "class that the teachers were trained with, or take the data set that they were trained on"
            ) from error
        records = content.get("num_records")
        loaded = cls(
            teachers,
            num_classes=num_classes,
            private_data=private_data or content.get("private_data") or f"training data of {file.name}",
            training=training_of(content, ensemble["weights"], file),
            num_records=None if records is None else int(records),
            path=file,
            inputs=inputs,
            outputs=outputs,
        )
        loaded.assumptions = (*(str(text) for text in ensemble.get("assumptions", ())), *loaded.assumptions)
        loaded.require_usable(num_classes=num_classes, image_shape=image_shape)
        return loaded
