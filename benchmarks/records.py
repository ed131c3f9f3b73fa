"""Record-level privacy in minutes: DP-SGD on a linear head against Opacus's flat clipping, and a whole cell.

``python -m benchmarks.records`` takes steps of DP-SGD on a linear head in three ways, from the same weights and
batches, over sizes of records, features and batch, and prints time and memory of a step with how far the weights are
apart. Then it runs the cell of table ``records`` for FashionMNIST at record-level epsilon 1, teacher and student, as a
user would (``--parts head`` or ``--parts cell`` for one of the two), and writes it all as JSON.

Times of a step are of the processor, on one thread, each way in a process of its own and the ways in turns, so that
ratios hold on a machine that is busy with other work; the seconds on the clock measure that work too.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from opacus.grad_sample import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.reporting import report
from datamodules.mapped import MappedRecords
from lightning_modules.networks import ImageClassifier
from lightning_modules.runtime.runs import commit, hardware, versions
from lightning_modules.teachers.record_clipping import WAYS, Way
from privacy.mechanisms.noise import SystemNoise

CLASSES, NORM = 10, 0.1
#: Noise that is drawn as ever and changes no weight, so that results can be compared.
NOISE = 1e-12

SIZES = ["10000x972x1024", "58800x3969x1024", "58800x3969x8192", "20000x15552x8192"]
ACCURACY = (0.8887, 0.0019)
"""Of table ``records``, over three seeds: mean and standard deviation."""


class Head(ImageClassifier):
    """A linear layer on features."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.head = nn.Linear(features, CLASSES)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward_features(self, images: Tensor) -> Tensor:
        return images


def steps_of_opacus(network: Head, inputs: Tensor, labels: Tensor, batches: list[Tensor], *, physical: int) -> None:
    """Flat clipping by Opacus alone, in pieces of ``physical`` records."""
    wrapped = GradSampleModule(network)
    optimizer = DPOptimizer(
        torch.optim.SGD(network.parameters(), lr=1.0), noise_multiplier=NOISE, max_grad_norm=NORM,
        expected_batch_size=len(batches[0]),
    )  # fmt: skip
    for batch in batches:
        pieces = batch.split(physical)
        for number, rows in enumerate(pieces):
            optimizer.signal_skip_step(do_skip=number + 1 < len(pieces))
            optimizer.zero_grad()
            F.cross_entropy(wrapped(inputs[rows]), labels[rows]).backward()
            optimizer.step()


def steps_of_ours(
    way: Way, network: Head, inputs: Tensor, labels: Tensor, batches: list[Tensor], *, physical: int
) -> None:
    """One of this project's ways to clip."""
    clipping = WAYS[way](network, max_grad_norm=NORM)
    optimizer = clipping.optimizer(
        torch.optim.SGD(network.parameters(), lr=1.0), noise_multiplier=NOISE, max_grad_norm=NORM,
        expected_batch_size=len(batches[0]),
    )  # fmt: skip
    optimizer.source = SystemNoise()
    records = MappedRecords(inputs, labels)
    # As `PoissonLoader` fetches a batch.
    held = inputs.new_empty(len(batches[0]), *inputs.shape[1:])
    for batch in batches:
        pieces = batch.split(len(batch) if way == "linear" else physical)
        for number, rows in enumerate(pieces):
            optimizer.signal_skip_step(do_skip=number + 1 < len(pieces))
            optimizer.zero_grad()
            clipping.add(*records.into(held, rows), forward=network, optimizer=optimizer)
            optimizer.step()


def peak_mib() -> float:
    """Most memory that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def take_steps(
    answer: Connection, way: str, *, records: int, features: int, batch: int, steps: int, physical: int
) -> None:
    """Sends processor seconds per step, memory beyond the data in MiB, and the weights."""
    torch.set_num_threads(1)
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(records, features, generator=draw).mul_(features**-0.5)
    labels = torch.randint(CLASSES, (records,), generator=draw)
    batches = [torch.randperm(records, generator=draw)[:batch] for _ in range(steps + 1)]
    network = Head(features)

    def act(some: list[Tensor]) -> None:
        if way == "opacus":
            steps_of_opacus(network, inputs, labels, some, physical=physical)
        else:
            steps_of_ours(way, network, inputs, labels, some, physical=physical)  # type: ignore[arg-type]

    before = peak_mib()
    start = time.process_time()
    act(batches)
    # With the kernel's: memory that is taken and given back costs as well.
    seconds = (time.process_time() - start) / len(batches)
    weights = torch.cat([parameter.detach().flatten() for parameter in network.parameters()])
    answer.send((seconds, peak_mib() - before, weights.numpy()))


def measured(way: str, **sizes: int) -> tuple[float, float, Tensor]:
    """``take_steps`` in a process of its own.

    Raises:
        RuntimeError: it ended without an answer, of memory for example.
    """
    context = multiprocessing.get_context("fork")
    receive, answer = context.Pipe(duplex=False)
    process = context.Process(target=take_steps, args=(answer, way), kwargs=sizes)
    process.start()
    answer.close()
    try:
        seconds, mib, weights = receive.recv()
    except EOFError as error:
        raise RuntimeError(f"{way} with {sizes} ended without an answer: out of memory?") from error
    finally:
        process.join()
    return seconds, mib, torch.from_numpy(weights)


def measure_head(*, records: int, features: int, batch: int, steps: int, repeats: int, physical: int) -> dict[str, Any]:
    """One row: each way in turns, medians over ``repeats``."""
    sizes = {"records": records, "features": features, "batch": batch, "steps": steps, "physical": physical}
    found: dict[str, list[tuple[float, float, Tensor]]] = {way: [] for way in ("opacus", "flat", "linear")}
    for _ in range(repeats):
        for way in found:
            found[way].append(measured(way, **sizes))
    row: dict[str, Any] = {"records": records, "features": features, "batch": batch}
    for way, runs in found.items():
        row[f"{way}_seconds"] = statistics.median(seconds for seconds, _, _ in runs)
        row[f"{way}_mib"] = statistics.median(mib for _, mib, _ in runs)
    pairs = zip(found["opacus"], found["flat"], found["linear"], strict=True)
    ratios = [(other[0] / own[0], flat[0] / own[0]) for other, flat, own in pairs]
    row["ratio_opacus"] = statistics.median(ratio for ratio, _ in ratios)
    row["ratio_flat"] = statistics.median(ratio for _, ratio in ratios)
    theirs, own = found["opacus"][0][2], found["linear"][0][2]
    row["relative_difference"] = float((theirs - own).norm() / theirs.norm())
    return row


def run_fit(arguments: list[str], *, threads: int, environment: dict[str, str]) -> dict[str, float]:
    """A fit from the command line: seconds on the clock, of the processor, and most memory of all so far in MiB."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "lightning_modules", "fit", *arguments],
        check=True,
        env={**os.environ, **environment, "OMP_NUM_THREADS": str(threads)},
        stdout=subprocess.DEVNULL,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "seconds": time.perf_counter() - start,
        "processor_seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "peak_mib": after.ru_maxrss / 1024,
    }


def measure_cell(*, root: str, threads: int, seed: int, extra: list[str]) -> dict[str, Any]:
    """Teacher and student of FashionMNIST at record-level epsilon 1, as table ``records`` has them."""
    cell: dict[str, Any] = {"threads": threads, "seed": seed}
    with tempfile.TemporaryDirectory() as folder:
        environment = {"TRANSCRIPTION_LEDGERS": f"{folder}/ledgers"}
        common = [f"--seed_everything={seed}", f"--data.dataset.root={root}", "--trainer.enable_progress_bar=false"]
        fits = {
            "teacher": [
                "--config=sweeps/methods/dp_teacher_scattering_fashionmnist.yaml",
                "--trainer.callbacks=null",
                *extra,
            ],
            "student": [
                "--config=sweeps/methods/distillation_scattering_fashionmnist.yaml",
                f"--model.teacher={folder}/teacher/checkpoints/last.ckpt",
            ],
        }
        for name, arguments in fits.items():
            place = f"{folder}/{name}"
            own = [*arguments, *common, f"--trainer.default_root_dir={place}"]
            cell[name] = run_fit(own, threads=threads, environment=environment)
            result = json.loads(Path(place, "result.json").read_text(encoding="utf-8"))
            cell[name] |= {"accuracy": result["accuracy"], "epsilon_record": result["epsilon_record"]}
    cell["seconds"] = cell["teacher"]["seconds"] + cell["student"]["seconds"]
    return cell


def table(result: dict[str, Any]) -> str:
    """The measurement as text; a ratio above 1 means that the other way takes that many times as long."""
    lines = []
    if result["rows"]:
        lines += [
            f"DP-SGD on a linear head, {CLASSES} classes, one thread; seconds of the processor per step, MiB beyond "
            f"the data; flat in pieces of {result['physical']}",
            f"{'records':>8}{'features':>9}{'batch':>7}{'Opacus s':>10}{'flat s':>9}{'linear s':>10}{'vs Opacus':>11}"
            f"{'vs flat':>9}{'Opacus MiB':>12}{'flat MiB':>10}{'linear MiB':>12}{'difference':>12}",
        ]
    for row in result["rows"]:
        lines.append(
            f"{row['records']:8d}{row['features']:9d}{row['batch']:7d}{row['opacus_seconds']:10.3f}"
            f"{row['flat_seconds']:9.3f}{row['linear_seconds']:10.3f}{row['ratio_opacus']:11.1f}{row['ratio_flat']:9.1f}"
            f"{row['opacus_mib']:12.0f}{row['flat_mib']:10.0f}{row['linear_mib']:12.0f}"
            f"{row['relative_difference']:12.1e}"
        )
    if cell := result["cell"]:
        lines.append(
            f"FashionMNIST at record-level epsilon 1, {cell['threads']} thread(s); table records: "
            f"{100 * ACCURACY[0]:.2f} ± {100 * ACCURACY[1]:.2f} %"
        )
        lines += [
            f"{name:>8}{cell[name]['seconds']:8.0f} s{cell[name]['processor_seconds']:8.0f} s of the processor"
            f"{cell[name]['peak_mib']:8.0f} MiB{100 * cell[name]['accuracy']:8.2f} %  "
            f"epsilon {cell[name]['epsilon_record']:.4f}"
            for name in ("teacher", "student")
        ]
        lines.append(f"{'both':>8}{cell['seconds']:8.0f} s")
    return "\n".join(lines)


def main(args: list[str] | None = None) -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=["head", "cell"], default=["head", "cell"])
    parser.add_argument("--sizes", nargs="+", default=SIZES, help="records x features x batch")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--physical", type=int, default=512, help="records whose gradients flat clipping holds at once")
    parser.add_argument("--root", default="data", help="folder of FashionMNIST")
    parser.add_argument("--threads", type=int, default=2, help="of the cell")
    parser.add_argument("--seed", type=int, default=0, help="of the cell")
    parser.add_argument("--teacher", nargs="*", default=[], help="more arguments of the teacher's fit")
    parser.add_argument("--output", type=Path, default=Path("results/benchmarks/records.json"))
    options = parser.parse_args(args)
    warnings.simplefilter("ignore")
    result: dict[str, Any] = {
        "physical": options.physical,
        "rows": [],
        "cell": None,
        "hardware": hardware(),
        "versions": versions(),
        "commit": commit(),
    }
    for size in options.sizes if "head" in options.parts else []:
        records, features, batch = map(int, size.split("x"))
        result["rows"].append(
            measure_head(
                records=records,
                features=features,
                batch=batch,
                steps=options.steps,
                repeats=options.repeats,
                physical=options.physical,
            )
        )
    if "cell" in options.parts:
        result["cell"] = measure_cell(
            root=options.root, threads=options.threads, seed=options.seed, extra=options.teacher
        )
    report(result, table(result), output=options.output)


if __name__ == "__main__":
    main()
