"""Time per training step of the data-free methods, relative to steps without privacy and to DP-SGD.

``python -m benchmarks.step`` runs DPDFD and DPSD through ``Trainer.fit`` with the shipped MNIST recipes' settings.
It prints, and writes as JSON, their time relative to the same step with plain distillation (no gradients, noise,
charge, budget or epsilon), and to a DP-SGD step by Opacus with the same student and number of images.

Measurements take turns, a few steps each, and a ratio is the median over the turns, so that other work on the machine
slows both sides. On a CPU times are processor time over all threads; on a GPU they are wall time after synchronisation.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.loggers import CSVLogger
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch.nn import functional as F

from datamodules.mapped import one_thread
from datamodules.wrapped import StepIndices
from lightning_modules import DPDFD, DPSD
from lightning_modules.callbacks import PrivacyCallback
from lightning_modules.images import Images
from lightning_modules.losses.targets import Annotation
from lightning_modules.networks import SmallCNN
from lightning_modules.priors import StrokePrior
from lightning_modules.student import StudentConfig
from lightning_modules.teachers.config import TeacherConfig
from lightning_modules.training.run import provenance
from privacy import Budget
from privacy.journal import write_atomically
from privacy.mechanisms import NoisyGradients, NoisyLabels


class Size(NamedTuple):
    """Size of the measurement: images per step and their side, warm-up and measured steps, turns."""

    batch_size: int = 256
    side: int = 28
    warm_up: int = 3
    steps: int = 10
    rounds: int = 9


class PlainDistillation(DPDFD):
    """The same step without privacy: the student is trained on the teacher's probabilities."""

    next_calls = 0
    is_logged = False  # there is no epsilon to compose

    def annotate(self, outputs: torch.Tensor, images: torch.Tensor) -> Annotation:
        """Returns the teacher's probabilities without bounding, noise or charge."""
        return Annotation(F.softmax(self.teacher.logits(images), dim=1))


CLASSES = 10
# As in sweeps/dpdfd_mnist.yaml, dpsd_mnist.yaml and dpsd_label_mnist.yaml. The budget never runs out, but is checked in
# each step.
BUDGET = Budget(target_epsilon=1e6, accounting="published", scope="run")
_gradients = NoisyGradients(norm_bound=1e-3, noise_multiplier=100.0)
PLAIN, GROUP_NORM, OPACUS = "plain distillation", "DPDFD, group norm", "Opacus DP-SGD, group norm"
METHODS: dict[str, tuple[type[DPDFD | DPSD], Any]] = {
    "DPDFD": (DPDFD, _gradients),
    PLAIN: (PlainDistillation, _gradients),
    "DPSD, gradients": (DPSD, replace(_gradients, top_k=3)),
    "DPSD, labels": (DPSD, NoisyLabels(smallest=3, epsilon=2.0)),
    GROUP_NORM: (DPDFD, _gradients),
}
"""Module for `Trainer.fit` and its mechanism, by name."""


def now() -> float:
    """Processor time in seconds or, with a GPU, wall time after it has finished its work."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


class Clock(Callback):
    """Records the time at the start of each step, so that a step includes everything the loop does."""

    def __init__(self) -> None:
        self.marks: list[float] = []

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:  # fmt: skip
        self.marks.append(now())


def seconds_of_method(name: str, size: Size, *, folder: Path) -> float:
    """Seconds per step of a method, in its own fit and after warm-up steps.

    As in a real run, its teacher is read from a file and has a ledger.
    """
    shape = (1, size.side, size.side)
    file = folder / "teacher.pt"
    if not file.is_file():
        seed_everything(1, verbose=False)  # other weights than the student's initial ones
        torch.save(SmallCNN(num_classes=CLASSES, image_shape=shape).state_dict(), file)
    seed_everything(0, verbose=False)
    kind, mechanism = METHODS[name]
    module = kind(
        num_classes=CLASSES,
        image_shape=shape,
        batch_size=size.batch_size,
        teacher=TeacherConfig(path=str(file), network=SmallCNN, private_data=f"benchmark {name} {time.monotonic_ns()}"),
        mechanism=mechanism,
        budget=BUDGET,
        images=Images(source="prior", prior=StrokePrior()),
        student=StudentConfig(network=partial(SmallCNN, norm="group")) if name == GROUP_NORM else StudentConfig(),
    )
    # Figures are only drawn at the end of a fit, and are no part of a step.
    module.configure_callbacks = lambda: []  # type: ignore[method-assign]
    clock = Clock()
    trainer = Trainer(
        max_epochs=1, accelerator="auto", devices=1, logger=CSVLogger(folder, name="runs"), enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, limit_val_batches=0, num_sanity_val_steps=0,
        callbacks=[PrivacyCallback(), clock], default_root_dir=folder,
    )  # fmt: skip
    trainer.fit(module, train_dataloaders=StepIndices(size.warm_up + size.steps + 1))
    return float((clock.marks[-1] - clock.marks[size.warm_up]) / size.steps)


def seconds_of_opacus(size: Size) -> float:
    """Seconds per step of DP-SGD by Opacus, in a minimal loop on fixed images."""
    shape = (1, size.side, size.side)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    seed_everything(0, verbose=False)
    student = GradSampleModule(SmallCNN(CLASSES, shape, norm="group").to(device))
    optimizer = DPOptimizer(
        torch.optim.Adam(student.parameters(), lr=1e-3),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        expected_batch_size=size.batch_size,
    )
    draw = torch.Generator().manual_seed(0)
    images = StrokePrior().sample(size.batch_size, image_shape=shape, generator=draw, device=device)
    labels = torch.randint(CLASSES, (size.batch_size,), generator=draw).to(device)
    start = 0.0
    for step in range(size.warm_up + size.steps):
        if step == size.warm_up:
            start = now()
        optimizer.zero_grad()
        F.cross_entropy(student(images), labels).backward()
        optimizer.step()
    return float((now() - start) / size.steps)


def measure(size: Size, *, folder: Path) -> list[dict[str, Any]]:
    """Compares each method with plain distillation, and the one with Opacus's student with Opacus."""
    measured: dict[str, Callable[[], float]] = {
        **{name: partial(seconds_of_method, name, size, folder=folder) for name in METHODS},
        OPACUS: partial(seconds_of_opacus, size),
    }
    found: dict[str, list[float]] = {name: [] for name in measured}
    for turn in range(size.rounds):
        for name in list(measured) if turn % 2 == 0 else reversed(measured):
            found[name].append(measured[name]())
    rows: list[dict[str, Any]] = []
    for name, seconds in found.items():
        rows.append({"step": name, "ms": 1e3 * statistics.median(seconds)})
        if name not in (OPACUS, PLAIN):
            key, base = ("ratio_opacus", OPACUS) if name == GROUP_NORM else ("ratio_plain", PLAIN)
            rows[-1][key] = statistics.median(a / b for a, b in zip(seconds, found[base], strict=True))
    return rows


def table(result: dict[str, Any]) -> str:
    """Formats the measurement as text."""
    lines = [
        f"B={result['batch_size']}, c={result['classes']}, images of {result['side']}x{result['side']}; "
        f"{result['hardware']}; {result['rounds']} turns of {result['steps']} steps; commit {result['commit']}",
        f"{'step':28}{'ms':>9}{'over plain':>13}{'over Opacus':>13}",
    ]
    for row in result["methods"]:
        plain, opacus = (f"{row[key]:.3f}" if key in row else "-" for key in ("ratio_plain", "ratio_opacus"))
        lines.append(f"{row['step']:28}{row['ms']:9.1f}{plain:>13}{opacus:>13}")
    return "\n".join(lines)


def main(args: list[str] | None = None) -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few small steps of each, which say nothing of speed")
    parser.add_argument("--output", type=Path, default=Path("results/benchmarks/step.json"))
    options = parser.parse_args(args)
    size = Size(batch_size=4, side=8, warm_up=1, steps=1, rounds=1) if options.quick else Size()
    warnings.simplefilter("ignore")
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with one_thread(), tempfile.TemporaryDirectory() as temporary:
        methods = measure(size, folder=Path(temporary))
    measured = {**size._asdict(), "threads": 1, "classes": CLASSES, "methods": methods}
    result = {**measured, **provenance()}
    print(table(result))
    write_atomically(options.output, json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
