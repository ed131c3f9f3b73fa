"""Fixed features owe nothing to the private records: another private set leaves every bit as it was before DP-SGD."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.dp_teachers import dp_sgd
from support.features import linear_spec
from support.runs import fit
from torch import Tensor

from datamodules.records import ImageDataset
from lightning_modules import DPSGDTeacher
from lightning_modules.networks import feature_cache

NETWORKS: dict[str, Any] = {
    "patches": linear_spec("Patches", whitening={"images": 20, "mirrored": True}, filters=8, patch=3),
    "kernels": linear_spec("Kernels", whitening={"images": 20, "mirrored": True}, first_anchors=6, anchors=8, cells=1),
    "scattering": linear_spec(),
}


def before_the_first_step(network: str, monkeypatch: pytest.MonkeyPatch, *, swap: bool) -> dict[str, Tensor]:
    """The network's state when DP-SGD begins, and what it makes of public images; on the digits or their negatives."""
    kept: dict[str, Tensor] = {}
    start = DPSGDTeacher.on_train_start

    def keep(self: DPSGDTeacher) -> None:
        kept.update({name: value.clone() for name, value in self.network.state_dict().items()})
        public = 2 * torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(0)) - 1
        kept["logits of public images"] = self.network(public).detach()
        kept["private images"] = self.trainer.datamodule.train_dataloader().records.inputs.clone()  # type: ignore[attr-defined]
        start(self)

    with monkeypatch.context() as patch:
        patch.setattr(DPSGDTeacher, "on_train_start", keep)
        patch.setattr(feature_cache, "_cache", {})  # nothing is taken over from another private set
        if swap:
            fetch = ImageDataset.__getitems__
            patch.setattr(ImageDataset, "__getitems__", lambda *given: (-fetch(*given)[0], fetch(*given)[1]))
        data = {"batch_size": 64, "steps_per_epoch": 1}
        fit(dp_sgd(data=data, network=NETWORKS[network], noise_multiplier=1.0))
    return kept


def differing(network: str, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    one, other = (before_the_first_step(network, monkeypatch, swap=swap) for swap in (False, True))
    assert one.keys() == other.keys() and "head.weight" in one
    return {name for name, value in one.items() if not torch.equal(value, other[name])}


@pytest.mark.parametrize("network", NETWORKS)
def test_another_private_set_changes_no_bit_before_dp_sgd(network: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert differing(network, monkeypatch) == {"private images"}


def test_the_mutant_that_whitens_by_the_records_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare = DPSGDTeacher._precompute

    def of_the_records(self: DPSGDTeacher) -> None:
        images = self._poisson.dataset.train_records.__getitems__(range(100))[0]
        self.network.feature_extractor.mean.copy_(  # type: ignore[union-attr, operator]
            self.network.feature_extractor.before_whitening(images).mean(dim=0)  # type: ignore[union-attr, operator]
        )
        prepare(self)

    monkeypatch.setattr(DPSGDTeacher, "_precompute", of_the_records)
    found = differing("patches", monkeypatch)
    assert {"feature_extractor.mean", "logits of public images"} <= found
