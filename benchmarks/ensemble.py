"""Time to train n teachers together, against one after another, at equal quality.

``python -m benchmarks.ensemble`` trains the same teachers from the same draws in both ways, on shards of MNIST (or of
the digits: ``--dataset Digits``), prints both times with the accuracy of either ensemble, and writes them as JSON.

One after another is the plainest loop, on one core and with no framework around it; on a CPU once more with as many
threads inside each operation as torch would use. Together is ``Trainer.fit`` of ``TeacherEnsemble``. On a CPU both must
end at the same bits. A machine that is busy with other work measures that work.
"""

from __future__ import annotations

import argparse
import logging
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning import Trainer, seed_everything
from torch import nn
from torch.nn import functional as F

from benchmarks.reporting import report
from datamodules import MNIST, Digits, ImageDataModule, Shards
from lightning_modules.networks import SmallCNN, TwoConvNet
from lightning_modules.networks.stacked import NetworkStack
from lightning_modules.runtime.runs import commit, hardware, versions
from lightning_modules.teachers.ensemble import TeacherEnsemble, rate_factor, shuffled_passes

NETWORKS = {"SmallCNN": SmallCNN, "TwoConvNet": TwoConvNet}


def synchronised() -> float:
    """The time, once the device has done what it was told."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def one_after_another(
    module: TeacherEnsemble, data: Shards, *, device: torch.device, threads: int
) -> tuple[list[nn.Module], float]:
    """Trains each teacher of ``module`` by itself: the networks, and the seconds."""
    assert module.draw_seed is not None
    shards = data.shards.to(device)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    networks = []
    start = synchronised()
    for teacher in range(data.num_teachers):
        network = module._fresh_network(seed=module.draw_seed, teacher=teacher).to(device)
        optimizer = torch.optim.Adam(network.parameters(), lr=3e-3, fused=True)
        positions = shards.positions(teacher)
        order = positions.start + shuffled_passes(
            len(positions), first=0, count=module.steps * data.batch_size, seed=module.draw_seed, teacher=teacher
        )
        for step, rows in enumerate(order.to(device).view(module.steps, data.batch_size)):
            images, labels = shards.records.__getitems__(rows)
            optimizer.param_groups[0]["lr"] = 3e-3 * rate_factor(module.schedule, step=step, steps=module.steps)
            optimizer.zero_grad()
            F.cross_entropy(network(images), labels).backward()
            optimizer.step()
        networks.append(network)
    seconds = synchronised() - start
    torch.set_num_threads(before)
    return [network.cpu() for network in networks], seconds


def together(module: TeacherEnsemble, data: Shards) -> float:
    """Seconds of the whole fit, the framework's own included, without evaluation and checkpoints."""
    trainer = Trainer(
        max_epochs=-1, accelerator="auto", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, limit_val_batches=0, num_sanity_val_steps=0,
    )  # fmt: skip
    start = synchronised()
    trainer.fit(module, datamodule=data)
    return synchronised() - start


def accuracies(networks: list[nn.Module], data: Shards, *, images: int, device: torch.device) -> tuple[float, float]:
    """Mean accuracy of single teachers, and accuracy of their vote, on test images."""
    records = data.dataset.test_records
    inputs, labels = records.__getitems__(list(range(min(images, len(records)))))
    decisions = NetworkStack(networks).logits(inputs.to(device)).argmax(dim=2).cpu()
    counts = F.one_hot(decisions, data.num_classes).sum(dim=0)
    return float((decisions == labels).double().mean()), float((counts.argmax(dim=1) == labels).double().mean())


def same_bits(first: list[nn.Module], second: list[nn.Module]) -> bool:
    """Whether two lists of networks are equal in every weight and statistic."""
    pairs = [(a.state_dict(), b.state_dict()) for a, b in zip(first, second, strict=True)]
    return all(torch.equal(a[name], b[name]) for a, b in pairs for name in a)


def measure(dataset: ImageDataModule, n: int, *, options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """One row of the table."""
    data = Shards(dataset=dataset, num_teachers=n, batch_size=options.batch_size, steps_per_epoch=options.steps)
    data.setup("fit")
    seed_everything(0, verbose=False)
    module = TeacherEnsemble(
        num_classes=data.num_classes,
        image_shape=data.image_shape,
        network=NETWORKS[options.network],
        steps=options.steps,
        teachers_at_once=min(n, options.teachers_at_once),
        workers=options.workers,
    )
    seconds = together(module, data)
    ours = accuracies(module.trained, data, images=options.images, device=device)
    alone, alone_seconds = one_after_another(module, data, device=device, threads=1)
    theirs = accuracies(alone, data, images=options.images, device=device)
    row = {
        "teachers": n,
        "records_per_teacher": len(data.shards.records) / n,
        "together_seconds": seconds,
        "one_after_another_seconds": alone_seconds,
        "ratio": alone_seconds / seconds,
        "together_mean_accuracy": ours[0],
        "together_vote_accuracy": ours[1],
        "one_after_another_mean_accuracy": theirs[0],
        "one_after_another_vote_accuracy": theirs[1],
        "same_bits": same_bits(module.trained, alone),
    }
    if device.type == "cpu" and torch.get_num_threads() > 1:
        _, more = one_after_another(module, data, device=device, threads=torch.get_num_threads())
        row |= {"one_after_another_all_threads_seconds": more, "ratio_all_threads": more / seconds}
    return row


def table(result: dict[str, Any]) -> str:
    """The measurement as text; a ratio above 1 means that one after another takes that many times as long."""
    lines = [
        f"{result['network']} on {result['dataset']}, {result['steps']} steps of {result['batch_size']}; "
        f"{result['hardware']}; workers {result['workers']}",
        f"{'teachers':>8}{'alone s':>10}{'together s':>12}{'ratio':>8}{'vs all threads':>16}"
        f"{'mean acc. alone, together':>28}{'vote alone, together':>24}{'same bits':>11}",
    ]
    for row in result["rows"]:
        more = f"{row['ratio_all_threads']:.2f}" if "ratio_all_threads" in row else "-"
        mean = f"{row['one_after_another_mean_accuracy']:.4f}, {row['together_mean_accuracy']:.4f}"
        vote = f"{row['one_after_another_vote_accuracy']:.4f}, {row['together_vote_accuracy']:.4f}"
        lines.append(
            f"{row['teachers']:8d}{row['one_after_another_seconds']:10.2f}{row['together_seconds']:12.2f}"
            f"{row['ratio']:8.2f}{more:>16}{mean:>28}{vote:>24}{row['same_bits']!s:>11}"
        )
    return "\n".join(lines)


def main(args: list[str] | None = None) -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--teachers", type=int, nargs="+", default=[16, 64, 250])
    parser.add_argument("--dataset", choices=["MNIST", "Digits"], default="MNIST")
    parser.add_argument("--root", default="data")
    parser.add_argument("--network", choices=list(NETWORKS), default="SmallCNN")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--teachers-at-once", type=int, default=250)
    parser.add_argument("--workers", type=int, default=None, help="threads on a CPU; default: as many as torch uses")
    parser.add_argument("--images", type=int, default=1000, help="test images for the accuracies")
    parser.add_argument("--output", type=Path, default=Path("results/benchmarks/ensemble.json"))
    options = parser.parse_args(args)
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dataset = Digits() if options.dataset == "Digits" else MNIST(root=options.root)
    # The first steps in a process pay for what later ones find ready.
    quick = argparse.Namespace(**{**vars(options), "steps": 2})
    measure(dataset, 2, options=quick, device=device)
    rows = [measure(dataset, n, options=options, device=device) for n in options.teachers]
    result = {
        "dataset": options.dataset,
        "network": options.network,
        "steps": options.steps,
        "batch_size": options.batch_size,
        "teachers_at_once": options.teachers_at_once,
        "workers": options.workers or torch.get_num_threads(),
        "rows": rows,
        "hardware": hardware(),
        "versions": versions(),
        "commit": commit(),
    }
    report(result, table(result), output=options.output)


if __name__ == "__main__":
    main()
