"""Direct training on private data with noisy releases of the labels (DPDFD, Algorithm 3; DPSD, section IV-F)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from lightning import Callback
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor
from torch.nn import functional as F

from datamodules import ImageDataModule, PoissonSampled
from datamodules.poisson_sampled import require_poisson
from lightning_modules.evaluation import refuse_selection, require_monitored
from lightning_modules.losses.functional import output_gradients
from lightning_modules.losses.targets import Annotation, GradientTargets
from lightning_modules.private_run import PrivateRun, state_of_run, steps_ahead
from lightning_modules.runtime.publication import ForwardExceptions, clear, publish
from lightning_modules.runtime.runs import datamodule_of, is_dev_run
from lightning_modules.teachers.teacher import Teacher
from privacy.annotators import DirectGradientAnnotator, DirectLabelAnnotator
from privacy.guarantee import Guarantee
from privacy.identity import Training

_ACCESS = (
    "accuracy on held-out private records was measured during training, on their true labels, and logged by this "
    "run: nothing bounds what it reveals about them"
)


class DirectTraining(Teacher):
    """Training on private images with annotated labels: DPDFD Algorithm 3 (Table 4), and DPSD's label switch.

    *Data* switch: each record's gradient of its own cross-entropy with respect to the model's outputs is bounded and
    noised, subtracted from the outputs, and the model is fitted to the result. *Label* switch: each record's label is
    released once by randomized response, and kept.

    Both papers state record-level privacy. **It does not hold**: the update multiplies what was released by a Jacobian
    of the private image, so that record-level ε is infinite whatever the settings. A label-level bound does hold,
    against an adversary who knows the images: `privacy/epsilon_label`, stated separately in the guarantee. The fit's
    output is as private as its images.

    Where the paper leaves a choice:

    - *Outputs are logits*, and gradients are per sample, as in `DPDFD`.
    - *One noised mean for the whole batch* (line 8 as printed: `release: batch_mean`) carries no label of any image.
    - *Batches* are Poisson samples (line 2; data module `PoissonSampled`); the label switch takes any.

    Args:
        batch_size: B, nominal size of a batch; linked from the data.
        annotator: `DirectGradientAnnotator` for the data switch, `DirectLabelAnnotator` for the label switch. Default:
            gradients.
        gamma: γ, step size along the noisy gradient; null is 1/norm_bound.
        **shared: See `Teacher`, except `class_prior`. BatchNorm does no harm: it mixes images, not labels.

    Raises:
        ValueError: An invalid setting, or an annotator that is not for the switch.
    """

    paper = "DPDFD"

    def __init__(
        self,
        *,
        batch_size: int,
        annotator: DirectGradientAnnotator | DirectLabelAnnotator | None = None,
        gamma: float | None = None,
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        if self.class_prior is not None:
            raise ValueError("class_prior has no effect in direct training: leave it out")
        self.automatic_optimization = False
        self.batch_size = batch_size
        self.annotator = annotator or DirectGradientAnnotator()
        self.annotator.bind(batch_size=batch_size, num_classes=self.num_classes, paper=self.paper)
        self.gradient_targets = GradientTargets(gamma=gamma)
        self.run = PrivateRun(self.annotator)
        self.steps_done = 0
        #: Private labels, behind a function: an attribute would be saved or copied with the module.
        self._labels: Callable[[], Tensor] | None = None
        #: Responses of the label switch that a checkpoint has kept.
        self._kept: Any = None

    # --- Algorithm 3 ---

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:  # type: ignore[override]
        """One iteration of Algorithm 3 on private images (n, C, H, W) and the numbers (n,) of their records."""
        images, records = batch  # line 2
        if isinstance(self.annotator, DirectGradientAnnotator):
            assert self.annotator.sample_rate is not None
            require_poisson(self.trainer.train_dataloader, self.annotator.sample_rate, self.annotator.secure_coins)
        if len(images):
            outputs = self.network(images)
            annotation = self.annotate(outputs.detach(), records)  # lines 3 to 10
            loss = annotation.loss(outputs.float()).mean()  # line 11
            self.update(loss)  # line 12
            self.log("train/loss", loss.detach())
        else:
            # An empty Poisson batch is a step all the same.
            self.annotate(torch.zeros(0, self.num_classes, device=images.device), records)
        self.steps_done += 1

    def annotate(self, outputs: Tensor, records: Tensor) -> Annotation:
        """Lines 3 to 10: gets targets through the annotator, for detached logits (n, c) of records numbered (n,)."""
        assert self._labels is not None
        annotator, labels = self.annotator, self._labels()[records.cpu()].to(records.device)
        if isinstance(annotator, DirectGradientAnnotator):
            gradients = output_gradients(outputs, lambda free: F.cross_entropy(free, labels, reduction="none"))
            released = annotator.annotate(gradients, records)
            return self.gradient_targets.annotation(outputs, released, norm_bound=annotator.norm_bound)
        every_class = torch.ones_like(outputs, dtype=torch.bool)
        responses = annotator.annotate(labels, records)
        return Annotation.of_labels(outputs, responses, every_class, epsilon=annotator.epsilon)

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
        """Refuses several processes, and makes the data number its records.

        Raises:
            ValueError: The data cannot say who takes part, or labels may decide it; or there are several processes.
        """
        super().setup(stage)
        if stage != "fit":
            return
        if self.trainer.world_size != 1:
            raise ValueError(f"trainer.devices must be 1 for direct training, got {self.trainer.world_size} processes")
        data = datamodule_of(self.trainer)
        if not hasattr(data, "number_records"):
            raise ValueError(f"direct training needs an image data set or PoissonSampled, got {type(data).__name__}")
        if isinstance(self.annotator, DirectGradientAnnotator) and not isinstance(data, PoissonSampled):
            raise ValueError(f"DirectGradientAnnotator needs data.class_path PoissonSampled, got {type(data).__name__}")
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
            self.run.note(_ACCESS)
            refuse_selection(self.trainer)

    def on_fit_start(self) -> None:
        """Gives the training its identity, and opens the ledger to which its labels are charged.

        Raises:
            BudgetExceeded: Not one step fits.
        """
        self.own_training.begin(self)
        self.own_training.register(None)
        data, annotator = datamodule_of(self.trainer), self.annotator
        if isinstance(annotator, DirectLabelAnnotator):
            assert self._labels is not None
            annotator.bind(batch_size=len(self._labels()), num_classes=self.num_classes, paper="DPSD")
        else:
            annotator.bind_sampling(sample_rate=data.sample_rate, secure=data.secure)
        own = self.own_training
        assert own.id is not None
        training = Training(own.id, kind=own.kind, releases=None)
        self.run.open(self.trainer, private_data=own.ledger.private_data, ledger=own.place(), training=training)
        spent = {*self.run.epsilons({annotator.charge: 1}), "privacy/epsilon_label"}
        require_monitored(self.trainer, self.logged_names() | spent)
        if self._kept is not None and isinstance(self.annotator, DirectLabelAnnotator):
            self.annotator.keep(self._kept)
        if not self.run.require_calls(1 if self._calls_ahead() else 0, steps_done=self.steps_done):
            self.trainer.should_stop = True
        if not is_dev_run(self.trainer):
            clear(self.trainer, resumed=self.run.resumed)

    def on_train_start(self) -> None:
        """Fixes the plan, before the first release: the guarantee covers the plan."""
        ahead = self._calls_ahead()
        self.run.fix_plan(lambda: ahead and self.annotator.affordable(limit=ahead))

    def _calls_ahead(self) -> int | None:
        if isinstance(self.annotator, DirectLabelAnnotator):
            return 0 if self.annotator.complete else 1
        ahead = steps_ahead(self.trainer, self.trainer.num_training_batches)
        return 10**7 if ahead is None and self.annotator.budget.target_epsilon is not None else ahead

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Ends the fit before a step that the target does not allow, which would be refused anyway; logs ε."""
        if not isinstance(self.annotator, DirectLabelAnnotator):
            self.run.stop_before(self.trainer, calls=1)
        # Here, since callbacks write an epoch's line before the module's `on_train_epoch_end`.
        if self.trainer.is_last_batch or self.trainer.should_stop:
            spent = {**self.run.epsilons(), "privacy/epsilon_label": self.annotator.account.epsilon_label()}
            self.log_dict(spent, prog_bar=True, on_step=False, on_epoch=True, batch_size=1)

    def guarantee(self) -> Guarantee:
        """Guarantee of the model: none for records, and a separate statement about labels."""
        artefacts = ("model", "whatever is computed from it")
        return self.run.guarantee(artefacts=artefacts, assumptions=())

    @property
    def uncharged_queries(self) -> list[str]:
        """Uncharged queries, in words for the guarantee."""
        return self.run.uncharged_queries

    def configure_callbacks(self) -> list[Callback]:
        return [*super().configure_callbacks(), ForwardExceptions()]

    def on_exception(self, exception: BaseException) -> None:
        """Does the same as `on_fit_end`: what was released before an error stays released."""
        if self.annotator.is_open and self.annotator.account.counts(scope="run"):
            self.on_fit_end()

    def on_fit_end(self) -> None:
        """Settles the ledger and writes the guarantee beside the results."""
        self.annotator.close()
        if is_dev_run(self.trainer):
            return
        guarantee = self.guarantee()
        page = publish(self.trainer, guarantee, {"model": self.network})
        rank_zero_info(f"\n{guarantee.headline()}\nThe whole statement: {page}")

    # --- checkpoints ---

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds this run's charges, its plan, and its kept responses, which are released values."""
        super().on_save_checkpoint(checkpoint)
        annotator = self.annotator
        checkpoint["direct_training"] = {
            "steps_done": self.steps_done,
            "kept": annotator.kept() if isinstance(annotator, DirectLabelAnnotator) else None,
            **self.run.state(),
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Inverse of `on_save_checkpoint`; the charges are merged with the ledger when the fit begins.

        Raises:
            CheckpointError: A fit would resume from a file without the charges of its labels.
        """
        super().on_load_checkpoint(checkpoint)
        if (state := state_of_run(checkpoint, "direct_training", self._trainer)) is None:
            return
        self._kept = state["kept"]
        self.steps_done = int(state["steps_done"])
        self.run.load(state)
