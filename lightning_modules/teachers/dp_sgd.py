"""A teacher trained by DP-SGD: whatever is computed from it afterwards costs nothing more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
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
from lightning_modules.teachers.augmentation import random_views
from lightning_modules.teachers.clipping_trial import ClippingTrial, Extracts, changed, digests, logits_after
from lightning_modules.teachers.dp_optimizers import ExactNoise, FlatOptimizer
from lightning_modules.teachers.dp_sgd_checks import check_settings, require_records_apart
from lightning_modules.teachers.dp_sgd_description import describe_dp_sgd
from lightning_modules.teachers.record_clipping import WAYS, Clipping, RecordClipping, Way, chosen_way
from lightning_modules.teachers.teacher import Teacher
from privacy.account import Budget, PrivacyAccount
from privacy.accountants import ExactAccountant
from privacy.accounting.calibration import calibrate_noise
from privacy.accounting.composition import compose
from privacy.charge import Charge
from privacy.events import Release, SampledGaussian, Unbounded
from privacy.events.discrete import SampledDiscreteGaussian
from privacy.formatting import round_up
from privacy.guarantee import Guarantee
from privacy.identity import CheckpointError
from privacy.mechanisms.discrete_gaussian import lattice_spacing
from privacy.mechanisms.noise import NoiseSource, SystemNoise
from privacy.plan import Plan
from privacy.processes import Processes, by_all

__all__ = ["DPSGDTeacher"]

_ACCESS = (
    "accuracy on held-out private records was measured while training, and stands in the logs of this run: nothing "
    "bounds what it reveals of them, and it must not leave with the teacher"
)
_INSECURE = "the noise or the sampling can be drawn again by whoever knows its seed"


class DPSGDTeacher(Teacher):
    """DP-SGD (Abadi et al. 2016) through Opacus: clipping by record, Gaussian noise, Poisson sampling, virtual batches.

    Record-level (ε, δ) under add-or-remove of one training record, by the privacy-loss distribution of the
    Poisson-sampled Gaussian. Needs the data module `PoissonSampled`: batches drawn in any other way are not what the
    analysis is about. Noise and coins come from the operating system, not from `torch.Generator`, which keeps 32 bits
    of its seed. Several processes (`ddp`) share the records out: a batch and its noise are one, whatever their number.

    Args:
        num_classes: See `Teacher`.
        image_shape: See `Teacher`.
        target_epsilon: ε at the end of the planned steps; the noise is calibrated to it.
        noise_multiplier: σ in units of `max_grad_norm`, in place of `target_epsilon`.
        delta: δ, below one over the number of private records.
        max_grad_norm: Clipping norm of one record's gradient.
        clipping: `flat` keeps per-sample gradients; `ghost` computes their norms without keeping them, for larger
            networks; `linear` takes two matrix products, where nothing but a linear head is trained. `auto` is
            `linear` where that fits, else `flat` unless it would hold more than 256 MiB, else `ghost`; a training that
            is resumed goes on as it began. Before the first step it is tried on public images (see `ClippingTrial`):
            `ghost` that does not bound each record gives way to `flat`, and `flat` that does not is refused.
        physical_batch_size: Gradients that are held at once, one for each view of a record. Does not change the result.
            `linear` holds none.
        augmentation_multiplicity: Random views of each record in a step, drawn from `noise`. Their mean gradient is
            what is clipped, so that a record counts once however many there are (De et al. 2022, section 3.3). 0 takes
            the record as it is.
            Needs flat clipping, and fixed features are then not computed once: a mean of several views' gradients is
            no product of an error and an input.
        shift: Pixels by which a view is moved at most.
        flip: Mirror half of the views left to right.
        bounding: `clip` a record's gradient at `max_grad_norm`, or `normalize` it, C·g/(‖g‖ + γ), whatever its length
            (automatic clipping, Bu et al. 2022). A record moves the sum by C at most either way: the price is the same.
            Needs flat clipping.
        stability: γ of `bounding: normalize`, above 0. In the units of gradients, not of C.
        granularity: Distance of the lattice that clipped gradients are rounded to, towards zero, and that discrete
            Gaussian noise lies on (Canonne, Kamath and Steinke 2020): such noise has no low bits that could tell of a
            record. In units of `max_grad_norm`, rounded down to a power of two; for example 1e-3. It needs flat
            clipping and costs slightly more, since it is composed by RDP alone. None takes floating-point noise.
        noise: Source of the noise and of the views; None is the operating system's generator.
        network: See `Teacher`. It must treat each image by itself, draw nothing at random in train mode (no dropout)
            and write into no buffer (no BatchNorm): this is tried before the first step. Of a network with a fixed
            `feature_extractor` and `forward_extracted` (such as `LinearOnFeatures`) the features are computed once.
        optimizer: Default: SGD, rate 4, momentum 0.9.
        lr_scheduler: See `Teacher`.
        label_smoothing: See `Teacher`.
        class_prior: See `Teacher`. The guarantee names it among its assumptions.

    Raises:
        ValueError: A setting that has no meaning, or a network with layers that DP-SGD cannot treat record by record.
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
        check_settings(
            target_epsilon=target_epsilon,
            noise_multiplier=noise_multiplier,
            delta=delta,
            max_grad_norm=max_grad_norm,
            bounding=bounding,
            stability=stability,
            physical_batch_size=physical_batch_size,
            augmentation_multiplicity=augmentation_multiplicity,
            shift=shift,
            flip=flip,
            granularity=granularity,
            image_shape=image_shape,
        )
        self.automatic_optimization = False
        self.target_epsilon = target_epsilon
        self.noise_multiplier = noise_multiplier
        self._given = (target_epsilon, noise_multiplier)
        self.delta = delta
        self.max_grad_norm = max_grad_norm
        self._asked_clipping: Clipping = clipping
        self.bounding = bounding
        self.stability = stability
        self.physical_batch_size = physical_batch_size
        self.augmentation_multiplicity = augmentation_multiplicity
        self.shift = shift
        self.flip = flip
        self.granularity = granularity
        self._lattice = None if granularity is None else lattice_spacing(granularity, norm_bound=max_grad_norm)
        #: How records are clipped: never `auto`.
        self.clipping = self._way(clipping)
        require_records_apart(self.network)
        self.noise = noise or SystemNoise()
        #: The steps taken so far.
        self.accountant = ExactAccountant()
        #: All steps that were planned, which is what the training costs; it never shrinks.
        self.plan = Plan()
        #: Accesses to private records that nothing is charged for, in words for the guarantee.
        self.uncharged_queries: list[str] = []
        self._clipped: RecordClipping | None = None
        self._features_precomputed = False
        #: Of all but the trained weights, when the fit began.
        self._state: dict[str, str] | None = None

    def _way(self, clipping: Clipping) -> Way:
        flat_for = None if self.granularity is None else f"granularity={self.granularity}"
        if self.bounding != "clip":
            flat_for = f"bounding={self.bounding}"
        if self.augmentation_multiplicity:
            flat_for = f"augmentation_multiplicity={self.augmentation_multiplicity}"
        return chosen_way(clipping, self.network, physical_batch_size=self.physical_batch_size, flat_for=flat_for)

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
        if self.trainer.precision not in ("32-true", "64-true"):
            raise ValueError(
                f"trainer.precision must be 32-true or 64-true for DP-SGD, got {self.trainer.precision!r}: in half "
                "precision gradients were measured beyond the norm that they are clipped to"
            )
        data = self._poisson
        if self.delta >= 1 / data.num_records:
            raise ValueError(
                f"delta must lie below 1/N = {1 / data.num_records:.3g} for {data.private_data}, got {self.delta:g}"
            )
        if self.noise_multiplier is None:
            self.noise_multiplier = self._calibrated(data)

    def _precompute(self) -> None:
        """Computes fixed features once: with what a checkpoint holds of them, so not before it is read."""
        if self._extracts is None or self._features_precomputed:
            return
        extractor = getattr(self.network, self._extracts)
        rank_zero_info("Computing the fixed features of all private images once.")
        training = self.network.training
        self.network.eval()  # what is computed once must be the same for one record whoever else there is
        self._poisson.precompute(
            lambda images: extractor(images.to(self.device)).cpu(),
            workers=torch.get_num_threads() if self.device.type == "cpu" else 1,
        )
        self.network.train(training)
        self._features_precomputed = True

    @property
    def _extracts(self) -> Extracts | None:
        if self.clipping == "linear":
            return "forward_features"
        fixed = isinstance(getattr(self.network, "feature_extractor", None), nn.Module)
        return "feature_extractor" if fixed and not self.augmentation_multiplicity else None

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
        """Those of this run: each samples from its own part of the records, and one noise is drawn for all."""
        return processes_of(self._trainer)

    def _calibrated(self, data: PoissonSampled) -> float:
        assert self.target_epsilon is not None
        if self.trainer.max_epochs is None or self.trainer.max_epochs < 1:
            raise ValueError(
                f"trainer.max_epochs must be set: the noise is calibrated to it, got {self.trainer.max_epochs}"
            )
        steps = self.trainer.max_epochs * len(data.train_dataloader())
        found = calibrate_noise(
            lambda noise: compose({self._event(noise, data.sample_rate): steps}, self.delta).epsilon,
            self.target_epsilon,
            low=0.2,
            high=1e4,
        )
        rank_zero_info(
            f"noise_multiplier={found.value:.4f} for epsilon={found.epsilon:.4f} at delta={self.delta:g} after {steps} "
            f"steps at sample rate {data.sample_rate:.4f}"
        )
        return found.value

    @property
    def releases(self) -> Counter[Release]:
        """What the whole training releases: all planned steps, taken or not.

        Whoever stopped early has seen what the steps gave, so that a file of fewer steps costs no less. Students
        inherit this.
        """
        return self._with_plan(self.accountant.counts())

    def _with_plan(self, taken: Mapping[Release, int]) -> Counter[Release]:
        return Counter({charge.release: count for charge, count in self.plan.charges.items()}) | Counter(taken)

    @property
    def secure(self) -> bool:
        """Whether no step's noise or sampling can be drawn again."""
        return all(release.bounded for release in self.releases)

    def _event(self, noise: float, rate: float) -> Release:
        """What one step releases."""
        return SampledGaussian(noise, rate) if self.granularity is None else SampledDiscreteGaussian(noise, rate)

    @property
    def _step(self) -> Release:
        """What the next step releases; nothing bounds it where its noise or its sample can be drawn again."""
        assert self.noise_multiplier is not None
        if not (self.noise.secure and self._poisson.secure):
            return Unbounded(_INSECURE)
        return self._event(self.noise_multiplier, self._poisson.sample_rate)

    def epsilon(self) -> float:
        """Record-level ε at δ of the steps taken so far."""
        return self.accountant.get_epsilon(self.delta)

    def on_fit_start(self) -> None:
        """Checks what is resumed, before any work.

        Raises:
            CheckpointError: The checkpoint is of other private data, or its steps were sampled at another rate.
            ValueError: A callback that chooses by private records.
        """
        self.own_training.begin(self)
        by_all(self.processes, self._check_resumed)
        by_all(self.processes, self._precompute)
        if is_dev_run(self.trainer):
            self.own_training.register(None, in_memory=True)
            return
        self.own_training.branch()
        # Where nothing is left to do, no step begins, and what the checkpoint says is what there is to say.
        self.own_training.register(self.releases)
        if self.trainer.is_global_zero:
            clear(self.trainer, resumed=self.own_training.id if self.trainer.ckpt_path else None)

    def _check_resumed(self) -> None:
        self._refuse_selection()
        rate = self._poisson.sample_rate
        for release in self.accountant.counts():
            before = getattr(release, "sample_rate", rate)
            if before != rate:
                raise CheckpointError(
                    f"the checkpoint's steps were sampled at rate {before:.6g}, and data.batch_size over the records "
                    f"of this fit gives {rate:.6g}: resume with the same, or start a new run without --ckpt_path"
                )

    def on_train_start(self) -> None:
        """Fixes the plan and charges all of it, before the first step.

        Raises:
            ValueError: More steps than the target was calibrated for.
            LedgerError: The ledger cannot be written: no step may be taken.
        """
        by_all(self.processes, self._fix_plan)
        self.own_training.register(self.releases, in_memory=is_dev_run(self.trainer))
        self.own_training.renew_token()

    def _refuse_selection(self) -> None:
        if not self._poisson.looks_at_private_records:
            return
        if _ACCESS not in self.uncharged_queries:
            self.uncharged_queries.append(_ACCESS)
        for callback in callbacks_of(self.trainer):
            if (monitor := getattr(callback, "monitor", None)) is not None:
                raise ValueError(
                    f"{type(callback).__name__} chooses by {monitor!r}, which is measured on private records here: a "
                    "teacher that was chosen so reveals them beyond its epsilon. Take data.evaluation=test, or leave "
                    "the callback out and publish the last step"
                )

    def _fix_plan(self) -> None:
        """Adds to the plan what this fit is to make; nothing is ever taken from it."""
        taken, step = len(self.accountant), Charge(release=self._step, queries=0)
        plan = self.plan.fixed(
            None if self.trainer.max_epochs in (None, -1) else taken + self._steps_ahead(),
            made=taken,
            charged={Charge(release=release, queries=0): n for release, n in self.accountant.counts().items()},
            price=lambda steps: {step: steps},
        )
        before, self.plan = self.plan, plan
        try:
            self._require_target(self.releases)
        except ValueError:
            # What was refused is no plan, and must not stand in the checkpoint that an error leaves.
            self.plan = before
            raise

    def _steps_ahead(self) -> int:
        """Steps that this fit has yet to make."""
        assert self.trainer.max_epochs is not None
        length = len(self._poisson.train_dataloader())
        loop: Any = self.trainer.fit_loop
        epochs = loop.epoch_progress.current
        within = loop.epoch_loop.batch_progress.current.completed if epochs.ready > epochs.processed else 0
        ahead: int = (self.trainer.max_epochs - epochs.processed) * length - within
        return max(0, ahead)

    def _require_target(self, releases: Mapping[Release, int]) -> None:
        if self.target_epsilon is None or not all(release.bounded for release in releases):
            return
        epsilon = compose(releases, self.delta).epsilon
        if epsilon > self.target_epsilon * (1 + 1e-6):
            steps = sum(releases.values())
            raise ValueError(
                f"target_epsilon={self.target_epsilon:g} was what the noise was calibrated to, and {steps} steps in "
                f"all with noise_multiplier={self.noise_multiplier:.4g} cost {round_up(epsilon)}: lower "
                "trainer.max_epochs, or start a new run without --ckpt_path"
            )

    def guarantee(self) -> Guarantee:
        """What may be said of the teacher itself; students of it inherit it."""
        assert self.noise_multiplier is not None
        data = self._poisson
        account = PrivacyAccount(
            ledger=self.own_training.ledger,
            budget=Budget(delta=self.delta, scope="run"),
            training=self.own_training.id,
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
            planned=self.plan.calls is not None and not self.plan.changed,
            secure=self.secure,
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
        by_all(self.processes, self._refuse_written_state)
        if self.trainer.is_global_zero and not is_dev_run(self.trainer):
            guarantee = self.guarantee()
            folder = public_folder(self.trainer)
            _, page = guarantee.write(folder)
            publish(folder, guarantee, {"teacher": self.network})
            rank_zero_info(f"\n{guarantee.headline()}\nThe whole statement: {page}")

    def forward_train(self, inputs: torch.Tensor) -> torch.Tensor:
        """Logits of what the loaders give: images, or features where these were computed before."""
        return logits_after(self.network, self._extracts if self._features_precomputed else None, inputs)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> None:  # type: ignore[override]
        """One noisy step on a Poisson batch, accumulated over physical batches."""
        inputs, labels = batch
        wrapper = self.optimizers()
        optimizer = cast(ExactNoise, wrapper.optimizer)  # type: ignore[union-attr]
        assert self._clipped is not None
        size = self._records_at_once(len(inputs))
        pieces = list(zip(inputs.split(size), labels.split(size), strict=True))
        for position, (rows, targets) in enumerate(pieces):
            last = position + 1 == len(pieces)
            optimizer.signal_skip_step(do_skip=not last)
            optimizer.zero_grad()
            if len(rows) == 0:
                self._clipped.add_nothing(optimizer)
            else:
                rows, targets = self._views(rows, targets)
                views = max(1, self.augmentation_multiplicity)
                self._clipped.add(rows, targets, forward=self.forward_train, optimizer=optimizer, views=views)
            if last:
                # Counted before the noise is drawn.
                self._count_step()
                wrapper.step()  # type: ignore[union-attr]
            else:
                optimizer.step()

    def _records_at_once(self, records: int) -> int:
        if self.clipping == "linear":
            return max(1, records)
        return max(1, self.physical_batch_size // max(1, self.augmentation_multiplicity))

    def _views(self, rows: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        views = self.augmentation_multiplicity
        if not views:
            return rows, targets
        rows = random_views(rows, source=self.noise, **self._view_settings)
        return rows, targets.repeat_interleave(views)

    @property
    def _view_settings(self) -> dict[str, Any]:
        return {"count": self.augmentation_multiplicity, "shift": self.shift, "flip": self.flip}

    def _count_step(self) -> None:
        step = self._step
        taken = Counter(self.accountant.counts())
        taken[step] += 1
        if (now := self._with_plan(taken)) != self.releases:
            # Beyond the plan, or without one: each step is charged when it is taken, and none beyond the target.
            self._require_target(now)
            self.plan = replace(self.plan, changed=True)
            self.own_training.register(now, in_memory=is_dev_run(self.trainer))
        if isinstance(step, SampledGaussian):
            self.accountant.step(noise_multiplier=step.noise_multiplier, sample_rate=step.sample_rate)
        else:
            self.accountant.charge(step)

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
        """Accuracy on held-out private records, on which the bound says nothing."""
        inputs, labels = batch
        logits = self.forward_train(inputs) if self.trainer.state.fn == "fit" else self(inputs)
        self.evaluation.validate(self, logits, labels)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """The user's optimizer inside Opacus's, with noise from the operating system."""
        trained = [parameter for parameter in self.network.parameters() if parameter.requires_grad]
        base = (
            torch.optim.SGD(trained, lr=4.0, momentum=0.9)
            if self.optimizer_factory is None
            else self.optimizer_factory(trained)
        )
        assert self.noise_multiplier is not None
        self._settle_clipping()
        self._clipped = WAYS[self.clipping](self.network, max_grad_norm=self.max_grad_norm, **self._loss_settings)
        optimizer = self._clipped.optimizer(
            base,
            noise_multiplier=self.noise_multiplier,
            max_grad_norm=self.max_grad_norm,
            expected_batch_size=self._poisson.batch_size,
            loss_reduction="mean",
        )
        optimizer.source = self.noise
        optimizer.granularity = self._lattice
        if isinstance(optimizer, FlatOptimizer):
            optimizer.stability = None if self.bounding == "clip" else self.stability
        optimizer.processes = self.processes
        if self.scheduler_factory is None:
            return optimizer
        return {"optimizer": optimizer, "lr_scheduler": self.scheduler_factory(base)}

    @property
    def _loss_settings(self) -> dict[str, Any]:
        return {"label_smoothing": self.label_smoothing, "log_prior": self.log_prior}

    def _settle_clipping(self) -> None:
        """Tries the way of clipping on public images, before anything private is read: see `ClippingTrial`."""
        if self._clipped is not None:
            self._clipped.release()  # a copy of the network would take the hooks along
            self._clipped = None
        if self.device.type == "cuda" and self.clipping == "ghost":
            # Norms in TF32 are off by more than the margin that is left for them.
            torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
        batch = self._poisson.batch_size
        trial = ClippingTrial(
            image_shape=self.image_shape,
            num_classes=self.num_classes,
            # Features are computed in pieces, as `PoissonSampled.precompute` does.
            physical=min(batch, 512 if self.clipping == "linear" else self._records_at_once(batch)),
            extracts=self._extracts,
            views=self._view_settings if self.augmentation_multiplicity else None,
            loss=self._loss_settings,
        )
        own = by_all(self.processes, lambda: trial(self.network, self.clipping))
        found, why = min(self.processes.gather(own))  # flat before ghost, in all processes where it is in one
        if found != self.clipping:
            if len(self.accountant):
                raise CheckpointError(
                    f"model.network: {why}. The checkpoint's steps were clipped so: start a new run without --ckpt_path"
                )
            rank_zero_info(f"Takes flat clipping: {why}. Lower physical_batch_size where memory does not suffice.")
            self.clipping = found
        self._state = digests(self.network, trained=False)

    def _refuse_written_state(self) -> None:
        """Refuses to let go of what a network wrote down of private records.

        Raises:
            ValueError: A buffer, or another state than the trained weights, is not what it was before the first step.
        """
        if self._state is not None and (written := changed(self._state, digests(self.network, trained=False))):
            raise ValueError(
                f"model.network: {written[0]!r} changed in training and is no trained weight: it would publish without "
                "noise what the network wrote there of private records. Take it out of the network"
            )

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds the plan and the steps taken: δ may be chosen anew, one (ε, δ) would not allow it.

        Raises:
            ValueError: See `_refuse_written_state`.
        """
        self._refuse_written_state()
        self.own_training.save(checkpoint, trainer=self._trainer, releases=self.releases, progress=len(self.accountant))
        checkpoint["dp_sgd"] = {
            "accountant": self.accountant.state_dict(),
            "plan": self.plan.to_dict(),
            "noise_multiplier": self.noise_multiplier,
            "uncharged_queries": list(self.uncharged_queries),
            "settings": self._settings,
            "asked_clipping": self._asked_clipping,
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
            "delta": self.delta,
            "max_grad_norm": self.max_grad_norm,
            "clipping": self.clipping,
            "bounding": self.bounding,
            "stability": self.stability,
            "granularity": self.granularity,
            "augmentation_multiplicity": self.augmentation_multiplicity,
            # The guarantee names it as public: steps by another would be left unsaid.
            "class_prior": None if self.class_prior is None else [float(share) for share in self.class_prior],
        }

    def _go_on_clipping(self, state: dict[str, Any]) -> None:
        """`auto` goes on as the training began, and so does ghost clipping that gave way to flat.

        Any way would cost the same. But a way may bring an assumption into the guarantee, and another that is asked for
        is refused by name, as every other setting is.
        """
        before = state.get("settings", {}).get("clipping")
        if before in WAYS and self._asked_clipping in ("auto", state.get("asked_clipping")):
            self.clipping = self._way(before)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Goes on with plan, steps and noise of the training that is resumed.

        Raises:
            CheckpointError: It is of no training by DP-SGD, or of one with other settings.
        """
        self.own_training.load(checkpoint)
        state = checkpoint.get("dp_sgd")
        if not isinstance(state, dict) or "accountant" not in state:
            raise CheckpointError(
                "the checkpoint is of no training by DP-SGD: its weights were computed from private records without "
                "noise, and nothing that is added now would bound what they reveal. Begin anew without --ckpt_path"
            )
        self._go_on_clipping(state)
        for name, value in self._settings.items():
            before = state.get("settings", {}).get(name, value)
            # Outside of a fit nothing has a precision.
            if value != before and None not in ((value, before) if name == "precision" else ()):
                raise CheckpointError(
                    f"{name} was {before!r} and is {value!r} now that the checkpoint is resumed: resume with the "
                    "same, or start a new run without --ckpt_path"
                )
        self.accountant.load_state_dict(state["accountant"])
        self.plan = Plan.from_dict(state["plan"])
        # An access cannot be taken back by resuming without it.
        self.uncharged_queries = list(dict.fromkeys([*self.uncharged_queries, *state["uncharged_queries"]]))
        self.noise_multiplier = state["noise_multiplier"]
