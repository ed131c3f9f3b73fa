"""FedDF, FedDAFL, FedADI and DENSE on the digits: they learn, every use of the clients' models is charged, ε is inf."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import pytest
import torch
from support.federations import SHAPE, small_networks
from support.runs import QUIET, checkpoint, fit_script, result, shelve, working_in
from torch import nn
from torch.nn import functional as F

from lightning_modules import FedDistillation
from lightning_modules.cli import main
from lightning_modules.federated.fed_distillation import ImageTerms, boundary_support, total_variation
from lightning_modules.images import Images
from lightning_modules.losses.functional import logits_and_statistics
from lightning_modules.networks import DAFLGenerator, SmallCNN
from lightning_modules.student import StudentConfig
from lightning_modules.teachers.config import TeacherConfig
from privacy import BudgetExceeded


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of five clients' models."""
    place = tmp_path_factory.mktemp("clients")
    with working_in(place):
        main(["fit", "--config", "sweeps/methods/clients_digits.yaml", "--model.steps=120", *QUIET])
    shelve(place)
    return place / "teachers" / "digits_clients.ckpt"


def run(name: str, clients: Path, *arguments: str, folder: str = "run") -> FedDistillation:
    given = [
        "--config",
        f"sweeps/methods/{name}_digits.yaml",
        f"--model.teacher.path={clients}",
        "--data.batch_size=64",
    ]
    settings = [*given, f"--trainer.default_root_dir={folder}", *QUIET, *arguments]
    return main(["fit", *settings]).model  # type: ignore[union-attr,no-any-return]


#: By method: what makes its run short, its steps, and an accuracy far above the 10 % of chance that it then reaches.
WIDTH, TERMS = "--model.images.generator.init_args.width=16", "--model.image_terms.steps=20"
SHORT: dict[str, tuple[list[str], int, float]] = {
    "feddf": ([], 100, 0.6),
    "feddafl": ([WIDTH], 40, 0.4),
    "fedadi": ([TERMS], 40, 0.5),
    "dense": ([WIDTH, TERMS], 40, 0.4),
}


@pytest.mark.parametrize(
    "name", ["feddf", "dense", *(pytest.param(name, marks=pytest.mark.slow) for name in ("feddafl", "fedadi"))]
)
def test_a_student_learns_and_the_guarantee_says_that_there_is_none(name: str, clients: Path, folder: Path) -> None:
    arguments, steps, accuracy = SHORT[name]
    few = ["--trainer.max_epochs=1", f"--data.steps_per_epoch={steps}", "--trainer.log_every_n_steps=1"]
    module = run(name, clients, *arguments, *few)
    record = result()
    assert record["accuracy"] > accuracy
    assert module.logged_names() == {name for name in module.trainer.callback_metrics if "privacy/" not in name}
    stated = module.guarantee()
    assert math.isinf(stated.epsilon) and record["epsilon_record"] in ("inf", math.inf)
    assert any("clients sent their models to the server" in one for one in stated.assumptions)
    assert any("does not change with its label" in one for one in stated.assumptions)
    counts = module.session.account.counts(scope="run")
    reasons = [getattr(charge.release, "reason", "") for charge in counts]
    uses_models = name != "feddf"
    assert any("clients' models" in reason for reason in reasons) is uses_models
    # Once in a run, however many clients and steps there are.
    assert sorted(counts.values()) == ([1, steps] if uses_models else [steps])


def test_nothing_is_used_beyond_a_target(clients: Path, folder: Path) -> None:
    with pytest.raises(BudgetExceeded):
        run("dense", clients, "--model.mechanism=RawResponses", "--model.budget.target_epsilon=10")


def test_resumed_as_if_never_interrupted(clients: Path, folder: Path) -> None:
    few = ["--data.steps_per_epoch=3", "--model.image_terms.student_steps=2", "--model.image_terms.steps=2"]
    run("dense", clients, *few, "--trainer.max_epochs=2", folder="whole")
    run("dense", clients, *few, "--trainer.max_epochs=1", folder="part")
    run("dense", clients, *few, "--trainer.max_epochs=2", "--ckpt_path=part/checkpoints/last.ckpt", folder="part")
    whole, part = (checkpoint(place) for place in ("whole", "part"))
    assert torch.equal(whole["image_pool"], part["image_pool"])
    assert all(torch.equal(value, part["state_dict"][key]) for key, value in whole["state_dict"].items())


def test_the_loss_of_images_is_of_the_means_over_all_clients(folder: Path) -> None:
    clients = nn.ModuleList(small_networks(3))
    terms = ImageTerms(steps=1, statistics_weight=2.0, boundary_weight=10.0)
    module = FedDistillation(
        num_classes=10, image_shape=SHAPE, batch_size=16, teacher=TeacherConfig(path=clients),
        student=StudentConfig(network=partial(SmallCNN, width=4, hidden=8)),
        images=Images(generator=partial(DAFLGenerator, width=4, latent_dim=8)),
        image_terms=terms,
    )  # fmt: skip
    fit_script(module, steps=1, batch_size=16)
    module.student.eval()
    images, classes = torch.rand(16, *SHAPE), torch.arange(16) % 10
    logits, distances = zip(*(logits_and_statistics(client.eval(), images) for client in clients), strict=True)
    assert len({float(distance) for distance in distances}) == 3
    mean = torch.stack(logits).mean(0)
    between = boundary_support(mean, module.student(images).detach())
    assert float(between) > 0.01
    expected = F.cross_entropy(mean, classes) + 2 * torch.stack(distances).mean() - 10 * between
    assert float(module.image_loss(images, classes, terms)) == pytest.approx(float(expected), rel=1e-4)


def test_boundary_support_is_of_images_that_are_decided_differently() -> None:
    ensemble = torch.tensor([[2.0, 0.0], [2.0, 0.0]], requires_grad=True)
    student = torch.tensor([[1.0, 0.0], [0.0, 1.0]], requires_grad=True)
    p = torch.tensor([2.0, 0.0]).softmax(0)
    q = torch.tensor([0.0, 1.0]).softmax(0)
    loss = boundary_support(ensemble, student)
    assert float(loss) == pytest.approx(float((p * (p / q).log()).sum()) / 2)
    (gradient,) = torch.autograd.grad(loss, [student])
    assert gradient[0].abs().sum() == 0 and gradient[1].abs().sum() > 0
    assert float(boundary_support(ensemble, ensemble)) == 0


def test_total_variation_is_of_edges_alone() -> None:
    assert float(total_variation(torch.full((3, 1, 8, 8), 0.4))) == 0
    edge = torch.zeros(2, 1, 4, 4)
    edge[..., 2:] = 1.0
    # 4 differences of 1 to the right, none below, 3 on each diagonal.
    assert float(total_variation(edge)) == pytest.approx(2 + 2 * math.sqrt(3))
    noise = torch.randn(2, 1, 8, 8)
    assert float(total_variation(noise)) > float(total_variation(0.5 * noise)) > 0
