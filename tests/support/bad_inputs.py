"""Values that a user gets wrong, and what is to be said of each: the table of `docs/errors.md`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch

__all__ = ["BAD", "Bad"]

Bad = tuple[str, tuple[str, ...], Callable[[], None] | None]
"""What is wrong, in words; the arguments; what is done before."""

FIT = ("fit", "--config", "sweeps/dpdfd_digits.yaml", "--trainer.max_epochs=1")


def _fit(*more: str) -> tuple[str, ...]:
    return (*FIT, *more)


def _corrupt() -> None:
    Path("corrupt.ckpt").write_bytes(b"no checkpoint")


def _truncate() -> None:
    content = Path("teachers/digits.ckpt").read_bytes()
    Path("teachers/half.ckpt").write_bytes(content[: len(content) // 2])


def _other_architecture() -> None:
    torch.save({"weight": torch.zeros(2)}, "teachers/other.pt")


def _idx(*, size: int) -> None:
    folder = Path("data/MNIST/raw")
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", 60000), ("t10k", 10000)):
        (folder / f"{part}-images-idx3-ubyte").write_bytes(
            b"\0\0\x08\x03" + count.to_bytes(4, "big") + (28).to_bytes(4, "big") * 2 + b"\0" * size
        )
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01" + count.to_bytes(4, "big") + b"\0" * size)


def _truncated_images() -> None:
    _idx(size=100)


def _occupied() -> None:
    Path("occupied").write_text("a file where a folder is wanted")


def _broken_yaml() -> None:
    Path("broken.yaml").write_text("model: {class_path: DPDFD\ntrainer: 3\n")


MNIST = ("--config", "sweeps/teacher_mnist.yaml", "--trainer.max_epochs=1")
DPSD = ("fit", "--config", "sweeps/methods/dpsd_digits.yaml", "--trainer.max_epochs=1")
SMALL = ("--model.teacher_network=SmallCNN",)
ANNOTATOR = "--model.annotator"

BAD: list[Bad] = [
    ("negative noise", _fit(f"{ANNOTATOR}.noise_multiplier=-1"), None),
    (
        "negative noise, where the annotator may be of two classes",
        (*DPSD, f"{ANNOTATOR}.noise_multiplier=-1"),
        None,
    ),
    ("δ of 0", _fit(f"{ANNOTATOR}.delta=0"), None),
    ("δ of 1", _fit(f"{ANNOTATOR}.delta=1"), None),
    ("δ above one in the number of records", _fit(f"{ANNOTATOR}.delta=0.01"), None),
    ("ε of 0", _fit(f"{ANNOTATOR}.target_epsilon=0"), None),
    ("ε that is no number", _fit(f"{ANNOTATOR}.target_epsilon=low"), None),
    ("an ε too small for one step", _fit(f"{ANNOTATOR}.target_epsilon=1e-6"), None),
    ("an empty batch", _fit("--data.batch_size=0"), None),
    ("no steps", _fit("--data.steps_per_epoch=0"), None),
    ("a GPU where there is none", _fit("--trainer.accelerator=gpu"), None),
    ("a number that is none", _fit("--trainer.max_epochs=many"), None),
    ("a checkpoint that is missing", _fit("--ckpt_path=missing.ckpt"), None),
    ("a checkpoint that is none", ("test", *FIT[1:], "--ckpt_path=corrupt.ckpt"), _corrupt),
    ("gradients accumulated", _fit("--trainer.accumulate_grad_batches=2"), None),
    ("gradients clipped by the trainer", _fit("--trainer.gradient_clip_val=1"), None),
    ("double precision", _fit("--trainer.precision=64"), None),
    ("a method spelt wrong", ("fit", "--model=DPDFDD"), None),
    ("a network spelt wrong", _fit("--model.student=SmalCNN"), None),
    ("a prior spelt wrong", _fit("--model.images.prior=StrokPrior"), None),
    ("a data set spelt wrong", _fit("--data.dataset=MNITS"), None),
    ("a command spelt wrong", ("fti", *FIT[1:]), None),
    ("a setting spelt wrong", _fit("--model.images.sorce=prior"), None),
    ("a group of settings spelt wrong", _fit("--model.annotater.delta=1e-5"), None),
    ("a network's setting spelt wrong", _fit("--model.student.widht=3"), None),
    ("a setting of the data spelt wrong", _fit("--data.step_per_epoch=3"), None),
    ("an option cut short", _fit("--trainer.max_epoch=1"), None),
    ("a choice that is none", _fit("--model.images.source=priors"), None),
    ("a configuration that is missing", ("fit", "--config", "sweeps/missing.yaml"), None),
    ("a configuration that is not YAML", ("fit", "--config", "broken.yaml"), _broken_yaml),
    ("a teacher that is missing", _fit("--model.teacher=teachers/missing.ckpt"), None),
    ("a teacher's file cut short", _fit("--model.teacher=teachers/half.ckpt"), _truncate),
    ("a teacher of another architecture", _fit("--model.teacher=teachers/other.pt", *SMALL), _other_architecture),
    ("data that are missing", ("fit", *MNIST), None),
    ("a data file cut short", ("fit", *MNIST), _truncated_images),
    ("a run's folder that is a file", _fit("--trainer.default_root_dir=occupied"), _occupied),
    ("a run to export that is missing", ("export", "runs/missing", "--to", "public"), None),
]  # fmt: skip

assert os.sep == "/"  # paths in the table
