"""Trained teachers on disjoint shards that must never be written anywhere, loaded when a fit begins and not before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import torch
from torch import nn

from lightning_modules.components import check_network
from lightning_modules.components.stacked import NetworkStack
from lightning_modules.private_teacher import TeacherError, architecture, has_finite_weights
from privacy.annotators import Annotator
from privacy.pipelines import Bound
from privacy.votes import vote_counts

__all__ = ["PrivateEnsemble"]


class PrivateEnsemble:
    """n teachers outside of every `nn.Module`, so that no `state_dict`, checkpoint or logger can reach them.

    One changed record (replaced, or added or taken out, its id deciding its shard) changes one teacher arbitrarily and
    leaves the others equal to the last bit. So for any images chosen without looking at that record, **two of an
    image's counts move by at most 1 each, and one row of its logits by whatever it may**. That is what `LaplaceVotes`,
    `GaussianVotes` and the `ensemble` gradient release are computed for, under record-level replace-one or
    add-or-remove neighbours alike.

    Args:
        teachers: The networks.
        num_classes: c.
        private_data: Public name of what they were trained on.
        num_records: Number of records they were trained on together, where known.
        path: The file they came from, beside which the ledger lies.
        bound: A record-level guarantee of the teachers themselves; None where nothing bounds them.
    """

    def __init__(
        self,
        teachers: NetworkStack,
        *,
        num_classes: int,
        private_data: str,
        num_records: int | None = None,
        path: Path | None = None,
        bound: Bound | None = None,
    ) -> None:
        self._teachers = teachers
        self.num_classes = num_classes
        self.private_data = private_data
        self.num_records = num_records
        self.path = path
        self.bound = bound

    @property
    def num_teachers(self) -> int:
        """n."""
        return len(self._teachers)

    def logits(self, images: torch.Tensor) -> torch.Tensor:
        """Each teacher's logits, (N, C, H, W) → (n, N, c), float32, on the device of `images`.

        A row that is not finite is given as zeros: whether a teacher breaks on an image depends on its records, and a
        run that stopped there would have answered. Whatever is computed from them is private until an annotator has
        released it.
        """
        logits = self._teachers.logits(images)
        return torch.where(torch.isfinite(logits).all(dim=2, keepdim=True), logits, torch.zeros_like(logits))

    def votes(self, images: torch.Tensor) -> torch.Tensor:
        """Votes per class, (N, C, H, W) → (N, c), int64; rows sum to n.

        Every teacher has one vote on every image: where its logits are not finite, it goes to class 0.
        """
        return vote_counts(self.logits(images).argmax(dim=2), num_classes=self.num_classes)

    def unprotected(self, door: Annotator, *, teacher: int, reason: str) -> nn.Module:
        """One teacher's network itself, for a gradient with respect to images or its BatchNorm statistics.

        Args:
            door: Charged first, once in a run, with a release that nothing bounds.
            teacher: Its number, from 0.
            reason: What is done with it, in words.

        Raises:
            BudgetExceeded: The target allows no such thing.
        """
        door.reveal(reason)
        return self._teachers.network(teacher)

    def __reduce__(self) -> NoReturn:
        raise TypeError("private teachers are never written, copied or sent to another process")

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
    ) -> PrivateEnsemble:
        """Reads a checkpoint of `TeacherEnsemble`.

        Args:
            path: The file; read without unpickling code.
            num_classes: c that the run expects.
            image_shape: (C, H, W) that the run expects.
            network: Builds the architecture. A checkpoint made on the command line knows its own.
            private_data: Public name of the private data; the checkpoint knows it.
            teachers_at_once: How many are asked in one call on an accelerator: bounds the memory.
            workers: Threads on a CPU; None as many as torch would use.

        Raises:
            TeacherError: Missing file, no ensemble or an unfinished one, other architecture or class count, weights
                that are not finite.
        """
        file = Path(path)
        if not file.is_file():
            raise TeacherError(
                f"checkpoint {file} of an ensemble does not exist. Make one with `LightningCLI fit --config "
                "sweeps/ensemble_<dataset>.yaml`, or set the path to your own file"
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
            network, content, file, whose=f"the teachers in {file}", num_classes=num_classes, image_shape=image_shape
        )
        try:
            teachers = NetworkStack.from_states(
                template, ensemble["weights"], at_once=teachers_at_once, workers=workers
            )
        except RuntimeError as error:
            raise TeacherError(
                f"the weights in {file} do not fit the architecture {type(template).__name__} with "
                f"num_classes={num_classes} and image_shape={image_shape}: {error}. Set model.teacher_network to the "
                "class that the teachers were trained with, or take the data set that they were trained on"
            ) from error
        records = content.get("num_records")
        loaded = cls(
            teachers,
            num_classes=num_classes,
            private_data=private_data or content.get("private_data") or f"training data of {file.name}",
            num_records=None if records is None else int(records),
            path=file,
        )
        loaded.require_usable(num_classes=num_classes, image_shape=image_shape)
        return loaded

    def require_usable(self, *, num_classes: int, image_shape: tuple[int, int, int]) -> None:
        """Refuses, before anything is charged, teachers of which one could answer nothing of use.

        Raises:
            TeacherError: Weights that are not finite, or not (N, c) finite logits for blank images.
        """
        where = "the ensemble" if self.path is None else f"ensemble {self.path}"
        for index in range(self.num_teachers):
            network = self._teachers.network(index)
            if not has_finite_weights(network):
                raise TeacherError(
                    f"teacher {index} of {where} holds weights that are not finite; it was refused before anything was "
                    "charged. Train with a lower rate (model.optimizer)"
                )
            try:
                check_network(network, num_classes=num_classes, image_shape=image_shape, name="model.teacher")
            except ValueError as error:
                raise TeacherError(f"teacher {index} of {where} is of no use here: {error}") from error
