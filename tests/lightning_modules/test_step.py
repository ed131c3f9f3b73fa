"""What makes a step fast changes nothing in what it computes, and no value of a step is waited for by Python.

Counted on a CPU. What it cannot show is a copy from the device: the mechanism makes one, of B gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from lightning import Callback, LightningModule, Trainer
from support.features import linear
from support.runs import fit_script
from torch.utils._python_dispatch import TorchDispatchMode

from lightning_modules import DPDFD, DPSD
from lightning_modules.images import Images
from lightning_modules.networks import LinearOnFeatures, SmallCNN
from lightning_modules.networks.feature_cache import same_module
from lightning_modules.teachers.config import TeacherConfig
from lightning_modules.teachers.private_teacher import PrivateTeacher
from privacy import Budget
from privacy.mechanisms import NoisyGradients

SHAPE = (1, 12, 12)


# --- a teacher that shares its features ---


def whitened(seed: int, **settings: Any) -> LinearOnFeatures:
    torch.manual_seed(seed)
    return linear(whitened=True, num_classes=3, image_shape=SHAPE, images=20, **settings).eval()


def test_features_are_shared_where_they_are_the_same() -> None:
    student, network = whitened(0), whitened(1)
    teacher = PrivateTeacher(network, private_data="none")
    extractor = student.feature_extractor
    images = torch.rand(5, *SHAPE)
    assert teacher.shares_extractor(extractor)
    assert torch.equal(teacher.logits_of_extracted(extractor(images)), teacher.logits(images))
    assert not teacher.shares_extractor(None)
    assert not teacher.shares_extractor(whitened(0, power=0.5).feature_extractor)
    assert not teacher.shares_extractor(whitened(0, groups=9).feature_extractor)
    assert not PrivateTeacher(SmallCNN(image_shape=SHAPE), private_data="none").shares_extractor(extractor)


def test_one_changed_buffer_is_noticed() -> None:
    one, other = whitened(0).feature_extractor, whitened(0).feature_extractor
    assert same_module(one, other)
    other.plain.get_buffer("wavelets0")[0, 0, 0] += 1e-3  # which no state_dict holds
    assert not same_module(one, other)


# --- no waiting for a device ---


class Waits(TorchDispatchMode):
    """Counts what would wait for a GPU: a value of a tensor that Python is given."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        by_mask = name == "aten.index.Tensor" and any(i is not None and i.dtype == torch.bool for i in args[1])
        # A mask's number of elements is only known once it has been computed.
        if by_mask or name in (
            "aten._local_scalar_dense.default",
            "aten.nonzero.default",
            "aten.masked_select.default",
        ):
            self.found.append(name)
        return func(*args, **(kwargs or {}))


class Watch(Callback):
    """Counts over whole steps of a fit, with what the loop does between them."""

    def __init__(self) -> None:
        self.mode: Waits | None = None
        self.counts: list[list[str]] = []

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._stop()
        self.mode = Waits()
        self.mode.__enter__()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._stop()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._stop()

    def _stop(self) -> None:
        if self.mode is not None:
            self.mode.__exit__(None, None, None)
            self.counts.append(self.mode.found)
            self.mode = None


def waits_of(build: Callable[..., LightningModule], **settings: Any) -> list[list[str]]:
    torch.manual_seed(0)
    teacher = TeacherConfig(path=SmallCNN(num_classes=4, image_shape=SHAPE))
    module = build(num_classes=4, image_shape=SHAPE, batch_size=8, teacher=teacher, **settings)
    watch = Watch()
    fit_script(module, steps=4, callbacks=[watch])
    return watch.counts[1:-1]  # the first sets up, the last is logged


# DPSD's data switch: how many candidates a label has is decided by what the student says.
@pytest.mark.parametrize(("kind", "source"), [(DPDFD, "prior"), (DPDFD, "generator"), (DPSD, "prior")])
def test_a_step_waits_for_no_device(kind: Any, source: Any) -> None:
    budget = Budget(target_epsilon=1e6, accounting="published")
    assert waits_of(kind, mechanism=NoisyGradients(), budget=budget, images=Images(source=source)) == [[], []]
