"""Budget stop, guarantee, pictures: attached to every data-free method unless the trainer was given its own."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger
from lightning.pytorch.utilities import rank_zero_info
from torchvision.utils import make_grid

from lightning_modules.figures import image_grid, run_curves, save_figure
from lightning_modules.publication import clear, private_folder, public_folder, publish
from lightning_modules.runs import callbacks_of, datamodule_of, is_dev_run
from privacy.guarantees import round_up

if TYPE_CHECKING:
    from lightning_modules.distillation import DataFreeDistillation

__all__ = ["BudgetStop", "Curves", "GuaranteeWriter", "SyntheticImages", "default_callbacks"]


def default_callbacks(trainer: Trainer) -> list[Callback]:
    """Those of this module's callbacks that `trainer` does not have yet."""
    present = {type(callback) for callback in callbacks_of(trainer)}
    kinds: list[type[Callback]] = [BudgetStop, Curves, SyntheticImages, GuaranteeWriter]
    return [kind() for kind in kinds if kind not in present]


def _distillation(module: LightningModule) -> DataFreeDistillation:
    from lightning_modules.distillation import DataFreeDistillation  # both modules need each other

    if not isinstance(module, DataFreeDistillation):
        raise TypeError(f"this callback is for data-free methods, not for {type(module).__name__}")
    return module


class BudgetStop(Callback):
    """Ends the fit before the step that the target does not allow; the annotator would refuse it anyway."""

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Looks one step ahead."""
        module = _distillation(pl_module)
        annotator, calls = module.annotator, module.next_calls
        if (
            annotator.target_epsilon is not None
            and not trainer.should_stop
            and annotator.affordable(limit=calls) < calls
        ):
            rank_zero_info(
                f"Stopped: one more step would exceed target_epsilon={annotator.target_epsilon:g} "
                f"({annotator.accounting} accounting)."
            )
            trainer.should_stop = True


class Curves(Callback):
    """Accuracy and both ε over steps: `curves.png` in the run's folder, and the points for whoever asks.

    Attributes:
        history: One point per validation: `steps`, `accuracy`, `epsilon`, `epsilon_published`, `queries`.
    """

    def __init__(self) -> None:
        self.history: list[dict[str, float]] = []

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Takes a point."""
        accuracy = trainer.callback_metrics.get("val/accuracy")
        if trainer.sanity_checking or trainer.state.fn != "fit" or accuracy is None:
            return
        module = _distillation(pl_module)
        account = module.annotator.account
        self.history.append(
            {
                "steps": module.steps_done,
                "accuracy": float(accuracy),
                "epsilon": account.epsilon(),
                "epsilon_published": account.epsilon_published(),
                "queries": account.queries(),
            }
        )

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draws the figure."""
        if trainer.is_global_zero and self.history and not is_dev_run(trainer):
            title = f"{type(pl_module).__name__} on {getattr(datamodule_of(trainer), 'name', 'data')}"
            save_figure(run_curves(self.history, title=title), _figures(trainer, pl_module) / "curves.png")

    def state_dict(self) -> dict[str, Any]:
        """The points, so that a resumed run draws one curve."""
        return {"history": self.history}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Inverse of `state_dict`."""
        self.history = [dict(point) for point in state_dict["history"]]


class SyntheticImages(Callback):
    """A grid of synthetic images at each validation, as PNG and to the loggers that take images.

    Args:
        count: Images in a grid.
        every: Validations between two grids; the last state is always drawn when the fit ends.
    """

    def __init__(self, *, count: int = 64, every: int = 5) -> None:
        if count < 1 or every < 1:
            raise ValueError(f"count and every must be 1 or more, got {count} and {every}")
        self.count = count
        self.every = every
        self.seen = 0

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draws one where it is due."""
        if trainer.sanity_checking or trainer.state.fn != "fit":
            return
        self.seen += 1
        if self.seen % self.every == 0:
            self._draw(trainer, pl_module)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draws the last one."""
        self._draw(trainer, pl_module)

    def _draw(self, trainer: Trainer, pl_module: LightningModule) -> None:
        module = _distillation(pl_module)
        grid = getattr(module, "synthetic_grid", None)
        if grid is None or not trainer.is_global_zero or is_dev_run(trainer):
            return
        images = grid(self.count)
        if not len(images):
            return  # none that may be drawn
        figure = image_grid(images, title=f"synthetic images after {module.steps_done} steps")
        path = save_figure(figure, _figures(trainer, module) / f"synthetic_{module.steps_done:06d}.png")
        log_image(trainer, images, path, step=module.steps_done)


def _figures(trainer: Trainer, module: LightningModule) -> Path:
    """Beside the guarantee where it covers what is drawn, and with what nothing covers where it does not."""
    bounded = math.isfinite(_distillation(module).covered_epsilon())
    return (public_folder(trainer) if bounded else private_folder(trainer)) / "figures"


def log_image(trainer: Trainer, images: torch.Tensor, path: Path, *, step: int) -> None:
    """Hands images to those loggers that can show them; for the others the PNG at `path` stands."""
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger):
            logger.experiment.add_image(
                "synthetic", make_grid(images.float().cpu(), normalize=True, scale_each=True), step
            )
        elif isinstance(logger, WandbLogger):
            logger.log_image(key="synthetic", images=[str(path)])


class GuaranteeWriter(Callback):
    """Settles the ledger, writes `guarantee.json` and `guarantee.md`, and says in words what the figures mean."""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leaves nothing of an earlier fit beside what this one will say."""
        if trainer.is_global_zero and not is_dev_run(trainer) and not trainer.ckpt_path:
            clear(trainer)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """After the last step."""
        self._write(trainer, pl_module)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """What was released before an error or an interruption stays released."""
        module = _distillation(pl_module)
        if module.annotator.is_open and module.annotator.account.counts(scope="run"):
            self._write(trainer, pl_module)

    def _write(self, trainer: Trainer, pl_module: LightningModule) -> None:
        module = _distillation(pl_module)
        module.annotator.close()
        if not trainer.is_global_zero:
            return
        guarantee = module.guarantee()
        where = ""
        if not is_dev_run(trainer):  # such a run has no folder; what it released is charged all the same
            folder = public_folder(trainer)
            where = f"\nThe whole statement: {guarantee.write(folder)[1]}"
            publish(folder, guarantee, module.published_networks())
        claim = ""
        if guarantee.claimed_source:
            claim = (
                f"\nPublished epsilon = {round_up(guarantee.claimed_epsilon)} at delta = {guarantee.delta:g} "
                f"({guarantee.claimed_source}): the figure that the paper's tables are indexed by, a claim that bounds "
                "no record."
            )
        rank_zero_info(f"\n{guarantee.headline()}{claim}{where}")
