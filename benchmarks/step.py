"""Time of one training step of the data-free methods, against what it would be without privacy.

``python -m benchmarks.step`` takes steps of DPDFD and DPSD through ``Trainer.fit`` as the shipped recipes for MNIST
make them, and prints, and writes as JSON:

- their time over that of the same step with plain distillation: no gradients, noise, charge, budget or epsilon;
- their time over that of a DP-SGD step by Opacus of the same student on as many images, in the plainest loop;
- the share of each phase of a step, and how the time grows with B, c and the number n of teachers;
- with ``--before FOLDER`` the time over that of another checkout, which runs in a process of its own.

Everything is measured in turns, a few steps of each at a time, and a ratio is the median over the turns: a machine that
is busy with other work slows both sides of it. On a CPU seconds are of the processor, in all threads; on a GPU they are
what the clock says once the device is done.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.loggers import CSVLogger
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch import nn
from torch.nn import functional as F

from benchmarks.reporting import report
from datamodules.latent import StepIndices
from lightning_modules import DPDFD, DPSD, Distillation
from lightning_modules.callbacks.budget import BudgetStop
from lightning_modules.image_source import Images
from lightning_modules.losses.targets import Annotation
from lightning_modules.networks import DAFLGenerator, SmallCNN, WhitenedScatteringClassifier
from lightning_modules.priors import SilhouettePrior, StrokePrior
from lightning_modules.runtime.runs import commit, hardware, versions
from privacy.annotators import GradientAnnotator, LabelAnnotator

# As sweeps/dpdfd_mnist.yaml, dpsd_mnist.yaml and dpsd_label_mnist.yaml have it. The budget lasts for any number of
# steps here, and is looked at in each.
BUDGET: dict[str, Any] = {"delta": 1e-5, "target_epsilon": 1e6, "accounting": "published", "scope": "run"}
GRADIENTS: dict[str, Any] = {"norm_bound": 1e-3, "noise_multiplier": 100.0, **BUDGET}


class PlainDistillation(DPDFD):
    """The same step without privacy: the student follows the teacher's own probabilities."""

    def annotate(self, outputs: torch.Tensor, images: torch.Tensor) -> Annotation:
        """Nothing is bounded, noised or charged."""
        return Annotation(F.softmax(self.teacher.logits(images), dim=1))

    def log_privacy(self, *, on_epoch: bool = False) -> None:
        """Nothing to say."""


def _group_norm(**settings: Any) -> nn.Module:
    """The student for the comparison with Opacus, which refuses batch normalisation."""
    return SmallCNN(norm="group", **settings)


def _silhouette_student(**settings: Any) -> nn.Module:
    return WhitenedScatteringClassifier(prior=SilhouettePrior(), images=200, **settings)


def _prior() -> Images:
    return Images(source="prior", prior=StrokePrior())


def _generator() -> Images:
    return Images(source="generator", generator=lambda **shape: DAFLGenerator(width=32, **shape))


METHODS: dict[str, Callable[..., LightningModule]] = {
    "DPDFD": lambda **given: DPDFD(annotator=GradientAnnotator(**GRADIENTS), images=_prior(), **given),
    "DPSD, gradients": lambda **given: DPSD(
        annotator=GradientAnnotator(top_k=3, **GRADIENTS), images=_prior(), privacy="data", **given
    ),
    "DPSD, labels": lambda **given: DPSD(
        annotator=LabelAnnotator(smallest=3, epsilon=2.0, **BUDGET), images=_prior(), privacy="label", **given
    ),
    "plain distillation": lambda **given: PlainDistillation(
        annotator=GradientAnnotator(**GRADIENTS), images=_prior(), **given
    ),
    "DPDFD, group norm": lambda **given: DPDFD(
        annotator=GradientAnnotator(**GRADIENTS), images=_prior(), student=_group_norm, **given
    ),
    "DPDFD, generator": lambda **given: DPDFD(
        annotator=GradientAnnotator(**GRADIENTS), images=_generator(), **given
    ),
    "DPDFD, many teachers": lambda **given: DPDFD(
        annotator=GradientAnnotator(release="ensemble", **GRADIENTS), images=_prior(), **given
    ),
    "Distillation, pool": lambda **given: Distillation(
        student=_silhouette_student, prior=SilhouettePrior(), pool_size=8 * given["batch_size"], **given
    ),
}  # fmt: skip
"""By name: what builds the module that `Trainer.fit` is given."""
OPACUS = "Opacus DP-SGD, group norm"


def now() -> float:
    """Seconds of the processor, or of the clock once a GPU has done what it was told."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


class Clock(Callback):
    """Takes the time at the beginning of each step, so that a step has all that the loop does between two of them."""

    def __init__(self) -> None:
        self.marks: list[float] = []

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:  # fmt: skip
        """Takes it."""
        self.marks.append(now())


def module_of(name: str, options: argparse.Namespace, *, folder: Path) -> LightningModule:
    """A fresh module of a method, its teacher read from a file as in a real run: with a ledger beside it."""
    shape = (1, options.side, options.side)
    seed_everything(0, verbose=False)
    given: dict[str, Any] = {}
    if name == "DPDFD, many teachers":
        given["teacher"] = nn.ModuleList(
            SmallCNN(num_classes=options.classes, image_shape=shape) for _ in range(options.teachers)
        )
    else:
        file = folder / f"teacher_{options.classes}_{options.side}.pt"
        if not file.is_file():
            torch.save(SmallCNN(num_classes=options.classes, image_shape=shape).state_dict(), file)
        given |= {"teacher": str(file), "teacher_network": SmallCNN}
    return METHODS[name](
        num_classes=options.classes,
        image_shape=shape,
        batch_size=options.batch_size,
        private_data=f"benchmark {name} {time.monotonic_ns()}",
        **given,
    )


def fit(module: LightningModule, steps: int, *, folder: Path, callbacks: list[Callback]) -> None:
    """Steps as a run takes them: logged to a CSV file as often as by default, without progress bar and evaluation."""
    logger = CSVLogger(folder, name="runs")
    trainer = Trainer(
        max_epochs=1, accelerator="auto", devices=1, logger=logger, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, limit_val_batches=0, num_sanity_val_steps=0,
        callbacks=callbacks, default_root_dir=folder,
    )  # fmt: skip
    trainer.fit(module, train_dataloaders=StepIndices(steps))


def seconds_of_method(name: str, options: argparse.Namespace, *, folder: Path) -> float:
    """Seconds per step of a method in a fit of its own, after its first steps."""
    clock = Clock()
    callbacks: list[Callback] = [clock] if name == "plain distillation" else [BudgetStop(), clock]
    module = module_of(name, options, folder=folder)
    # Those that write figures and guarantees work when a fit ends: no step pays for them.
    module.configure_callbacks = lambda: []  # type: ignore[method-assign]
    fit(module, options.warm_up + options.steps + 1, folder=folder, callbacks=callbacks)
    return float((clock.marks[-1] - clock.marks[options.warm_up]) / options.steps)


def seconds_of_opacus(options: argparse.Namespace) -> float:
    """Seconds per step of DP-SGD by Opacus in the plainest loop, on images that are there already."""
    shape = (1, options.side, options.side)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    seed_everything(0, verbose=False)
    student = GradSampleModule(_group_norm(num_classes=options.classes, image_shape=shape).to(device))
    optimizer = DPOptimizer(
        torch.optim.Adam(student.parameters(), lr=1e-3),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        expected_batch_size=options.batch_size,
    )
    draw = torch.Generator().manual_seed(0)
    images = StrokePrior().sample(options.batch_size, image_shape=shape, generator=draw, device=device)
    labels = torch.randint(options.classes, (options.batch_size,), generator=draw).to(device)
    start = 0.0
    for step in range(options.warm_up + options.steps):
        if step == options.warm_up:
            start = now()
        optimizer.zero_grad()
        F.cross_entropy(student(images), labels).backward()
        optimizer.step()
    return float((now() - start) / options.steps)


def seconds(name: str, options: argparse.Namespace, *, folder: Path) -> float:
    """Seconds per step, of whatever is measured."""
    return seconds_of_opacus(options) if name == OPACUS else seconds_of_method(name, options, folder=folder)


# --- phases ---


class Phases(Callback):
    """Sums the time of each phase, without that of the phases inside of it."""

    def __init__(self, warm_up: int) -> None:
        self.warm_up = warm_up
        self.spent: dict[str, float] = {}
        self.running: list[str] = []
        self.since = 0.0
        self.counted: dict[str, float] = {}
        self.begun = self.ended = 0.0

    def _turn(self) -> None:
        moment = now()
        if self.running:
            self.spent[self.running[-1]] = self.spent.get(self.running[-1], 0.0) + moment - self.since
        self.since = moment

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A block that counts for a phase."""
        self._turn()
        # What is done for the generator is the generator's, whoever does it.
        self.running.append("generator" if "generator" in self.running else name)
        try:
            yield
        finally:
            self._turn()
            self.running.pop()

    def watch(self, owner: Any, method: str, name: str) -> None:
        """Counts a method of one object for a phase."""
        inner = getattr(owner, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.phase(name):
                return inner(*args, **kwargs)

        object.__setattr__(owner, method, timed)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:  # fmt: skip
        """Begins to count after the first steps."""
        if batch_idx == 0:
            self._watch_all(pl_module, trainer)
        self._turn()
        if batch_idx == self.warm_up:
            self.spent.clear()
            self.begun = now()
        self.ended = self.since = now()
        self.counted = dict(self.spent)
        if not self.running:
            self.running = ["loop"]

    def _watch_all(self, module: Any, trainer: Trainer) -> None:
        self.watch(module, "draw_images", "images")
        self.watch(module, "draw_latents", "images")
        self.watch(module.teacher, "logits", "teacher forward")
        self.watch(module.teacher, "each", "teacher forward")
        self.watch(module.student, "forward", "student forward")
        self.watch(module, "annotate", "gradients and targets")
        self.watch(module.annotator, "annotate", "privacy")
        self.watch(module, "manual_backward", "backward")
        self.watch(module, "update_generator", "generator")
        self.watch(module, "log_privacy", "privacy")
        self.watch(module, "log", "logging")
        for optimizer in trainer.optimizers:
            self.watch(optimizer, "step", "optimizer")
        for callback in getattr(trainer, "callbacks", []):
            if isinstance(callback, BudgetStop):
                self.watch(callback, "on_train_batch_end", "privacy")

    def shares(self) -> dict[str, float]:
        """Share of each phase in the time of all steps, largest first."""
        total = self.ended - self.begun
        found = {name: spent / total for name, spent in self.counted.items()}
        return dict(sorted(found.items(), key=lambda item: -item[1]))


def shares_of(name: str, options: argparse.Namespace, *, folder: Path) -> dict[str, float]:
    """Share of each phase in a step of a method."""
    phases = Phases(options.warm_up)
    module = module_of(name, options, folder=folder)
    module.configure_callbacks = lambda: []  # type: ignore[method-assign]
    callbacks: list[Callback] = [BudgetStop(), phases]
    fit(module, options.warm_up + 2 * options.steps + 1, folder=folder, callbacks=callbacks)
    return phases.shares()


# --- another checkout ---


class Checkout:
    """Another checkout's code, measured in a process of its own that stays ready between turns."""

    def __init__(self, folder: Path, *, threads: int) -> None:
        environment = {**os.environ, "PYTHONPATH": str(folder.resolve()), "OMP_NUM_THREADS": str(threads)}
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), "--worker", "--threads", str(threads)],
            env=environment, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def seconds(self, name: str, options: argparse.Namespace) -> float:
        """See `seconds`.

        Raises:
            RuntimeError: The process ended: its own output says why.
        """
        assert self.process.stdin is not None and self.process.stdout is not None
        plain = {key: value for key, value in vars(options).items() if isinstance(value, int)}
        self.process.stdin.write(json.dumps({"name": name, "options": plain}) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the process of the other checkout ended with {self.process.wait()}")
        return float(json.loads(answer))

    def close(self) -> None:
        """Ends the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)


def serve() -> None:
    """Answers a `Checkout`: a line of JSON for a line of JSON."""
    # What libraries print must not be taken for an answer.
    answers, sys.stdout = sys.stdout, sys.stderr
    with tempfile.TemporaryDirectory() as folder:
        for line in sys.stdin:
            asked = json.loads(line)
            found = seconds(asked["name"], argparse.Namespace(**asked["options"]), folder=Path(folder))
            answers.write(json.dumps(found) + "\n")
            answers.flush()


# --- what is measured ---


def in_turns(measured: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each, one value per turn; every other turn goes backwards."""
    found: dict[str, list[float]] = {name: [] for name in measured}
    for turn in range(rounds):
        for name in list(measured) if turn % 2 == 0 else list(measured)[::-1]:
            found[name].append(measured[name]())
    return found


def ratio(found: dict[str, list[float]], name: str, base: str) -> float:
    """Median over the turns of one's time over another's."""
    return statistics.median(a / b for a, b in zip(found[name], found[base], strict=True))


def measure_methods(options: argparse.Namespace, *, folder: Path) -> list[dict[str, Any]]:
    """Every method against plain distillation, and the one with Opacus's student against Opacus."""
    names = ["DPDFD", "plain distillation", "DPSD, gradients", "DPSD, labels", "DPDFD, group norm", OPACUS]
    found = in_turns({name: partial(seconds, name, options, folder=folder) for name in names}, options.rounds)
    rows: list[dict[str, Any]] = []
    for name in names:
        row: dict[str, Any] = {"step": name, "ms": 1e3 * statistics.median(found[name])}
        if name == "DPDFD, group norm":
            row["ratio_opacus"] = ratio(found, name, OPACUS)
        elif name not in (OPACUS, "plain distillation"):
            row["ratio_plain"] = ratio(found, name, "plain distillation")
        rows.append(row)
    return rows


def measure_growth(options: argparse.Namespace, *, folder: Path) -> list[dict[str, Any]]:
    """Time of a step over that of the smallest, as one size grows."""
    rows: list[dict[str, Any]] = []
    for setting, name, values in (
        ("batch_size", "DPDFD", options.batch_sizes),
        ("classes", "DPDFD", options.class_counts),
        ("teachers", "DPDFD, many teachers", options.teacher_counts),
    ):
        sizes = {value: argparse.Namespace(**{**vars(options), setting: value}) for value in values}
        measured = {str(value): partial(seconds, name, sized, folder=folder) for value, sized in sizes.items()}
        found = in_turns(measured, max(1, options.rounds // 2))
        rows += [
            {
                "setting": setting,
                "value": value,
                "ms": 1e3 * statistics.median(found[str(value)]),
                "ratio_first": ratio(found, str(value), str(values[0])),
            }
            for value in values
        ]
    return rows


def measure_before(options: argparse.Namespace, *, folder: Path) -> list[dict[str, Any]]:
    """Time of a step in another checkout over that of this one."""
    other = Checkout(options.before, threads=options.threads)
    rows: list[dict[str, Any]] = []
    try:
        for name in options.compared:
            found = in_turns(
                {
                    "before": partial(other.seconds, name, options),
                    "now": partial(seconds, name, options, folder=folder),
                },
                options.rounds,
            )
            rows.append(
                {
                    "step": name,
                    "ms_before": 1e3 * statistics.median(found["before"]),
                    "ms": 1e3 * statistics.median(found["now"]),
                    "ratio": ratio(found, "before", "now"),
                }
            )
    finally:
        other.close()
    return rows


def table(result: dict[str, Any]) -> str:
    """The measurement as text."""
    lines = [
        f"B={result['batch_size']}, c={result['classes']}, images of {result['side']}x{result['side']}; "
        f"{result['hardware']}; {result['rounds']} turns of {result['steps']} steps; commit {result['commit']}",
        f"{'step':28}{'ms':>9}{'over plain':>13}{'over Opacus':>13}",
    ]
    for row in result["methods"]:
        plain, opacus = (f"{row[key]:.3f}" if key in row else "-" for key in ("ratio_plain", "ratio_opacus"))
        lines.append(f"{row['step']:28}{row['ms']:9.1f}{plain:>13}{opacus:>13}")
    for name, shares in result["phases"].items():
        lines.append(f"{name}: " + ", ".join(f"{phase} {100 * share:.1f} %" for phase, share in shares.items()))
    for row in result["growth"]:
        lines.append(f"{row['setting']:>12} {row['value']:6d}{row['ms']:10.1f} ms{row['ratio_first']:9.2f}x")
    for row in result["before"]:
        lines.append(f"{row['step']:28}before {row['ms_before']:8.1f} ms, now {row['ms']:8.1f} ms: {row['ratio']:.2f}x")
    return "\n".join(lines)


def main(args: list[str] | None = None) -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10, help="of one turn")
    parser.add_argument("--warm-up", type=int, default=3, help="steps of each turn that do not count")
    parser.add_argument("--rounds", type=int, default=9, help="turns")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--side", type=int, default=28, help="pixels of an image's side")
    parser.add_argument("--teachers", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch-sizes", type=int, nargs="*", default=[64, 256, 1024])
    parser.add_argument("--class-counts", type=int, nargs="*", default=[10, 100, 1000])
    parser.add_argument("--teacher-counts", type=int, nargs="*", default=[1, 4, 16])
    parser.add_argument("--before", type=Path, default=None, help="another checkout to compare with")
    parser.add_argument("--compared", nargs="+", default=["DPDFD", "DPSD, gradients"], choices=list(METHODS))
    parser.add_argument("--quick", action="store_true", help="a few small steps of each, which say nothing of speed")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, default=Path("results/benchmarks/step.json"))
    options = parser.parse_args(args)
    if options.quick:
        small = {"steps": 1, "warm_up": 1, "rounds": 1, "batch_size": 4, "side": 8}
        sizes = {"batch_sizes": [2, 4], "class_counts": [], "teacher_counts": [2]}
        options = argparse.Namespace(**{**vars(options), **small, **sizes})
    warnings.simplefilter("ignore")
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    threads = torch.get_num_threads()
    torch.set_num_threads(options.threads)
    try:
        if options.worker:
            serve()
            return
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            result = {
                **{key: vars(options)[key] for key in ("batch_size", "classes", "side", "steps", "rounds", "threads")},
                "before": [] if options.before is None else measure_before(options, folder=folder),
                "methods": measure_methods(options, folder=folder),
                "phases": {name: shares_of(name, options, folder=folder) for name in ("DPDFD", "DPSD, gradients")},
                "growth": measure_growth(options, folder=folder),
                "hardware": hardware(),
                "versions": versions(),
                "commit": commit(),
            }
    finally:
        torch.set_num_threads(threads)
    report(result, table(result), output=options.output)


if __name__ == "__main__":
    main()
