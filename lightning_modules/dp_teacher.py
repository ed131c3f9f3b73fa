"""A teacher trained by DP-SGD: whatever is computed from it afterwards costs nothing more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Literal

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.utilities import rank_zero_info
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from opacus.optimizers.optimizer import _check_processed_flag, _mark_as_processed
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from opacus.validators import ModuleValidator
from torch import nn
from torch.nn import functional as F

from datamodules import Poisson
from lightning_modules.components.augmentation import random_views
from lightning_modules.runs import is_dev_run, run_folder
from lightning_modules.teacher import Teacher
from privacy.calibration import calibrate_noise
from privacy.composition import compose
from privacy.guarantees import Guarantee
from privacy.noise import NoiseSource, SystemNoise
from privacy.pipelines import released
from privacy.releases import Release, SampledGaussian, Unbounded

__all__ = ["DPSGDTeacher"]

_INSECURE = "the noise or the sampling can be drawn again by whoever knows its seed"


class DPSGDTeacher(Teacher):
    """DP-SGD (Abadi et al. 2016) through Opacus: clipping by record, Gaussian noise, Poisson sampling, virtual batches.

    Record-level (ε, δ) under add-or-remove of one training record, by the privacy-loss distribution of the
    Poisson-sampled Gaussian. Needs the data module `Poisson`: batches drawn in any other way are not what the analysis
    is about. Noise and coins come from the operating system, not from `torch.Generator`, which keeps 32 bits of its
    seed.

    Args:
        num_classes: See `Teacher`.
        image_shape: See `Teacher`.
        target_epsilon: ε at the end of the planned steps; the noise is calibrated to it.
        noise_multiplier: σ in units of `max_grad_norm`, in place of `target_epsilon`.
        delta: δ, below one over the number of private records.
        max_grad_norm: Clipping norm of one record's gradient.
        clipping: `flat` keeps per-sample gradients; `ghost` computes their norms without keeping them, for larger
            networks.
        physical_batch_size: Gradients that are held at once, one for each view of a record. Does not change the result,
            but for which views are drawn.
        augmentation_multiplicity: Random views of each record in a step. Their mean gradient is what is clipped, so
            that a record counts once however many there are (De et al. 2022, section 3.3). 0 takes the record as it is.
            Needs flat clipping, and a fixed front is then not computed once.
        shift: Pixels by which a view is moved at most.
        flip: Mirror half of the views left to right.
        noise: Source of the noise; None is the operating system's generator.
        network: See `Teacher`. No BatchNorm: it mixes records. A network with a fixed `front` and `after_front` (such
            as `ScatteringClassifier`) has the front computed once.
        optimizer: Default: SGD, rate 4, momentum 0.9.
        lr_scheduler: See `Teacher`.
        label_smoothing: See `Teacher`.

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
        clipping: Literal["flat", "ghost"] = "flat",
        physical_batch_size: int = 1024,
        augmentation_multiplicity: int = 0,
        shift: int = 2,
        flip: bool = False,
        noise: NoiseSource | None = None,
        network: Callable[..., nn.Module] | None = None,
        optimizer: OptimizerCallable | None = None,
        lr_scheduler: LRSchedulerCallable | None = None,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(
            num_classes=num_classes,
            image_shape=image_shape,
            network=network,
            optimizer=optimizer,
            lr_scheduler=lr_scheduler,
            label_smoothing=label_smoothing,
        )
        if (target_epsilon is None) == (noise_multiplier is None):
            raise ValueError(
                f"give one of target_epsilon and noise_multiplier, got {target_epsilon} and {noise_multiplier}"
            )
        for name, value in (
            ("target_epsilon", target_epsilon),
            ("noise_multiplier", noise_multiplier),
            ("max_grad_norm", max_grad_norm),
            ("physical_batch_size", physical_batch_size),
        ):
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be above 0, got {value}")
        if not 0 < delta < 1:
            raise ValueError(f"delta must lie between 0 and 1, got {delta}")
        if clipping not in ("flat", "ghost"):
            raise ValueError(f"clipping must be flat or ghost, got {clipping!r}")
        if augmentation_multiplicity < 0:
            raise ValueError(f"augmentation_multiplicity must be at least 0, got {augmentation_multiplicity}")
        if augmentation_multiplicity and not 0 <= shift < min(image_shape[1:]):
            raise ValueError(f"shift must be at least 0 and below the sides of images {image_shape}, got {shift}")
        if flip and not augmentation_multiplicity:
            raise ValueError("flip=true mirrors views of a record: set augmentation_multiplicity to 1 or more")
        if augmentation_multiplicity and clipping != "flat":
            raise ValueError(
                f"augmentation_multiplicity={augmentation_multiplicity} needs clipping=flat: ghost clipping would clip "
                "each view by itself, and a record would count once for each"
            )
        if problems := ModuleValidator.validate(self.network):
            raise ValueError(
                f"model.network: DP-SGD needs each record by itself: {problems[0]}. Take GroupNorm or no norm, for "
                "example {class_path: SmallCNN, init_args: {norm: group, activation: tanh}}"
            )
        self.automatic_optimization = False
        self.target_epsilon = target_epsilon
        self.noise_multiplier = noise_multiplier
        self.delta = delta
        self.max_grad_norm = max_grad_norm
        self.clipping: Literal["flat", "ghost"] = clipping
        self.physical_batch_size = physical_batch_size
        self.augmentation_multiplicity = augmentation_multiplicity
        self.shift = shift
        self.flip = flip
        self.noise = noise or SystemNoise()
        self.history: list[list[float]] = []
        self.secure = True
        self._wrapped: tuple[GradSampleModule] | None = None
        self._front_done = False

    def setup(self, stage: str) -> None:
        """Checks the data, calibrates the noise to the planned steps, and computes a fixed front once."""
        super().setup(stage)
        if stage != "fit" or self._wrapped is not None:
            return
        data = self._poisson
        if self.delta >= 1 / data.num_records:
            raise ValueError(
                f"delta must lie below 1/N = {1 / data.num_records:.3g} for {data.private_data}, got {self.delta:g}"
            )
        if self.noise_multiplier is None:
            self.noise_multiplier = self._calibrated(data)
        front = getattr(self.network, "front", None)
        if isinstance(front, nn.Module) and not self.augmentation_multiplicity:
            rank_zero_info("Computing the fixed features of all private images once.")
            data.precompute(front)
            self._front_done = True
        # In a tuple: as a submodule it would rename every weight in the checkpoint.
        wrap = GradSampleModule if self.clipping == "flat" else GradSampleModuleFastGradientClipping
        options = {} if self.clipping == "flat" else {"max_grad_norm": self.max_grad_norm, "use_ghost_clipping": True}
        self._wrapped = (wrap(self.network, loss_reduction="mean", **options),)

    @property
    def _poisson(self) -> Poisson:
        data = getattr(self.trainer, "datamodule", None)
        if not isinstance(data, Poisson):
            raise ValueError(
                "DP-SGD needs Poisson-sampled batches: wrap the data set, data: {class_path: Poisson, init_args: "
                f"{{dataset: ...}}}}, got {type(data).__name__}"
            )
        if self.trainer.world_size > 1:
            raise NotImplementedError(
                f"DP-SGD runs in one process, got {self.trainer.world_size}: set --trainer.devices 1"
            )
        return data

    def _calibrated(self, data: Poisson) -> float:
        assert self.target_epsilon is not None
        if self.trainer.max_epochs is None or self.trainer.max_epochs < 1:
            raise ValueError(
                f"trainer.max_epochs must be set: the noise is calibrated to it, got {self.trainer.max_epochs}"
            )
        steps = self.trainer.max_epochs * len(data.train_dataloader())
        found = calibrate_noise(
            lambda noise: compose({SampledGaussian(noise, data.sample_rate): steps}, self.delta).epsilon,
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
        """What has been released so far: the accountant's history as Poisson-sampled Gaussians."""
        counts: Counter[Release] = Counter()
        for noise, rate, steps in self.history:
            if self.secure:
                counts[SampledGaussian(noise, rate)] += int(steps)
            else:
                counts[Unbounded(_INSECURE)] += int(steps)
        return counts

    def epsilon(self) -> float:
        """Record-level ε at δ of the steps taken."""
        return compose(self.releases, self.delta).epsilon

    def guarantee(self) -> Guarantee:
        """What may be said of the teacher itself; students of it inherit it."""
        assert self.noise_multiplier is not None
        planned = self.releases
        taken = sum(planned.values())
        if self.secure and self.trainer.max_epochs is not None and self.trainer.max_epochs > 0:
            steps = self.trainer.max_epochs * len(self._poisson.train_dataloader())
            planned[SampledGaussian(self.noise_multiplier, self._poisson.sample_rate)] += max(0, steps - taken)
        return Guarantee.of_dp_sgd(
            released(self.releases),
            planned=released(planned),
            delta=self.delta,
            private_data=self._poisson.private_data,
            artefacts=("teacher", "whatever is computed from it"),
            mechanism=(
                f"sums of record gradients clipped to {self.max_grad_norm:g}, with Gaussian noise of deviation "
                f"{self.noise_multiplier:.4g} x {self.max_grad_norm:g}, on Poisson samples at rate "
                f"{self._poisson.sample_rate:.4g}"
            ),
            unbounded=[] if self.secure else [_INSECURE],
        )

    def on_fit_end(self) -> None:
        """Writes the guarantee beside the results."""
        if self.trainer.is_global_zero and not is_dev_run(self.trainer):
            guarantee = self.guarantee()
            _, page = guarantee.write(run_folder(self.trainer))
            rank_zero_info(f"\n{guarantee.headline()}\nThe whole statement: {page}")

    def forward_train(self, inputs: torch.Tensor) -> torch.Tensor:
        """Logits of what the loaders give: images, or features where the front was computed before."""
        if self._front_done:
            logits: torch.Tensor = self.network.after_front(inputs)  # type: ignore[operator]
            return logits
        return self(inputs)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> None:  # type: ignore[override]
        """One noisy step on a Poisson batch, accumulated over physical batches."""
        inputs, labels = batch
        wrapper = self.optimizers()
        optimizer: DPOptimizer = wrapper.optimizer  # type: ignore[union-attr]
        size = max(1, self.physical_batch_size // max(1, self.augmentation_multiplicity))
        pieces = list(zip(inputs.split(size), labels.split(size), strict=True))
        for position, (rows, targets) in enumerate(pieces):
            last = position + 1 == len(pieces)
            optimizer.signal_skip_step(do_skip=not last)
            optimizer.zero_grad()
            if len(rows) == 0:
                self._empty_gradients()
            else:
                self._backward(rows, targets, optimizer)
            if last:
                # Counted before the noise is drawn.
                self._count_step()
                wrapper.step()  # type: ignore[union-attr]
            else:
                optimizer.step()

    def _backward(self, rows: torch.Tensor, targets: torch.Tensor, optimizer: DPOptimizer) -> None:
        views = self.augmentation_multiplicity
        if views:
            rows = random_views(rows, count=views, shift=self.shift, flip=self.flip)
            targets = targets.repeat_interleave(views)
        logits = self.forward_train(rows)
        if self.clipping == "flat":
            loss = F.cross_entropy(logits, targets, label_smoothing=self.label_smoothing)
            self.manual_backward(loss)
            if views:
                self._one_gradient_per_record(len(rows) // views, views)
            return
        assert self._wrapped is not None
        criterion = nn.CrossEntropyLoss(label_smoothing=self.label_smoothing)
        DPLossFastGradientClipping(self._wrapped[0], optimizer, criterion, loss_reduction="mean")(
            logits, targets
        ).backward()

    def _one_gradient_per_record(self, records: int, views: int) -> None:
        """Before anything is clipped."""
        for parameter in self.network.parameters():
            if parameter.requires_grad:
                each: torch.Tensor = parameter.grad_sample  # type: ignore[attr-defined]
                parameter.grad_sample = each.unflatten(0, (records, views)).mean(dim=1)  # type: ignore[attr-defined]

    def _empty_gradients(self) -> None:
        """An empty Poisson batch takes a step of noise alone."""
        for parameter in self.network.parameters():
            if parameter.requires_grad:
                if self.clipping == "flat":
                    parameter.grad_sample = parameter.new_zeros(0, *parameter.shape)  # type: ignore[attr-defined]
                parameter.grad = torch.zeros_like(parameter)

    def _count_step(self) -> None:
        assert self.noise_multiplier is not None
        # Of all steps, those before a resume too: what one of them gave away, later ones do not take back.
        self.secure = self.secure and self.noise.secure and self._poisson.secure
        entry = [self.noise_multiplier, self._poisson.sample_rate]
        if self.history and self.history[-1][:2] == entry:
            self.history[-1][2] += 1
        else:
            self.history.append([*entry, 1])

    def on_train_epoch_end(self) -> None:
        """Logs ε; steps a schedule by hand."""
        self.log("privacy/epsilon", self.epsilon(), prog_bar=True)
        schedulers = self.lr_schedulers()
        for scheduler in schedulers if isinstance(schedulers, list) else [schedulers]:
            if scheduler is not None:
                scheduler.step()

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> None:
        """Accuracy on held-out private records, on which the bound says nothing."""
        inputs, labels = batch
        logits = self.forward_train(inputs) if self.trainer.state.fn == "fit" else self(inputs)
        self.val_accuracy(logits, labels)
        self.log("val/accuracy", self.val_accuracy, prog_bar=True)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """The user's optimizer inside Opacus's, with noise from the operating system."""
        trained = [parameter for parameter in self.network.parameters() if parameter.requires_grad]
        base = (
            torch.optim.SGD(trained, lr=4.0, momentum=0.9)
            if self.optimizer_factory is None
            else self.optimizer_factory(trained)
        )
        assert self.noise_multiplier is not None
        kind = _FlatOptimizer if self.clipping == "flat" else _GhostOptimizer
        optimizer = kind(
            base,
            noise_multiplier=self.noise_multiplier,
            max_grad_norm=self.max_grad_norm,
            expected_batch_size=self._poisson.batch_size,
            loss_reduction="mean",
        )
        optimizer.source = self.noise
        if self.scheduler_factory is None:
            return optimizer
        return {"optimizer": optimizer, "lr_scheduler": self.scheduler_factory(base)}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds the accountant's history: δ may be chosen anew, one (ε, δ) would not allow it."""
        super().on_save_checkpoint(checkpoint)
        checkpoint["dp_sgd"] = {
            "history": [list(entry) for entry in self.history],
            "noise_multiplier": self.noise_multiplier,
            "secure_noise": self.secure,
        }
        checkpoint["releases"] = [[release.to_dict(), count] for release, count in self.releases.items()]

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Goes on with the history and the noise of the run that is resumed."""
        state = checkpoint.get("dp_sgd", {})
        self.history = [list(entry) for entry in state.get("history", [])]
        self.secure = bool(state.get("secure_noise", True))
        self.noise_multiplier = state.get("noise_multiplier", self.noise_multiplier)


class _SystemNoise(DPOptimizer):
    """Opacus's optimizer with the project's noise."""

    source: NoiseSource

    def add_noise(self) -> None:
        """Adds σC noise to the sum of clipped gradients of each parameter."""
        for parameter in self.params:
            _check_processed_flag(parameter.summed_grad)
            noise = self.source.gaussian(parameter.summed_grad.shape) * (self.noise_multiplier * self.max_grad_norm)
            parameter.grad = (parameter.summed_grad + noise.to(parameter.summed_grad)).view_as(parameter)
            _mark_as_processed(parameter.summed_grad)


class _FlatOptimizer(_SystemNoise):
    """Clips stored per-sample gradients."""


class _GhostOptimizer(_SystemNoise, DPOptimizerFastGradientClipping):
    """Takes gradients that ghost clipping has clipped."""
