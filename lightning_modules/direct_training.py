"""Direct training on private data with noisy releases of the labels (DPDFD, Algorithm 3; DPSD, section IV-F)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from lightning import Callback
from torch import Tensor, nn
from torch.nn import functional as F

from datamodules import ImageDataModule, PoissonSampled
from datamodules.poisson_sampled import require_poisson
from lightning_modules.losses.functional import output_gradients
from lightning_modules.losses.targets import Annotation, GradientTargets, LabelTargets
from lightning_modules.private_fit import ForwardExceptions, PrivateFit
from lightning_modules.teachers.teacher import Teacher
from lightning_modules.training.evaluation import refuse_selection
from lightning_modules.training.run import datamodule_of, missing_callbacks
from privacy.account import Budget
from privacy.checks import settings_of
from privacy.identity import CheckpointError, Training
from privacy.mechanisms import DirectGradients, DirectLabels, Shape
from privacy.session import PrivacySession

_ACCESS = (
    "accuracy on held-out private records was measured during training, on their true labels, and logged by this "
    "run: nothing bounds what it reveals about them"
)


class DirectTraining(PrivateFit, Teacher):
    """Training on private images with annotated labels: DPDFD Algorithm 3 (Table 4), and DPSD's label switch.

    *Data* switch: each record's gradient of its own cross-entropy with respect to the model's outputs is bounded and
    noised, subtracted from the outputs, and the model is fitted to the result. *Label* switch: each record's label is
    released once by randomized response, and kept.

    Both papers state record-level privacy for the data switch. **It does not hold**: the update multiplies what was
    released by a Jacobian of the private image, so that record-level ε is infinite whatever the settings. A label-level
    bound does hold, against an adversary who knows the images: `privacy/epsilon_label`, stated separately in the
    guarantee. The fit's output is as private as its images.

    Where the paper leaves a choice:

    - *Outputs are logits*, and gradients are per sample, as in `DPDFD`.
    - *One noised mean for the whole batch* (line 8 as printed: `release: batch_mean`) carries no label of any image.
    - *Batches* are Poisson samples (line 2; data module `PoissonSampled`); the label switch takes any.

    Args:
        batch_size: B, nominal size of a batch; linked from the data.
        mechanism: `DirectGradients` for the data switch, `DirectLabels` for the label switch. Default:
            gradients.
        gamma: γ, step size along the noisy gradient; null is 1/norm_bound.
        **shared: See `Teacher`, except `class_prior`. BatchNorm does no harm: it mixes images, not labels.

    Raises:
        ValueError: An invalid setting, or a mechanism that is not for the switch.
    """

    section = "direct_training"
    one_process = True
    augments = True
    covered_artefacts = ("model", "whatever is computed from it")
    paper = "DPDFD"
    mechanisms = (DirectGradients, DirectLabels)

    def __init__(
        self,
        *,
        batch_size: int,
        mechanism: DirectLabels | DirectGradients | None = None,
        budget: Budget = Budget(),
        gamma: float | None = None,
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        if self.class_prior is not None:
            raise ValueError("class_prior has no effect in direct training: leave it out")
        self.automatic_optimization = False
        self.batch_size = batch_size
        self.mechanism = mechanism = mechanism or DirectGradients()
        if not isinstance(mechanism, self.mechanisms):
            raise ValueError(f"mechanism must be DirectGradients or DirectLabels, got {type(mechanism).__name__}")
        paper = "DPSD" if isinstance(mechanism, DirectLabels) else self.paper
        shape = Shape(batch_size, self.num_classes, paper)
        self.session = PrivacySession(mechanism, shape, budget=settings_of(Budget, budget, name="budget"))
        self.gradient_targets = GradientTargets(gamma=gamma)
        #: Private labels, behind a function: an attribute would be saved or copied with the module.
        self._labels: Callable[[], Tensor] | None = None
        #: Released labels of all records, (N,), of the label switch: drawn once, and kept by checkpoints.
        self.noisy_labels: Tensor | None = None

    # --- Algorithm 3 ---

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:  # type: ignore[override]
        """One iteration of Algorithm 3 on private images (n, C, H, W) and the numbers (n,) of their records."""
        images, records = batch  # line 2
        if isinstance(self.mechanism, DirectGradients):
            shape = self.session.shape
            require_poisson(self.trainer.train_dataloader, shape.sample_rate, shape.secure_sampling)
        if len(images):
            outputs = self.network(self.augmented(images))
            annotation = self.annotate(outputs.detach(), records)  # lines 3 to 10
            loss = annotation.loss(outputs.float()).mean()  # line 11
            self.update(loss)  # line 12
            self.log("train/loss", loss.detach())
        else:
            # An empty Poisson batch is a step all the same.
            self.annotate(torch.zeros(0, self.num_classes, device=images.device), records)
        self.steps_done += 1

    def annotate(self, outputs: Tensor, records: Tensor) -> Annotation:
        """Lines 3 to 10: gets targets through the session, for detached logits (n, c) of records numbered (n,)."""
        assert self._labels is not None
        mechanism = self.mechanism
        if isinstance(mechanism, DirectGradients):
            labels = self._labels()[records.cpu()].to(records.device)
            gradients = output_gradients(outputs, lambda free: F.cross_entropy(free, labels, reduction="none"))
            released = self.session.release(mechanism, gradients, records)
            return self.gradient_targets.annotation(outputs, released, mechanism)
        if self.noisy_labels is None:
            self.noisy_labels = self.session.release(mechanism, self._labels())
        every_class = torch.ones_like(outputs, dtype=torch.bool)
        responses = self.noisy_labels[records.cpu()].to(records.device)
        return LabelTargets().annotation(outputs, responses, every_class, epsilon=mechanism.epsilon)

    def update(self, loss: Tensor) -> None:
        """Runs backward, an optimizer step, and a step of the default schedule."""
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        if self.optimizer_factory is None and self.scheduler_factory is None:
            self.lr_schedulers().step()  # type: ignore[union-attr]

    # --- fit hooks ---

    def setup(self, stage: str) -> None:
        """Makes the data number its records.

        Raises:
            ProcessesError: There are several processes.
            ValueError: The data cannot say who takes part, or labels may decide it.
        """
        super().setup(stage)
        if stage != "fit":
            return
        data = datamodule_of(self.trainer)
        if not hasattr(data, "number_records"):
            raise ValueError(f"direct training needs an image data set or PoissonSampled, got {type(data).__name__}")
        if isinstance(self.mechanism, DirectGradients) and not isinstance(data, PoissonSampled):
            raise ValueError(f"DirectGradients needs data.class_path PoissonSampled, got {type(data).__name__}")
        if data.label_decides:
            raise ValueError(
                f"direct training bounds labels, and those of {data.name} decide which records are trained on, or "
                "in which order: it needs data whose files do not name classes, and all of their classes"
            )
        loaders = (ImageDataModule.train_dataloader, PoissonSampled.train_dataloader)
        own = type(data if isinstance(data, ImageDataModule) else data.dataset)
        if type(data).train_dataloader not in loaders or own.loaded_records is not ImageDataModule.loaded_records:
            raise ValueError(
                f"train_dataloader and loaded_records of {data.name} must be those of ImageDataModule or "
                "PoissonSampled: where others balance classes, for example, labels decide which records are trained on"
            )
        data.number_records()
        labels = data.train_records.labels.clone()
        self._labels = lambda: labels
        if not isinstance(data, PoissonSampled):  # a data set itself holds out private records
            self.session.note(_ACCESS)
            refuse_selection(self.trainer)

    def on_fit_start(self) -> None:
        """Gives the training its identity, and opens the ledger to which its labels are charged.

        Raises:
            BudgetExceeded: Not one step fits.
        """
        self.own_training.chosen = self.session.budget.ledger
        self.own_training.begin(self)
        self.own_training.register(None)
        data, session, own = datamodule_of(self.trainer), self.session, self.own_training
        assert self._labels is not None and own.id is not None
        if isinstance(self.mechanism, DirectLabels):
            records = len(self._labels())
            session.shape = session.shape._replace(batch_size=records)
            if self.noisy_labels is not None and len(self.noisy_labels) != records:  # as by another val_fraction
                raise CheckpointError(f"{len(self.noisy_labels)} kept responses for {records} records")
        else:
            session.shape = session.shape._replace(sample_rate=data.sample_rate, secure_sampling=data.secure)
        self.open_session(
            private_data=own.ledger.private_data,
            ledger=own.place(),
            training=Training(own.id, kind=own.kind, releases=None),
        )

    @property
    def next_calls(self) -> int:
        """Labels are released once."""
        return 0 if self.noisy_labels is not None else 1

    def calls_ahead(self, steps: int | None) -> int | None:
        if isinstance(self.mechanism, DirectLabels):
            return self.session.affordable(limit=self.next_calls)
        return super().calls_ahead(steps)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Ends the fit before a step that the target does not allow, which would be refused anyway; logs ε."""
        self.end_in_time()
        # Here, since callbacks write an epoch's line before the module's `on_train_epoch_end`.
        if self.trainer.is_last_batch or self.trainer.should_stop:
            self.log_dict(self.spent(), prog_bar=True, on_step=False, on_epoch=True, batch_size=1)

    def covered_networks(self) -> dict[str, nn.Module]:
        return {"model": self.network}

    def logged_names(self) -> set[str]:
        return Teacher.logged_names(self)

    def configure_callbacks(self) -> list[Callback]:
        return [*super().configure_callbacks(), *missing_callbacks(self.trainer, ForwardExceptions)]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds this run's charges, its plan, and its noisy labels, which are released values."""
        super().on_save_checkpoint(checkpoint)
        checkpoint[self.section]["noisy_labels"] = self.noisy_labels

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        self.noisy_labels = checkpoint.get(self.section, {}).get("noisy_labels")
