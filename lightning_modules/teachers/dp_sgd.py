"""A teacher trained by DP-SGD: anything computed from it afterwards costs nothing more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from lightning import Callback
from lightning.pytorch.utilities import rank_zero_info
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import nn

from datamodules import PoissonSampled
from datamodules.poisson_sampled import require_batches_as_drawn, require_poisson
from lightning_modules.networks.feature_cache import digest_of
from lightning_modules.networks.fixed_features import WhitenedFeatures
from lightning_modules.private_fit import ForwardExceptions
from lightning_modules.teachers.dp_sgd_steps import (
    CHOICE,
    CHOSEN_ON,
    PERSONS,
    RESUMED,
    KnownWeights,
    PlannedSteps,
    noisy_means,
)
from lightning_modules.teachers.private_teacher import tensors_digest
from lightning_modules.teachers.record_clipping import ClippedNetwork, Clipping
from lightning_modules.teachers.teacher import InnerProduct, Teacher
from lightning_modules.training.evaluation import require_monitored, validation_names
from lightning_modules.training.manual_optimization import OptimizedGroup
from lightning_modules.training.run import (
    check_strategy,
    clear,
    datamodule_as,
    is_dev_run,
    missing_callbacks,
    processes_of,
    steps_of_run,
    steps_planned,
    write_statement,
)
from privacy.account import Budget, PrivacyAccount
from privacy.accounting.composition import known_epsilon
from privacy.checks import check_choice, check_delta, check_number, settings_of
from privacy.events import Release
from privacy.events.base import Unit
from privacy.guarantee import Guarantee
from privacy.identity import CheckpointError
from privacy.mechanisms.base import NoiseSource, SystemNoise
from privacy.processes import Processes, by_all, require_same
from privacy.statement import epsilon_metric, state_guarantee


class DPSGDTeacher(Teacher):
    """DP-SGD (Abadi et al. 2016): clipping by record, Gaussian noise, Poisson sampling.

    Record-level (ε, δ) under add-or-remove of one training record, by the privacy-loss distribution of the
    Poisson-sampled Gaussian. Needs the data module `PoissonSampled`. Noise and coins come from the operating system:
    `torch.Generator` keeps 32 bits of its seed. Several processes (`ddp`) share one batch and one noise.

    With `unit: person` the same holds for one person with all pictures: persons are sampled as a whole, and the mean of
    each one's gradients is clipped. The data must say whose each picture is, as `person_pattern` of `ImageFolder` does.
    Record- and person-level ε of one data set do not compose.

    Args:
        target_epsilon: ε at the end of the planned steps; the noise is calibrated to it.
        noise_multiplier: σ in units of `clipping.max_grad_norm`, instead of `target_epsilon`.
        delta: δ, below one over the number of private records.
        unit: Unit of protection: a `record`, or a `person` with all pictures; `data.batch_size` then counts persons.
        clipping: See `Clipping`.
        loss: `cross_entropy`; or `inner_product`, minus the logit of the label, with which one step releases sums of
            features (see `MeanEmbedding`).
        noise: Source of the noise; None is the operating system's generator.
        **shared: See `Teacher`. The network must treat each image by itself, without dropout or BatchNorm, which
            `ClippedNetwork` makes sure of; features of a fixed `feature_extractor` (as in `LinearOnFeatures`) are
            computed once. Default optimizer: SGD with rate 4 and momentum 0.9. The guarantee names `class_prior` among
            its assumptions.

    Raises:
        ValueError: An invalid setting, or a network that does not treat each record by itself.
    """

    def __init__(
        self,
        *,
        target_epsilon: float | None = None,
        noise_multiplier: float | None = None,
        delta: float = 1e-5,
        unit: Literal["record", "person"] = "record",
        clipping: Clipping = Clipping(),
        loss: Literal["cross_entropy", "inner_product"] = "cross_entropy",
        noise: NoiseSource | None = None,
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        if (target_epsilon is None) == (noise_multiplier is None):
            raise ValueError(
                f"give one of target_epsilon and noise_multiplier, got {target_epsilon} and {noise_multiplier}"
            )
        check_number("target_epsilon", target_epsilon, above=0, null="a given noise_multiplier")
        check_number("noise_multiplier", noise_multiplier, above=0, null="calibration to target_epsilon")
        check_delta(delta)
        check_choice("unit", unit, ("record", "person"))
        check_choice("loss", loss, ("cross_entropy", "inner_product"))
        self.loss = loss
        if loss == "inner_product":
            if self.class_prior is not None:
                raise ValueError(f"class_prior must be null for loss=inner_product, got {self.class_prior}")
            self.criterion = InnerProduct()
        self.unit = Unit(unit)
        self.clipping = settings_of(Clipping, clipping, name="clipping")
        self.automatic_optimization = False
        self.target_epsilon = target_epsilon
        self.noise_multiplier = noise_multiplier
        self._configured = (target_epsilon, noise_multiplier)
        self.delta = delta
        self.clipped = ClippedNetwork(self.network, self.clipping, self.criterion, image_shape=self.image_shape)
        self.known_weights = KnownWeights(self.network)
        self.noise = noise or SystemNoise()
        self.steps = PlannedSteps(delta=delta, target_epsilon=target_epsilon, unit=self.unit)
        #: Counts the steps taken so far.
        self.accountant = self.steps.accountant

    precisions: ClassVar[tuple[str, ...]] = ("32-true", "32")
    _prepared = False
    """Whether `configure_optimizers` has checked a fit."""

    def _prepare_fit(self) -> None:
        """Checks the data and calibrates the noise to the planned steps."""
        data = self._poisson
        if self.trainer.precision != "32-true":
            # In half precision, clipped gradients were measured above the clipping norm.
            raise ValueError(f"trainer.precision must be 32-true for DP-SGD, got {self.trainer.precision!r}")
        require_batches_as_drawn(self.trainer, (self, DPSGDTeacher), (data, PoissonSampled))
        if self.unit is Unit.PERSON:
            data.sample_persons()
        assert data.num_records is not None  # known, since its records are loaded
        if self.delta >= 1 / data.num_records:
            raise ValueError(f"delta must lie below 1/N = {1 / data.num_records:.3g}, got {self.delta:g}")
        if self.noise_multiplier is None:
            if self.trainer.max_epochs is None or self.trainer.max_epochs < 1:
                raise ValueError("trainer.max_epochs must be set: the noise is calibrated to it")
            steps = self.trainer.max_epochs * len(data.train_dataloader())
            self.noise_multiplier = self.steps.calibrated(rate=data.sample_rate, steps=steps)

    def _precompute(self) -> None:
        """Computes fixed features once, after a checkpoint is read: it may hold the extractor's state."""
        if self.clipped.extracts is None:
            return
        rank_zero_info("Computing the fixed features of all private images once.")
        whitened = isinstance(getattr(self.network, "feature_extractor", None), WhitenedFeatures)
        self._poisson.precompute(
            lambda images: self.clipped.features(images.to(self.device)),
            key=f"{self.clipped.extracts} {digest_of(self.network, trained=False)}",
            workers=torch.get_num_threads() if self.device.type == "cpu" else 1,
            # Gigabytes, of a known scale; `remembered_features` rounds to half precision anyway.
            dtype=torch.float16 if whitened else None,
        )

    @property
    def _poisson(self) -> PoissonSampled:
        return datamodule_as(PoissonSampled, self.trainer, "DP-SGD needs data.class_path: PoissonSampled")

    @property
    def processes(self) -> Processes:
        return processes_of(self._trainer)

    @property
    def releases(self) -> Counter[Release]:
        """Releases of the whole training, which students inherit; see `PlannedSteps`."""
        return self.steps.releases

    @property
    def _step(self) -> Release:
        """Release of the next step."""
        assert self.noise_multiplier is not None
        secure = self.noise.secure and self._poisson.secure
        return self.steps.step(self.noise_multiplier, self._poisson.sample_rate, secure=secure)

    def epsilon(self) -> float:
        """ε at δ of the steps taken so far."""
        return self.accountant.get_epsilon(self.delta)

    def on_fit_start(self) -> None:
        """Checks a resumed state before any work.

        Raises:
            CheckpointError: The checkpoint is of other private data, or of steps at another sample rate.
            ValueError: The weights may come from another training.
        """
        require_monitored(self.trainer, self.logged_names())
        by_all(self.processes, lambda: self.known_weights.require(self.network, self.clipped.network))
        self.own_training.begin(self)
        by_all(self.processes, lambda: self.steps.require_rate(self._poisson.sample_rate))
        by_all(self.processes, self._precompute)
        self.own_training.branch()
        # If nothing is left to do, no step begins, and the checkpoint's releases stand.
        self.own_training.register(self.releases)
        clear(self.trainer, resumed=self.own_training.id if self.trainer.ckpt_path else None)

    def on_train_start(self) -> None:
        """Fixes the plan and charges all of it, before the first step.

        Raises:
            ValueError: More steps than the noise was calibrated for, batches that are not Poisson samples, or a flag
                that lets a record end the fit.
            LedgerError: The ledger cannot be written: no step may be taken.
        """
        self._require_as_charged()
        ahead = steps_of_run(self.trainer, length=len(self._poisson.train_dataloader()))
        by_all(self.processes, lambda: self.steps.fix_plan(self._step, ahead))
        self.own_training.register(self.releases)
        self.own_training.renew_token()

    @property
    def uncharged_queries(self) -> list[str]:
        """Unaccounted queries to the private data; for a client, those to the whole data set."""
        return [CHOICE] if (self.own_training.private_data or "").partition("/")[0] in CHOSEN_ON else []

    @property
    def _assumptions(self) -> list[str]:
        """Assumptions that this training adds to its guarantee, and through its file to those of students."""
        prior = None if self.class_prior is None else ", ".join(f"{share:g}" for share in self.class_prior)
        stated = {RESUMED: self.own_training.resumed, PERSONS: self.unit is Unit.PERSON}
        return [
            *(text for text, holds in stated.items() if holds),
            *([] if prior is None else [f"the frequencies of the classes, {prior}, are public"]),
        ]

    def guarantee(self) -> Guarantee:
        """Guarantee of the teacher itself, which its students inherit."""
        assert self.noise_multiplier is not None
        noise, rate, accessed = self.noise_multiplier, self._poisson.sample_rate, bool(self.uncharged_queries)
        self.own_training.ledger.sync()
        account = PrivacyAccount(
            ledger=self.own_training.ledger,
            budget=Budget(delta=self.delta, scope="run"),
            training=self.own_training.id,
            num_records=self._poisson.num_records,
        )
        return state_guarantee(
            account,
            self.steps.described(self.clipping, noise=noise, rate=rate, accessed=accessed),
            self.steps.plan,
            artefacts=("teacher", "whatever is computed from it"),
            secure=all(release.bounded for release in self.releases),
            spent=self.epsilon(),
            replaced=self.own_training.ledger_was_replaced,
            uncharged_queries=self.uncharged_queries,
            assumptions=[*self._assumptions, *self._poisson.assumptions],
        )

    def configure_callbacks(self) -> list[Callback]:
        return [*super().configure_callbacks(), *missing_callbacks(self.trainer, ForwardExceptions)]

    def on_fit_end(self) -> None:
        """Writes the guarantee and the artefacts that it covers next to the results."""
        self.known_weights.take()
        self._write({"teacher": self.network})

    def on_exception(self, exception: BaseException) -> None:
        """Writes the guarantee if steps were charged, but no weights: resuming assumes that nobody has seen them."""
        if self.known_weights.used:
            self.known_weights.take()
        if self.own_training.is_open and self.releases:
            self._write({})

    def _write(self, networks: Mapping[str, nn.Module]) -> None:
        if self.trainer.is_global_zero and not is_dev_run(self.trainer):
            write_statement(self.trainer, self.guarantee(), networks)

    def training_step(self, batch: Sequence[torch.Tensor], batch_idx: int) -> None:  # type: ignore[override]
        """One noisy step on a Poisson batch, whose gradients are computed in physical batches."""
        self._require_as_charged()
        sums = self.clipped.sums(*batch)
        # Counted before the noise is drawn.
        self.steps.count(self._step, register=self.own_training.register)
        assert self.noise_multiplier is not None
        means = noisy_means(
            sums,
            std=self.noise_multiplier * self.clipped.clipping.max_grad_norm,
            batch_size=self._poisson.batch_size,
            source=self.noise,
            processes=self.processes,
        )
        for parameter, mean in zip(self.clipped.parameters, means, strict=True):
            parameter.grad = mean.to(parameter)
        self.optimizers().step()  # type: ignore[union-attr]

    def _require_as_charged(self) -> None:
        """Refuses batches other than those that `_step` charges, and a flag that lets a record end the fit."""
        if not self._prepared:
            raise ValueError(
                f"configure_optimizers of {type(self).__name__} must call that of its base class, which checks "
                "precision, delta and batches: for another optimizer set `optimizer` and `lr_scheduler`"
            )
        if torch.is_anomaly_enabled():
            raise ValueError(
                "trainer.detect_anomaly must be false for DP-SGD: whether a record breaks the network is private, and "
                "the abort would tell"
            )
        require_poisson(self.trainer.train_dataloader, self._poisson.sample_rate, self._poisson.secure)

    def logged_names(self) -> set[str]:
        return {*validation_names(self.trainer), *self._spent()}

    def _spent(self) -> dict[str, float]:
        """ε of the steps so far, and of the plan, by their names in logs."""
        name = epsilon_metric(self.unit)
        return {name: self.epsilon(), f"{name}_planned": known_epsilon(self.releases, self.delta)}

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Logs ε after an epoch's last step, since callbacks write the epoch's line before `on_train_epoch_end`."""
        if self.trainer.is_last_batch or self.trainer.should_stop:
            logged = partial(self.log_dict, prog_bar=True, on_step=False, on_epoch=True, sync_dist=True)
            logged(self._spent(), batch_size=1)

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> None:
        """Logs accuracy on held-out private records, which the bound does not cover."""
        inputs, labels = batch
        extracted = self.clipped.extracts is not None and self.trainer.state.fn == "fit"
        logits = self.clipped.logits(inputs, extracted=extracted)
        self.evaluation.log("val", self, logits, labels)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Makes the optimizer of noisy gradients; first checks trainer and data.

        The checks are not in `setup`, which a derived class may override without calling this class's.
        """
        check_strategy(self.trainer, self)
        by_all(self.processes, self._prepare_fit)
        # A record more shifts those after it: processes with different lists would draw some of them twice.
        records, data = tensors_digest({"ids": self._poisson.train_records.ids}), self._poisson
        own = (records, data.sample_rate, data.secure, repr(self._settings))  # what is charged is what process 0 has
        require_same(self.processes, own, "private records or settings")
        # From process 0, so that all have the same noise to the last bit.
        self.noise_multiplier = self.processes.broadcast(self.noise_multiplier)
        self._prepared = True
        self.try_optimizer()
        optimizer = (self.optimizer_factory or partial(torch.optim.SGD, lr=4.0, momentum=0.9))(self.clipped.parameters)
        if self.scheduler_factory is None:
            return optimizer
        group = OptimizedGroup((), None, self.scheduler_factory)
        return {"optimizer": optimizer, "lr_scheduler": group.schedule(optimizer, steps=steps_planned(self.trainer))}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds the plan and the steps taken, from which ε follows at any δ."""
        self.own_training.save(checkpoint, trainer=self._trainer, releases=self.releases, progress=len(self.accountant))
        checkpoint["dp_sgd"] = {
            **self.steps.state_dict(),
            "settings": self._settings,
            "noise_multiplier": self.noise_multiplier,
            "uncharged_queries": self.uncharged_queries,
            "assumptions": self._assumptions,
        }

    @property
    def _settings(self) -> dict[str, Any]:
        """Settings that a resumed training must not change."""
        clipping = asdict(self.clipping)
        del clipping["physical_batch_size"]
        return {
            "class": f"{type(self).__module__}.{type(self).__name__}",
            "target_epsilon": self._configured[0],
            "noise_multiplier": self._configured[1],
            "delta": self.delta,
            "unit": self.unit.value,
            "loss": self.loss,
            **{f"clipping.{name}": value for name, value in clipping.items()},
            # The guarantee names it as public; steps with another one would go unmentioned.
            "class_prior": None if self.class_prior is None else [float(share) for share in self.class_prior],
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restores plan, steps and noise of the resumed training.

        Raises:
            CheckpointError: It is not from a training by DP-SGD, or from one with other settings.
        """
        self.own_training.load(checkpoint)
        state = checkpoint.get("dp_sgd")
        if not isinstance(state, dict) or "accountant" not in state:
            raise CheckpointError("the checkpoint is not of a training by DP-SGD: begin anew without --ckpt_path")
        self.steps.load_state_dict(state, settings=self._settings)
        self.noise_multiplier = state["noise_multiplier"]
        self.known_weights.take(
            {name.removeprefix("network."): weight for name, weight in checkpoint["state_dict"].items()}
        )
