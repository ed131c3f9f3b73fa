"""A teacher trained by DP-SGD: whatever is computed from it afterwards costs nothing more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, cast

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.utilities import rank_zero_info
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import nn

from datamodules import PoissonSampled
from lightning_modules.runtime.processes import check_strategy, processes_of
from lightning_modules.runtime.publication import clear, public_folder, publish
from lightning_modules.runtime.runs import callbacks_of, is_dev_run
from lightning_modules.teachers.clipped_network import ClippedNetwork
from lightning_modules.teachers.dp_optimizers import ExactNoise, FlatOptimizer
from lightning_modules.teachers.dp_sgd_checks import (
    ACCURACY_ACCESS,
    check_fit,
    check_settings,
    refuse_selection,
    require_records_apart,
)
from lightning_modules.teachers.dp_sgd_description import describe_dp_sgd
from lightning_modules.teachers.dp_sgd_steps import PlannedSteps, steps_ahead
from lightning_modules.teachers.record_clipping import WAYS, Clipping, Way
from lightning_modules.teachers.teacher import Teacher
from privacy.account import Budget, PrivacyAccount
from privacy.events import Release
from privacy.guarantee import Guarantee
from privacy.identity import CheckpointError
from privacy.mechanisms.discrete_gaussian import lattice_spacing
from privacy.mechanisms.noise import NoiseSource, SystemNoise
from privacy.processes import Processes, by_all

__all__ = ["DPSGDTeacher"]

#: Settings that a resumed training must not change, in addition to those of its noise.
_KEPT = ("delta", "max_grad_norm", "clipping", "bounding", "stability", "granularity", "augmentation_multiplicity")


class DPSGDTeacher(Teacher):
    """DP-SGD (Abadi et al. 2016) through Opacus: clipping by record, Gaussian noise, Poisson sampling, virtual batches.

    Record-level (ε, δ) under add-or-remove of one training record, by the privacy-loss distribution of the
    Poisson-sampled Gaussian. Needs the data module `PoissonSampled`. Noise and coins come from the operating system:
    `torch.Generator` keeps 32 bits of its seed. Several processes (`ddp`) share one batch and one noise.

    Args:
        num_classes: See `Teacher`.
        image_shape: See `Teacher`.
        target_epsilon: ε at the end of the planned steps; the noise is calibrated to it.
        noise_multiplier: σ in units of `max_grad_norm`, in place of `target_epsilon`.
        delta: δ, below one over the number of private records.
        max_grad_norm: Clipping norm of one record's gradient.
        clipping: `flat` keeps per-sample gradients, `ghost` computes their norms only, `linear` is for networks of
            which only a linear head is trained. `auto` is `linear` where that fits, else `flat` up to 256 MiB,
            else `ghost`; a resumed training continues as it began. Before the first step it is tried on public images
            (see `ClippingTrial`): where it does not bound each record, `ghost` falls back to `flat`, which is refused.
        physical_batch_size: Gradients that are held at once, one for each view of a record, except by `linear`. Does
            not change the result.
        augmentation_multiplicity: Random views of each record in a step, whose mean gradient is clipped (De et al.
            2022, section 3.3). 0 takes the record as it is. Needs flat clipping; features are not computed once.
        shift: Pixels by which a view is moved at most.
        flip: Mirror half of the views left to right.
        bounding: `clip` a record's gradient at `max_grad_norm`, or `normalize` it, C·g/(‖g‖ + γ) (automatic clipping,
            Bu et al. 2022). A record moves the sum by C at most either way. Needs flat clipping.
        stability: γ of `bounding: normalize`, above 0. In the units of gradients, not of C.
        granularity: Distance, in units of `max_grad_norm` (for example 1e-3), of the lattice that clipped gradients are
            rounded to, towards zero, and that discrete Gaussian noise lies on (Canonne, Kamath and Steinke 2020). Costs
            slightly more, since it is composed only by RDP, and needs flat clipping. None takes floating-point noise.
        noise: Source of the noise and of the views; None is the operating system's generator.
        network: See `Teacher`. It must treat each image by itself, without dropout or BatchNorm, which is tried before
            the first step. Features by a fixed `feature_extractor` (as of `LinearOnFeatures`) are computed once.
        optimizer: Default: SGD, rate 4, momentum 0.9.
        lr_scheduler: See `Teacher`.
        label_smoothing: See `Teacher`.
        class_prior: See `Teacher`. The guarantee names it among its assumptions.

    Raises:
        ValueError: An invalid setting, or a network with layers that DP-SGD cannot treat record by record.
    """

    def __init__(
        self,
        *,
        num_classes: int,
        image_shape: tuple[int, int, int],
        target_epsilon: float | None = None,
        noise_multiplier: float | None = None,
        delta: float = 1e-5,
        max_grad_norm: float = 0.1,
        clipping: Clipping = "auto",
        bounding: Literal["clip", "normalize"] = "clip",
        stability: float = 0.01,
        physical_batch_size: int = 256,
        augmentation_multiplicity: int = 0,
        shift: int = 2,
        flip: bool = False,
        granularity: float | None = None,
        noise: NoiseSource | None = None,
        network: Callable[..., nn.Module] | None = None,
        optimizer: OptimizerCallable | None = None,
        lr_scheduler: LRSchedulerCallable | None = None,
        label_smoothing: float = 0.0,
        class_prior: Sequence[float] | None = None,
    ) -> None:
        super().__init__(
            num_classes=num_classes,
            image_shape=image_shape,
            network=network,
            optimizer=optimizer,
            lr_scheduler=lr_scheduler,
            label_smoothing=label_smoothing,
            class_prior=class_prior,
        )
        self.automatic_optimization = False
        self.target_epsilon = target_epsilon
        self.noise_multiplier = noise_multiplier
        self._given = (target_epsilon, noise_multiplier)
        self.delta = delta
        self.max_grad_norm = max_grad_norm
        self.bounding = bounding
        self.stability = stability
        self.physical_batch_size = physical_batch_size
        self.augmentation_multiplicity = augmentation_multiplicity
        self.shift = shift
        self.flip = flip
        self.granularity = granularity
        check_settings(self)
        self._lattice = None if granularity is None else lattice_spacing(granularity, norm_bound=max_grad_norm)
        views = (
            {"count": augmentation_multiplicity, "shift": shift, "flip": flip} if augmentation_multiplicity else None
        )
        needs_flat = {"augmentation_multiplicity": 0, "bounding": "clip", "granularity": None}
        needing = (f"{name}={getattr(self, name)}" for name, off in needs_flat.items() if getattr(self, name) != off)
        self.clipped = ClippedNetwork(
            self.network,
            clipping=clipping,
            max_grad_norm=max_grad_norm,
            physical_batch_size=physical_batch_size,
            views=views,
            loss={"label_smoothing": label_smoothing, "log_prior": self.log_prior},
            flat_for=next(needing, None),
        )
        require_records_apart(self.network)
        self.noise = noise or SystemNoise()
        self.steps = PlannedSteps(delta=delta, target_epsilon=target_epsilon, on_lattice=granularity is not None)
        #: Counts the steps taken so far.
        self.accountant = self.steps.accountant
        #: Unaccounted queries to private records, in words for the guarantee.
        self.uncharged_queries: list[str] = []
        self._features_precomputed = False

    @property
    def clipping(self) -> Way:
        """How records are clipped: never `auto`."""
        return self.clipped.way

    def setup(self, stage: str) -> None:
        """Checks the data and calibrates the noise to the planned steps."""
        super().setup(stage)
        self._features_precomputed = False  # those of a fit before are gone
        if stage != "fit":
            return
        check_strategy(self.trainer, averages_itself=True)
        by_all(self.processes, self._prepare_fit)
        # Of one process, so that all have the same to the last bit.
        self.noise_multiplier = self.processes.broadcast(self.noise_multiplier)

    def _prepare_fit(self) -> None:
        data = self._poisson
        check_fit(precision=str(self.trainer.precision), delta=self.delta, data=data)
        if self.noise_multiplier is None:
            if self.trainer.max_epochs is None or self.trainer.max_epochs < 1:
                raise ValueError(
                    f"trainer.max_epochs must be set: the noise is calibrated to it, got {self.trainer.max_epochs}"
                )
            steps = self.trainer.max_epochs * len(data.train_dataloader())
            self.noise_multiplier = self.steps.calibrated(rate=data.sample_rate, steps=steps)

    def _precompute(self) -> None:
        """Computes fixed features once: with what a checkpoint holds of them, so not before it is read."""
        if self.clipped.extracts is None or self._features_precomputed:
            return
        extractor = getattr(self.network, self.clipped.extracts)
        rank_zero_info("Computing the fixed features of all private images once.")
        training = self.network.training
        self.network.eval()  # a record's cached features must not depend on other records
        self._poisson.precompute(
            lambda images: extractor(images.to(self.device)).cpu(),
            workers=torch.get_num_threads() if self.device.type == "cpu" else 1,
        )
        self.network.train(training)
        self._features_precomputed = True

    @property
    def _poisson(self) -> PoissonSampled:
        data = getattr(self.trainer, "datamodule", None)
        if not isinstance(data, PoissonSampled):
            raise ValueError(
                "DP-SGD needs Poisson-sampled batches: wrap the data set, data: {class_path: PoissonSampled, "
                f"init_args: {{dataset: ...}}}}, got {type(data).__name__}"
            )
        return data

    @property
    def processes(self) -> Processes:
        """Those of this run."""
        return processes_of(self._trainer)

    @property
    def releases(self) -> Counter[Release]:
        """What the whole training releases, see `PlannedSteps`; students inherit it."""
        return self.steps.releases

    @property
    def _step(self) -> Release:
        """What the next step releases."""
        assert self.noise_multiplier is not None
        secure = self.noise.secure and self._poisson.secure
        return self.steps.step(self.noise_multiplier, self._poisson.sample_rate, secure=secure)

    def epsilon(self) -> float:
        """Record-level ε at δ of the steps taken so far."""
        return self.accountant.get_epsilon(self.delta)

    def on_fit_start(self) -> None:
        """Checks what is resumed, before any work.

        Raises:
            CheckpointError: The checkpoint is of other private data, or of steps at another sample rate.
            ValueError: A callback chooses by private records.
        """
        self.own_training.begin(self)
        by_all(self.processes, self._check_resumed)
        by_all(self.processes, self._precompute)
        if is_dev_run(self.trainer):
            self.own_training.register(None, in_memory=True)
            return
        self.own_training.branch()
        # Where nothing is left to do, no step begins, and the checkpoint's statement stands.
        self.own_training.register(self.releases)
        if self.trainer.is_global_zero:
            clear(self.trainer, resumed=self.own_training.id if self.trainer.ckpt_path else None)

    def _check_resumed(self) -> None:
        if self._poisson.looks_at_private_records:
            self.uncharged_queries = list(dict.fromkeys([*self.uncharged_queries, ACCURACY_ACCESS]))
            refuse_selection(callbacks_of(self.trainer))
        self.steps.require_rate(self._poisson.sample_rate)

    def on_train_start(self) -> None:
        """Fixes the plan and charges all of it, before the first step.

        Raises:
            ValueError: More steps than the target was calibrated for.
            LedgerError: The ledger cannot be written: no step may be taken.
        """
        by_all(self.processes, self._fix_plan)
        self._register(self.releases)
        self.own_training.renew_token()

    def _register(self, releases: Mapping[Release, int]) -> None:
        self.own_training.register(releases, in_memory=is_dev_run(self.trainer))

    def _fix_plan(self) -> None:
        self.steps.fix_plan(self._step, steps_ahead(self.trainer, len(self._poisson.train_dataloader())))

    def guarantee(self) -> Guarantee:
        """What may be said of the teacher itself; students of it inherit it."""
        assert self.noise_multiplier is not None
        data = self._poisson
        account = PrivacyAccount(
            ledger=self.own_training.ledger, budget=Budget(delta=self.delta, scope="run"), training=self.own_training.id
        )
        account.ledger_was_replaced = self.own_training.ledger_was_replaced
        words = describe_dp_sgd(
            noise_multiplier=self.noise_multiplier,
            max_grad_norm=self.max_grad_norm,
            sample_rate=data.sample_rate,
            on_lattice=self.granularity is not None,
            bounded="clipped" if self.bounding == "clip" else "normalised",
        )
        return Guarantee.of(
            account,
            words,
            artefacts=("teacher", "whatever is computed from it"),
            covered=account.counts(),
            planned=self.steps.plan.calls is not None and not self.steps.plan.changed,
            secure=all(release.bounded for release in self.releases),
            num_records=data.num_records,
            spent=self.epsilon(),
            uncharged_queries=self.uncharged_queries,
            assumptions=self._assumptions,
        )

    @property
    def _assumptions(self) -> list[str]:
        """What the guarantee rests on because of this training; a student's does, too, and reads it in the file."""
        found = list(WAYS[self.clipping].assumptions)
        if self.own_training.resumed:
            found.append("steps that an interrupted fit made after its last checkpoint were shown to nobody")
        if self.class_prior is not None:
            frequencies = ", ".join(f"{share:g}" for share in self.class_prior)
            found.append(f"the frequencies of the classes, {frequencies}, are public")
        return found

    def on_fit_end(self) -> None:
        """Writes the guarantee, and what it covers, beside the results."""
        by_all(self.processes, self.clipped.refuse_written_state)
        if self.trainer.is_global_zero and not is_dev_run(self.trainer):
            guarantee = self.guarantee()
            _, page = guarantee.write(folder := public_folder(self.trainer))
            publish(folder, guarantee, {"teacher": self.network})
            rank_zero_info(f"\n{guarantee.headline()}\nThe whole statement: {page}")

    def forward_train(self, inputs: torch.Tensor) -> torch.Tensor:
        """Logits of what the loaders give: images, or features where these were computed before."""
        return self.clipped.logits(inputs, extracted=self._features_precomputed)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> None:  # type: ignore[override]
        """One noisy step on a Poisson batch, accumulated over physical batches."""
        inputs, labels = batch
        wrapper = self.optimizers()
        optimizer = cast(ExactNoise, wrapper.optimizer)  # type: ignore[union-attr]
        size = self.clipped.records_at_once(len(inputs))
        pieces = list(zip(inputs.split(size), labels.split(size), strict=True))
        for position, (rows, targets) in enumerate(pieces):
            last = position + 1 == len(pieces)
            optimizer.signal_skip_step(do_skip=not last)
            optimizer.zero_grad()
            self.clipped.add(
                rows, targets, optimizer=optimizer, source=self.noise, extracted=self._features_precomputed
            )
            if last:
                # Counted before the noise is drawn.
                self.steps.count(self._step, register=self._register)
                wrapper.step()  # type: ignore[union-attr]
            else:
                optimizer.step()

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Logs ε after an epoch's last step: callbacks write the epoch's line before the module's own hook for it."""
        if self.trainer.is_last_batch or self.trainer.should_stop:
            self.log("privacy/epsilon", self.epsilon(), prog_bar=True, on_step=False, on_epoch=True, batch_size=1)

    def on_train_epoch_end(self) -> None:
        """Steps a schedule by hand."""
        schedulers = self.lr_schedulers()
        for scheduler in schedulers if isinstance(schedulers, list) else [schedulers]:
            if scheduler is not None:
                scheduler.step()

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> None:
        """Accuracy on held-out private records, which the bound does not cover."""
        inputs, labels = batch
        logits = self.forward_train(inputs) if self.trainer.state.fn == "fit" else self(inputs)
        self.evaluation.validate(self, logits, labels)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """The user's optimizer inside Opacus's, with noise from the operating system."""
        trained = [parameter for parameter in self.network.parameters() if parameter.requires_grad]
        base = (self.optimizer_factory or partial(torch.optim.SGD, lr=4.0, momentum=0.9))(trained)
        assert self.noise_multiplier is not None
        self.clipped.settle(
            image_shape=self.image_shape,
            num_classes=self.num_classes,
            batch_size=self._poisson.batch_size,
            processes=self.processes,
            resumed=len(self.accountant) > 0,
        )
        optimizer = self.clipped.optimizer(
            base, noise_multiplier=self.noise_multiplier, expected_batch_size=self._poisson.batch_size
        )
        optimizer.source = self.noise
        optimizer.granularity = self._lattice
        if isinstance(optimizer, FlatOptimizer):
            optimizer.stability = None if self.bounding == "clip" else self.stability
        optimizer.processes = self.processes
        if self.scheduler_factory is None:
            return optimizer
        return {"optimizer": optimizer, "lr_scheduler": self.scheduler_factory(base)}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds the plan and the steps taken: δ may be chosen anew, one (ε, δ) would not allow it.

        Raises:
            ValueError: The network wrote into its own state: see `ClippedNetwork.refuse_written_state`.
        """
        self.clipped.refuse_written_state()
        self.own_training.save(checkpoint, trainer=self._trainer, releases=self.releases, progress=len(self.accountant))
        checkpoint["dp_sgd"] = {
            **self.steps.state_dict(),
            "noise_multiplier": self.noise_multiplier,
            "uncharged_queries": list(self.uncharged_queries),
            "settings": self._settings,
            "asked_clipping": self.clipped.asked,
            "assumptions": self._assumptions,
        }

    @property
    def _settings(self) -> dict[str, Any]:
        """What a resumed training must not change."""
        return {
            "class": f"{type(self).__module__}.{type(self).__name__}",
            "precision": None if self._trainer is None else str(self._trainer.precision),
            "target_epsilon": self._given[0],
            "noise_multiplier": self._given[1],
            **{name: getattr(self, name) for name in _KEPT},
            # The guarantee names it as public: steps by another would go unmentioned.
            "class_prior": None if self.class_prior is None else [float(share) for share in self.class_prior],
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restores plan, steps and noise of the resumed training.

        Raises:
            CheckpointError: It is not of a training by DP-SGD, or of one with other settings.
        """
        self.own_training.load(checkpoint)
        state = checkpoint.get("dp_sgd")
        if not isinstance(state, dict) or "accountant" not in state:
            raise CheckpointError(
                "the checkpoint is of no training by DP-SGD: its weights were computed from private records without "
                "noise, and nothing that is added now would bound what they reveal. Begin anew without --ckpt_path"
            )
        self.clipped.go_on(state)
        for name, value in self._settings.items():
            before = state.get("settings", {}).get(name, value)
            # Outside of a fit nothing has a precision.
            if value != before and None not in ((value, before) if name == "precision" else ()):
                raise CheckpointError(
                    f"{name} was {before!r} and is {value!r} now that the checkpoint is resumed: resume with the "
                    "same, or start a new run without --ckpt_path"
                )
        self.steps.load_state_dict(state)
        # A query cannot be undone by resuming without it.
        self.uncharged_queries = list(dict.fromkeys([*self.uncharged_queries, *state["uncharged_queries"]]))
        self.noise_multiplier = state["noise_multiplier"]
