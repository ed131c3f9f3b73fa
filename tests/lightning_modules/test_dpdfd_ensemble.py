"""DPDFD Algorithm 2 through the real entry points: what the mechanism is given and charged, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import seed_everything
from support.federations import small_networks
from support.runs import BATCH_SIZE, distil, fit_script, result, watched
from torch import nn

from lightning_modules import DPDFD
from lightning_modules.cli.fit import TranscriptionCLI
from lightning_modules.images import Images
from lightning_modules.losses.targets import Annotation, GradientTargets
from lightning_modules.teachers.config import TeacherConfig
from lightning_modules.teachers.files import TeacherError
from lightning_modules.teachers.private_teacher import PrivateEnsemble
from privacy.mechanisms import NoisyGradients

STEPS = 3


def run(release: str = "ensemble", **model: Any) -> TranscriptionCLI:
    settings: dict[str, Any] = {"teacher": "teachers/ensemble.ckpt", **model}
    return distil(model=settings, mechanism={"release": release}, steps=STEPS)


def test_a_step_asks_each_teacher_once_and_the_record_says_for_whom(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = watched(monkeypatch, PrivateEnsemble, "each")
    model = run(images="both").model
    assert shown == [BATCH_SIZE] * STEPS
    assert model.session.account.num_records == 1435  # of all shards together: δ is compared with 1/N
    record = result()
    assert (record["queries"], record["unit"]) == (STEPS * BATCH_SIZE, "one training record of one teacher")
    assert record["published_claim"].startswith("DPDFD ") and record["published_claim"].endswith("Theorem 3")


@pytest.mark.parametrize(
    ("teacher", "release", "message"),
    [
        ("digits", "ensemble", r"digits\.ckpt holds no ensemble: give a checkpoint of .* TeacherEnsemble"),
        ("ensemble", "per_sample", r"ensemble\.ckpt holds an ensemble, and this method takes one teacher"),
        ("broken", "ensemble", r"teacher 2 of ensemble .* not finite"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_charged(
    place: Path, teacher: str, release: str, message: str
) -> None:
    content = torch.load("teachers/ensemble.ckpt", weights_only=True)
    content["ensemble"]["weights"]["head.bias"][2, 0] = torch.nan
    torch.save(content, "teachers/broken.ckpt")
    with pytest.raises(TeacherError, match=message):
        run(release, teacher=f"teachers/{teacher}.ckpt")
    # A run that is not refused has a ledger there.
    assert not any("reserve" in file.read_text() for file in Path().rglob("*.jsonl"))


def script(teachers: list[nn.Module], *, kind: type[GradientTargets]) -> list[torch.Tensor]:
    """The images of a step without noise on these teachers, what its mechanism is given, and what it gives."""
    seen: list[torch.Tensor] = []

    class Given(kind):  # type: ignore[misc, valid-type]
        def gradients(self, outputs: torch.Tensor, responses: torch.Tensor) -> torch.Tensor:
            seen.append(super().gradients(outputs, responses))
            return seen[-1].clone()

    class Watched(DPDFD):
        def annotate(self, outputs: torch.Tensor, images: torch.Tensor) -> Annotation:
            seen.append(images)
            made = super().annotate(outputs, images)
            seen.append(self.mechanism.norm_bound * made.step)
            return made

    seed_everything(5, verbose=False)
    module = Watched(
        num_classes=10, image_shape=(1, 8, 8), batch_size=BATCH_SIZE, images=Images(source="prior"),
        teacher=TeacherConfig(path=nn.ModuleList(teachers)),
        mechanism=NoisyGradients(release="ensemble", noise_multiplier=0.0),
        gradient_targets=Given(dkd_beta=3.0),
    )  # fmt: skip
    fit_script(module, steps=1)
    return seen


class OfTheMean(GradientTargets):
    """The mutant that asks all teachers for one response: each gradient is then one that every record moves."""

    def gradients(self, outputs: torch.Tensor, responses: torch.Tensor) -> torch.Tensor:
        return super().gradients(outputs, responses.mean(dim=0).expand_as(responses))


@pytest.mark.parametrize("kind", [GradientTargets, OfTheMean])
def test_one_other_teacher_changes_one_teachers_gradients_and_no_others_bits(kind: type[GradientTargets]) -> None:
    """What the price is computed for, on the run itself; later images follow from what was released."""
    networks = small_networks(5)
    (images, one, first), (others, other, second) = (script([*networks[:3], last], kind=kind) for last in networks[3:])
    assert torch.equal(images, others)
    changed = [not torch.equal(one[number], other[number]) for number in range(4)]
    assert changed == ([False] * 3 + [True] if kind is GradientTargets else [True] * 4)
    farthest = float((first - second).norm(dim=1).max())
    assert farthest > 0
    if kind is GradientTargets:
        assert farthest <= 2 * 1e-3 / 4 * (1 + 1e-5)
