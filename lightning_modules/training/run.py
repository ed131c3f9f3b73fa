"""A run: its folder and lock, what of it is public, what it says, its length, processes and data, and what it ran on.

In its folder `public/` holds what the guarantee covers, `private/` what no guarantee covers. Everything else there
(configuration, checkpoints, curves, records) is working state and must stay there.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import logging
import math
import os
import platform
import re
import shutil
import subprocess
import warnings
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    EarlyStopping,
    LearningRateFinder,
    StochasticWeightAveraging,
)
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger, WandbLogger
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy, Strategy
from lightning.pytorch.utilities import rank_zero_info, rank_zero_only
from torch import nn

from privacy.checks import round_up
from privacy.guarantee import Guarantee
from privacy.journal import write_atomically
from privacy.processes import ALONE, Processes, ProcessesError, everywhere

_Data = TypeVar("_Data")

LOCK = ".fit.lock"
LAST = Path("checkpoints", "last.ckpt")
"""The last checkpoint in a run's folder, which every fit writes."""
_OF_A_START = {LOCK, "private", "config.yaml", "hparams.yaml", "metrics.csv"}

#: Messages of Lightning's about itself that are left out, so that a run's output is readable.
_SAID = re.compile(
    "|".join(
        (
            "An (KeyboardInterrupt|SIGTERMException) was raised with message",  # the command that resumes is printed
            "Tip: For seamless cloud",  # an advertisement
            "(GPU|TPU|HPU) available:",
            "Loading `train_dataloader` to estimate",
            r"`Trainer\.fit` stopped: `max_(epochs|steps)=",
            "Restored all states from the checkpoint|Restoring states from the checkpoint path",
            "Seed set to",
            "Trainer already configured with model summary",
        )
    )
)
#: Warnings that are false here. What may lose a user's data is never among them: where it is false, it is left out for
#: that file alone. `warnings.simplefilter("default")` shows them again.
_WARNED = (
    "LightningCLI's args parameter is intended to run from within Python",
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",
    r"The '\w+_dataloader' does not have many workers which may be a bottleneck",  # of images in memory
    r"The number of training batches \(\d+\) is smaller than the logging interval",  # an epoch's last step is logged
    "You're resuming from a checkpoint that ended before the epoch ended and your dataloader is",  # draws follow steps
    "There is a performance drop because we have not yet implemented the batching rule for aten::addcmul_",  # of DP-SGD
    r"Found \d+ module\(s\) in eval mode at the start of training",  # of a frozen encoder, which stays in it
)
for _name in ("pytorch.utilities.rank_zero", "fabric.utilities.rank_zero", "fabric.utilities.seed"):
    logging.getLogger(f"lightning.{_name}").addFilter(lambda record: not _SAID.search(record.getMessage()))
for _message in _WARNED:
    warnings.filterwarnings("ignore", message=_message)


def run_folder(trainer: Trainer) -> Path:
    """Returns the folder of this run; W&B's is shared by all its runs, so the run's id is added.

    For process 0, which writes all files of a run; others may count another version. `trainer.log_dir` would
    communicate, and a process that calls it alone would wait forever.
    """
    logger, root = trainer.logger, trainer.default_root_dir
    if isinstance(logger, WandbLogger):
        return Path(logger.save_dir or root) / str(logger.name or "wandb") / str(logger.version)
    if isinstance(logger, (CSVLogger, TensorBoardLogger)):
        return Path(logger.log_dir)
    return Path((logger and logger.save_dir) or root)


def datamodule_of(trainer: Trainer | None) -> Any:
    """Returns the data module, or None. As for `callbacks`, type checkers do not see Lightning's attribute."""
    return getattr(trainer, "datamodule", None)


def datamodule_as(kind: type[_Data], trainer: Trainer, needed: str) -> _Data:
    """Returns the data module if it is of this kind, otherwise raises a ValueError that begins with `needed`."""
    data = datamodule_of(trainer)
    if not isinstance(data, kind):
        raise ValueError(f"{needed}, got {type(data).__name__}")
    return data


def innermost(data: Any) -> Any:
    """Returns the data set that data modules are wrapped around."""
    while hasattr(data, "dataset"):
        data = data.dataset
    return data


def callbacks_of(trainer: Trainer) -> list[Callback]:
    """The callbacks of a trainer."""
    found: list[Callback] = getattr(trainer, "callbacks", [])
    return found


def missing_callbacks(trainer: Trainer, *kinds: type[Callback]) -> list[Callback]:
    """New callbacks of the classes that a trainer has none of; Lightning would replace its own, with all they hold."""
    present = {type(one) for one in callbacks_of(trainer)}
    return [kind() for kind in kinds if kind not in present]


def is_dev_run(trainer: Trainer) -> bool:
    """Whether this is `fast_dev_run`, which writes nothing."""
    return bool(getattr(trainer, "fast_dev_run", False))


def provenance() -> dict[str, Any]:
    """What a result depends on besides its configuration.

    Returns:
        `hardware` (the processor and its threads, or the GPUs), `versions` of Python and of packages, and the `commit`
        of the code when it was first asked for, with `-dirty` if that was changed since; "unknown" outside a checkout.
    """
    if torch.cuda.is_available():
        hardware = f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    else:
        told = Path("/proc/cpuinfo").read_text("utf-8") if Path("/proc/cpuinfo").is_file() else ""
        named = re.search(r"^model name\s*: (.*)", told, re.MULTILINE)
        name = named[1] if named else platform.processor() or platform.machine()
        hardware = f"CPU {name}, {torch.get_num_threads()} thread(s) of {os.cpu_count()} core(s)"
    versions = {"python": platform.python_version()}
    for package in ("torch", "torchvision", "lightning", "opacus", "private-model-transcription"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return {"hardware": hardware, "versions": versions, "commit": _commit()}


@cache
def _commit() -> str:
    described = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    settings: dict[str, Any] = {"cwd": Path(__file__).parent, "stderr": subprocess.DEVNULL, "timeout": 20}
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.check_output(described, text=True, **settings).strip() or "unknown"
    return "unknown"


class RunFolderError(RuntimeError):
    """A fit cannot write to its folder, or must not, since another fit does."""


def first_process() -> bool:
    """Whether this is the process of a fit that writes its files."""
    return not getattr(rank_zero_only, "rank", 0)


@contextlib.contextmanager
def own_folder(folder: Path) -> Iterator[None]:
    """Locks a run's folder for this process until the block ends; the system releases the lock however it ends.

    If an error ends the block before the first step, a new folder is removed, so that its version can be used again.

    Raises:
        RunFolderError: Another fit holds the folder, or it cannot be written.
    """
    new = not folder.exists()
    with contextlib.ExitStack() as held:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "private").mkdir(mode=0o700, exist_ok=True)  # for its owner alone, whoever fills it
            fcntl.flock(held.enter_context((folder / LOCK).open("w")), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunFolderError(
                f"{folder} is the folder of a fit that is running: wait, or set another trainer.default_root_dir"
            ) from None
        except OSError as error:
            raise RunFolderError(f"the run's folder {folder} cannot be written ({error.strerror or error})") from error
        try:
            yield
        except BaseException:
            if new and {path.name for path in folder.iterdir()} <= _OF_A_START:
                shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            with contextlib.suppress(OSError):
                (folder / "private").rmdir()  # if nothing did


def folder_of_checkpoint(checkpoint: Path) -> Path | None:
    """Returns the run folder of a checkpoint `FOLDER/checkpoints/NAME.ckpt`; None for a file elsewhere."""
    beside = checkpoint.resolve().parent.parent
    return beside if checkpoint.resolve().parent.name == "checkpoints" and (beside / "config.yaml").is_file() else None


# --- what of it is public ---


def clear(trainer: Trainer, *, resumed: str | None = None) -> None:
    """Removes files of an earlier fit in the same folder, unless they belong to the run to be `resumed`.

    Process 0 does so, and no fit that writes nothing.
    """
    if not trainer.is_global_zero or is_dev_run(trainer):
        return
    folder = run_folder(trainer)
    try:
        found = json.loads((folder / "public" / "guarantee.json").read_text(encoding="utf-8"))["guarantee"]["run"]
    except (OSError, ValueError, KeyError, TypeError):
        found = None
    if resumed and found == resumed:
        return
    for part in (folder / "public", folder / "private", *folder.glob("clients/*")):
        for pattern in ("guarantee.*", "*.pt", "figures/*.png", "attack/attack.*"):
            for file in part.glob(pattern):
                file.unlink(missing_ok=True)


def write_statement(
    trainer: Trainer, guarantee: Guarantee, networks: Mapping[str, nn.Module], *, ledger: Path | None = None
) -> None:
    """Writes a guarantee and the plain weights that it covers, and explains its figures in words; for process 0.

    No weights are written if ε is infinite, and none in a `fast_dev_run`, which has no folder.
    """
    said = [guarantee.headline()]
    if guarantee.claimed_source and math.isfinite(guarantee.claimed_epsilon):
        said.append(
            f"Published epsilon = {round_up(guarantee.claimed_epsilon)} at delta = {guarantee.delta:g} "
            f"({guarantee.claimed_source}): the figure that the paper's tables are indexed by, a claim that bounds "
            "no record."
        )
    if not is_dev_run(trainer):
        folder = run_folder(trainer) / "public"
        said.append(f"The whole statement: {guarantee.write(folder)[1]}")
        if ledger is not None:
            said.append(f"Keep {ledger}: it counts what every run has asked about these private data")
        covered = {} if math.isinf(guarantee.epsilon) else networks
        for picture in () if covered else (folder / "figures").glob("*.png"):  # drawn while a bound still held
            kept = folder.parent / "private" / "figures" / picture.name
            kept.parent.mkdir(parents=True, exist_ok=True)
            os.replace(picture, kept)
        for stale in folder.glob("*.pt"):
            if stale.stem not in covered:
                stale.unlink()
        for name, network in covered.items():
            weights, buffer = network.state_dict(), io.BytesIO()
            torch.save({key: value.detach().cpu().clone() for key, value in weights.items()}, buffer)
            write_atomically(folder / f"{name}.pt", buffer.getvalue())
    rank_zero_info("\n".join(["", *said]))


# --- its length ---


def steps_of_run(trainer: Trainer, *, done: int = 0, length: float | None = None) -> int | None:
    """Number of steps of a run of which `done` are made: these, and what is left of its fit; None without a known end.

    Finished epochs count as finished, whatever their length was.

    Args:
        trainer: The trainer, when the fit begins.
        done: Number of steps that are made; without it the number of those that are left is returned.
        length: Number of steps of an epoch; None for that of the trainer's loader.

    Raises:
        ValueError: The end is unknown and `EarlyStopping` chooses it by results, so ε of the steps taken does not hold.
    """
    length = trainer.num_training_batches if length is None else length
    if trainer.max_epochs in (None, -1) or not math.isfinite(length):
        if any(isinstance(callback, EarlyStopping) for callback in callbacks_of(trainer)):
            raise ValueError(
                "trainer.max_epochs must be set with EarlyStopping: all its steps are then charged, however early it "
                "stops"
            )
        return None
    loop: Any = trainer.fit_loop
    epochs, steps = loop.epoch_progress.current, int(length)
    # Not `completed`: a step is not repeated if the fit was interrupted after it.
    steps_of_epoch = loop.epoch_loop.batch_progress.current.processed if epochs.ready > epochs.processed else 0
    left = (int(trainer.max_epochs or 0) - int(epochs.processed)) * steps - min(steps, int(steps_of_epoch))
    return done + max(0, left)


def steps_planned(trainer: Trainer, *, length: int = 1) -> float:
    """Number of steps of a whole fit with epochs of `length` steps, before loaders are made; infinite without an end.

    1 where `trainer.max_steps` ends the fit; a budget that may end it is not looked at.
    """
    if trainer.max_steps not in (None, -1):
        return 1
    limit = trainer.limit_train_batches
    length = max(1, min(length, limit) if isinstance(limit, int) else int(length * limit))
    return length * (math.inf if trainer.max_epochs in (None, -1) else int(trainer.max_epochs or 0))


# --- its processes ---


class TrainerProcesses:
    """A trainer's processes from the view of one of them; see `privacy.processes`.

    Args:
        trainer: The trainer, within an entry point, when its processes are connected.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.rank = trainer.global_rank
        self.size = trainer.world_size
        self._strategy: Strategy = trainer.strategy

    def broadcast(self, value: Any) -> Any:
        return self._strategy.broadcast(value)

    def gather(self, value: Any) -> list[Any]:
        """Results of all ranks, in order of rank. Tensors are on the CPU."""
        found: list[Any] = [None] * self.size
        torch.distributed.all_gather_object(found, value)
        return found


def processes_of(trainer: Trainer | None) -> Processes:
    """Returns the processes of a trainer; a single one without a trainer."""
    return TrainerProcesses(trainer) if isinstance(trainer, Trainer) and trainer.world_size > 1 else ALONE


def check_strategy(trainer: Trainer, module: LightningModule) -> None:
    """Refuses strategies that are not known to be correct for a module; if it takes its steps by hand callbacks too.

    Callbacks must not train before the fit begins, on private records without a charge. All ranks decide alike.

    Raises:
        ProcessesError: The strategy is refused, or torchrun has started other processes than the trainer is for, each
            of which would make the whole run, in one folder and one ledger; the error says what to set.
        ValueError: There is a `BatchSizeFinder` or `LearningRateFinder`, which the `Tuner` adds as well, or a
            `StochasticWeightAveraging`.
    """
    for callback in () if module.automatic_optimization else callbacks_of(trainer):
        if isinstance(callback, (BatchSizeFinder, LearningRateFinder)):
            raise ValueError(f"{type(callback).__name__} trains before the fit, without a charge: leave it out")
        if isinstance(callback, StochasticWeightAveraging):
            raise ValueError(f"{type(callback).__name__} adds an epoch of queries that no plan has: leave it out")
    if trainer.world_size > 1 and getattr(module, "one_process", False):
        text = f"trainer.devices must be 1 for {type(module).__name__}, got {trainer.world_size} processes"
        raise everywhere(ProcessesError(text))
    strategy = trainer.strategy
    # Exactly DDP: DeepSpeed's and XLA's strategies are subclasses of it.
    ddp = isinstance(strategy, DDPStrategy) and type(strategy) is DDPStrategy and strategy._start_method == "popen"
    if not ddp and not isinstance(strategy, SingleDeviceStrategy):
        raise everywhere(
            ProcessesError(
                f"trainer.strategy {type(strategy).__name__} is not supported: docs/processes.md has the reasons. Set "
                "--trainer.strategy ddp (a process per device, on one machine or on several), or --trainer.devices 1 "
                "--trainer.strategy auto"
            )
        )
    started, here = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    if torch.distributed.is_torchelastic_launched() and trainer.world_size != started:
        raise everywhere(
            ProcessesError(
                f"torchrun has started {started} processes, and this trainer is for {trainer.world_size}: set "
                f"--trainer.strategy ddp --trainer.devices {here} --trainer.num_nodes {started // here}"
            )
        )


def share_of(rows: int, processes: Processes) -> slice:
    """This rank's share of the rows; the last rank's may be smaller."""
    most = -(-rows // processes.size)
    return slice(min(rows, processes.rank * most), min(rows, (processes.rank + 1) * most))


# --- its checkpoints ---


def take_back_unfinished_step(checkpoint: dict[str, Any]) -> None:
    """Changes a checkpoint in place, so that a run interrupted within a step repeats that step.

    Lightning would continue with the next batch: one step fewer, and no validation at the end of that epoch. Charges of
    the interrupted step stay.
    """
    loops = checkpoint.get("loops", {}).get("fit_loop", {})
    progress = loops.get("epoch_loop.batch_progress")
    if progress is None or progress["current"]["ready"] <= progress["current"]["processed"]:
        return
    for counts in (progress["total"], progress["current"]):
        counts["ready"] = counts["started"] = counts["processed"] = counts["completed"]
    progress["is_last_batch"] = False
    for state in loops["state_dict"].get("combined_loader", []):
        if "next" in state:
            state["next"] = progress["current"]["completed"]
