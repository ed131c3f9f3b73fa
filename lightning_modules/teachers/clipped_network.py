"""The network of a training by DP-SGD: how its records are clipped, in how many views; it keeps none of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import nn

from lightning_modules.teachers.augmentation import random_views
from lightning_modules.teachers.clipping_trial import ClippingTrial, Extracts, changed, digests, logits_after
from lightning_modules.teachers.dp_optimizers import ExactNoise
from lightning_modules.teachers.record_clipping import WAYS, Clipping, RecordClipping, Way, chosen_way
from privacy.identity import CheckpointError
from privacy.mechanisms.noise import NoiseSource
from privacy.processes import Processes, by_all

__all__ = ["ClippedNetwork"]


class ClippedNetwork:
    """A network whose records are clipped one by one.

    Args:
        network: What is trained.
        clipping: See `DPSGDTeacher`.
        max_grad_norm: C.
        physical_batch_size: Gradients that are held at once.
        views: Arguments of `random_views` except the images and the source; None takes records as they are.
        loss: `label_smoothing` and `log_prior` of `RecordClipping`.
        flat_for: See `chosen_way`.

    Attributes:
        asked: The setting.
        way: How records are clipped: never `auto`.
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        clipping: Clipping,
        max_grad_norm: float,
        physical_batch_size: int,
        views: Mapping[str, Any] | None,
        loss: Mapping[str, Any],
        flat_for: str | None,
    ) -> None:
        self.network = network
        self.asked: Clipping = clipping
        self.max_grad_norm = max_grad_norm
        self.physical_batch_size = physical_batch_size
        self.views = views
        self.loss = loss
        self._flat_for = flat_for
        self.way = self._chosen(clipping)
        self._clipping: RecordClipping | None = None
        #: Of all but the trained weights, when the fit began.
        self._state: dict[str, str] | None = None

    def _chosen(self, clipping: Clipping) -> Way:
        size = self.physical_batch_size
        return chosen_way(clipping, self.network, physical_batch_size=size, flat_for=self._flat_for)

    @property
    def extracts(self) -> Extracts | None:
        """The part of the network whose outputs may be computed once; None where there is none."""
        if self.way == "linear":
            return "forward_features"
        fixed = isinstance(getattr(self.network, "feature_extractor", None), nn.Module)
        return "feature_extractor" if fixed and self.views is None else None

    def go_on(self, state: Mapping[str, Any]) -> None:
        """`auto` continues as the checkpoint's training began, and so does ghost clipping that fell back to flat.

        Any way would cost the same. But a way may bring an assumption into the guarantee, and a request for another
        is refused by name, like any other changed setting.
        """
        before = state.get("settings", {}).get("clipping")
        if before in WAYS and self.asked in ("auto", state.get("asked_clipping")):
            self.way = self._chosen(before)

    def records_at_once(self, records: int) -> int:
        """Records of a physical batch, of so many in all."""
        if self.way == "linear":
            return max(1, records)
        return max(1, self.physical_batch_size // (self.views["count"] if self.views else 1))

    def settle(
        self,
        *,
        image_shape: tuple[int, int, int],
        num_classes: int,
        batch_size: int,
        processes: Processes,
        resumed: bool,
    ) -> None:
        """Tries the clipping mode on public images, before any private data are read: see `ClippingTrial`.

        Raises:
            ValueError: See `ClippingTrial`.
            CheckpointError: Steps were taken with a way that does not hold.
        """
        if self._clipping is not None:
            self._clipping.release()  # a copy of the network would include the hooks
            self._clipping = None
        trial = ClippingTrial(
            image_shape=image_shape,
            num_classes=num_classes,
            # Features are computed in pieces, as `PoissonSampled.precompute` does.
            physical=min(batch_size, 512 if self.way == "linear" else self.records_at_once(batch_size)),
            extracts=self.extracts,
            views=self.views,
            loss=self.loss,
        )
        own = by_all(processes, lambda: trial(self.network, self.way))
        found, why = min(processes.gather(own))  # flat before ghost, in all processes where it is in one
        if found != self.way:
            if resumed:
                raise CheckpointError(
                    f"model.network: {why}. The checkpoint's steps were clipped so: start a new run without --ckpt_path"
                )
            rank_zero_info(f"Takes flat clipping: {why}. Lower physical_batch_size where memory does not suffice.")
            self.way = found
        self._state = digests(self.network, trained=False)

    def optimizer(self, base: torch.optim.Optimizer, **settings: Any) -> ExactNoise:
        """`base` inside the optimizer that this way of clipping needs, with Opacus's settings."""
        self._clipping = WAYS[self.way](self.network, max_grad_norm=self.max_grad_norm, **self.loss)
        return self._clipping.optimizer(base, max_grad_norm=self.max_grad_norm, loss_reduction="mean", **settings)

    def logits(self, inputs: torch.Tensor, *, extracted: bool) -> torch.Tensor:
        """Logits of images, or of features that were computed before."""
        return logits_after(self.network, self.extracts if extracted else None, inputs)

    def add(
        self,
        inputs: torch.Tensor,
        labels: torch.Tensor,
        *,
        optimizer: ExactNoise,
        source: NoiseSource,
        extracted: bool,
    ) -> None:
        """Leaves a physical batch's gradients where `optimizer.step` takes them; views are drawn from `source`."""
        assert self._clipping is not None
        if len(inputs) == 0:
            self._clipping.add_nothing(optimizer)
            return
        count = 1
        if self.views is not None:
            count = self.views["count"]
            inputs, labels = random_views(inputs, source=source, **self.views), labels.repeat_interleave(count)
        self._clipping.add(
            inputs,
            labels,
            forward=lambda images: self.logits(images, extracted=extracted),
            optimizer=optimizer,
            views=count,
        )

    def refuse_written_state(self) -> None:
        """Refuses to publish what a network stored of private records.

        Raises:
            ValueError: A buffer, or another state than the trained weights, is not what it was before the first step.
        """
        if self._state is not None and (written := changed(self._state, digests(self.network, trained=False))):
            raise ValueError(
                f"model.network: {written[0]!r} changed in training and is no trained weight: it would publish without "
                "noise what the network wrote there of private records. Take it out of the network"
            )
