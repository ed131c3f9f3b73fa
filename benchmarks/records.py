"""DP-SGD on a linear head as `clipping.mode: linear` takes it, against flat clipping by Opacus.

``python -m benchmarks.records`` takes steps in both ways, from the same weights and batches, over sizes of records,
features and batch, prints time and memory of a step with how far the weights are apart, and writes it all as JSON.

Times are of the processor, on one thread, each way in its own process and the ways in turns, so that ratios hold
on a machine that is busy with other work.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import statistics
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
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
from lightning_modules.teachers.class_prior import PriorCrossEntropy
from lightning_modules.teachers.exact_noise import ExactNoise
from lightning_modules.teachers.record_clipping import Clipping, LinearClipping
from privacy.mechanisms.noise import SystemNoise

CLASSES, NORM = 10, 0.1
#: Noise that is drawn as ever and changes no weight, so that results can be compared.
NOISE = 1e-12

SIZES = ["10000x972x1024", "58800x3969x1024", "58800x3969x8192", "20000x15552x8192"]


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
    """Flat clipping by plain Opacus, in pieces of ``physical`` records."""
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


def steps_of_ours(network: Head, inputs: Tensor, labels: Tensor, batches: list[Tensor]) -> None:
    """Whole batches at once, without gradients of single records."""
    clipping = LinearClipping(network, Clipping(max_grad_norm=NORM), PriorCrossEntropy())
    optimizer = ExactNoise(
        torch.optim.SGD(network.parameters(), lr=1.0), noise_multiplier=NOISE, max_grad_norm=NORM,
        expected_batch_size=len(batches[0]),
    )  # fmt: skip
    optimizer.source = SystemNoise()
    records = MappedRecords(inputs, labels)
    # As `PoissonLoader` fetches a batch.
    held = inputs.new_empty(len(batches[0]), *inputs.shape[1:])
    for batch in batches:
        optimizer.zero_grad()
        optimizer.sums = clipping.sums(*records.into(held, batch), network)
        optimizer.step()


def take_steps(
    way: str, *, records: int, features: int, batch: int, steps: int, physical: int
) -> tuple[float, float, Any]:
    """Processor seconds per step, memory beyond the data in MiB, and the weights."""
    torch.set_num_threads(1)
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(records, features, generator=draw).mul_(features**-0.5)
    labels = torch.randint(CLASSES, (records,), generator=draw)
    batches = [torch.randperm(records, generator=draw)[:batch] for _ in range(steps + 1)]
    network = Head(features)

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    if way == "opacus":
        steps_of_opacus(network, inputs, labels, batches, physical=physical)
    else:
        steps_of_ours(network, inputs, labels, batches)
    # With the kernel's: memory that is taken and given back costs as well.
    seconds = (time.process_time() - start) / len(batches)
    weights = torch.cat([parameter.detach().flatten() for parameter in network.parameters()])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return seconds, (peak - before) / 1024, weights.numpy()


def measured(way: str, **sizes: int) -> tuple[float, float, Tensor]:
    """``take_steps`` in a separate process, which may run out of memory alone."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as process:
        seconds, mib, weights = process.submit(take_steps, way, **sizes).result()
    return seconds, mib, torch.from_numpy(weights)


def measure_head(*, records: int, features: int, batch: int, steps: int, repeats: int, physical: int) -> dict[str, Any]:
    """One row: each way in turns, medians over ``repeats``."""
    sizes = {"records": records, "features": features, "batch": batch, "steps": steps, "physical": physical}
    found: dict[str, list[tuple[float, float, Tensor]]] = {way: [] for way in ("opacus", "linear")}
    for _ in range(repeats):
        for way in found:
            found[way].append(measured(way, **sizes))
    row: dict[str, Any] = {"records": records, "features": features, "batch": batch}
    for way, runs in found.items():
        row[f"{way}_seconds"] = statistics.median(seconds for seconds, _, _ in runs)
        row[f"{way}_mib"] = statistics.median(mib for _, mib, _ in runs)
    pairs = zip(found["opacus"], found["linear"], strict=True)
    row["ratio_opacus"] = statistics.median(other[0] / own[0] for other, own in pairs)
    theirs, own = found["opacus"][0][2], found["linear"][0][2]
    row["relative_difference"] = float((theirs - own).norm() / theirs.norm())
    return row


def table(result: dict[str, Any]) -> str:
    """The measurement as text; a ratio above 1 means that the other way takes that many times as long."""
    lines = [
        f"DP-SGD on a linear head, {CLASSES} classes, one thread; seconds of the processor per step, MiB beyond the "
        f"data; Opacus in pieces of {result['physical']}",
        f"{'records':>8}{'features':>9}{'batch':>7}{'Opacus s':>10}{'linear s':>10}{'vs Opacus':>11}{'Opacus MiB':>12}"
        f"{'linear MiB':>12}{'difference':>12}",
    ]
    lines += [
        f"{row['records']:8d}{row['features']:9d}{row['batch']:7d}{row['opacus_seconds']:10.3f}"
        f"{row['linear_seconds']:10.3f}{row['ratio_opacus']:11.1f}{row['opacus_mib']:12.0f}{row['linear_mib']:12.0f}"
        f"{row['relative_difference']:12.1e}"
        for row in result["rows"]
    ]
    return "\n".join(lines)


def main(args: list[str] | None = None) -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", nargs="+", default=SIZES, help="records x features x batch")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--physical", type=int, default=512, help="records that Opacus takes at once")
    parser.add_argument("--output", type=Path, default=Path("results/benchmarks/records.json"))
    options = parser.parse_args(args)
    warnings.simplefilter("ignore")
    sizes = {"steps": options.steps, "repeats": options.repeats, "physical": options.physical}
    names = ("records", "features", "batch")
    shapes = [dict(zip(names, map(int, size.split("x")), strict=True)) for size in options.sizes]
    rows = [measure_head(**shape, **sizes) for shape in shapes]
    report({"physical": options.physical, "rows": rows}, table, output=options.output)


if __name__ == "__main__":
    main()
