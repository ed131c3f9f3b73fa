"""A frozen encoder as features: of procedural images alone, folded, self-contained, and refused where nobody knows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from support.dp_teachers import SMALL, teacher_by_dp_sgd, trainer_settings
from support.pretrained import encoder_file
from support.runs import checkpoint, configuration, fit
from torch import Tensor

from lightning_modules import load_student
from lightning_modules.cli import main
from lightning_modules.networks import PretrainedClassifier, ResNetEncoder
from lightning_modules.networks.fixed_features import WhitenedFeatures
from lightning_modules.networks.moving_average import moving_average
from lightning_modules.networks.pretrained import (
    JoinedFeatures,
    Patches,
    PretrainedFeatures,
    assumptions_of,
    require_encoder,
)
from lightning_modules.networks.pretraining_file import SECTION, build_encoder, read_pretraining
from lightning_modules.networks.stacked import NetworkStack
from lightning_modules.priors import DeadLeavesPrior
from lightning_modules.publishing.agreement import TOLERANCE
from lightning_modules.publishing.onnx_format import write_onnx
from lightning_modules.publishing.torch_export import write_program
from lightning_modules.teachers.linear_head import linear_head
from lightning_modules.teachers.private_ensemble import PrivateEnsemble
from lightning_modules.teachers.private_model import PrivateModel
from lightning_modules.teachers.private_teacher import PrivateTeacher
from privacy.identity import CheckpointError

SHAPE = (3, 8, 8)
GREY = (1, 8, 8)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Files of encoders for images of one channel and of three."""
    folder = tmp_path_factory.mktemp("pretrained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return {channels: folder / encoder_file(f"of_{channels}", channels=channels) for channels in (1, 3)}


@pytest.fixture
def file(made: dict[int, Path]) -> Path:
    return made[3]


def classifier(file: Path | str, **settings: Any) -> PretrainedClassifier:
    return PretrainedClassifier(
        **{"num_classes": 4, "image_shape": SHAPE, "checkpoint": str(file), "images": 20, **settings}
    )


def pictures(count: int = 6, shape: tuple[int, int, int] = SHAPE) -> Tensor:
    return 2 * torch.rand(count, *shape, generator=torch.Generator().manual_seed(0)) - 1


def as_trained(file: Path) -> ResNetEncoder:
    """The encoder as its pretraining had it."""
    content = torch.load(file, weights_only=True)
    encoder = ResNetEncoder(image_shape=SHAPE, width=4, blocks=[1, 1])
    names = {name.removeprefix("encoder."): v for name, v in content["state_dict"].items() if "encoder." in name}
    encoder.load_state_dict(names)
    return encoder.eval()


@pytest.mark.parametrize("cells", [1, 2, 4])
@pytest.mark.parametrize("stages", [1, 2])
def test_features_are_averages_over_cells_of_the_encoders_maps(file: Path, cells: int, stages: int) -> None:
    found = PretrainedFeatures(read_pretraining(file), image_shape=SHAPE, cells=cells, stages=stages)
    maps = as_trained(file).forward_stages(pictures())[-stages:]
    pooled = [torch.nn.functional.adaptive_avg_pool2d(one, cells).flatten(1) for one in maps]
    expected = torch.cat(pooled, dim=1)
    assert found.output_shape == tuple(expected.shape[1:])
    torch.testing.assert_close(found(pictures()), expected, atol=1e-4, rtol=1e-4)
    # The control: the first weights were others.
    fresh = build_encoder(read_pretraining(file).encoder, image_shape=SHAPE)
    assert not torch.allclose(fresh.eval()(pictures()), maps[-1], atol=0.1)


def test_it_is_frozen_and_each_image_is_by_itself(file: Path) -> None:
    network = classifier(file, patches=Patches(filters=8, patch=3), mirrored=True).train()
    assert linear_head(network) is network.head
    assert not any(isinstance(module, torch.nn.BatchNorm2d) for module in network.modules())
    before = {name: value.clone() for name, value in network.state_dict().items()}
    features = network.forward_features(pictures())
    torch.testing.assert_close(network.forward_features(pictures()[:1]), features[:1], atol=1e-3, rtol=1e-4)
    assert not features.requires_grad and torch.equal(network.eval().forward_features(pictures()), features)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    torch.testing.assert_close(network.forward_features(pictures().flip(-1)), features, atol=1e-3, rtol=1e-4)
    once = classifier(file).forward_features
    assert not torch.allclose(once(pictures().flip(-1)), once(pictures()), atol=0.1)


def test_parts_vary_alike_over_the_priors_images(file: Path) -> None:
    network = classifier(file, patches=Patches(filters=8, patch=3, weight=2.0))
    extractor = network.feature_extractor
    assert isinstance(extractor, WhitenedFeatures) and isinstance(extractor.plain, JoinedFeatures)
    images = DeadLeavesPrior().sample(
        500, image_shape=SHAPE, generator=torch.Generator().manual_seed(0), device=torch.device("cpu")
    )
    with torch.no_grad():
        variances = extractor.plain(images).var(dim=0)
    count = 8 * 4  # channels and cells of the encoder
    assert extractor.plain.output_shape == (count + 2 * 8 * 4,)
    assert float(variances[:count].sum()) == pytest.approx(1, rel=1e-3)
    assert float(variances[count:].sum()) == pytest.approx(4, rel=1e-3)


def test_whitening_is_of_this_encoder_and_no_other(file: Path, tmp_path: Path) -> None:
    """Statistics are kept for whoever wants the same: an encoder with other weights does not."""
    one = classifier(file)
    content = torch.load(file, weights_only=True)
    for name, value in content["state_dict"].items():
        if name.startswith("encoder.") and value.dim() == 4:
            value.copy_(value.flip(0))
    torch.save(content, tmp_path / "other.ckpt")
    other = classifier(tmp_path / "other.ckpt")
    assert not torch.equal(one.feature_extractor.mean, other.feature_extractor.mean)
    assert torch.equal(one.feature_extractor.mean, classifier(file).feature_extractor.mean)


# --- what is taken for an encoder ---


def changed(file: Path, tmp_path: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    content = torch.load(file, weights_only=True)
    change(content)
    torch.save(content, tmp_path / "changed.ckpt")
    return tmp_path / "changed.ckpt"


def test_what_declares_nothing_is_refused_unless_somebody_vouches(file: Path, tmp_path: Path) -> None:
    undeclared = changed(file, tmp_path, lambda content: content[SECTION].update(provenance=None))
    with pytest.raises(ValueError, match=r"does not declare 'procedural images only', got None.*vouched_by"):
        classifier(undeclared)
    vouched = classifier(undeclared, vouched_by="A. Person, ACME")
    (said,) = assumptions_of(vouched)
    assert said.startswith("no private record had a part") and said.endswith("as A. Person, ACME vouches")
    (text,) = assumptions_of(classifier(file))
    assert "procedural images only" in text and hashlib.sha256(file.read_bytes()).hexdigest() in text
    # Built again by what is published, without the file: the name is still there.
    published = PretrainedClassifier.published_arguments(
        {"checkpoint": str(undeclared), "vouched_by": "A. Person, ACME", **vouched.recorded_arguments}
    )
    assert "checkpoint" not in published and "vouched_by" not in published
    assert assumptions_of(PretrainedClassifier(num_classes=4, image_shape=SHAPE, images=20, **published)) == (said,)
    published["recorded"]["vouched_by"] = "A. Person\n- nothing else"
    with pytest.raises(ValueError, match="vouched_by must be a name"):
        PretrainedClassifier(num_classes=4, image_shape=SHAPE, images=20, **published)
    with pytest.raises(ValueError, match="vouched_by must be a name"):
        classifier(undeclared, vouched_by="{a: b}")


def test_a_checkpoint_of_something_else_is_refused(file: Path, tmp_path: Path) -> None:
    for vouched_by in (None, "me"):
        with pytest.raises(ValueError, match="is of no ProceduralPretraining"):
            classifier(changed(file, tmp_path, lambda content: content.pop(SECTION)), vouched_by=vouched_by)
    with pytest.raises(ValueError, match="does not say of which class its encoder is"):
        classifier(changed(file, tmp_path, lambda content: content[SECTION].update(encoder=None)))
    with pytest.raises(ValueError, match="code that a file names is not run"):
        classifier(
            changed(
                file, tmp_path, lambda content: content[SECTION]["encoder"].update({"class": "subprocess.check_output"})
            )
        )
    (tmp_path / "broken.ckpt").write_bytes(file.read_bytes()[:1000])
    with pytest.raises(ValueError, match="cannot be read"):
        classifier(tmp_path / "broken.ckpt")
    with pytest.raises(ValueError, match=r"does not exist\. Make one with: +LightningCLI fit --config sweeps/pretrain"):
        classifier(tmp_path / "absent.ckpt")
    with pytest.raises(ValueError, match="checkpoint must be the file of a ProceduralPretraining, got none"):
        PretrainedClassifier()


def test_images_of_other_channels_are_refused(file: Path) -> None:
    with pytest.raises(ValueError, match=r"does not fit images of shape \(1, 8, 8\)"):
        classifier(file, image_shape=GREY)
    assert classifier(file, image_shape=(3, 12, 10))(pictures(2, (3, 12, 10))).shape == (2, 4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cells": 0}, "cells must be at least 1"),
        ({"cells": 5}, "cells must be at most 4"),
        ({"stages": 3}, "stages must be at most the encoder's 2"),
        ({"patches": Patches(filters=8, patch=3, weight=0.0)}, r"patches\.weight must be above 0"),
    ],
)
def test_settings_without_a_meaning_are_refused(file: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        classifier(file, **settings)


# --- without the file ---


def test_it_is_built_again_without_the_file(file: Path) -> None:
    network = classifier(file)
    again = classifier("gone.ckpt", **network.recorded_arguments)
    assert not torch.allclose(again(pictures()), network(pictures()), atol=0.1)
    with pytest.raises(ValueError, match=r"without the weights of its encoder: leave that out, and give checkpoint"):
        require_encoder(again)
    again.load_state_dict(network.state_dict())
    require_encoder(again)
    assert torch.equal(again(pictures()), network(pictures())) and assumptions_of(again) == assumptions_of(network)


def test_weights_on_another_encoder_are_refused(file: Path, tmp_path: Path) -> None:
    network = classifier(file)
    same_but = changed(file, tmp_path, lambda content: content[SECTION].update(seed=77))
    with pytest.raises(CheckpointError, match="give the file that it was trained with"):
        classifier(same_but).load_state_dict(network.state_dict())
    classifier(file).load_state_dict(network.state_dict())


def test_an_average_of_it_is_of_the_same_file(file: Path) -> None:
    """A digest has no average: cut off, it was one less in each byte, and what was published loaded nowhere."""
    network = classifier(file)
    average = moving_average(network, decay=0.99)
    for _ in range(20):
        with torch.no_grad():
            network.head.weight.add_(1.0)
        average.update_parameters(network)
    again = classifier(file)
    again.load_state_dict(average.module.state_dict())
    assert torch.equal(again(pictures()), average(pictures()))
    assert not torch.equal(again(pictures()), network(pictures()))


def test_as_onnx_and_as_a_program(file: Path, tmp_path: Path) -> None:
    network = classifier(file, patches=Patches(filters=8, patch=3), mirrored=True, stages=2).eval()
    assert write_program(network, tmp_path, image_shape=SHAPE) <= TOLERANCE
    assert write_onnx(network, tmp_path, image_shape=SHAPE) <= TOLERANCE


def spec(path: str, **more: Any) -> dict[str, Any]:
    return {"class_path": "PretrainedClassifier", "init_args": {"checkpoint": path, "images": 20, **more}}


def test_teacher_student_and_export_outlive_the_file(
    made: dict[int, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All through the command line: DP-SGD, its student, and what is published, when the pretraining's file is gone."""
    monkeypatch.chdir(tmp_path)
    Path("encoder.ckpt").write_bytes(made[1].read_bytes())
    digest = hashlib.sha256(made[1].read_bytes()).hexdigest()
    network = spec("encoder.ckpt", patches={"filters": 8, "patch": 3})
    teacher = teacher_by_dp_sgd("dp", target_epsilon=3.0, network=network)
    assert teacher.clipping == "linear" and teacher._features_precomputed
    held = checkpoint("dp")["hyper_parameters"]["network"]["init_args"]["recorded"]
    assert held["sha256"] == digest and held["declared"] is True
    said = json.loads(Path("dp/public/guarantee.json").read_text())["guarantee"]["assumptions"]
    assert any(digest in text and "procedural images only" in text for text in said)

    config = configuration(
        "student", class_path="Distillation", steps=3, annotator={},
        model={
            "teacher": "dp/checkpoints/last.ckpt",
            "annotator": {"class_path": "ResponseAnnotator", "init_args": {}},
            "student": network,
            "pool_size": 32,
        },
    )  # fmt: skip
    config["model"]["init_args"].pop("generator", None)
    student = fit(config).model
    assert student._teacher_takes(student._feature_extractor[0])
    stated = json.loads(Path("student/public/guarantee.json").read_text())["guarantee"]
    assert sum(digest in text for text in stated["assumptions"]) == 1 and stated["epsilon"] <= 3.0
    Path("encoder.ckpt").unlink()

    images = pictures(5, GREY)
    again = PrivateTeacher.load("dp/checkpoints/last.ckpt", num_classes=10, image_shape=GREY)
    torch.testing.assert_close(again.logits(images), teacher.network.eval()(images), atol=1e-4, rtol=1e-4)
    for run, network_of in (("dp", teacher.network), ("student", student.student)):
        main(["export", run, "--to", f"out_{run}"])
        with torch.no_grad():
            torch.testing.assert_close(
                load_student(f"out_{run}")(images), network_of.eval()(images), atol=1e-4, rtol=1e-4
            )
        assert "encoder.ckpt" not in Path(f"out_{run}/config.json").read_text()
        main(["test", "--config", f"{run}/config.yaml", "--ckpt_path", f"{run}/checkpoints/last.ckpt", *TEST])
    with pytest.raises(ValueError, match=r"checkpoint encoder\.ckpt does not exist"):
        teacher_by_dp_sgd("dp2", target_epsilon=3.0, network=network)


TEST = ["--trainer.logger=false", "--trainer.enable_progress_bar=false"]


class Wrapped(torch.nn.Module):
    """A network of anyone's around features of an encoder that somebody vouches for."""

    def __init__(self, num_classes: int, image_shape: tuple[int, int, int], file: str) -> None:
        super().__init__()
        encoder = PretrainedFeatures(read_pretraining(Path(file), vouched_by="A. Person"), image_shape=image_shape)
        self.layers = torch.nn.Sequential(encoder, torch.nn.Linear(encoder.output_shape[0], num_classes))

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.layers(images)
        return logits


def test_a_guarantee_names_who_vouches_for_an_encoder_deep_in_a_network(
    made: dict[int, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = changed(made[1], tmp_path, lambda content: content[SECTION].update(provenance=None))
    network = {"class_path": f"{__name__}.Wrapped", "init_args": {"file": str(file)}}
    teacher = teacher_by_dp_sgd("dp", target_epsilon=3.0, network=network)
    said = json.loads(Path("dp/public/guarantee.json").read_text())["guarantee"]
    vouching = [text for text in said["assumptions"] if text.endswith("as A. Person vouches")]
    assert said["epsilon"] <= 3.0 and len(vouching) == 1
    # Whoever has the teacher from the file or from a script is told as well, and of an ensemble once.
    held: list[PrivateModel] = [
        PrivateTeacher.load(
            "dp/checkpoints/last.ckpt", num_classes=10, image_shape=GREY, network=partial(Wrapped, file=str(file))
        ),
        PrivateTeacher(teacher.network, private_data="mine"),
        PrivateEnsemble(NetworkStack([teacher.network] * 3), num_classes=10, private_data="ours"),
    ]
    assert all(list(one.assumptions) == vouching for one in held)
    assert assumptions_of(torch.nn.Linear(2, 2)) == ()


def test_a_guarantee_of_direct_training_names_who_vouches_for_its_encoder(
    made: dict[int, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = changed(made[1], tmp_path, lambda content: content[SECTION].update(provenance=None))
    vouching = {}
    for folder, network in (
        ("with", {"class_path": f"{__name__}.Wrapped", "init_args": {"file": str(file)}}),
        ("without", SMALL),
    ):
        annotator = {"class_path": "DirectGradientAnnotator", "init_args": {"noise_multiplier": 2.0}}
        data = {"class_path": "Poisson", "init_args": {"dataset": {"class_path": "Digits"}, "batch_size": 512}}
        fit(
            {
                "trainer": trainer_settings(folder, 1),
                "model": {"class_path": "DirectTraining", "init_args": {"network": network, "annotator": annotator}},
                "data": data,
            }
        )
        said = json.loads(Path(folder, "public/guarantee.json").read_text())["guarantee"]["assumptions"]
        vouching[folder] = [text for text in said if text.endswith("as A. Person vouches")]
    assert len(vouching["with"]) == 1 and not vouching["without"]


def test_a_teacher_is_resumed(made: dict[int, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    network = spec(str(made[1]))
    teacher_by_dp_sgd("dp", noise_multiplier=1.0, network=network, epochs=1)
    resumed = teacher_by_dp_sgd(
        "dp", "--ckpt_path", "dp/checkpoints/last.ckpt", noise_multiplier=1.0, network=network, epochs=2
    )
    assert sum(entry[2] for entry in resumed.history) == 6


def test_what_was_written_down_is_no_encoder_to_train_on(
    made: dict[int, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recorded = classifier(made[1], image_shape=GREY).recorded_arguments
    with pytest.raises(ValueError, match="leave that out, and give checkpoint"):
        teacher_by_dp_sgd("dp", noise_multiplier=1.0, network=spec("gone.ckpt", **recorded))
