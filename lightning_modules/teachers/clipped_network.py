"""The network of a DP-SGD training, with per-record gradient clipping."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn

from lightning_modules.networks.stacked import fixed_extractor
from lightning_modules.teachers.clipping_trial import (
    DRAWS,
    ClippingTrial,
    Extracts,
    Hooks,
    changed,
    digests,
    hooks_of,
    keeps_nothing,
    logits_after,
    refuse_hooks,
)
from lightning_modules.teachers.losses import InnerProduct, PriorCrossEntropy
from lightning_modules.teachers.private_teacher import tensors_digest
from lightning_modules.teachers.record_clipping import MODES, Clipping, Mode, RecordClipping, pieces_of
from lightning_modules.training.randomness import full_float32, random_states
from privacy.identity import CheckpointError
from privacy.processes import Processes, by_all


class ClippedNetwork:
    """A network whose gradients are clipped per record, or per person.

    Args:
        network: The network to train.
        clipping: See `DPSGDTeacher`.
        criterion: The loss.
        by_person: Whether the mean gradient of each person is clipped instead of each record's gradient.

    Attributes:
        mode: The clipping mode, never `auto`.
        known: Whether all parts, in this fit and those before, come from this project or torch. For others the trial
            finds most problems, but not all.
    """

    def __init__(
        self, network: nn.Module, clipping: Clipping, criterion: PriorCrossEntropy, *, by_person: bool = False
    ) -> None:
        self.network = network
        self.clipping = clipping
        self.criterion = criterion
        self.by_person = by_person
        self.mode: Mode = self._mode_of(clipping)
        self.known = True
        self._clipped: RecordClipping | None = None
        self._hooks: Hooks = {}
        #: Largest number of records in a physical batch.
        self._most = clipping.physical_batch_size
        #: Digests of everything but the trained weights, when the fit began.
        self._state: dict[str, str] | None = None
        #: Digest of the weights with which a fit may begin; None during a fit.
        self._weights: bytes | None = self._digest()

    @property
    def extracts(self) -> Extracts | None:
        """Part of the network whose outputs may be computed once; None without one."""
        if self.mode == "linear":
            return "forward_features"
        return None if fixed_extractor(self.network) is None else "feature_extractor"

    def go_on(self, state: Mapping[str, Any]) -> None:
        """Makes `auto`, and ghost clipping that fell back to flat, continue in the mode of the checkpoint.

        Any mode would cost the same. But a mode may add an assumption to the guarantee, and asking for another one is
        refused by name, like any other changed setting.
        """
        before = state.get("settings", {}).get("clipping.mode")
        if before in MODES and self.clipping.mode in ("auto", state.get("given_mode")):
            self.mode = self._mode_of(replace(self.clipping, mode=before))
        self.known = state.get("known", False)

    def _mode_of(self, clipping: Clipping) -> Mode:
        of_cross_entropy = not isinstance(self.criterion, InnerProduct)  # as `linear_sums` are
        return clipping.mode_for(self.network, by_person=self.by_person, linear=of_cross_entropy)

    def settle(
        self,
        *,
        image_shape: tuple[int, int, int],
        num_classes: int,
        batch_size: int,
        processes: Processes,
        resumed: bool,
    ) -> None:
        """Tries the clipping mode on public images before any private data is read; see `ClippingTrial`.

        Raises:
            ValueError: See `ClippingTrial`.
            CheckpointError: Steps were taken in a mode that does not bound each record.
        """
        if self._clipped is not None:
            self._clipped.release()  # a copy of the network would include the hooks
            self._clipped = None
        self.known = self.known and keeps_nothing(self.network)
        # Twice the expected size: half of the Poisson batches exceed it, and no piece may be larger than in the trial.
        self._most = min(self.clipping.physical_batch_size, 2 * batch_size)
        trial = ClippingTrial(
            image_shape=image_shape,
            num_classes=num_classes,
            # Features are computed in pieces, as `PoissonSampled.precompute` does.
            physical=512 if self.mode == "linear" else self._most,
            extracts=self.extracts,
            criterion=self.criterion,
        )
        with full_float32():  # as the steps themselves
            outcome = by_all(processes, lambda: trial(self.network, self.mode))
        mode, why = min(processes.gather(outcome))  # flat before ghost, in all processes where it is in one
        if mode != self.mode:
            if resumed:
                raise CheckpointError(
                    f"model.network: {why}. The checkpoint's steps were clipped so: start a new run without --ckpt_path"
                )
            rank_zero_info(f"Takes flat clipping: {why}. Lower physical_batch_size where memory does not suffice.")
            self.mode = mode
        self._state = digests(self.network, trained=False)
        self._clipped = MODES[self.mode](self.network, self.clipping, self.criterion)
        self._hooks = hooks_of(self.network)  # with Opacus's

    def refuse_new_hooks(self) -> None:
        """Refuses hooks other than those of the trial; see `refuse_hooks`."""
        refuse_hooks(self.network, tried=self._hooks)

    def logits(self, inputs: Tensor, *, extracted: bool) -> Tensor:
        """Logits of images, or of precomputed features."""
        inputs = inputs.float() if inputs.dtype == torch.float16 else inputs
        return logits_after(self.network, self.extracts if extracted else None, inputs)

    def sums(self, inputs: Tensor, labels: Tensor, counts: Tensor | None = None, *, extracted: bool) -> list[Tensor]:
        """Sums of the clipped gradients of a batch, which may be empty, computed in pieces.

        `counts` are the numbers of records of each person, see `PoissonSampled.sample_persons`.
        """
        assert self._clipped is not None and self.by_person == (counts is not None)
        self.refuse_new_hooks()
        kind = torch.float64 if self.clipping.lattice is None else torch.int64
        sums = [torch.zeros(parameter.shape, dtype=kind) for parameter in self._clipped.parameters]
        if len(inputs) == 0:
            return sums
        states = random_states(inputs.device)
        persons = None if counts is None else counts.tolist()
        size = len(inputs) if self.mode == "linear" else self._most
        pieces = pieces_of(inputs, labels, persons, size=size)
        with full_float32():  # in TF32 the rounding of a record may depend on the number of records
            for rows, targets, within in pieces:
                parts = self._clipped.sums(
                    rows, targets, lambda images: self.logits(images, extracted=extracted), within
                )
                for total, part in zip(sums, parts, strict=True):
                    total += part
        if random_states(inputs.device) != states:  # for example a dropout schedule that began after the trial
            raise ValueError(f"model.network: it {DRAWS}")
        for parameter in self._clipped.parameters:  # they have no noise, and Lightning's hooks may log them
            parameter.grad = parameter.grad_sample = None
            vars(parameter).pop("_norm_sample", None)
        return sums

    def _digest(self, state: Mapping[str, Any] | None = None) -> bytes:
        values = self.network.state_dict() if state is None else state
        return tensors_digest({name: value for name, value in values.items() if isinstance(value, Tensor)})

    def refuse_other_weights(self) -> None:
        """Refuses to begin a fit with weights that were not built, trained or resumed here.

        Raises:
            ValueError: They may come from another training.
        """
        if self._weights != self._digest():
            raise ValueError(
                "model.network: its weights are not those that it was built with, or that the fit before or the "
                "checkpoint left: they may be of another training, whose steps epsilon would not count. To go on with "
                "one, give its checkpoint (ckpt_path, load_from_checkpoint); public weights are loaded where the "
                "network is built"
            )
        self._weights = None

    def keep_weights(self, state: Mapping[str, Any] | None = None) -> None:
        """Allows a fit to begin with the weights of a checkpoint's `state`, or with those of the previous fit."""
        if state is not None or self._weights is None:
            self._weights = self._digest(state)

    def refuse_written_state(self) -> None:
        """Refuses to publish what a network has stored about private records.

        Raises:
            ValueError: A buffer, or other state besides the trained weights, has changed since the first step.
        """
        if self._state is not None and (written := changed(self._state, digests(self.network, trained=False))):
            raise ValueError(
                f"model.network: {written[0]!r} changed in training and is no trained weight: it would publish without "
                "noise what the network wrote there of private records. Take it out of the network"
            )
